"""A process that ends between two programs, and programs that end or disturb their process: nobody else pays."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from matmuls import make_matmul
from process_words import words_of
from tencost.store.status import Status, Timing
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.warm_worker import WarmWorker
from worker_programs import calling, written

pytestmark = pytest.mark.tvm

SMALL, LARGE = 64, 2048
OPTIONS = MeasureOptions(
    number=1, repeat=1, max_repeat=1, min_repeat_ms=0, run_timeout_s=60, slow_ms=0
)


@pytest.fixture(scope="module")
def worker() -> Iterator[WarmWorker]:
    with closing(WarmWorker(OPTIONS, cores=1)) as worker:
        yield worker


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Element-wise squares; the large one takes some thousand times longer."""
    folder = tmp_path_factory.mktemp("programs")
    return {size: written(squares(size), folder / f"{size}.json") for size in (SMALL, LARGE)}


def squares(size: int) -> Any:
    from tvm import IRModule, te

    a = te.placeholder((size, size), name="A")
    b = te.compute((size, size), lambda i, j: a[i, j] * a[i, j], name="B")
    return IRModule({"main": te.create_prim_func([a, b])})


def fast_matmul(size: int) -> Any:
    from tvm.s_tir import Schedule

    schedule = Schedule(make_matmul(size))
    i, j, k = schedule.get_loops(schedule.get_sblock("matmul"))
    schedule.reorder(i, k, j)
    schedule.vectorize(j)
    return schedule.mod


def square(size: int) -> list[list[Any]]:
    return [["TENSOR", "float32", [size, size]]] * 2


def children(worker: WarmWorker) -> list[psutil.Process]:
    servers = [
        process
        for process in psutil.Process().children()
        if "tencost.workers.worker" in words_of(process)
    ]
    return [child for server in servers for child in server.children()]


def test_times_stay_with_their_programs_when_an_idle_process_is_killed(
    worker: WarmWorker, programs: dict[int, Path], target: dict[str, Any]
) -> None:
    def run(size: int) -> Timing:
        return worker.measure(programs[size], target, square(size))

    alone = {size: run(size) for size in (SMALL, LARGE)}
    boundary = (alone[SMALL].run_secs[0] * alone[LARGE].run_secs[0]) ** 0.5
    for _ in range(3):
        for child in children(worker):
            os.kill(child.pid, signal.SIGKILL)
        for size in (SMALL, LARGE, SMALL, LARGE):
            timing = run(size)
            assert timing.status is Status.ok, timing.error
            assert (timing.run_secs[0] > boundary) == (size == LARGE)


def test_matmuls_keep_their_times_through_kills(
    worker: WarmWorker, tmp_path: Path, target: dict[str, Any]
) -> None:
    chance = random.Random(3)
    paths = {size: written(fast_matmul(size), tmp_path / f"{size}.json") for size in (SMALL, LARGE)}
    seen: dict[int, list[float]] = {size: [] for size in paths}
    for _ in range(8):
        size = chance.choice(list(paths))
        if chance.random() < 0.5:
            worker.process.kill()
        elif chance.random() < 0.5:
            for child in children(worker):
                child.kill()
        timing = worker.measure(paths[size], target, [["TENSOR", "float32", [size, size]]] * 3)
        assert timing.status is Status.ok, timing.error
        seen[size] += timing.run_secs
    assert max(seen[SMALL]) < min(seen[LARGE])


@pytest.mark.parametrize("code", [0, 1, 77])
def test_a_program_cannot_end_its_process_unnoticed(
    worker: WarmWorker, programs: dict[int, Path], target: dict[str, Any], tmp_path: Path, code: int
) -> None:
    args = [["TENSOR", "float32", [4]]]
    ended = worker.measure(written(calling("_exit", code), tmp_path / "program.json"), target, args)
    assert ended == Timing(Status.run_error, (), f"its process ended with exit code {code}")
    assert worker.measure(programs[SMALL], target, square(SMALL)).status is Status.ok


@pytest.mark.parametrize(
    "call",
    [
        ("close", 0),
        ("close", 1),
        ("close", 512),
        ("closefrom", 0),
        ("closefrom", 3),
        ("dup2", 2, 512),
        ("dprintf", 512, '{"id": "0", "run_secs": [1e-9]}\n'),
        ("dprintf", 1, '{"exit": 77}\n'),
        ("fork",),
    ],
    ids=str,
)
def test_a_program_that_plays_with_descriptors_costs_nobody_else(
    worker: WarmWorker,
    programs: dict[int, Path],
    target: dict[str, Any],
    tmp_path: Path,
    call: tuple[Any, ...],
) -> None:
    before = worker.measure(programs[LARGE], target, square(LARGE))
    played = worker.measure(
        written(calling(*call), tmp_path / "program.json"), target, [["TENSOR", "float32", [4]]]
    )
    assert played.status in (Status.ok, Status.run_error), played.error
    assert played.run_secs != (1e-9,)
    for size in (LARGE, SMALL):
        timing = worker.measure(programs[size], target, square(size))
        assert timing.status is Status.ok, timing.error
        assert (timing.run_secs[0] > before.run_secs[0] / 100) == (size == LARGE)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux finds orphans again")
def test_what_a_program_starts_by_system_does_not_outlive_it(
    worker: WarmWorker, programs: dict[int, Path], target: dict[str, Any], tmp_path: Path
) -> None:
    command = ["sleep", f"45.{os.getpid()}"]
    call = calling("system", f"setsid {' '.join(command)} &")
    daemon = written(call, tmp_path / "program.json")
    timing = worker.measure(daemon, target, [["TENSOR", "float32", [4]]])
    assert timing.status is Status.ok, timing.error
    processes = psutil.process_iter(["cmdline"])
    assert not [process for process in processes if process.info["cmdline"] == command]
    assert worker.measure(programs[SMALL], target, square(SMALL)).status is Status.ok
