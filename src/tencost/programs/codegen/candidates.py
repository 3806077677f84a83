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
from tencost.programs.codegen.products import Product, Vectors, product_of, vectors_of
from tencost.programs.codegen.tiles import (
    MAX_UNROLLED,
    PADDED_ROWS,
    Decisions,
    columns_outside,
    decisions_of,
    overlapping,
    padded,
    padded_as,
    tiles_of,
)

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


def candidates(mod: Any, target: Any, count: int, seed: int = 0) -> list[Candidate]:
    """Return programs of a workload: the rule's, then half by the rule's order, half drawn of all others.

    Args:
        mod: IRModule with one function "main", unscheduled.
        target: TVM target or its dictionary; a CPU.
        count: of candidates at most.
        seed: of the draw.

    Returns:
        At most `count`; none where the workload is no product.
    """
    from tvm.s_tir import Schedule
    from tvm.target import Target

    vectors = vectors_of(target)
    if vectors is None:
        return []
    whole = product_of(Schedule(mod, debug_mask=0), vectors)
    if whole is None:
        return []
    cores = int(Target(target).attrs.get("num-cores", 1))
    first = _by_rule(mod, whole, vectors, cores)
    if first is None:
        return []
    unique = {_key(first): first}
    for candidate in _all(mod, whole, vectors, cores):
        unique.setdefault(_key(candidate), candidate)
    others = sorted(list(unique.values())[1:], key=lambda each: each.cycles)
    ranked = others[: (count - 1) // 2]
    rest = others[len(ranked) :]
    drawn = np.random.default_rng(seed).permutation(len(rest))[: count - 1 - len(ranked)]
    return [first, *ranked, *(rest[place] for place in sorted(drawn))]


def schedule_candidate(mod: Any, target: Any, candidate: Candidate) -> Any:
    """Return the scheduled module of a candidate, None where TVM refuses it.

    Args:
        mod: the workload's module.
        target: as for :func:`candidates`.
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


def _by_rule(mod: Any, whole: Product, vectors: Vectors, cores: int) -> Candidate | None:
    chosen = overlapping(mod, whole, vectors)
    if chosen is not None:
        product, tile = chosen
        wide = registers.widened_product(product, tile)
        is_outside = not wide.apart and columns_outside(wide)
        decisions = decisions_of(wide, tile, is_outside, 1, cores, False)
        return Candidate(product, tile, decisions, True, False, 0.0)
    plain = padded(mod, whole, vectors)
    if plain is None:
        return None
    near = bool(plain.copied) and plain.apart
    *_, tile = min(tiles_of(plain, vectors))
    is_outside = near if plain.apart else columns_outside(plain)
    return Candidate(
        plain, tile, decisions_of(plain, tile, is_outside, 1, cores, near), False, near, 0.0
    )


def _all(mod: Any, whole: Product, vectors: Vectors, cores: int) -> Iterator[Candidate]:
    """Yield every candidate whose tile is near the best one's cycles."""
    yielded = []
    for product, overlaps in _products(mod, whole, vectors):
        grown = math.prod(product.extents) / math.prod(whole.extents)
        for _, cycles, *_, tile in tiles_of(product, vectors, overlapping=overlaps):
            yielded.append((cycles * grown, product, overlaps, tile))
    least = min((cycles for cycles, *_ in yielded), default=0.0)
    for cycles, product, overlaps, tile in yielded:
        if cycles > NEAR_BEST * least:
            continue
        wide = registers.widened_product(product, tile) if overlaps else product
        for near in (False, True) if product.copied and not overlaps else (False,):
            for decisions in _decisions(wide, tile, cores, near):
                yield Candidate(product, tile, decisions, overlaps, near, cycles)


def _products(mod: Any, whole: Product, vectors: Vectors) -> Iterator[tuple[Product, bool]]:
    """Yield the product with each number of lanes, padded or not, and whether its tiles overlap."""
    least = max(4, vectors.lanes // 2)
    widths = [lanes for lanes in range(least, vectors.lanes + 1) if whole.group % lanes == 0]
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
    product: Product, tile: tuple[int, tuple[int, ...]], cores: int, near: bool
) -> Iterator[Decisions]:
    """Yield decisions for a tile: what is outside of what, and what is unrolled."""
    last = product.extents[product.sums[-1]]
    unrolled = [step for step in (1, 2, 4, 8) if last % step == 0 and step <= MAX_UNROLLED]
    for is_outside, step in itertools.product((False, True), unrolled):
        plain = decisions_of(product, tile, is_outside, step, cores, near)
        yield plain
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
