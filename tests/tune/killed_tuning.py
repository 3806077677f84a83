"""Tunes a matmul that a store knows, with programs that are timed at once, and is killed at each write of its folder.

    python killed_tuning.py <folder>

For each write in turn: a run that is killed there, then one that is not. A line of JSON for each pair: where it was
killed, the records of the database before and after, which of them were adopted, and what was measured as a trial.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tencost.config import HardwareConfig
from tencost.networks.network import NetworkTask
from tencost.programs.trace.intrinsics import register_cpu_intrinsics
from tencost.store.record_store import RecordStore
from tencost.store.status import Status, Timing
from tencost.tune.adopt import adopt
from tencost.tune.batches import BatchLine, append_batch_line, read_batch_lines
from tencost.tune.curve import CurvePoint, append_point, read_points
from tencost.tune.session import MeasuredBatch
from tencost.tune.workfolder import open_folder
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import Job

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from known_programs import records_of
from scratch_sessions import scratch_session

from matmuls import make_matmul

TARGET = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 1}
HARDWARE = HardwareConfig(name="mine", target=TARGET, simd_bits=256)
TRIALS = 6


class Killer:
    """Counts the writes below a folder, and ends the process before the n-th; 0 never does."""

    def __init__(self, folder: Path, at: int) -> None:
        self._folder, self._at, self._count = str(folder), at, 0

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(path, str) and flags & (os.O_WRONLY | os.O_RDWR):
                self.point(path)
        elif event == "os.rename":
            self.point(str(args[1]))

    def point(self, path: str) -> None:
        if not path.startswith(self._folder) or "logs" in path or path.endswith(".lock"):
            return
        self._count += 1
        if self._count == self._at:
            os.write(1, f"{Path(path).name}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


class InstantPool:
    """Times programs without running them, and writes down which were trials."""

    def __init__(self, log: Path) -> None:
        self.options = MeasureOptions()
        self.unchecked: dict[Path, str] = {}
        self._log = log

    def measure_one(self, job: Job) -> Timing:
        assert isinstance(job.program, Path)
        size = len(job.program.read_bytes())
        return Timing(Status.ok, (size * 1e-8, size * 1e-8 + 1e-9))

    def measure(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Timing]]:
        for position, job in enumerate(jobs):
            assert isinstance(job.program, Path)
            about = json.loads((job.program.parent / "about.json").read_text())
            with self._log.open("a") as file:
                file.write(f"{about['key']}\n")
            yield position, self.measure_one(job)


def tune(path: Path, kill_at: int, log: Path | None = None) -> None:
    """Do what the stage does with the folder: adopt, time the default schedules, tune, write the curve.

    What was measured as a trial is told in `log`; None: beside the folder.
    """
    killer = Killer(path, kill_at)
    sys.addaudithook(killer.audit)
    watch_database(killer, path)
    mod = make_matmul(32)
    tasks = [NetworkTask("matmul", mod, 1, 65536.0, None)]
    with open_folder(path, "one", "mine", TARGET) as folder:

        def on_batch(batch: MeasuredBatch) -> None:
            folder.new_programs()
            append_point(
                folder.curve,
                CurvePoint(trials=batch.trials, total_latency_s=batch.total_latency_s),
            )
            append_batch_line(folder.batches, BatchLine.of(batch, "scratch", learns=True))

        pool: Any = InstantPool(log or path.with_suffix(".measured"))
        session = scratch_session(
            folder, tasks, TARGET, pool, on_batch, trials=TRIALS, trials_per_round=3, population=8
        )
        store = RecordStore(str(path.parent / "store"))
        adopt(folder, tasks, session.ids, HARDWARE, store, session.time_here)
        session.measure_untuned()
        if not folder.curve.exists():
            append_point(folder.curve, CurvePoint(trials=0, total_latency_s=1.0))
        session.run()
        assert session.trials == TRIALS, session.trials


def watch_database(killer: Killer, path: Path) -> None:
    """Have TVM's own writes seen: it writes the database's lines in C++, one at a time."""
    database = ms.database.Database
    commit_record, commit_workload = database.commit_tuning_record, database.commit_workload

    def watched_record(self: Any, record: Any) -> None:
        killer.point(str(path / "before a record"))
        commit_record(self, record)
        killer.point(str(path / "after a record"))

    def watched_workload(self: Any, mod: Any) -> Any:
        if not self.has_workload(mod):
            killer.point(str(path / "before a workload"))
        return commit_workload(self, mod)

    database.commit_tuning_record = watched_record
    database.commit_workload = watched_workload
    ms.measure_callback.AddToDatabase = AddToDatabase


@derived_object
class AddToDatabase(ms.measure_callback.PyMeasureCallback):
    """Does in Python what MetaSchedule's callback of this name does."""

    def apply(
        self,
        task_scheduler: Any,
        task_id: int,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        context = task_scheduler.tasks_[task_id].ctx
        database = task_scheduler.database_
        workload = database.commit_workload(context.mod)
        for candidate, result in zip(measure_candidates, runner_results, strict=True):
            database.commit_tuning_record(
                ms.database.TuningRecord(
                    candidate.sch.trace,
                    workload,
                    result.run_secs,
                    context.target,
                    candidate.args_info,
                )
            )


def in_child(path: Path, kill_at: int) -> tuple[bool, str]:
    """Tune in a child of this process; return whether it was killed, and at which file."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        status = 1
        try:
            tune(path, kill_at)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as file:
        told = file.read()
    _, status = os.waitpid(child, 0)
    if status not in (0, signal.SIGKILL):
        raise SystemExit(f"killed at write {kill_at}, the run ended with {status}")
    return status != 0, told.strip()


def state(path: Path) -> dict[str, list[Any]]:
    """Read the database as the next run finds it."""
    with open_folder(path, "one", "mine", TARGET) as folder:
        programs = folder.programs()
        return {
            "programs": [json.dumps(one.trace) for one in programs],
            "adopted": [one.line in folder.adopted for one in programs],
            "curve": [point.trials for point in read_points(folder.curve)],
            "batches": [line.trials for line in read_batch_lines(folder.batches)],
        }


def measured(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


def main(folder: Path) -> None:
    register_cpu_intrinsics()
    child = os.fork()  # what writes to a store has threads, and does not live through a fork
    if child == 0:
        RecordStore(str(folder / "store")).write(records_of(make_matmul(32), TARGET, "mine"))
        os._exit(0)
    os.waitpid(child, 0)
    killed, at = True, 0
    while killed:
        at += 1
        path = folder / f"run{at}"
        log = path.with_suffix(".measured")
        killed, where = in_child(path, at)
        before, num_before = state(path), len(measured(log))
        if killed:
            in_child(path, 0)
        found = {
            "where": where,
            "killed": killed,
            "before": before,
            "num_before": num_before,
            "after": state(path),
            "measured": measured(log),
        }
        print(json.dumps(found), flush=True)  # noqa: T201 - read by the test


if __name__ == "__main__":
    main(Path(sys.argv[1]))
