"""The service's worker processes: they outlive requests, and are ended and begun again when one takes too long.

A batch is divided over all workers, `SLICE` programs at a time; requests take turns by slices, in the order in which
they came, so that a large one does not hold up a small one. What was scored is remembered by module and trace, as they
were sent: a program that was sent before costs nothing. With a draft, what promises little is guessed from tile
columns, as a tuner's own scoring does (:mod:`tencost.models.draft_model`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from tencost.errors import BundleError
from tencost.features.rows.kind import Chunk
from tencost.features.rows.ragged import FloatArray
from tencost.models.programs.bundle.calibration import LOWEST_SCORE
from tencost.register.service.reading import LateError, ScoreRequest
from tencost.register.service.scoring import CandidateScore, ServedModel, score_chunk
from tencost.workers.parallel.local import LocalWorkers
from tencost.workers.parallel.mapping import Rescue, Work, in_order

CHUNK = 16
"""Candidates that a worker gets at once."""
SLICE = 128
"""Candidates that are scored before the next request has its turn."""
MOST_PROGRAMS = 65_536
"""Programs that are remembered; those of the workload that was asked for longest ago are forgotten first."""
MOST_ANSWERS = 64
"""Answers that are remembered whole, so that a batch that is sent again gets the same guesses at once."""


Remembered = tuple[CandidateScore, FloatArray | None]
"""Of a program that was scored in full, and the tile columns that a draft can learn from, where it has some."""


class EndedError(Exception):
    """Nobody waits for the scores any more: the client left, or the service ends."""


@dataclass(frozen=True)
class _Scoring:
    """A request while it is scored."""

    request: ScoreRequest
    deadline: float
    """Of time.monotonic()."""
    abandoned: threading.Event


class Memory:
    """What was scored, by workload and by the hash of a program's trace, the latest last; threads may share one."""

    def __init__(self, most: int = MOST_PROGRAMS) -> None:
        self._workloads: OrderedDict[bytes, dict[bytes, Remembered]] = OrderedDict()
        self._most = most
        self._count = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def of(self, workload: bytes) -> dict[bytes, Remembered]:
        """Return a copy of what is remembered of a workload."""
        with self._lock:
            if workload not in self._workloads:
                return {}
            self._workloads.move_to_end(workload)
            return dict(self._workloads[workload])

    def add(self, workload: bytes, new: Mapping[bytes, Remembered]) -> None:
        """Remember more programs of a workload."""
        with self._lock:
            programs = self._workloads.setdefault(workload, {})
            self._workloads.move_to_end(workload)
            self._count -= len(programs)
            programs.update(new)
            self._count += len(programs)
            while self._count > self._most and len(self._workloads) > 1:
                self._count -= len(self._workloads.popitem(last=False)[1])
            for key in list(programs)[: max(0, self._count - self._most)]:
                del programs[key]
                self._count -= 1


class ScoringPool:
    """Scores batches on all workers; threads may share one."""

    def __init__(self, model: ServedModel, jobs: int | None) -> None:
        self._workers = _LastingWorkers(score_chunk, model, jobs)
        self._turns = _Turns()
        self._memory = Memory()
        self._answers: OrderedDict[bytes, list[CandidateScore]] = OrderedDict()
        self._answers_lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """Programs so far: `full`, `remembered`, `guessed`, `unread`."""

    def gauges(self) -> dict[str, int]:
        """Return what there is at this moment, by the names of the service's metrics."""
        return {
            "workers": self._workers.count,
            # One that died is begun again with the next request.
            "workers_alive": self._workers.num_alive,
            # Requests that wait for their turn on the workers.
            "queue": self._turns.num_waiting,
            "programs_remembered": len(self._memory),
        }

    def score(
        self, request: ScoreRequest, seconds: float, abandoned: threading.Event
    ) -> list[CandidateScore]:
        """Score the candidates of a request, in their order.

        Args:
            request: any number of candidates of one workload.
            seconds: after which it is given up, waiting for other requests included.
            abandoned: set when nobody waits for the scores any more.

        Raises:
            LateError: it took longer.
            EndedError: nobody waits any more.
            UntrustedError: the workload's module names what could run code of others.
        """
        name = b"".join((request.workload, bytes([request.draft]), *request.keys))
        with self._answers_lock:
            answer = self._answers.get(name)
        if answer is None:
            answer = self._new(request, seconds, abandoned)
            if not any(scored.reason for scored in answer):
                with self._answers_lock:
                    self._answers[name] = answer
                    if len(self._answers) > MOST_ANSWERS:
                        self._answers.popitem(last=False)
        else:
            self.counts["remembered"] += len(answer)
        return answer

    def _new(
        self, request: ScoreRequest, seconds: float, abandoned: threading.Event
    ) -> list[CandidateScore]:
        """Score a request that was not answered before."""
        scoring = _Scoring(request, time.monotonic() + seconds, abandoned)
        remembered = self._memory.of(request.workload)
        fresh = [key for key in dict.fromkeys(request.keys) if key not in remembered]
        self.counts["remembered"] += len(request.keys) - len(fresh)
        guesses = self._guesses(scoring, remembered, fresh)
        self._in_full(
            scoring,
            remembered,
            [key for key in fresh if key not in remembered and key not in guesses],
        )
        self.counts["guessed"] += len(guesses)
        return [
            CandidateScore(guesses[key], guessed=True) if key in guesses else remembered[key][0]
            for key in request.keys
        ]

    def begin(self, empty: Chunk, seconds: float) -> None:
        """Let each worker load the model; raises what is wrong with that, LateError if it takes longer."""
        deadline = time.monotonic() + seconds
        with self._turns.mine(deadline):
            self._workers.deadline = deadline
            list(in_order(self._workers, [empty] * self._workers.count, Rescue(_unborn)))

    def close(self) -> None:
        """End the workers, whatever they are at; who waits for scores gets EndedError."""
        self._workers.end()

    def _guesses(
        self, scoring: _Scoring, remembered: dict[bytes, Remembered], fresh: Sequence[bytes]
    ) -> dict[bytes, float]:
        """Score what promises something in full; return the guesses of the others, none without a draft."""
        from tencost.models.draft_model import MIN_BATCH, guess_the_rest

        request = scoring.request
        rows = {key: request.rows[key] for key in fresh if key in request.rows}
        if not request.draft or len(rows) < MIN_BATCH:
            return {}

        def score_in_full(keys: Sequence[bytes]) -> None:
            self._in_full(scoring, remembered, keys)

        def scores_of(keys: Sequence[bytes]) -> npt.NDArray[np.float64]:
            return np.array([remembered[key][0].score for key in keys], np.float64)

        learnt = {key: row for key, (_, row) in remembered.items() if row is not None}
        return guess_the_rest(rows, learnt, score_in_full, scores_of, np.random.default_rng(0))

    def _in_full(
        self, scoring: _Scoring, remembered: dict[bytes, Remembered], keys: Sequence[bytes]
    ) -> None:
        """Score programs by the model, a slice a turn; remember them, here and for later requests."""
        request = scoring.request
        texts = dict(zip(request.keys, request.batch.programs, strict=True))
        for start in range(0, len(keys), SLICE):
            part = keys[start : start + SLICE]
            with self._turns.mine(scoring.deadline):
                if scoring.abandoned.is_set():
                    raise EndedError
                self._workers.deadline = scoring.deadline
                rescue: Rescue[Chunk, CandidateScore] = Rescue(_died, _halves)
                chunks = _chunks(request.batch, [texts[key] for key in part])
                scores = chain.from_iterable(in_order(self._workers, chunks, rescue))
                new = {
                    key: (score, request.rows.get(key))
                    for key, score in zip(part, scores, strict=True)
                }
            remembered.update(new)
            good = {key: pair for key, pair in new.items() if not pair[0].reason}
            self.counts["full"] += len(good)
            self.counts["unread"] += len(new) - len(good)
            self._memory.add(request.workload, good)


