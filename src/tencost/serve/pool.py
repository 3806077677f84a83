"""The service's worker processes: they outlive requests, and are ended and begun again when one takes too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Any

from tencost.errors import BundleError
from tencost.execution.local import LocalWorkers
from tencost.execution.mapping import Rescue, in_order
from tencost.features.kind import Chunk
from tencost.serve.scoring import Model, Scored, score
from tencost.train.calibration import LOWEST_SCORE

CHUNK = 32
"""Candidates that a worker gets at once."""


class Overdue(Exception):
    """A batch took longer than it may."""


class Pool:
    """Scores batches, one at a time, each on all workers."""

    def __init__(self, model: Model, jobs: int | None) -> None:
        self._workers = _Kept(score, model, jobs)
        self._lock = threading.Lock()

    def score(self, batch: Chunk, seconds: float) -> list[Scored]:
        """Score the candidates of a batch, in their order.

        Args:
            batch: any number of candidates of one workload.
            seconds: after which it is given up, waiting for other batches included.

        Raises:
            Overdue: it took longer.
            UntrustedError: the workload's module names what could run code of others.
        """
        deadline = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            raise Overdue
        try:
            self._workers.deadline = deadline
            rescue: Rescue[Chunk, Scored] = Rescue(_died, _halves)
            results = in_order(self._workers, list(_chunks(batch)), rescue)
            return [one for part in results for one in part]
        finally:
            self._lock.release()

    def begin(self, empty: Chunk, seconds: float) -> None:
        """Let a worker load the model; raises what is wrong with that, Overdue if it takes longer."""
        with self._lock:
            self._workers.deadline = time.monotonic() + seconds
            list(in_order(self._workers, [empty], Rescue(_unborn)))

    def close(self) -> None:
        """End the workers, whatever they are at."""
        LocalWorkers.close(self._workers, at_once=True)


class _Kept(LocalWorkers):
    """Processes that stay when a batch is done."""

    deadline = 0.0

    def wait(self, handles: Sequence[Future[Sequence[Any]]]) -> Sequence[Future[Sequence[Any]]]:
        left = max(0.0, self.deadline - time.monotonic())
        done = wait(handles, timeout=left, return_when=FIRST_COMPLETED).done
        if not done:
            raise Overdue
        return [handle for handle in handles if handle in done]

    def close(self, *, at_once: bool) -> None:
        if at_once and time.monotonic() >= self.deadline:  # what they are at is nobody's any more
            super().close(at_once=True)


def _chunks(batch: Chunk) -> Iterator[Chunk]:
    for start in range(0, len(batch.programs), CHUNK):
        part = slice(start, start + CHUNK)
        yield replace(batch, program_ids=batch.program_ids[part], programs=batch.programs[part])


def _halves(chunk: Chunk) -> list[Chunk]:
    return chunk.halves() if len(chunk.programs) > 1 else []


def _died(chunk: Chunk, reason: str) -> list[Scored]:
    return [Scored(LOWEST_SCORE, reason) for _ in chunk.programs]


def _unborn(_: Chunk, reason: str) -> list[Scored]:
    raise BundleError(f"expected a worker that loads the model, found none: {reason}")
