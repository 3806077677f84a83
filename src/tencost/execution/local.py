"""Workers that are processes of this host."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from tencost.execution.mapping import Work, WorkerLostError

_given: list[tuple[Work, Any]] = []
"""In a worker: what it does, and what all items share."""


class LocalWorkers:
    """Processes of this host; started with the first items, and again when one of them has died."""

    exact = False

    def __init__(self, work: Work, shared: Any, jobs: int | None) -> None:
        """Take what to do.

        Args:
            work: the function.
            shared: what all items share; sent to each process once.
            jobs: processes; None: one for every core that this one may run on.
        """
        self._given = (work, shared)
        self._count = jobs or len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None

    @property
    def count(self) -> int:
        return self._count

    def submit(self, item: Any) -> Future[Sequence[Any]]:
        for _ in range(self._count + 1):
            pool = self._pool = self._pool or ProcessPoolExecutor(
                self._count,
                multiprocessing.get_context("spawn"),
                initializer=_begin,
                initargs=self._given,
            )
            try:
                return pool.submit(_work, item)
            except BrokenProcessPool:  # a worker died without work: as good as none
                self._renew()
        raise WorkerLostError("the worker processes die when they are started")

    def wait(self, handles: Sequence[Future[Sequence[Any]]]) -> Sequence[Future[Sequence[Any]]]:
        done = wait(handles, return_when=FIRST_COMPLETED).done
        return [handle for handle in handles if handle in done]

    def result(self, handle: Future[Sequence[Any]]) -> Sequence[Any]:
        try:
            return handle.result()
        except BrokenProcessPool:
            raise WorkerLostError("the worker process died") from None

    def close(self, *, at_once: bool) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if at_once:
            for process in list((pool._processes or {}).values()):
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)

    def _renew(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def _begin(work: Work, shared: Any) -> None:
    prepare_worker()
    _given[:] = [(work, shared)]


def _work(item: Any) -> Sequence[Any]:
    work, shared = _given[0]
    return work(shared, item)


def prepare_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it, however it ends: a pool's workers outlive a killed parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
