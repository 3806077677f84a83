"""Which task is tuned next: the one that promises most of the network's time for a second of tuning.

MetaSchedule's GradientBased scheduler weighs what a round of each task may gain, but not what it costs: a
convolution's round takes ten times a small product's. Here both are known. What a task's next round may gain is told by
its last ones, as a share of the task's latency (of a first round, which starts from what is untuned, at most CAP),
and by a faith in it that halves with every so many programs without a gain: a task that stands still gives its turns
away, and gets one again when the others stand as still. Every task has one turn first, in the order given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

CAP = 0.1
"""A round counts with at most this gain, as a share of the latency before it."""
FAITH = 0.02
"""What a round is expected to gain of a task that gained just now, beside what its last rounds say."""
HALF = 16
"""Programs without a gain that halve the faith."""
WINDOW = 32
"""Programs whose rounds say what the next one gains, and what it costs."""


@dataclass
class Turn:
    """A round of a task: programs measured, seconds it took with its search, latency of the task before and after."""

    programs: int
    seconds: float
    before_s: float
    after_s: float

    @property
    def gain(self) -> float:
        """The share of the latency that is gone, in [0, CAP]."""
        return min(CAP, max(0.0, 1.0 - self.after_s / self.before_s)) if self.before_s else 0.0


def promise(turns: Sequence[Turn]) -> float:
    """Return what share of its latency a task may lose by a second more, by its turns; 0 before the first."""
    recent, programs = [], 0
    for turn in reversed(turns):
        if programs >= WINDOW:
            break
        recent.append(turn)
        programs += turn.programs
    seconds = sum(turn.seconds for turn in recent)
    if programs == 0 or seconds <= 0:
        return 0.0
    seen = sum(turn.gain for turn in recent) / programs
    still = sum(turn.programs for turn in takewhile(lambda turn: not turn.gain, reversed(turns)))
    return (seen + FAITH / HALF * 0.5 ** (still / HALF)) * programs / seconds


@derived_object
class SecondsScheduler(ms.task_scheduler.PyTaskScheduler):
    """Task scheduler that knows seconds.

    Args:
        weights: how often the network calls each task.
        latency_s: best latency known of the task at a place, seconds.
        measured: programs measured of the task at a place.
        min_gain: the run ends when no task promises more than this share of all tasks' time per minute; 0 never.

    Attributes:
        settled: whether the run ended by `min_gain`.
    """

    def __init__(
        self,
        weights: Sequence[float],
        latency_s: Callable[[int], float],
        measured: Callable[[int], int],
        min_gain: float = 0.0,
    ) -> None:
        super().__init__()
        self.settled = False
        self.turns: list[list[Turn]] = [[] for _ in weights]
        self._weights, self._latency_s, self._measured = weights, latency_s, measured
        self._min_gain = min_gain
        self._running: tuple[int, float, int, float] | None = None
        self._waiting = list(range(len(weights)))

    def next_task_id(self) -> int:
        scheduler = self._outer()
        self._end_round(scheduler)
        alive = [place for place, task in enumerate(scheduler.tasks_) if not task.is_terminated]
        self._waiting = [place for place in self._waiting if place in alive]
        place = self._waiting.pop(0) if self._waiting else self._best(alive)
        if place >= 0:
            programs, latency_s = self._measured(place), self._latency_s(place)
            self._running = (place, time.monotonic(), programs, latency_s)
        return place

    def _best(self, alive: Sequence[int]) -> int:
        """Return the task that promises most; -1 where there is none, or none that promises enough."""
        if not alive:
            return -1
        weighted = [weight * self._latency_s(place) for place, weight in enumerate(self._weights)]
        worth = {place: weighted[place] * promise(self.turns[place]) for place in alive}
        best = max(alive, key=lambda place: worth[place])
        total = sum(weighted)
        if 60.0 * worth[best] < self._min_gain * total:
            self.settled = True
            return -1
        return best

    def _end_round(self, scheduler: Any) -> None:
        """Note what the round that is over gained and cost."""
        if self._running is None:
            return
        place, started, programs, latency = self._running
        self._running = None
        scheduler.touch_task(place)
        measured = self._measured(place) - programs
        if measured:
            turn = Turn(measured, time.monotonic() - started, latency, self._latency_s(place))
            self.turns[place].append(turn)
