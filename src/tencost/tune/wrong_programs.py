"""Programs of a tuning database that compute something else than their workload; they are marked as failed.

While tuning, a program is compared with its workload before it becomes the best one. A database may hold others: from
a run with tuner.check_outputs=false, from an earlier version, or copied from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from tencost.measure.collection import logged_programs
from tencost.measure.journal import FAILED_RUN_SECS
from tencost.networks.network import NetworkTask
from tencost.records.formats.metaschedule import RECORD_FILE, LoggedProgram
from tencost.store.status import Status, Timing, timing_from_log
from tencost.workers.pool import Job, WorkerPool
from tencost.workers.runner import References
from tencost.workers.warm_worker import TracedProgram
from tencost.writing import whole_file


@dataclass(frozen=True)
class WrongProgram:
    """A program that computes something else: its task, its line of the record file (from 1), what came of it."""

    task: str
    program: LoggedProgram
    timing: Timing

    def __str__(self) -> str:
        return f"{self.task} (line {self.program.line}): {self.timing.error}"


def wrong_programs(
    folder: Path, tasks: Mapping[str, NetworkTask], pool: WorkerPool
) -> list[WrongProgram]:
    """Run the best program of each task, and the next best after a wrong one, until one is right.

    Args:
        folder: of the database.
        tasks: by workload id.
        pool: workers for traced programs (target_kind); fresh ones, as they compare what is faster than all before.
    """
    programs: dict[str, list[LoggedProgram]] = {}
    for program in logged_programs(folder):
        if timing_from_log(program.run_secs).status is Status.ok:
            programs.setdefault(program.workload.workload_id, []).append(program)
    references = References([task.mod for task in tasks.values()])
    wrong = []
    for place, (identity, task) in enumerate(tasks.items()):
        reference = references[place]
        # MetaSchedule's order is by mean.
        fastest = sorted(programs.get(identity, []), key=lambda ran: fmean(ran.run_secs or ()))
        for program in fastest:
            traced = TracedProgram(reference.workload, program.trace)
            timing = pool.measure_one(Job(traced, program.target, program.args_info, reference))
            if timing.status is not Status.wrong_answer:
                break
            wrong.append(WrongProgram(task.name, program, timing))
    return wrong


def mark_failed(folder: Path, wrong: Sequence[WrongProgram]) -> None:
    """Write those programs' times as a failure's, in one step; every line stays where it is."""
    file = folder / RECORD_FILE
    lines = file.read_text(encoding="utf-8").split("\n")
    for number in (wrong_program.program.line - 1 for wrong_program in wrong):
        workload, record = json.loads(lines[number])
        record[1] = FAILED_RUN_SECS
        lines[number] = json.dumps([workload, record], separators=(",", ":"))
    with whole_file(file, durable=True) as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8")