class _Turns:
    """A lock that is given to who has waited longest."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets: deque[object] = deque()
        """The first one's turn it is."""

    @property
    def num_waiting(self) -> int:
        return max(0, len(self._tickets) - 1)

    @contextmanager
    def mine(self, deadline: float) -> Iterator[None]:
        """Wait for a turn; raises LateError where it does not come before the deadline."""
        ticket = object()
        with self._changed:
            self._tickets.append(ticket)
        try:
            with self._changed:
                seconds = max(0.0, deadline - time.monotonic())
                if not self._changed.wait_for(lambda: self._tickets[0] is ticket, seconds):
                    raise LateError
            yield
        finally:
            with self._changed:
                self._tickets.remove(ticket)
                self._changed.notify_all()


class _LastingWorkers(LocalWorkers):
    """Processes that stay when a batch is done."""

    deadline = 0.0

    def __init__(self, work: Work, shared: Any, jobs: int | None) -> None:
        super().__init__(work, shared, jobs)
        self._ended = False
        self._ending = threading.Lock()

    @property
    def num_alive(self) -> int:
        processes = (self._pool._processes or {}) if self._pool is not None else {}
        return sum(process.is_alive() for process in list(processes.values()))

    def submit(self, chunk: Any) -> Future[Sequence[Any]]:
        with self._ending:  # or a pool could be begun after the end
            if self._ended:
                raise EndedError
            return super().submit(chunk)

    def wait(self, handles: Sequence[Future[Sequence[Any]]]) -> Sequence[Future[Sequence[Any]]]:
        remaining = max(0.0, self.deadline - time.monotonic())
        finished = wait(handles, timeout=remaining, return_when=FIRST_COMPLETED).done
        if not finished:
            raise LateError
        return [handle for handle in handles if handle in finished]

    def result(self, handle: Future[Sequence[Any]]) -> Sequence[Any]:
        try:
            return super().result(handle)
        except CancelledError:
            raise EndedError from None

    def close(self, *, at_once: bool) -> None:
        if at_once and time.monotonic() >= self.deadline:  # what they are at is nobody's any more
            super().close(at_once=True)

    def end(self) -> None:
        """End the processes for good."""
        with self._ending:
            self._ended = True
        super().close(at_once=True)


def _chunks(batch: Chunk, programs: Sequence[str]) -> list[Chunk]:
    """Return programs of a batch, CHUNK at a time; their ids are their positions."""
    names = tuple(map(str, range(len(programs))))
    parts = [slice(start, start + CHUNK) for start in range(0, len(programs), CHUNK)]
    return [
        replace(batch, program_ids=names[part], programs=tuple(programs[part])) for part in parts
    ]


def _halves(chunk: Chunk) -> list[Chunk]:
    return chunk.halves() if len(chunk.programs) > 1 else []


def _died(chunk: Chunk, reason: str) -> list[CandidateScore]:
    return [CandidateScore(LOWEST_SCORE, reason) for _ in chunk.programs]


def _unborn(_: Chunk, reason: str) -> list[CandidateScore]:
    raise BundleError(f"expected a worker that loads the model, found none: {reason}")
