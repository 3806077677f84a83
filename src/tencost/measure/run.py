"""Measuring all programs of a collection on one hardware, from where the last run stopped.

Programs are taken in blocks, a block of each task in turn, so that a run that is stopped early has measured some of
every task. Only one program runs at a time; who builds where meanwhile is decided in :mod:`tencost.workers.pool`. On
devices behind an RPC tracker there is a worker for each device.
"""

from __future__ import annotations

import json
import secrets
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tencost.config import HardwareConfig, MeasureConfig, RunnerKind
from tencost.errors import ConfigError, MeasureError
from tencost.measure.collection import CollectedTask, Collection, disk_error, write_whole
from tencost.measure.journal import Journal, mend_journal
from tencost.programs.trace.allowed import check_module
from tencost.programs.trace.replay import error_line, load_module
from tencost.records.formats.metaschedule import LoggedProgram
from tencost.records.measurements import sessions_file
from tencost.records.rule_times import RULE_FILE
from tencost.store.ids import canonical_target, program_id
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
_FIRST_PROBES = 5


@dataclass(frozen=True)
class Block:
    """Some programs of one task, to be measured."""

    task: CollectedTask
    programs: tuple[LoggedProgram, ...]


@dataclass
class MeasuringProgress:
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
    def num_measured(self) -> int:
        return sum(self.statuses.values())

    @property
    def per_second(self) -> float:
        return self.num_measured / max(time.monotonic() - self.started, 1e-9)

    @property
    def noise_median(self) -> float | None:
        """Return the upper median of the noise; None where nothing was probed."""
        return statistics.median_high(self.noise) if self.noise else None

    @property
    def failures(self) -> dict[str, int]:
        """Return the number of failures by status."""
        return {name: self.statuses[name] for name in sorted(self.statuses) if name != Status.ok}


def plan_measurements(
    collection: Collection,
    tasks: Sequence[CollectedTask],
    hardware: HardwareConfig,
    shard: tuple[int, int] = (0, 1),
) -> list[Block]:
    """Return the programs that have not been measured on a hardware, in the order to measure them.

    Measurements under the hardware's name count where they are of its target: an edited description is another device.
    Journals that a killed process left are mended first: what is cut off there is to be measured again.

    Raises:
        MeasureError: there are no programs.
    """
    index, count = shard
    target = canonical_target(hardware.target)
    remaining: list[list[Block]] = []
    num_programs = 0
    for task in tasks:
        programs = collection.programs(task)
        num_programs += len(programs)
        mend_journal(collection.records_folder(hardware.name, task, shard))
        measured = {
            _identity(program)
            for program in collection.measured(hardware.name, task)
            if canonical_target(program.target) == target
        }
        todo = [
            program
            for position, program in enumerate(programs)
            if position % count == index and _identity(program) not in measured
        ]
        starts = range(0, len(todo), BLOCK)
        remaining.append([Block(task, tuple(todo[start : start + BLOCK])) for start in starts])
    if not num_programs:
        raise MeasureError(
            f"expected programs in {collection.path}/to_measure_programs, found none. Make some: "
            f"tencost measure programs measure.name={collection.name}"
        )
    return [block for turn in zip_longest(*remaining) for block in turn if block is not None]


def measure_blocks(
    collection: Collection,
    blocks: Sequence[Block],
    hardware: HardwareConfig,
    config: MeasureConfig,
    session: MeasuringSession,
    progress: MeasuringProgress,
    on_progress: Callable[[MeasuringProgress], None],
) -> None:
    """Measure blocks and write them down, and into `progress`, as they are done; Ctrl-C ends it between two programs.

    Raises:
        MeasureError: no worker can be started, or the disk is full. What was measured is kept.
        UntrustedError: a task's module could run code of others.
    """
    remote, count = devices_of(hardware)
    pool = WorkerPool(
        timing_options(config, hardware),
        cpus_of(hardware),
        cpu_plan(hardware, config),
        collection.path / ".locks" / "worker.log",
        remote=remote,
        target_kind=hardware.target["kind"],
        workers=count,
    )
    probe = _Probe(pool)
    with tempfile.TemporaryDirectory(prefix="tencost-workloads-") as scratch, closing(pool):
        for _ in range(_FIRST_PROBES):
            probe.measure()
        session.reference_s = probe.best_s
        progress.started = time.monotonic()
        on_progress(progress)
        for block in blocks:
            folder = collection.records_folder(hardware.name, block.task, config.shard_of())
            workload = Path(scratch) / f"{block.task.folder}.json"
            if not workload.exists():
                place = f"{collection.path}/network_info, task {block.task.task_name}"
                check_module(block.task.mod_json, place)
                workload.write_text(block.task.mod_json, encoding="utf-8")
            jobs = [
                Job(TracedProgram(workload, program.trace), hardware.target, program.args_info)
                for program in block.programs
            ]
            with Journal(folder, block.programs[0], hardware.target) as journal:
                # Before its programs: a task whose programs are all measured is not planned again.
                if hardware.target["kind"] == "llvm" and not (folder / RULE_FILE).exists():
                    _time_by_rule(pool, block.task, hardware.target, folder, Path(scratch))
                for position, timing in pool.measure(jobs):
                    about = {"timestamp": round(time.time(), 3), "session": session.name}
                    if probe.noise is not None:
                        about["noise"] = round(probe.noise, 3)
                        progress.noise.append(probe.noise)
                    journal.append(block.programs[position], timing, about)
                    progress.statuses[timing.status.value] += 1
                    on_progress(progress)
                    if time.monotonic() - probe.measured > PROBE_EVERY_S:
                        probe.measure()


