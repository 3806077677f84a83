"""Whatever the process that measures does, a tuning run ends with a status for each program, or says what is wrong."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from known_programs import key_of
from scratch_sessions import scratch_session

from matmuls import make_matmul
from tencost.config import HardwareConfig, TunerConfig
from tencost.errors import MeasureError, RecordError
from tencost.networks.network import NetworkTask
from tencost.store.status import Status
from tencost.tune.session import MeasuredBatch, TuningSession
from tencost.tune.workfolder import WorkFolder, open_folder
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import CpuPlan, WorkerPool
from tencost.workers.warm_worker import WarmWorker

pytestmark = pytest.mark.tvm

SCRIPT = str(Path(__file__).with_name("dying_worker.py"))
Tune = Callable[[WorkFolder, Callable[[MeasuredBatch], None]], TuningSession]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[WorkerPool]:
    options = MeasureOptions(repeat=1, build_timeout_s=20, run_timeout_s=20)
    one = WorkerPool(options, cpus=CpuPlan(None, None), workers=1)
    (before,) = one.workers
    before.close()
    command = (sys.executable, SCRIPT, str(tmp_path / "count"))
    worker = WarmWorker(options, 1, tmp_path / "log", command=command)
    one.workers[:] = [worker]
    one._idle.get()
    one._idle.put(worker)
    yield one
    one.close()


@pytest.fixture
def tune(target: dict[str, Any], pool: WorkerPool, cpu_intrinsics: None) -> Tune:
    def run(folder: WorkFolder, on_batch: Callable[[MeasuredBatch], None]) -> TuningSession:
        tasks = [
            NetworkTask(f"matmul_{size}", make_matmul(size), 1, 2.0 * size**3, None)
            for size in (32, 48)
        ]
        session = scratch_session(
            folder,
            tasks,
            target,
            pool,
            on_batch,
            trials=32,
            trials_per_round=8,
            check_outputs=False,
        )
        session.measure_untuned()
        session.run()
        return session

    return run


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, empty: a run that ends early leaves no program in it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_each_program_has_its_own_status(
    tmp_path: Path, target: dict[str, Any], tune: Tune
) -> None:
    from tencost.tune.recording import Recorder

    batches: list[MeasuredBatch] = []
    with open_folder(tmp_path / "tuned", "two", "local", target) as folder:
        session = tune(folder, batches.append)
        programs = folder.new_programs()
    timings = [timing for batch in batches for timing in batch.timings]
    assert session.trials == len(programs) == len(timings) == 32
    counts = Counter(timing.status for timing in timings)
    assert set(counts) == {Status.ok, Status.build_error, Status.run_error}
    assert min(counts.values()) >= 2
    tasks = dict(zip(session.ids, session.tasks, strict=True))
    assert set(tasks) == {key_of(task.mod) for task in tasks.values()}
    recorder = Recorder("two", HardwareConfig(name="local"), TunerConfig(), "m", "f", tasks)
    records = recorder.records(programs, timings)
    assert [record.status for record in records] == [timing.status for timing in timings]
    assert 0 < session.total_latency_s < 1


def test_a_worker_that_cannot_start_again_is_said_so(
    tmp_path: Path, target: dict[str, Any], tune: Tune, pool: WorkerPool, scratch: Path
) -> None:
    seen: list[int] = []

    def break_it(_batch: MeasuredBatch) -> None:
        (worker,) = pool.workers
        worker.process._command = ["false"]
        worker.close()
        seen.append(len(list(scratch.rglob("tencost-program-*"))))

    with (
        open_folder(tmp_path / "tuned", "two", "local", target) as folder,
        pytest.raises(MeasureError, match="expected a measuring process"),
    ):
        tune(folder, break_it)
    assert max(seen) > 0
    assert not list(scratch.rglob("tencost-program-*"))


def test_a_store_that_cannot_be_written_is_said_so(
    tmp_path: Path, target: dict[str, Any], tune: Tune, scratch: Path
) -> None:
    def refuse(_batch: MeasuredBatch) -> None:
        raise RecordError("no place in the store")

    with (
        open_folder(tmp_path / "tuned", "two", "local", target) as folder,
        pytest.raises(RecordError, match="no place in the store"),
    ):
        tune(folder, refuse)
    assert not list(scratch.rglob("tencost-program-*"))
