"""Several warm workers that build on all CPUs and let one program run at a time, undisturbed.

Building costs several times what running does, so that it decides how many programs a second are measured. While no
program runs, the workers build on all CPUs of the plan. Before one runs, the others are moved to the CPUs that
programs never run on, where they go on building; afterwards all have all CPUs again. On a host with as many CPUs as a
program uses, one worker builds and runs strictly in turn.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tencost.errors import HardwareError
from tencost.store.status import Status, Timing
from tencost.workers.evaluator import Best, MeasureOptions
from tencost.workers.expected import Reference
from tencost.workers.warm_worker import TracedProgram, WarmWorker

MAX_WORKERS = 8
"""Workers of a pool, at most: enough that programs are built as fast as they can be run one at a time."""


@dataclass(frozen=True)
class Job:
    """A program to measure.

    Attributes:
        program: a module file (TVM JSON) or a trace.
        target: what it is compiled for.
        args: its arguments as JSON.
        reference: its unscheduled workload: a program faster than all others of that workload so far must compute
            the same, or it is a wrong_answer. None: nothing is compared.
        run_timeout_s: longest time that all its runs together get; None: the pool's.
    """

    program: Path | TracedProgram
    target: dict[str, Any]
    args: Sequence[Any]
    reference: Reference | None = None
    run_timeout_s: float | None = None


@dataclass(frozen=True)
class CpuPlan:
    """Which CPUs programs run on, and on which others the workers build meanwhile; None leaves all to the system."""

    build: tuple[int, ...] | None
    run: tuple[int, ...] | None

    @property
    def overlaps(self) -> bool:
        return self.build != self.run

    @property
    def all(self) -> tuple[int, ...] | None:
        """What the workers build on while nothing runs."""
        return tuple(sorted({*self.build, *self.run})) if self.build and self.run else None

    @classmethod
    def choose(
        cls, cores: int, *, overlap: bool | None = None, cpu: int | None = None, name: str = ""
    ) -> CpuPlan:
        """Take the last CPUs of the host for running, or those from `cpu` on; building overlaps on the others.

        Args:
            cores: CPUs that a program uses.
            overlap: build on other CPUs while a program runs; None: where the host has others.
            cpu: the first CPU that programs run on.
            name: of the hardware, for messages.

        Raises:
            HardwareError: the host has too few CPUs.
        """
        if not hasattr(os, "sched_getaffinity"):
            return cls(None, None)
        free = sorted(os.sched_getaffinity(0))
        if len(free) < cores + bool(overlap):
            builder = " and one to build meanwhile (measure.overlap)" if overlap else ""
            raise HardwareError(
                f"expected {cores} CPUs for hardware {name!r}{builder}, found {len(free)} on this host. "
                "Choose hardware with fewer cores, or measure.overlap=false."
            )
        starts = free[: len(free) - cores + 1]
        if cpu is not None and cpu not in starts:
            raise HardwareError(f"expected measure.cpu to be one of {starts}, found {cpu}")
        first = free.index(starts[-1] if cpu is None else cpu)
        run = tuple(free[first : first + cores])
        others = tuple(sorted(set(free) - set(run)))
        return cls(run if overlap is False or not others else others, run)


class WorkerPool:
    """Warm workers that share a host's CPUs; programs run one at a time.

    Args:
        options: how programs are timed.
        cores: cores that a program may use.
        cpus: which CPUs build and run; None chooses by the host.
        log: file for what TVM and the programs write to stderr.
        remote: fields of the RemoteAddress whose devices run the programs, a worker for each; None runs them here.
        target_kind: kind of the targets of traced programs, whose tensor intrinsics they may use.
        workers: their number; None: one a CPU of the plan, at most MAX_WORKERS.

    Attributes:
        unchecked: why a workload's programs are not compared, by its file.
    """

    def __init__(
        self,
        options: MeasureOptions,
        cores: int = 1,
        cpus: CpuPlan | None = None,
        log: Path | None = None,
        *,
        remote: dict[str, Any] | None = None,
        target_kind: str | None = None,
        workers: int | None = None,
    ) -> None:
        self.options = options
        if cpus is None:
            cpus = CpuPlan(None, None) if remote is not None else CpuPlan.choose(cores)
        self.cpus = cpus
        if workers is None:
            workers = min(len(cpus.all or ()), MAX_WORKERS) if cpus.overlaps else 1
        self.workers = [
            WarmWorker(options, cores, log, remote=remote, target_kind=target_kind)
            for _ in range(workers)
        ]
        for worker in self.workers:
            worker.process.move(cpus.all)
        self._lock = threading.Lock()
        self._local = remote is None
        self._on_cpu = remote is None and target_kind in (None, "llvm")
        self.unchecked: dict[Path, str] = {}
        self._best: dict[Path, Best] = {}
        self._expecting: dict[Path, threading.Lock] = {}
        self._idle: queue.SimpleQueue[WarmWorker] = queue.SimpleQueue()
        for worker in self.workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="measure")

    def measure(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Timing]]:
        """Measure programs, yielding the position of each and what came of it, in the order in which they are done.

        Raises:
            MeasureError: no worker can be started.
            HardwareError: no remote device is there.
            UntrustedError: the workload of a traced program could run code of others.
        """
        waiting = deque(enumerate(jobs))
        flying: dict[Future[Timing], int] = {}
        while waiting or flying:
            while waiting and len(flying) < len(self.workers):
                position, job = waiting.popleft()
                flying[self._threads.submit(self.measure_one, job)] = position
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                yield flying.pop(future), future.result()

    def measure_one(self, job: Job) -> Timing:
        """Measure one program on a worker that is idle, waiting for one if need be; raises as `measure`."""
        worker = self._idle.get()
        try:
            expected, best = self._expected(worker, job), self._best_of(job)
            timing = worker.measure(
                job.program,
                job.target,
                job.args,
                lambda: self._alone(worker),
                expected=expected,
                best=best,
                run_timeout_s=job.run_timeout_s,
            )
        except KeyboardInterrupt:
            worker.close()  # it may be at the program still
            raise
        finally:
            self._idle.put(worker)
        if job.reference is not None and timing.status is Status.ok:
            workload = job.reference.workload
            self._best[workload] = self._best.get(workload, Best()).after(timing.run_secs)
        return timing

    @property
    def num_checked(self) -> int:
        """Programs whose outputs were compared with their workload's."""
        return sum(worker.num_checked for worker in self.workers)

    @property
    def checked_s(self) -> float:
        """Seconds that this took, those of the unscheduled workloads included."""
        return sum(worker.checked_s + worker.expected_s for worker in self.workers)

    def _expected(self, worker: WarmWorker, job: Job) -> Path | None:
        """Return the file with what the program must compute; made by the first program of a workload."""
        if job.reference is None:
            return None
        workload, expected = job.reference.workload, job.reference.expected
        with self._expecting.setdefault(workload, threading.Lock()):
            if workload not in self.unchecked and not expected.exists():
                reason = (
                    worker.expect(job.reference, job.target)  # beside what is timed, like building
                    if self._local
                    else "its programs run on a remote device"
                )
                if reason:
                    self.unchecked[workload] = reason
        return None if workload in self.unchecked else expected

    def _best_of(self, job: Job) -> Callable[[], Best | None]:
        reference = job.reference
        return lambda: None if reference is None else self._best.get(reference.workload)

    def probe(self) -> float | None:
        """Time the reference kernel of the noise probe where programs run, seconds; None elsewhere than on this CPU."""
        if not self._on_cpu:
            return None
        worker = self._idle.get()
        try:
            with self._alone(worker):
                return worker.probe()
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End all processes and threads."""
        for worker in self.workers:
            worker.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def _alone(self, worker: WarmWorker) -> Iterator[None]:
        """Hold the CPUs that programs run on for this worker: see the module's text."""
        if not self.cpus.overlaps:
            yield
            return
        with self._lock:
            for other in self.workers:
                other.process.move(self.cpus.run if other is worker else self.cpus.build)
            try:
                yield
            finally:
                for other in self.workers:
                    other.process.move(self.cpus.all)