def _time_by_rule(
    pool: WorkerPool, task: CollectedTask, target: dict[str, Any], folder: Path, scratch: Path
) -> None:
    """Time a task as the rules schedule it, and write that down; see :mod:`tencost.records.rule_times`."""
    from tvm import IRModule
    from tvm.ir import save_json

    from tencost.programs.codegen import rules
    from tencost.programs.codegen.overlap import arguments_of
    from tencost.workers.runner import arg_json

    about = {"workload_id": task.workload_id, "rules": rules.version(), "timestamp": time.time()}
    try:
        by_rule = IRModule({"main": rules.scheduled(load_module(task.mod_json)["main"], target)})
        arguments = [arg_json(argument) for argument in arguments_of(by_rule)]
        granted = rules.leave(by_rule, target)
    except (RuntimeError, ValueError, TypeError) as error:  # TVM refuses the task
        timing = Timing(Status.build_error, (), error_line(error))
    else:
        module = scratch / f"{task.folder}-by-rule.json"
        module.write_text(str(save_json(by_rule)), encoding="utf-8")
        timing = pool.measure_one(Job(module, granted, arguments))
    ran = timing.status is Status.ok
    times = (
        {"run_secs": list(timing.run_secs)} if ran else {"run_secs": None, "error": timing.error}
    )
    write_whole(folder / RULE_FILE, json.dumps({**about, **times}) + "\n")


class MeasuringSession:
    """One run of the command: its line in sessions.jsonl says what holds for all its records."""

    def __init__(self, folder: Path, shard: tuple[int, int], provenance: dict[str, Any]) -> None:
        self.name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        self.reference_s: float | None = None
        self._path = folder / sessions_file(shard)
        self._write(provenance)

    def end(self, progress: MeasuringProgress, flags: Sequence[str]) -> None:
        """Add the noise, and what looked wrong."""
        about = {
            "reference_kernel_s": self.reference_s,
            "noise_median": progress.noise_median,
            "noise_max": max(progress.noise, default=None),
            "flags": list(flags),
        }
        self._write({"additional_info": about})

    def _write(self, fields: dict[str, Any]) -> None:
        line = json.dumps({"session": self.name, **fields}, separators=(",", ":"))
        try:
            append_line(self._path, line)
        except OSError as error:
            raise disk_error(self._path, error) from error


class _Probe:
    """The reference kernel of the noise probe, timed now and then; there is none on remote devices and GPUs."""

    def __init__(self, pool: WorkerPool) -> None:
        self.noise: float | None = None
        self.best_s: float | None = None
        self.measured = 0.0
        self._pool = pool

    def measure(self) -> None:
        seconds = self._pool.probe()
        self.measured = time.monotonic()
        if seconds:
            self.best_s = min(seconds, self.best_s or seconds)
            self.noise = seconds / self.best_s


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


def timing_options(config: MeasureConfig, hardware: HardwareConfig) -> MeasureOptions:
    """Return how long programs are timed.

    Raises:
        ConfigError: caches are to be flushed that are no CPU's.
    """
    kind = hardware.target.get("kind")
    if config.cache_flush and kind != "llvm":
        raise ConfigError(
            "expected measure.cache_flush=true with a CPU, whose caches TVM can flush, found hardware "
            f"{hardware.name!r} of target kind {kind!r}. Measure with warm caches: measure.cache_flush=false"
        )
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


def _identity(program: LoggedProgram) -> str:
    return program_id(program.workload.workload_id, str(program.target["kind"]), program.trace)
