from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmuls import make_matmul
from tencost.workers.evaluator import (
    MeasureOptions,
    adaptive_times,
    coefficient_of_variation,
    local_timer,
    waited_s,
)


class FakeProgram:
    """A timer over given times that notes how it was called: only the order of the calls is tested."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)
        self.calls: list[tuple[int, int, float]] = []

    def __call__(self, number: int, repeat: int, min_repeat_ms: float) -> list[float]:
        self.calls.append((number, repeat, min_repeat_ms))
        return [self.times.pop(0) for _ in range(repeat)]


def test_a_steady_program_is_timed_repeat_times() -> None:
    program = FakeProgram(0.001, 0.001, 0.001, 0.001)
    options = MeasureOptions(repeat=3, max_repeat=12, min_repeat_ms=10)
    assert adaptive_times(program, options) == [0.001] * 3
    assert program.calls == [(1, 1, 0.0), (10, 3, 10)]


def test_a_scattering_program_is_timed_until_the_limit() -> None:
    program = FakeProgram(*([0.02, 0.04] * 8))
    times = adaptive_times(program, MeasureOptions(repeat=3, max_repeat=8))
    assert len(times) == 8
    assert [repeat for _, repeat, _ in program.calls] == [1, 2, 3, 2], (
        "one run makes a time, and the first is one of them"
    )


def test_times_that_settle_end_the_repeating() -> None:
    program = FakeProgram(0.02, 0.02, 0.04, *([0.02] * 30))
    options = MeasureOptions(repeat=3, max_repeat=33, max_cv=0.2)
    times = adaptive_times(program, options)
    assert times[:3] == [0.02, 0.02, 0.04]
    assert 3 < len(times) < 33
    assert coefficient_of_variation(times) <= 0.2


def test_a_slow_program_is_timed_once() -> None:
    program = FakeProgram(0.2)
    assert adaptive_times(program, MeasureOptions(slow_ms=150)) == [0.2]


def test_with_cold_caches_a_time_averages_fewer_runs_as_flushing_takes_longer() -> None:
    program = FakeProgram(*[0.0001] * 4)
    adaptive_times(program, MeasureOptions(repeat=3, cache_flush=True))
    assert program.calls == [(1, 1, 0.0), (50, 3, 10.0)]


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=20))
def test_the_coefficient_of_variation_has_no_unit(times: list[float]) -> None:
    value = coefficient_of_variation(times)
    assert value >= 0
    assert math.isclose(
        coefficient_of_variation([1e3 * item for item in times]), value, rel_tol=1e-6, abs_tol=1e-9
    )


def test_one_time_does_not_vary() -> None:
    assert coefficient_of_variation([0.5]) == 0.0
    assert coefficient_of_variation([1.0, 1.0]) == 0.0
    assert coefficient_of_variation([1.0, 3.0]) == pytest.approx(2**0.5 / 2)


def test_what_is_written_as_provenance_by_default() -> None:
    assert MeasureOptions().settings() == {
        "number": 1,
        "repeat": 3,
        "max_repeat": 3,
        "max_cv": 0.1,
        "min_repeat_ms": 10.0,
        "slow_ms": 150.0,
        "cache_flush": False,
        "build_timeout_s": 30.0,
        "run_timeout_s": 10.0,
    }


def test_a_program_as_slow_as_the_limit_is_repeated() -> None:
    program = FakeProgram(*[0.15] * 3)
    assert len(adaptive_times(program, MeasureOptions(slow_ms=150, repeat=3))) == 3


def test_one_time_that_was_taken_already_is_enough() -> None:
    program = FakeProgram(0.02)
    assert adaptive_times(program, MeasureOptions(repeat=1)) == [0.02]
    assert program.calls == [(1, 1, 0.0)]


def test_times_that_scatter_as_much_as_is_allowed_do() -> None:
    program = FakeProgram(*[0.02] * 12)
    assert len(adaptive_times(program, MeasureOptions(repeat=3, max_repeat=12, max_cv=0.0))) == 3


def test_a_program_that_takes_no_time_at_all_is_not_run_for_ever() -> None:
    program = FakeProgram(*[0.0, 1e-9, 1e-9, 1e-9])
    adaptive_times(program, MeasureOptions(repeat=3))
    assert [number for number, _, _ in program.calls] == [1, 100_000]


class Watched:
    """A compiled module; notes what is run before each time."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.before: list[tuple[str, int, int]] = []

    def time_evaluator(self, *words: Any, f_preproc: str, **options: Any) -> Any:
        self.before.append((f_preproc, options["number"], options["repeat"]))
        return self.function.time_evaluator(*words, f_preproc=f_preproc, **options)


@pytest.mark.tvm
def test_a_compiled_program_is_timed_with_the_caches_flushed_where_asked() -> None:
    import tvm

    function = Watched(tvm.compile(make_matmul(16), target=tvm.target.Target("llvm")).jit())
    tensors = [tvm.runtime.tensor(np.ones((16, 16), "float32")) for _ in range(3)]
    for flush in (False, True):
        times = local_timer(function, tensors, tvm.cpu(), flush=flush)(2, 3, 0.0)
        assert len(times) == 3
        assert all(0 < seconds < 1 for seconds in times)
    assert function.before == [("", 2, 3), ("cache_flush_cpu_non_first_arg", 1, 6)]
    np.testing.assert_allclose(tensors[2].numpy(), 16.0)


@pytest.fixture
def rival() -> Iterator[None]:
    """Have this process share one CPU with another that never rests."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()
        os.sched_setaffinity(0, before)


@pytest.mark.tvm
@pytest.mark.skipif(waited_s() == 0.0, reason="needs /proc/thread-self/schedstat, of Linux")
def test_what_others_take_of_the_cpu_is_not_the_program_s_time(rival: None) -> None:
    import tvm

    function = tvm.compile(make_matmul(96), target=tvm.target.Target("llvm")).jit()
    tensors = [tvm.runtime.tensor(np.ones((96, 96), "float32")) for _ in range(3)]
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(5):
        for alone, found in seconds.items():
            timer = local_timer(function, tensors, tvm.cpu(), flush=False, alone=alone)
            found += timer(10, 3, 20.0)
    assert np.median(seconds[True]) < 0.8 * np.median(seconds[False])
