"""The programs that a product could be run as, of which the rule takes one with nothing measured.

A candidate is a tile of registers and what the rule derives from it, each of which may be otherwise: how many numbers
of a vector are used, whether rows and columns that have no divisor are padded or overlap, how many tiles of rows and
columns lie outside of the others (which is what a cache holds), how much of the sum is unrolled, and whether an operand
is padded as a whole or band by band. The rule's own choice is the first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tencost.programs.codegen import registers
from tencost.programs.codegen.products import Product, Vectors, filled, product_of, vectors_of
from tencost.programs.codegen.tiles import (
    PADDED_ROWS,
    WITHOUT,
    WORTH_OVERLAPPING,
    WORTH_PADDING,
    Decisions,
    copying,
    cycles_of,
    decisions_of,
    order_of,
    padded_as,
    register_tiles,
    unrolled_of,
)

ATTEMPTS = 4
"""Candidates that the rule tries to schedule before it takes others, or gives a product up."""
NEAR_BEST = 2.0
"""Tiles are candidates up to this multiple of the best one's cycles, as :mod:`~.tiles` counts them."""


@dataclass(frozen=True)
class Candidate:
    """A program of a product, before it is scheduled.

    Attributes:
        product: with the lanes and the padding of this candidate.
        tile: vectors, rows of each axis, that registers hold.
        decisions: of the schedule; they tell all but what follows.
        overlaps: tiles need not divide rows and columns.
        near: operands are padded tile by tile.
        cycles: for a vector of sums, by the model of a core that the rule uses.
    """

    product: Product
    tile: tuple[int, tuple[int, ...]]
    decisions: Decisions
    overlaps: bool
    near: bool
    cycles: float


