"""Pieces of work that take longer than they may: their workers hang, and would be waited for without end."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

Worker = TypeVar("Worker")

LOOK_SECONDS = 1.0
"""How often is looked at who takes too long, at least; a tenth of the limit where that is less."""


@dataclass
class _Begun(Generic[Worker]):
    worker: Worker
    at: float
    late: bool = False


class Overdue(Generic[Worker]):
    """Knows since when each piece is worked on, and by whom.

    Its clock runs while this process looks: what a stopped command (Ctrl-Z) or a slow reader of results takes is
    nobody's time.
    """

    def __init__(self, limit_s: float) -> None:
        """Take how many seconds a piece may take."""
        self.limit_s = limit_s
        self.look_s = min(LOOK_SECONDS, limit_s / 10)
        self._clock = 0.0
        self._looked = time.monotonic()
        self._begun: dict[Hashable, _Begun[Worker]] = {}

    @property
    def reason(self) -> str:
        """What is said of a piece that took too long."""
        return f"the worker did not answer in {self.limit_s:g} s (execution.limit_s)"

    def tick(self) -> None:
        """Let the clock run on; called at least every `look_s` while results are waited for."""
        now = time.monotonic()
        self._clock += min(now - self._looked, 3 * self.look_s)
        self._looked = now

    def begun(self, key: Hashable, worker: Worker) -> None:
        """Take note that a worker has begun a piece."""
        self._begun[key] = _Begun(worker, self._clock)

    def ended(self, key: Hashable) -> None:
        """Forget a piece."""
        self._begun.pop(key, None)

    def knows(self, key: Hashable) -> bool:
        """Say whether a piece was begun, as far as was told."""
        return key in self._begun

    def is_late(self, key: Hashable) -> bool:
        """Say whether a piece took too long."""
        piece = self._begun.get(key)
        return piece is not None and piece.late

    def newly_late(self) -> list[tuple[Hashable, Worker]]:
        """Return the pieces that take too long by now, each once, with their workers; and log a line of each."""
        late = [
            (key, piece)
            for key, piece in self._begun.items()
            if not piece.late and self._clock - piece.at > self.limit_s
        ]
        for _, piece in late:
            piece.late = True
            _log.warning(
                "%s did not answer in %g s and is ended; what it worked on is given to another one "
                "(execution.limit_s=... lets it take longer)",
                piece.worker,
                self.limit_s,
            )
        return [(key, piece.worker) for key, piece in late]

    def late_for(self, seconds: float) -> list[Hashable]:
        """Return the pieces that took too long as many seconds ago, and more."""
        most = self.limit_s + seconds
        return [
            key
            for key, piece in self._begun.items()
            if piece.late and self._clock - piece.at > most
        ]
