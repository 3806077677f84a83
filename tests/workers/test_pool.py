"""A pool's workers share the CPUs: one program runs at a time, and nobody builds where it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tencost.store.status import Status
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import CpuPlan, Job, WorkerPool
from tencost.workers.process import WorkerProcess

FREE = sorted(os.sched_getaffinity(0))
"""The CPUs of this process when it began: TVM's thread pool binds the main thread to one when a kernel runs in it."""

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.skipif(len(FREE) < 2, reason="needs two CPUs"),
]

ARGS = [["TENSOR", "float32", [64, 64]]] * 3


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    options = MeasureOptions(number=1, repeat=2, min_repeat_ms=5)
    one = WorkerPool(options, cpus=CpuPlan((FREE[0],), (FREE[-1],)), workers=2)
    yield one
    one.close()


@pytest.fixture
def module(tmp_path: Path, matmul: Any) -> Path:
    from tvm.ir import save_json

    path = tmp_path / "module.json"
    path.write_text(str(save_json(matmul)))
    return path


def test_all_programs_are_measured_whoever_builds_them(
    pool: WorkerPool, module: Path, tmp_path: Path, target: dict[str, Any]
) -> None:
    (tmp_path / "broken.json").write_text("{}")
    jobs = [Job(module, target, ARGS)] * 5 + [Job(tmp_path / "broken.json", target, [])]
    found = dict(pool.measure(jobs))
    assert [found[position].status for position in range(6)] == [Status.ok] * 5 + [
        Status.build_error
    ]
    assert all(worker.num_starts == 1 for worker in pool.workers)


def test_while_one_runs_the_others_are_elsewhere(
    pool: WorkerPool, module: Path, target: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere, build, run = set(pool.cpus.all or ()), set(pool.cpus.build or ()), pool.cpus.run
    list(pool.measure([Job(module, target, ARGS)] * 2))  # both workers have a process now
    seen: list[list[set[int]]] = []
    read: Callable[[WorkerProcess, float], dict[str, Any]] = WorkerProcess.read

    def watched(running: WorkerProcess, timeout_s: float) -> dict[str, Any]:
        if pool._lock.locked():
            processes = [worker.process for worker in pool.workers]
            order = sorted(processes, key=lambda process: process is not running)
            seen.append([os.sched_getaffinity(process.pid or 0) for process in order])
        return read(running, timeout_s)

    monkeypatch.setattr(WorkerProcess, "read", watched)
    assert pool.measure_one(Job(module, target, ARGS)).status is Status.ok
    assert seen == [[set(run or ()), build]]
    assert [os.sched_getaffinity(worker.process.pid or 0) for worker in pool.workers] == [
        everywhere
    ] * 2


def test_a_process_that_replaces_another_stays_where_its_worker_is(
    pool: WorkerPool, module: Path, target: dict[str, Any]
) -> None:
    worker = pool.workers[0]
    worker.process.move(pool.cpus.build)
    worker.measure(module, target, ARGS)
    worker.process.kill()
    worker.measure(module, target, ARGS)
    assert worker.num_starts == 2
    assert os.sched_getaffinity(worker.process.pid or 0) == set(pool.cpus.build or ())
