"""Every answer belongs to its program, wherever and however often the process that measures ends."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tencost.store.status import Status, Timing
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.warm_worker import WarmWorker

OPTIONS = MeasureOptions(build_timeout_s=20, run_timeout_s=20)
BLAMELESS = ("ready", "idle", "reading", "read", "answered")
"""Where an end is nobody's fault: the program is not begun, or its answer is on its way."""
BLAMED = {
    "building": Status.build_error,
    "built": Status.run_error,
    "running": Status.run_error,
    "answering": Status.run_error,
}

Measure = Callable[..., tuple[Timing, float]]


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    return tmp_path / "die_before_ready"


@pytest.fixture
def worker(flag: Path) -> Iterator[WarmWorker]:
    script = str(Path(__file__).with_name("faulty_worker.py"))
    one = WarmWorker(OPTIONS, 1, flag.with_name("log"), command=(sys.executable, script, str(flag)))
    yield one
    one.close()


@pytest.fixture
def measure(worker: WarmWorker, tmp_path: Path) -> Measure:
    """Measure a program that does something at some point; return what came of it, and its own time."""
    numbers = itertools.count(1)

    def one(at: str = "", do: str = "kill", *, always: bool = False) -> tuple[Timing, float]:
        number = next(numbers)
        once = "" if always else str(tmp_path / f"{number}")
        target = {"seconds": number * 1e-6, "at": at, "do": do, "once": once}
        return worker.measure(Path("program"), target, []), number * 1e-6

    return one


def kill(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_whenever_the_process_ends_each_answer_belongs_to_its_program(
    worker: WarmWorker, measure: Measure, flag: Path
) -> None:
    chance, ends = random.Random(5), Counter[str]()
    for _ in range(2200):
        at = chance.choice((*BLAMELESS, *BLAMED, ""))
        do, told = chance.choice((("kill", -9), ("exit 0", 0), ("exit 1", 1), ("exit 77", 77)))
        if at in ("ready", "idle"):
            if at == "ready":
                flag.touch()
            kill(worker.process.pid)
        timing, own = measure(at, do)
        ends[at] += 1
        if at in BLAMED:
            assert timing == Timing(BLAMED[at], (), f"its process ended with exit code {told}")
        else:
            assert timing == Timing(Status.ok, (own, own)), at
    assert min(ends.values()) > 150
    assert worker.num_starts > 1400


def test_kills_from_outside_at_any_moment(worker: WarmWorker, measure: Measure) -> None:
    measure()
    done, kills, chance = threading.Event(), 0, random.Random(7)

    def killer() -> None:
        nonlocal kills
        while not done.is_set():
            time.sleep(chance.uniform(0.0, 0.02))
            kills += 1
            kill(worker.process.server_pid if kills % 100 == 0 else worker.process.pid)

    thread = threading.Thread(target=killer)
    thread.start()
    statuses = Counter[Status]()
    try:
        while kills < 500:
            timing, own = measure()
            statuses[timing.status] += 1
            if timing.status is Status.ok:
                assert timing.run_secs == (own, own)
            else:
                assert timing.status in (Status.build_error, Status.run_error)
                assert re.match("its process ended|4 processes ended", timing.error)
    finally:
        done.set()
        thread.join()
    assert statuses[Status.ok] > 20
    assert statuses[Status.run_error] > 0


@pytest.mark.parametrize("deed", ["lie", "repeat", "claim death", "babble", "flood"])
@pytest.mark.parametrize("at", ["building", "running"])
def test_what_a_program_writes_into_the_channel_is_no_answer(
    measure: Measure, deed: str, at: str
) -> None:
    measure()
    timing, own = measure(
        at, deed
    )  # could be from the program before: once more, in a process without a past
    assert timing == Timing(Status.ok, (own, own))
    for _ in range(3):
        timing, own = measure(at, deed, always=True)
        assert timing == Timing(Status.run_error, (), "its process sent what is no answer")
        measure()
    for _ in range(3):
        timing, own = measure()
        assert timing == Timing(Status.ok, (own, own))


@pytest.mark.parametrize("deed", ["lie", "repeat", "claim death", "babble", "lie late"])
def test_what_is_written_after_the_answer_costs_nobody(measure: Measure, deed: str) -> None:
    for pause in (0.0, 0.001, 0.03):
        measure()
        for at, do in (("answered", deed), ("", ""), ("", "")):
            timing, own = measure(at, do)
            assert timing == Timing(Status.ok, (own, own))
            time.sleep(pause)


@pytest.mark.parametrize("deed", ["close all", "cover"])
def test_a_program_that_loses_the_channel_costs_itself(measure: Measure, deed: str) -> None:
    measure()
    assert measure("running", deed)[0].status is Status.run_error
    timing, own = measure()
    assert timing == Timing(Status.ok, (own, own))


def test_a_program_that_closes_its_input_is_the_last_of_its_process(
    worker: WarmWorker, measure: Measure
) -> None:
    for _ in range(3):
        starts = worker.num_starts
        timing, own = measure("running", "close input")
        assert timing == Timing(Status.ok, (own, own))
        assert worker.num_starts == starts + 1


def test_a_copy_of_the_process_does_not_answer(worker: WarmWorker, measure: Measure) -> None:
    measure()
    for _ in range(5):
        timing, own = measure("running", "fork")
        assert timing == Timing(Status.ok, (own, own))
    assert worker.num_starts == 1


def test_an_answer_of_another_shape_is_no_answer() -> None:
    from tencost.workers.process import ForeignAnswerError
    from tencost.workers.warm_worker import _timing

    shapes: list[dict[str, Any]] = [
        {},
        {"ready": 7},
        {"status": "ok", "error": ""},
        {"status": "grown"},
        {"status": ["run_error"]},
        {"run_secs": []},
        {"run_secs": 1e-6},
        {"run_secs": ["1e-6"]},
    ]
    for shape in shapes:
        with pytest.raises(ForeignAnswerError):
            _timing(shape)
    assert _timing({"status": "run_error"}) == Timing(Status.run_error, (), "")