def draw_candidates(mod: Any, target: Any, count: int, seed: int = 0) -> list[Candidate]:
    """Return programs of a workload: the rule's, then half by the rule's order, half drawn of all others.

    Args:
        mod: IRModule with one function "main", unscheduled.
        target: TVM target or its dictionary; a CPU.
        count: of candidates at most.
        seed: of the draw.

    Returns:
        At most `count`; none where the workload is no product.
    """
    chosen = _chosen(mod, target)
    if chosen is None:
        return []
    first = chosen[0]
    every = {_key(each): each for each in rank_candidates(mod, target, every=True)}
    every.pop(_key(first), None)
    others = list(every.values())
    best = others[: (count - 1) // 2]
    rest = others[len(best) :]
    drawn = np.random.default_rng(seed).permutation(len(rest))[: count - 1 - len(best)]
    return [first, *best, *(rest[place] for place in sorted(drawn))]


def by_rule(mod: Any, target: Any) -> Any:
    """Return a workload as the rule schedules it, with nothing measured; None where no tile fits.

    Args:
        mod: IRModule with one function "main", unscheduled.
        target: TVM target or its dictionary.
    """
    chosen = _chosen(mod, target)
    return None if chosen is None else chosen[1]


def _chosen(mod: Any, target: Any) -> tuple[Candidate, Any] | None:
    """Return the rule's candidate and its scheduled module.

    Tiles that overlap may all be refused, for what stands behind a product (a part of its rows is cut off): tiles that
    divide it are tried then, too.
    """
    ranked = rank_candidates(mod, target)
    dividing = [candidate for candidate in ranked[ATTEMPTS:] if not candidate.overlaps]
    for candidate in (*ranked[:ATTEMPTS], *dividing[:ATTEMPTS]):
        scheduled = schedule_candidate(mod, target, candidate)
        if scheduled is not None:
            return candidate, scheduled
    return None


def rank_candidates(mod: Any, target: Any, *, every: bool = False) -> list[Candidate]:
    """Return candidates in the order in which the rule takes them, the best first; none where there is no product.

    Args:
        mod: IRModule with one function "main", unscheduled.
        target: TVM target or its dictionary.
        every: those that the rule cannot tell from others, too: blocks of tiles, less that is unrolled, other borders.
    """
    from tvm.s_tir import Schedule
    from tvm.target import Target

    vectors = vectors_of(target)
    whole = product_of(Schedule(mod, debug_mask=0), vectors) if vectors is not None else None
    if vectors is None or whole is None:
        return []
    cores = int(Target(target).attrs.get("num-cores", 1))
    by_key: dict[Any, Candidate] = {}
    for candidate in _all(mod, whole, vectors, cores, every=every):
        by_key.setdefault(_key(candidate), candidate)
    if filled(whole, vectors) is None:
        alone = _all(mod, whole, vectors, 1, every=False)
        if min((each.cycles for each in alone), default=0.0) > WORTH_PADDING * WITHOUT:
            return []
    least = min((candidate.cycles for candidate in by_key.values()), default=0.0)
    near_best = [each for each in by_key.values() if each.cycles <= NEAR_BEST * least]
    return sorted(near_best, key=lambda candidate: _order(candidate, cores))


def schedule_candidate(mod: Any, target: Any, candidate: Candidate) -> Any:
    """Return the scheduled module of a candidate, None where TVM refuses it.

    Args:
        mod: the workload's module.
        target: as for :func:`draw_candidates`.
        candidate: of this workload.
    """
    from tvm.target import Target

    vectors = vectors_of(target)
    if vectors is None:
        return None
    cores = int(Target(target).attrs.get("num-cores", 1))
    if candidate.overlaps:
        return registers.schedule_overlapping(
            mod, vectors, candidate.product, candidate.tile, candidate.decisions, cores
        )
    return registers.schedule_dividing(
        mod, candidate.product, candidate.decisions, cores, candidate.near
    )


def _key(candidate: Candidate) -> tuple[Any, ...]:
    product = candidate.product
    return product.lanes, product.padding, candidate.decisions, candidate.overlaps, candidate.near


def _order(candidate: Candidate, cores: int) -> tuple[Any, ...]:
    """Return what the rule sorts by: borders are padded where that is better done (`padded_near`); then by tiles."""
    product = candidate.product
    whole = (
        bool(product.copied) and not candidate.overlaps and candidate.near != product.padded_near
    )
    order = order_of(product, candidate.tile, candidate.decisions, candidate.cycles, cores)
    return whole, *order, candidate.overlaps


def _all(
    mod: Any, whole: Product, vectors: Vectors, cores: int, *, every: bool
) -> Iterator[Candidate]:
    """Yield candidates, some of them twice."""
    least = math.inf
    for product, overlaps in _products(mod, whole, vectors):
        share = math.prod(product.extents) / math.prod(whole.extents)
        share /= WORTH_OVERLAPPING if overlaps else WORTH_PADDING if product.padding else 1.0
        copied = copying(product, whole, vectors)
        nears = (False, True) if product.copied and not overlaps else (False,)
        for tile in register_tiles(product, vectors, overlapping=overlaps):
            wide = registers.widened_product(product, tile, cores) if overlaps else product
            computed = share * math.prod(wide.extents) / math.prod(product.extents)
            for near in nears if every else (product.padded_near and nears[-1],):
                for decisions in _decisions(wide, tile, cores, near, every=every):
                    cycles = computed * cycles_of(wide, vectors, tile, decisions, cores)
                    cycles += copied
                    least = min(least, cycles)
                    if cycles > NEAR_BEST * least:
                        break  # the tile's other decisions are as slow
                    yield Candidate(product, tile, decisions, overlaps, near, cycles)


def _products(mod: Any, whole: Product, vectors: Vectors) -> Iterator[tuple[Product, bool]]:
    """Yield the product with each number of lanes, padded or not, and whether its tiles overlap.

    The widest vectors first: of equal cycles they are half the instructions (.84 to .97 of the time where two half
    vectors take that of a whole one, a Zen 4).
    """
    least = max(4, vectors.lanes // 2)
    widths = [lanes for lanes in range(vectors.lanes, least - 1, -1) if whole.group % lanes == 0]
    for lanes in widths:
        yield replace(whole, lanes=lanes), False
        yield replace(whole, lanes=lanes), True
    is_one_group = whole.group == whole.extents[whole.column]
    if is_one_group and whole.group > vectors.lanes and whole.group % vectors.lanes:
        yield replace(whole, lanes=vectors.lanes), True
    columns = (1,) if whole.group % vectors.lanes == 0 else (1, vectors.lanes)
    for multiples in itertools.product(columns, (1, *PADDED_ROWS) if whole.rows else (1,)):
        product = padded_as(mod, whole, vectors, *multiples)
        if product is not None:
            yield product, False


def _decisions(
    product: Product,
    tile: tuple[int, tuple[int, ...]],
    cores: int,
    near: bool,
    *,
    every: bool,
) -> Iterator[Decisions]:
    """Yield decisions for a tile: what is outside of what, and what is unrolled.

    Not every one: no blocks, and the most that is unrolled.
    """
    most = unrolled_of(product, tile[0])
    last = product.extents[product.sums[-1]]
    steps = [step for step in (8, 4, 2, 1) if last % step == 0] if every else [most]
    for is_outside, step in itertools.product((True, False), steps):
        plain = decisions_of(product, tile, is_outside, step, cores, near)
        yield plain
        if not every:
            continue
        columns, *rows = plain[: 1 + len(product.rows)]
        sums = plain[1 + len(product.rows) :]
        # Some tiles of rows, some of columns inside of the others: a block that the second cache holds.
        for outer in _middle_divisors(columns[0] * columns[1]):
            block = (outer, columns[0] * columns[1] // outer, columns[2])
            yield (block, *rows, *sums)
        if rows and not near:
            for outer in _middle_divisors(rows[0][0] * rows[0][1]):
                block = (outer, rows[0][0] * rows[0][1] // outer, rows[0][2])
                yield (columns, block, *rows[1:], *sums)


def _middle_divisors(extent: int) -> list[int]:
    """Return at most three divisors between 1 and the extent, spread evenly."""
    divisors = [divisor for divisor in range(2, extent) if extent % divisor == 0]
    if len(divisors) <= 3:
        return divisors
    places = np.linspace(0, len(divisors) - 1, 5)[1:-1].round().astype(int)
    return [divisors[place] for place in places]
