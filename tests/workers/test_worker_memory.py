"""How much memory programs may take, and how large a worker's process may grow until a fresh one replaces it."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from matmuls import make_matmul
from process_words import words_of
from tencost.measure.collection import CollectedTask, Collection, ProgramOrigin
from tencost.measure.programs import ProgramSpace
from tencost.records.formats.metaschedule import LoggedProgram
from tencost.store.status import Status, Timing
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.warm_worker import TracedProgram, WarmWorker
from tencost.workers.worker import MemoryAllowance
from worker_programs import calling, written

pytestmark = pytest.mark.tvm
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits what is mapped")

OPTIONS = MeasureOptions(repeat=2, max_repeat=2, min_repeat_ms=0)
ONCE = MeasureOptions(number=1, repeat=1, max_repeat=1, min_repeat_ms=0, run_timeout_s=60)
GIB = 2**30


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(make_matmul(64), tmp_path_factory.mktemp("workload") / "matmul.json")


@pytest.fixture(scope="module")
def programs(workload: Path, target: dict[str, Any]) -> list[LoggedProgram]:
    """40 programs of one matmul."""
    text = workload.read_text(encoding="utf-8")
    space = ProgramSpace(text, target, seed=3)
    shash, lines = space.lines(space.random(40, set()).schedules)
    task = CollectedTask("matmul", "matmul", "matmul", text, 2.0 * 64**3, ("one",))
    collection = Collection(workload.parent / "collection")
    collection.write_programs(task, shash, lines, ProgramOrigin(3, False, ("random",) * 40))
    return collection.programs(task)


def small_worker(target: dict[str, Any]) -> WarmWorker:
    return WarmWorker(OPTIONS, cores=1, target_kind=target["kind"], max_rss_mib=1)


def measure(
    worker: WarmWorker, workload: Path, program: LoggedProgram, target: dict[str, Any]
) -> Timing:
    return worker.measure(TracedProgram(workload, program.trace), target, program.args_info)


def test_forty_programs_use_one_process(
    workload: Path, programs: list[LoggedProgram], target: dict[str, Any]
) -> None:
    with closing(WarmWorker(OPTIONS, cores=1, target_kind=target["kind"])) as worker:
        timings = [measure(worker, workload, program, target) for program in programs]
        assert [timing.status for timing in timings] == [Status.ok] * 40
        assert worker.num_starts == 1


def test_a_process_that_has_grown_gives_way_to_a_fresh_one(
    workload: Path, programs: list[LoggedProgram], target: dict[str, Any]
) -> None:
    with closing(small_worker(target)) as tiny:
        for number, program in enumerate(programs[:6], start=1):
            timing = measure(tiny, workload, program, target)
            assert timing.status is Status.ok, timing.error
            assert len(timing.run_secs) == 2
            assert 1e-7 < min(timing.run_secs) < 0.1
            assert tiny.num_starts == number
        assert tiny.probe() is not None
        assert tiny.num_starts == 7
    assert not [
        child
        for child in psutil.Process().children(recursive=True)
        if '"max_rss_mib": 1}' in words_of(child)
    ]


def test_failures_keep_their_status_in_a_process_that_gives_way(
    workload: Path, programs: list[LoggedProgram], target: dict[str, Any]
) -> None:
    with closing(small_worker(target)) as tiny:
        broken = tiny.measure(TracedProgram(workload, [[["NoSuch", [], [], []]], []]), target, [])
        assert broken.status is Status.invalid_schedule
        assert measure(tiny, workload, programs[0], target).status is Status.ok
        assert tiny.num_starts == 2


@linux
def test_arguments_beyond_the_limit_are_the_program_s_failure(
    target: dict[str, Any], tmp_path: Path
) -> None:
    with closing(WarmWorker(ONCE, cores=1, max_rss_mib=2048)) as worker:

        def run(floats: int) -> Timing:
            program = written(calling(floats=floats), tmp_path / f"{floats}.json")
            return worker.measure(program, target, [["TENSOR", "float32", [floats]]])

        assert run(64).status is Status.ok
        process = worker.process.pid
        for _ in range(2):
            timing = run(GIB)  # 4 GiB
            assert timing.status is Status.run_error
            assert "memory" in timing.error
            assert "2048 MiB" in timing.error
            assert worker.process.pid == process
            after = run(GIB // 64)
            assert after.status is Status.ok, after.error
            assert worker.process.pid == process


def in_a_fork(check: Any) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@linux
def test_every_program_of_a_process_gets_the_same_allowance() -> None:
    def check() -> None:
        allowance = MemoryAllowance(2 * GIB)
        for mapped in (0, GIB // 2, GIB):  # what programs before left mapped takes nothing away
            before = bytearray(mapped)
            allowance.begin({"target": {"kind": "llvm"}})
            fits = bytearray(3 * GIB // 2)
            try:
                bytearray(5 * GIB // 2)
            except MemoryError:
                pass
            else:
                raise AssertionError(mapped)
            del before, fits

    assert in_a_fork(check) == 0


@linux
def test_programs_of_an_accelerator_are_not_limited() -> None:
    def check() -> None:
        before = resource.getrlimit(resource.RLIMIT_DATA)
        allowance = MemoryAllowance(2 * GIB)
        allowance.begin({"target": {"kind": "llvm"}})
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] < before[1] % (1 << 64)
        allowance.begin({"target": {"kind": "cuda"}})
        assert resource.getrlimit(resource.RLIMIT_DATA) == (before[1], before[1])

    assert in_a_fork(check) == 0
