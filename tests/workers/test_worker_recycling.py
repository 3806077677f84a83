"""A worker's process gives way to a fresh one when it has grown too large, and to none otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from matmuls import make_matmul
from tencost.measure.collection import CollectedTask, Collection, Origin
from tencost.measure.programs import ProgramSpace
from tencost.records.formats.metaschedule import LoggedProgram
from tencost.store.status import Status, Timing
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.warm_worker import TracedProgram, WarmWorker

pytestmark = pytest.mark.tvm

OPTIONS = MeasureOptions(repeat=2, max_repeat=2, min_repeat_ms=0)


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tvm.ir import save_json

    path = tmp_path_factory.mktemp("workload") / "matmul.json"
    path.write_text(str(save_json(make_matmul(64))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def programs(workload: Path, target: dict[str, Any]) -> list[LoggedProgram]:
    """40 programs of one matmul."""
    text = workload.read_text(encoding="utf-8")
    space = ProgramSpace(text, target, seed=3)
    shash, lines = space.lines(space.random(40, set()).schedules)
    task = CollectedTask("matmul", "matmul", "matmul", text, 2.0 * 64**3, ("one",))
    collection = Collection(workload.parent / "collection")
    collection.write_programs(task, shash, lines, Origin(3, False, ("random",) * 40))
    return collection.programs(task)


@pytest.fixture(scope="module")
def normal(target: dict[str, Any]) -> Iterator[WarmWorker]:
    worker = WarmWorker(OPTIONS, cores=1, target_kind=target["kind"])
    yield worker
    worker.close()


def measure(
    worker: WarmWorker, workload: Path, program: LoggedProgram, target: dict[str, Any]
) -> Timing:
    return worker.measure(TracedProgram(workload, program.trace), target, program.args_info)


def test_forty_programs_use_one_process(
    normal: WarmWorker, workload: Path, programs: list[LoggedProgram], target: dict[str, Any]
) -> None:
    timings = [measure(normal, workload, program, target) for program in programs]
    assert [timing.status for timing in timings] == [Status.ok] * 40
    assert normal.num_starts == 1


def test_a_process_that_has_grown_gives_way_to_a_fresh_one(
    workload: Path, programs: list[LoggedProgram], target: dict[str, Any]
) -> None:
    tiny = WarmWorker(OPTIONS, cores=1, target_kind=target["kind"], max_rss_mib=1)
    try:
        for number, program in enumerate(programs[:6], start=1):
            timing = measure(tiny, workload, program, target)
            assert timing.status is Status.ok, timing.error
            assert len(timing.run_secs) == 2
            assert 1e-7 < min(timing.run_secs) < 0.1
            assert tiny.num_starts == number
        assert tiny.probe() is not None
        assert tiny.num_starts == 7
    finally:
        tiny.close()
    assert not [
        child
        for child in psutil.Process().children(recursive=True)
        if '"max_rss_mib": 1}' in " ".join(child.cmdline())
    ]


def test_failures_keep_their_status_in_a_process_that_gives_way(
    workload: Path, programs: list[LoggedProgram], target: dict[str, Any]
) -> None:
    tiny = WarmWorker(OPTIONS, cores=1, target_kind=target["kind"], max_rss_mib=1)
    try:
        broken = tiny.measure(TracedProgram(workload, [[["NoSuch", [], [], []]], []]), target, [])
        assert broken.status is Status.invalid_schedule
        assert measure(tiny, workload, programs[0], target).status is Status.ok
        assert tiny.num_starts == 2
    finally:
        tiny.close()
