"""Workers that are processes of this host.

A worker says which item it begins, so that it is known who hangs: it is killed, and its item is given out again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tencost.workers.parallel.lean_imports import leave_out_unused
from tencost.workers.parallel.mapping import HANGS_S, OverdueWatch, Work, WorkerLostError

_assignment: list[tuple[Work, Any, Connection]] = []
"""In a worker: what it does, what all items share, and where it says which item it begins."""


@dataclass(frozen=True)
class _Process:
    pid: int

    def __str__(self) -> str:
        return f"worker process {self.pid}"


class LocalWorkers:
    """Processes of this host; started with the first items, and again when one of them has died."""

    exact = False

    def __init__(self, work: Work, shared: Any, jobs: int | None, limit_s: float = HANGS_S) -> None:
        """Take what to do.

        Args:
            work: the function.
            shared: what all items share; sent to each process once.
            jobs: processes; None: one for every core that this one may run on.
            limit_s: seconds that an item may take before its process is thought to hang.
        """
        self._context = multiprocessing.get_context("spawn")
        self._begun, begin = self._context.Pipe(duplex=False)
        self._assignment = (work, shared, begin)
        self._overdue = OverdueWatch[_Process](limit_s)
        self._numbers: dict[Future[Sequence[Any]], int] = {}
        self._submitted = 0
        self._killed = False
        """Whether the pool was broken from here: what the other processes had is not to blame."""
        self._count = jobs or len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None

    @property
    def count(self) -> int:
        return self._count

    def submit(self, item: Any) -> Future[Sequence[Any]]:
        for _ in range(self._count + 1):
            pool = self._pool = self._pool or ProcessPoolExecutor(
                self._count, self._context, initializer=_begin, initargs=self._assignment
            )
            try:
                handle = pool.submit(_work, self._submitted, item)
            except BrokenProcessPool:  # a worker died without work: as good as none
                self._renew()
                continue
            self._numbers[handle] = self._submitted
            self._submitted += 1
            return handle
        raise WorkerLostError("the worker processes die when they are started")

    def wait(self, handles: Sequence[Future[Sequence[Any]]]) -> Sequence[Future[Sequence[Any]]]:
        while True:
            finished = wait(handles, self._overdue.look_s, return_when=FIRST_COMPLETED).done
            self._look()
            if finished:
                return [handle for handle in handles if handle in finished]

    def _look(self) -> None:
        """Hear who has begun what, and kill those that take too long: the pool breaks by it."""
        self._overdue.tick()
        at_work = {number for handle, number in self._numbers.items() if not handle.done()}
        while self._begun.poll():
            number, pid = self._begun.recv()
            if number in at_work:
                self._overdue.begun(number, _Process(pid))
        for number in self._numbers.values():
            if number not in at_work and not self._overdue.is_late(number):
                self._overdue.ended(number)
        if self._overdue.newly_late() and self._pool is not None:
            self._killed = True
            _kill(self._pool)

    def result(self, handle: Future[Sequence[Any]]) -> Sequence[Any]:
        number = self._numbers.pop(handle)
        hangs = self._overdue.is_late(number)
        self._overdue.ended(number)
        try:
            return handle.result()
        except BrokenProcessPool:
            if hangs:
                raise WorkerLostError(self._overdue.reason) from None
            raise WorkerLostError("the worker process died", blameless=self._killed) from None

    def close(self, *, at_once: bool) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if at_once:
            _kill(pool)
        pool.shutdown(wait=True, cancel_futures=True)

    def _renew(self) -> None:
        pool, self._pool = self._pool, None
        self._killed = False
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def _kill(pool: ProcessPoolExecutor) -> None:
    """Kill all processes of a pool: one that is stopped would not end of a mere SIGTERM, and be waited for."""
    for process in list((pool._processes or {}).values()):
        process.kill()


def _begin(work: Work, shared: Any, begin: Connection) -> None:
    prepare_worker()
    _assignment[:] = [(work, shared, begin)]


def _work(number: int, item: Any) -> Sequence[Any]:
    work, shared, begin = _assignment[0]
    begin.send((number, os.getpid()))  # a single write: processes need no lock among them
    return work(shared, item)


def prepare_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it, however it ends: a pool's workers outlive a killed parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave_out_unused()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
