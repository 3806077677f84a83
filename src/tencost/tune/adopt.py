"""Adopts the live store's records of a network's own workloads into the work folder: nothing is measured twice.

The records of the same hardware and target become records of the folder's MetaSchedule database; the search begins from
them, the model learns from them, and they do not count as trials of the run.

A store's times are hints: they come from other runs, other days and other people's files. What says to be faster than
all that was timed here is timed here first, its output compared with its workload's, and enters with those times, at
most TIMED programs a task; what says so beyond that stays out. Thus the fastest record of a task is always one that
was timed here. The others enter with their times, slower than that.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tencost.config import HardwareConfig
from tencost.measure.journal import FAILED_RUN_SECS
from tencost.networks.network import NetworkTask
from tencost.programs.codegen.vector_math import current_generator
from tencost.programs.trace.replay import replay
from tencost.records.formats.metaschedule import LoggedProgram
from tencost.register.start_records import COLUMNS, fastest
from tencost.store.generator import UNKNOWN
from tencost.store.record_store import RecordStore
from tencost.store.status import Status, Timing, timing_from_log
from tencost.tune.workfolder import WorkFolder
from tencost.workers.evaluator import Best

PER_WORKLOAD = 64
"""Records of a workload that are taken over, the fastest ones."""
TIMED = 6
"""Programs of a task that are timed before they are taken over, at most."""
SURPRISE = 2.0
"""A program that takes so many times as long here as the store remembers is named."""

TimeHere = Callable[[int, Any], Timing]
"""(place of a task, scheduled IRModule) -> what came of it on this host, its output compared."""


@dataclass
class Adoption:
    """What was taken over: programs, those of them timed here, and what of the store did not hold, in words."""

    programs: int = 0
    timed: int = 0
    notes: list[str] = field(default_factory=list)


def adopt(
    folder: WorkFolder,
    tasks: Sequence[NetworkTask],
    ids: Sequence[str],
    hardware: HardwareConfig,
    store: RecordStore,
    time_here: TimeHere,
) -> Adoption:
    """Take the store's records over for each task of which this folder has measured nothing; say what was taken.

    Args:
        folder: an open work folder.
        tasks: the network's tasks.
        ids: their workload ids.
        hardware: records of this one, for its target, are taken.
        store: need not exist.
        time_here: times a program and compares its output, as for every new best.
    """
    adoption = Adoption()
    if not store.exists() or hardware.name not in store.hardware():
        return adoption
    programs: dict[str, list[LoggedProgram]] = {identity: [] for identity in ids}
    for program in folder.programs():
        programs.setdefault(program.workload.workload_id, []).append(program)
    unmeasured = [
        identity
        for identity in ids
        if all(program.line in folder.adopted for program in programs[identity])
    ]
    fastest_rows = _fastest(store, hardware, unmeasured)
    database = folder.database(task.mod for task in tasks) if fastest_rows else None
    for place, (identity, task) in enumerate(zip(ids, tasks, strict=True)):
        if identity in fastest_rows:
            transfer = _Transfer(folder, database, task, Target(hardware.target), adoption)
            transfer.resume(programs[identity])
            for row in fastest_rows[identity]:
                transfer.take(*row, partial(time_here, place))
            transfer.end()
    folder.new_programs()
    return adoption


@dataclass
class _Transfer:
    """One task's records on their way from the store into the folder, the fastest first."""

    folder: WorkFolder
    database: Any
    task: NetworkTask
    target: Any
    adoption: Adoption
    best: Best = field(default_factory=Best)
    timed: int = 0
    skipped: int = 0

    def resume(self, programs: Sequence[LoggedProgram]) -> None:
        """Take in what a run before this one took over."""
        for program in programs:
            if self.folder.adopted[program.line].timed:
                self.timed += 1
                timing = timing_from_log(program.run_secs)
                if timing.status is Status.ok:
                    self.best = self.best.after(timing.run_secs)

    def take(
        self,
        record_id: str,
        program: str,
        remembered: Sequence[float],
        time_here: Callable[[Any], Timing],
    ) -> None:
        """Take a record over, timed if it has to be."""
        if any(mark.record_id == record_id for mark in self.folder.adopted.values()):
            return
        must_be_timed = self.best.is_beaten_by(remembered)
        if must_be_timed and self.timed == TIMED:
            self.skipped += 1
            return
        schedule = replay(self.task.mod, program).schedule
        if schedule is None:
            return
        times = list(remembered)
        if must_be_timed:
            timing = time_here(schedule.mod)
            times = list(timing.run_secs) or list(FAILED_RUN_SECS)
            self.timed += 1
            self.adoption.timed += 1
            self._judge(record_id, remembered, timing)
        self.folder.mark_next(record_id, timed=must_be_timed)
        self.database.commit_tuning_record(
            ms.database.TuningRecord(
                schedule.trace,
                self.database.commit_workload(self.task.mod),
                times,
                self.target,
                ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True),
            )
        )
        self.adoption.programs += 1

    def end(self) -> None:
        """Say how many records stayed out."""
        if self.skipped:
            self.adoption.notes.append(
                f"{self.task.name}: {self.skipped} programs of the live store are left out: they are remembered as "
                f"faster than what was timed here, and {TIMED} of a task are timed"
            )

    def _judge(self, record_id: str, remembered: Sequence[float], timing: Timing) -> None:
        before = statistics.median(remembered)
        subject = f"{self.task.name}: record {record_id} of the live store is remembered with {before * 1e3:.3g} ms"
        if timing.status is not Status.ok:
            self.adoption.notes.append(
                f"{subject}, and failed here, so that it is never offered ({timing.status}: {timing.error})"
            )
            return
        self.best = self.best.after(timing.run_secs)
        now = statistics.median(timing.run_secs)
        if now > SURPRISE * before:
            self.adoption.notes.append(
                f"{subject}, and takes {now * 1e3:.3g} ms here, which counts"
            )


def _fastest(
    store: RecordStore, hardware: HardwareConfig, workloads: Sequence[str]
) -> dict[str, list[tuple[str, str, list[float]]]]:
    """Return (record id, trace as JSON text, times in seconds) by workload id, fastest first."""
    # Times of another code generator say nothing about what this host would measure now.
    comparable = [current_generator(str(hardware.target.get("kind"))), UNKNOWN]
    records = store.read(hardware.name, COLUMNS).filter(
        pl.col("workload_id").is_in(list(workloads)), pl.col("generator").is_in(comparable)
    )
    rows: dict[str, list[tuple[str, str, list[float]]]] = {}
    best = fastest(records, hardware.target, PER_WORKLOAD)
    for workload, *row in best.select("workload_id", "record_id", "program", "run_secs").rows():
        rows.setdefault(workload, []).append((row[0], row[1], list(row[2])))
    return rows
