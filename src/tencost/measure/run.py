"""Measuring all programs of a collection on one hardware, from where the last run stopped.

Programs are taken in blocks, a block of each task in turn, so that a run that is stopped early has measured some of
every task. Only one program runs at a time; who builds where meanwhile is decided in :mod:`tencost.workers.pool`. On
devices behind an RPC tracker there is a worker for each device.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tencost.config import HardwareConfig, MeasureConfig, RunnerKind
from tencost.errors import MeasureError
from tencost.measure.collection import CollectedTask, Collection, disk_error
from tencost.measure.journal import Journal, mend
from tencost.programs.trace.allowed import check_module
from tencost.records.formats.metaschedule import LoggedProgram
from tencost.records.measurements import sessions_file
from tencost.store.ids import program_id
from tencost.store.status import Status, Timing
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import CpuPlan, Job, WorkerPool
from tencost.workers.tracker import devices_of
from tencost.workers.warm_worker import TracedProgram
from tencost.writing import append_line

BLOCK = 16
"""Programs of a task that are measured before the next task has its turn."""
PROBE_EVERY_S = 20.0
"""How often the reference kernel of the noise probe is timed."""


@dataclass(frozen=True)
class Block:
    """Some programs of one task, to be measured."""

    task: CollectedTask
    programs: tuple[LoggedProgram, ...]


@dataclass
class Progress:
    """What a run has done so far.

    Attributes:
        total: programs to measure in this run.
        statuses: measured programs by status.
        noise: times of the reference kernel over the best one, in order.
        started: time.monotonic() of the first program.
    """

    total: int
    statuses: Counter[str] = field(default_factory=Counter)
    noise: list[float] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        return sum(self.statuses.values())

    @property
    def per_second(self) -> float:
        return self.done / max(time.monotonic() - self.started, 1e-9)


def plan(
    collection: Collection,
    tasks: Sequence[CollectedTask],
    hardware: HardwareConfig,
    shard: tuple[int, int] = (0, 1),
) -> list[Block]:
    """Return the programs that have not been measured on a hardware, in the order to measure them.

    Journals that a killed process left are mended first: what is cut off there is to be measured again.

    Raises:
        MeasureError: there are no programs.
    """
    index, count = shard
    waiting: list[list[Block]] = []
    num_programs = 0
    for task in tasks:
        programs = collection.programs(task)
        num_programs += len(programs)
        mend(collection.records_folder(hardware.name, task, shard))
        done = {_identity(program) for program in collection.measured(hardware.name, task)}
        todo = [
            program
            for position, program in enumerate(programs)
            if position % count == index and _identity(program) not in done
        ]
        blocks = [todo[start : start + BLOCK] for start in range(0, len(todo), BLOCK)]
        waiting.append([Block(task, tuple(block)) for block in blocks])
    if not num_programs:
        raise MeasureError(
            f"expected programs in {collection.path}/to_measure_programs, found none. Make some: "
            f"tencost measure programs measure.name={collection.name}"
        )
    depth = max((len(blocks) for blocks in waiting), default=0)
    return [blocks[turn] for turn in range(depth) for blocks in waiting if turn < len(blocks)]


def measure_blocks(
    collection: Collection,
    blocks: Sequence[Block],
    hardware: HardwareConfig,
    config: MeasureConfig,
    session: Session,
    progress: Progress,
    on_progress: Callable[[Progress], None],
) -> None:
    """Measure blocks and write them down, and into `progress`, as they are done; Ctrl-C ends it between two programs.

    Raises:
        MeasureError: no worker can be started, or the disk is full. What was measured is kept.
        UntrustedError: a task's module could run code of others.
    """
    with tempfile.TemporaryDirectory(prefix="tencost-workloads-") as scratch:
        pool = Pool(hardware, config, collection.path / ".locks" / "worker.log")
        try:
            session.reference_s = pool.warm_up()
            progress.started = time.monotonic()
            on_progress(progress)
            for block in blocks:
                folder = collection.records_folder(hardware.name, block.task, config.shard_of())
                workload = Path(scratch) / f"{block.task.folder}.json"
                if not workload.exists():
                    place = f"{collection.path}/network_info, task {block.task.task_name}"
                    check_module(block.task.mod_json, place)
                    workload.write_text(block.task.mod_json, encoding="utf-8")
                with Journal(folder, block.programs[0], hardware.target) as journal:
                    for program, timing in pool.measure(workload, block.programs, hardware.target):
                        about = {"timestamp": round(time.time(), 3), "session": session.name}
                        if pool.noise is not None:
                            about["noise"] = round(pool.noise, 3)
                            progress.noise.append(pool.noise)
                        journal.append(program, timing, about)
                        progress.statuses[timing.status.value] += 1
                        on_progress(progress)
        finally:
            pool.close()


class Session:
    """One run of the command: its line in sessions.jsonl says what holds for all its records."""

    def __init__(self, folder: Path, shard: tuple[int, int], provenance: dict[str, Any]) -> None:
        self.name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        self.reference_s: float | None = None
        self._path = folder / sessions_file(shard)
        self._write(provenance)

    def end(self, progress: Progress, flags: Sequence[str]) -> None:
        """Add what is known at the end: noise and what looked wrong."""
        noise = sorted(progress.noise)
        self._write(
            {
                "additional_info": {
                    "reference_kernel_s": self.reference_s,
                    "noise_median": noise[len(noise) // 2] if noise else None,
                    "noise_max": noise[-1] if noise else None,
                    "flags": list(flags),
                }
            }
        )

    def _write(self, values: dict[str, Any]) -> None:
        line = json.dumps({"session": self.name, **values}, separators=(",", ":"))
        try:
            append_line(self._path, line)
        except OSError as error:
            raise disk_error(self._path, error) from error


class Pool:
    """The workers of a run, which look at the reference kernel of the noise probe now and then."""

    def __init__(self, hardware: HardwareConfig, config: MeasureConfig, log: Path) -> None:
        self.noise: float | None = None
        self._best_s: float | None = None
        self._probed = 0.0
        remote, count = devices_of(hardware)
        self._local = remote is None
        self._workers = WorkerPool(
            options_of(config),
            cpus_of(hardware),
            cpu_plan(hardware, config),
            log,
            remote=remote,
            target_kind=hardware.target["kind"],
            workers=count,
        )

    def warm_up(self) -> float | None:
        """Start a worker and time the reference kernel: its best time, seconds; None where there is none."""
        for _ in range(5 if self._local else 0):
            self._probe()
        return self._best_s

    def measure(
        self, workload: Path, programs: Sequence[LoggedProgram], target: dict[str, Any]
    ) -> Iterator[tuple[LoggedProgram, Timing]]:
        """Measure programs of one workload, yielding each as it is done, in no particular order."""
        jobs = [
            Job(TracedProgram(workload, program.trace), target, program.args_info)
            for program in programs
        ]
        for position, timing in self._workers.measure(jobs):
            yield programs[position], timing
            if self._local and time.monotonic() - self._probed > PROBE_EVERY_S:
                self._probe()

    def close(self) -> None:
        """End all processes and threads."""
        self._workers.close()

    def _probe(self) -> None:
        seconds = self._workers.probe()
        self._probed = time.monotonic()
        if seconds:
            self._best_s = min(seconds, self._best_s or seconds)
            self.noise = seconds / self._best_s


def cpu_plan(hardware: HardwareConfig, config: MeasureConfig) -> CpuPlan:
    """Return which CPUs of this host build and run; raises HardwareError as CpuPlan.choose."""
    if hardware.runner is RunnerKind.rpc:
        return CpuPlan(None, None)
    return CpuPlan.choose(
        cpus_of(hardware), overlap=config.overlap, cpu=config.cpu, name=hardware.name
    )


def cpus_of(hardware: HardwareConfig) -> int:
    """Return the CPUs that a program uses: the cores of a GPU are its multiprocessors."""
    return hardware.cores if hardware.target.get("kind") == "llvm" else 1


def options_of(config: MeasureConfig) -> MeasureOptions:
    """Return how long programs are timed."""
    return MeasureOptions(
        repeat=config.repeat,
        max_repeat=max(config.repeat, config.max_repeat),
        max_cv=config.max_cv,
        min_repeat_ms=config.min_repeat_ms,
        slow_ms=config.slow_ms,
        cache_flush=config.cache_flush,
        build_timeout_s=config.build_timeout_s,
        run_timeout_s=config.run_timeout_s,
    )


def failures(progress: Progress) -> dict[str, int]:
    """Return the number of failures by status."""
    return {
        name: count for name, count in sorted(progress.statuses.items()) if name != Status.ok.value
    }


def _identity(program: LoggedProgram) -> str:
    return program_id(program.workload.workload_id, str(program.target["kind"]), program.trace)
