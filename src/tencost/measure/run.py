"""Measuring all programs of a collection on one hardware, from where the last run stopped.

Programs are taken in blocks, a block of each task in turn, so that a run that is stopped early has measured some of
every task. One worker builds and runs strictly in turn; with `overlap` a second one builds on another CPU meanwhile,
but only one program runs at a time. On devices behind an RPC tracker there is a worker for each device.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tencost.config import HardwareConfig, MeasureConfig, RunnerKind
from tencost.errors import HardwareError, MeasureError
from tencost.measure.collection import CollectedTask, Collection, disk_error
from tencost.measure.evaluator import MeasureOptions
from tencost.measure.journal import Journal, mend
from tencost.measure.runner import TracedProgram, WarmWorker
from tencost.records.ids import program_id
from tencost.records.measurements import sessions_file
from tencost.records.metaschedule import LoggedProgram
from tencost.records.status import Status, Timing

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
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise disk_error(self._path, error) from error


class Pool:
    """The workers of a run."""

    def __init__(self, hardware: HardwareConfig, config: MeasureConfig, log: Path) -> None:
        self.noise: float | None = None
        self._best_s: float | None = None
        self._probed = 0.0
        options = options_of(config)
        cpus = CpuPlan.of(hardware, config)
        if hardware.runner is RunnerKind.rpc:
            from tencost.measure.remote import RemoteAddress, check_tracker

            address = RemoteAddress.of(hardware)
            count = check_tracker(address)
            remote: dict[str, Any] | None = address.as_dict()
            self._slot: Any = nullcontext()
        else:
            count, remote = (2 if config.overlap else 1), None
            self._slot = threading.Lock() if count > 1 else nullcontext()
        self._workers = [
            WarmWorker(
                options,
                cpus_of(hardware),
                log,
                build_cpus=cpus.build,
                run_cpus=cpus.run,
                remote=remote,
                target_kind=hardware.target["kind"],
            )
            for _ in range(count)
        ]
        self._local = remote is None
        self._idle: queue.SimpleQueue[WarmWorker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="measure")

    def warm_up(self) -> float | None:
        """Start the workers and time the reference kernel: its best time, seconds; None where there is none."""
        for _ in range(5 if self._local else 0):
            self._probe(self._workers[0])
        return self._best_s

    def measure(
        self, workload: Path, programs: Sequence[LoggedProgram], target: dict[str, Any]
    ) -> Iterator[tuple[LoggedProgram, Timing]]:
        """Measure programs of one workload, yielding each as it is done, in no particular order."""
        waiting = deque(programs)
        flying: dict[Future[Timing], LoggedProgram] = {}
        while waiting or flying:
            while waiting and len(flying) < len(self._workers):
                program = waiting.popleft()
                flying[self._threads.submit(self._one, workload, program, target)] = program
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                yield flying.pop(future), future.result()

    def close(self) -> None:
        """End all processes and threads."""
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _one(self, workload: Path, program: LoggedProgram, target: dict[str, Any]) -> Timing:
        worker = self._idle.get()
        try:
            if self._local and time.monotonic() - self._probed > PROBE_EVERY_S:
                with self._slot:
                    self._probe(worker)
            traced = TracedProgram(workload, program.trace)
            return worker.measure(traced, target, program.args_info, self._slot)
        finally:
            self._idle.put(worker)

    def _probe(self, worker: WarmWorker) -> None:
        seconds = worker.probe()
        self._probed = time.monotonic()
        if seconds:
            self._best_s = min(seconds, self._best_s or seconds)
            self.noise = seconds / self._best_s


@dataclass(frozen=True)
class CpuPlan:
    """Which CPUs build and which run."""

    build: tuple[int, ...] | None
    run: tuple[int, ...] | None

    @classmethod
    def of(cls, hardware: HardwareConfig, config: MeasureConfig) -> CpuPlan:
        """Take the last CPUs of the host for running; building shares them unless it overlaps.

        Raises:
            HardwareError: the host has too few CPUs.
        """
        if hardware.runner is RunnerKind.rpc or not hasattr(os, "sched_getaffinity"):
            return cls(None, None)
        free = sorted(os.sched_getaffinity(0))
        cores = cpus_of(hardware)
        need = cores + (1 if config.overlap else 0)
        if len(free) < need:
            told = " and one to build meanwhile (measure.overlap)" if config.overlap else ""
            raise HardwareError(
                f"expected {cores} CPUs for hardware {hardware.name!r}{told}, found {len(free)} on this host. "
                "Choose hardware with fewer cores, or measure.overlap=false."
            )
        first = len(free) - cores
        if config.cpu is not None:
            if config.cpu not in free or free.index(config.cpu) + cores > len(free):
                raise HardwareError(
                    f"expected measure.cpu to be one of {free[: len(free) - cores + 1]}, found {config.cpu}"
                )
            first = free.index(config.cpu)
        run = tuple(free[first : first + cores])
        others = tuple(cpu for cpu in free if cpu not in run)
        return cls(others if config.overlap else run, run)


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
