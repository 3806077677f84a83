"""Items to results by workers that may die: in order, a bounded number at once, nothing lost and nothing twice.

`Workers` is the one interface; :mod:`tencost.workers.parallel.local` fulfils it with processes of this host and
:mod:`tencost.workers.parallel.ray_tasks` with Ray. What is done when a worker dies is decided here, for both: its item
is given out again, and an item whose workers die again and again is divided until the part that kills them is known.

A worker that hangs is made one that died, by whoever fulfils the interface: an item may take a number of seconds only.

A worker that dies in a process pool takes the pool along, and nobody knows who was guilty: all items that were in work
are then run again one by one. Ray tells whose worker died.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

_log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
Worker = TypeVar("Worker")

WINDOW = 4
"""Results that may wait for an earlier one, and items in work, by worker: more are not begun."""

HANGS_S = 3600.0
"""Seconds that an item may take before its worker is thought to hang, where nobody says another number."""

LOOK_SECONDS = 1.0
"""How often overdue items are looked for, at least; a tenth of the limit where that is less."""

Work = Callable[[Any, Any], Sequence[Any]]
"""``work(shared, item)`` -> its results, a sequence; a function of a module, as workers import it."""


class WorkerLostError(Exception):
    """A worker, or the machine that it was on, is gone with the item that it had."""

    def __init__(self, reason: str, *, blameless: bool = False) -> None:
        super().__init__(reason)
        self.blameless = blameless
        """Whether the item had nothing to do with it: the whole machine went."""


class Workers(Protocol):
    """Where items are worked on. Made with the function and with what all items share."""

    exact: bool
    """Whether it is known which item a dead worker had."""

    @property
    def count(self) -> int:
        """Return how many items are worked on at once."""

    def submit(self, item: Any) -> Any:
        """Give an item out; returns what it is asked for by, a hashable."""

    def wait(self, handles: Sequence[Any]) -> Sequence[Any]:
        """Return those of the handles, at least one, that are done; blocks until then."""

    def result(self, handle: Any) -> Sequence[Any]:
        """Return the results of an item that is done.

        Raises:
            WorkerLostError: there are none, as the worker died.
        """

    def close(self, *, at_once: bool) -> None:
        """End the workers; at once: whatever they are at."""


@dataclass(frozen=True)
class Rescue(Generic[Item, Result]):
    """What to do with an item that kills its workers."""

    lost: Callable[[Item, str], Sequence[Result]]
    """The results of an item that cannot be done, given the reason; may raise."""
    halves: Callable[[Item], Sequence[Item]] | None = None
    """An item in parts, in order, none where it cannot be divided; None: no item can be."""


@dataclass
class _Piece(Generic[Item]):
    key: tuple[int, ...]
    """Position of the item, then of the part in it."""
    item: Item
    deaths: int = 0
    moves: int = 0
    """How often the machine went that it was on."""


DEATHS = 2
"""Workers that die over an item before it is thought guilty; one more where the other ones may have been innocent."""
MOVES = 20
"""Machines that may go from under an item."""


def in_order(
    workers: Workers, items: Sequence[Item], rescue: Rescue[Item, Result]
) -> Generator[Sequence[Result]]:
    """Work on all items; yield the results of each, in the order of the items.

    No more is begun than `WINDOW` items a worker ahead of what was yielded, so that a slow reader holds the workers
    back. The workers are closed with the iterator, at once if that is left early.
    """
    mapping = _Mapping(workers, items, rescue)
    is_finished = False
    try:
        for position in range(len(items)):
            while mapping.num_missing[position]:
                mapping.advance(position)
            yield mapping.results_of(position)
        is_finished = True
    finally:
        workers.close(at_once=not is_finished)


class _Mapping(Generic[Item, Result]):
    """Which pieces wait, are in work, were lost and are done."""

    def __init__(
        self, workers: Workers, items: Sequence[Item], rescue: Rescue[Item, Result]
    ) -> None:
        self.num_missing = [1] * len(items)
        """Pieces of each item without results."""
        self._workers = workers
        self._rescue = rescue
        self._waiting = deque(_Piece((index,), item) for index, item in enumerate(items))
        self._again: deque[_Piece[Item]] = deque()
        self._flying: dict[Any, _Piece[Item]] = {}
        self._results: dict[tuple[int, ...], Sequence[Result]] = {}

    def results_of(self, position: int) -> list[Result]:
        """Return, and forget, the results of an item that misses none."""
        keys = sorted(key for key in self._results if key[0] == position)
        return [result for key in keys for result in self._results.pop(key)]

    def advance(self, position: int) -> None:
        """Give out what may be in work while the item at a position is waited for; wait for some of it."""
        self._feed(position)
        for handle in self._workers.wait(list(self._flying)):
            piece = self._flying.pop(handle)
            try:
                self._finish(piece, self._workers.result(handle))
            except WorkerLostError as error:
                self._lose(piece, error)

    def _feed(self, position: int) -> None:
        """Give out what was lost first; where the guilty are not known, each suspect alone."""
        count, again, flying = self._workers.count, self._again, self._flying
        suspects = again or any(piece.deaths for piece in flying.values())
        if suspects and not self._workers.exact:
            if again and not flying:
                self._give(again.popleft())
            return
        while again and len(flying) < count:
            self._give(again.popleft())
        end = position + WINDOW * count
        while self._waiting and len(flying) < count and self._waiting[0].key[0] < end:
            self._give(self._waiting.popleft())

    def _give(self, piece: _Piece[Item]) -> None:
        self._flying[self._workers.submit(piece.item)] = piece

    def _finish(self, piece: _Piece[Item], results: Sequence[Result]) -> None:
        self._results[piece.key] = results
        self.num_missing[piece.key[0]] -= 1

    def _lose(self, piece: _Piece[Item], error: WorkerLostError) -> None:
        most = DEATHS + self._workers.exact
        if error.blameless and piece.moves < MOVES:
            piece.moves += 1
            self._again.append(piece)
            return
        piece.deaths += 1
        if piece.deaths < most:
            self._again.append(piece)
        elif halves := self._rescue.halves(piece.item) if self._rescue.halves else ():
            self.num_missing[piece.key[0]] += len(halves) - 1
            self._again.extendleft(
                _Piece((*piece.key, place), halves[place], most - 1, piece.moves)
                for place in reversed(range(len(halves)))
            )
        else:
            self._finish(piece, self._rescue.lost(piece.item, str(error)))


@dataclass
class _Begun(Generic[Worker]):
    worker: Worker
    at: float
    late: bool = False


class OverdueWatch(Generic[Worker]):
    """Knows since when each piece is worked on, and by whom: a worker that hangs would be waited for without end.

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
        """Why there are no results of a piece that took too long."""
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
        """Say whether a piece was begun, as far as was reported."""
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
