"""Items to results by workers that may die: in order, a bounded number at once, nothing lost and nothing twice.

`Workers` is the one interface; :mod:`tencost.workers.parallel.local` fulfils it with processes of this host and
:mod:`tencost.workers.parallel.ray_tasks` with Ray. What is done when a worker dies is decided here, for both: its item
is given out again, and an item whose workers die again and again is divided until the part that kills them is known.

A worker that hangs is made one that died, by whoever fulfils the interface: an item may take a number of seconds only.

A worker that dies in a process pool takes the pool along, and nobody knows who was guilty: all items that were in work
are then run again one by one. Ray tells whose worker died.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

WINDOW = 4
"""Results that may wait for an earlier one, and items in work, by worker: more are not begun."""

HANGS_S = 3600.0
"""Seconds that an item may take before its worker is thought to hang, where nobody says another number."""

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
    waiting = deque(_Piece((index,), item) for index, item in enumerate(items))
    again: deque[_Piece[Item]] = deque()
    flying: dict[Any, _Piece[Item]] = {}
    found: dict[tuple[int, ...], Sequence[Result]] = {}
    missing = [1] * len(items)
    at = 0
    finished = False
    try:
        while at < len(items):
            while missing[at] == 0:
                parts = sorted(key for key in found if key[0] == at)
                yield [result for key in parts for result in found.pop(key)]
                at += 1
                if at == len(items):
                    finished = True
                    return
            _feed(workers, waiting, again, flying, at)
            for handle in workers.wait(list(flying)):
                piece = flying.pop(handle)
                try:
                    found[piece.key] = workers.result(handle)
                    missing[piece.key[0]] -= 1
                except WorkerLostError as error:
                    _lost(workers, piece, error, rescue, again, found, missing)
    finally:
        workers.close(at_once=not finished)


def _feed(
    workers: Workers,
    waiting: deque[_Piece[Item]],
    again: deque[_Piece[Item]],
    flying: dict[Any, _Piece[Item]],
    at: int,
) -> None:
    """Give out what may be in work now: what was lost first, suspects each alone."""
    count = workers.count
    if not workers.exact and (again or any(piece.deaths for piece in flying.values())):
        if again and not flying:
            _give(workers, again, flying)
        return
    while again and len(flying) < count:
        _give(workers, again, flying)
    while waiting and len(flying) < count and waiting[0].key[0] < at + WINDOW * count:
        _give(workers, waiting, flying)


def _give(workers: Workers, pieces: deque[_Piece[Item]], flying: dict[Any, _Piece[Item]]) -> None:
    piece = pieces.popleft()
    flying[workers.submit(piece.item)] = piece


def _lost(
    workers: Workers,
    piece: _Piece[Item],
    error: WorkerLostError,
    rescue: Rescue[Item, Result],
    again: deque[_Piece[Item]],
    found: dict[tuple[int, ...], Sequence[Result]],
    missing: list[int],
) -> None:
    if error.blameless and piece.moves < MOVES:
        piece.moves += 1
        again.append(piece)
        return
    piece.deaths += 1
    most = DEATHS + workers.exact
    if piece.deaths < most:
        again.append(piece)
        return
    halves = rescue.halves(piece.item) if rescue.halves else ()
    if not halves:
        found[piece.key] = rescue.lost(piece.item, str(error))
        missing[piece.key[0]] -= 1
        return
    missing[piece.key[0]] += len(halves) - 1
    parts = [
        _Piece((*piece.key, place), half, most - 1, piece.moves)
        for place, half in enumerate(halves)
    ]
    again.extendleft(reversed(parts))
