"""Which tiles of registers a product runs fastest with, ranked without a measurement.

For a core that does two vector products and two loads a cycle, needs four cycles from one sum to the next, and has the
target's registers. A tile is so many vectors of the columns by so many rows; the rest of the decisions follow from it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tencost.programs.codegen.blocks import tried
from tencost.programs.codegen.products import Product, Vectors, filled, product_of

MAX_ROWS, MAX_VECTORS, MAX_UNROLLED = 16, 8, 8
"""Largest innermost factors of a row axis, of the columns' vectors, and of an axis of the sum."""
BUSY = 8
"""Sums at a time that keep two units busy which need four cycles each."""
SHORT_SUM = 32
"""A sum of so few numbers is unrolled whole: a depthwise convolution's."""
CONSTANTS = 3 / 16
"""Share of the registers that are left to an epilogue of functions: with less, LLVM keeps sums in memory."""
CONSTANTS_APART = 7 / 16
"""... of a depthwise convolution, whose few products are no time to load the epilogue's numbers anew."""
SEEDS = 8
"""Tiles that :func:`product_seeds` returns at most."""

PADDED_ROWS = (6, 7, 8, 10, 12, 14)
"""Tiles that rows are padded for, where their number has no good divisor; columns are padded to whole vectors."""
WORTH_PADDING = 0.87
"""... if the padded product, and padding it, take at most this share of the cycles."""
WORTH_OVERLAPPING = 0.95
"""... or that overlap, which costs nothing else."""
WITHOUT = 1.5
"""Cycles for a vector of sums where no tile fits: a third of what the best tiles reach, as it was measured."""

Decisions = tuple[tuple[int, ...], ...]


def padded(mod: Any, product: Product, vectors: Vectors) -> Product | None:
    """Return the product with rows or columns padded where that is well worth it, or None where no tile fits.

    Columns that are not padded get the fullest vectors that divide them; a convolution's columns cannot be padded.
    Where the model of a core says that padding pays, it is faster by measurement, too (28 columns, AVX2: 97 GFLOP/s
    padded, 65 with 7 of 8). The 197 tokens of a vision transformer are a prime: as rows they are tiles of one row, at
    two fifths of the speed; as columns (the scores of its attention) they fit no vector at all.
    """
    best, least = (product, least_cycles(product, vectors)) if product.lanes else (None, WITHOUT)
    columns = (1,) if product.lanes == vectors.lanes else (1, vectors.lanes)
    for tile in itertools.product(columns, (1, *PADDED_ROWS) if product.rows else (1,)):
        candidate = _padded(mod, product, vectors, *tile)
        if candidate is None:
            continue
        cycles = least_cycles(candidate, vectors)
        grown = {axis for axis, size in enumerate(candidate.padding) if size > 1}
        numbers = sum(size // 4 for axes, size in candidate.operands if axes & grown)
        cycles *= math.prod(candidate.extents) / math.prod(product.extents)
        # Rows are padded a vector at a time; columns number by number.
        step = vectors.lanes if product.column in grown else 1
        cycles += numbers * step / math.prod(product.extents)
        if cycles < least * WORTH_PADDING:
            best, least = candidate, cycles / WORTH_PADDING
    return filled(best or product, vectors)


def least_cycles(product: Product, vectors: Vectors) -> float:
    """Return cycles of the product's best tile, for a vector of sums."""
    return min(cycles for _, cycles, *_ in _tiles(product, vectors))


def overlapping(
    mod: Any, product: Product, vectors: Vectors
) -> tuple[Product, tuple[int, tuple[int, ...]]] | None:
    """Return a product with the lanes of its best tile that overlaps others, and that tile: vectors, rows of each axis.

    Rows and columns are tiles that need not divide them (:mod:`tencost.programs.codegen.overlap`). None where tiles
    that divide, or padding, are nearly as good.
    """
    plain = padded(mod, product, vectors)
    least, share = WITHOUT, WORTH_OVERLAPPING
    if plain is not None:
        least = least_cycles(plain, vectors)
        if plain.padding:  # which copies an operand
            least *= math.prod(plain.extents) / math.prod(product.extents)
            share = 1.0
    best = None
    candidates = [filled(product, vectors)]
    if product.group == product.extents[product.column] and product.group % vectors.lanes:
        candidates.append(replace(product, lanes=vectors.lanes))
    for candidate in candidates:
        if candidate is None or candidate.group < candidate.lanes:
            continue
        _, cycles, *_, tile = min(_tiles(candidate, vectors, overlapping=True))
        if cycles < share * least:
            best, least, share = (candidate, tile), cycles, 1.0
    return best


def _padded(
    mod: Any, product: Product, vectors: Vectors, columns: int, rows: int
) -> Product | None:
    """Return the product with columns and last rows padded to multiples; None where that changes nothing, or fails."""
    from tvm.s_tir import Schedule

    multiples = [1] * len(product.extents)
    multiples[product.column] = columns
    if product.rows:
        multiples[product.rows[-1]] = rows
    if all(
        extent % multiple == 0 for extent, multiple in zip(product.extents, multiples, strict=True)
    ):
        return None
    schedule = Schedule(mod, debug_mask=0, error_render_level="none")
    if not tried(schedule.pad_einsum, schedule.get_sblock(product.block), multiples):
        return None  # pad_einsum refuses indices that are sums of axes, as a convolution's
    padded_product = product_of(schedule, vectors)
    if padded_product is None or not padded_product.lanes:
        return None
    return replace(padded_product, padding=tuple(multiples))


def product_seeds(
    product: Product, vectors: Vectors, cores: int = 1, *, near: bool = False
) -> Iterator[Decisions]:
    """Yield decisions for a product's tiles, the most promising first: columns, rows, sums, each its factors.

    Args:
        product: what is scheduled.
        vectors: of the target.
        cores: among which the outer axes are divided.
        near: operands are padded tile by tile (a band of rows), not as a whole.
    """
    ranked = sorted(_tiles(product, vectors))[: SEEDS // 2]
    outside = near if product.apart else columns_outside(product)
    first, second = outside, not outside
    plans = [(tile, first, 1) for *_, tile in ranked[:1]]
    plans += [(tile, second, 1) for *_, tile in ranked[:1]]
    plans += [(tile, first, 1) for *_, tile in ranked[1:]]
    plans += [(tile, first, 4) for *_, tile in ranked[:1]]
    plans += [(tile, second, 1) for *_, tile in ranked[1:]]
    seen: set[Decisions] = set()
    for tile, is_outside, unrolled in plans:
        decisions = decisions_of(product, tile, is_outside, unrolled, cores, near)
        if decisions not in seen and len(seen) < SEEDS:
            seen.add(decisions)
            yield decisions


def _tiles(
    product: Product, vectors: Vectors, *, overlapping: bool = False
) -> Iterator[tuple[int, float, int, int, tuple[int, tuple[int, ...]]]]:
    """Yield every tile that the registers hold: four numbers to sort by, then (vectors, rows of each axis).

    First come fewer cycles a product; where columns have nothing in common, one vector first. Of equal tiles the one
    that is nearer to a square, as neighbours share what a window reads, and the one with the longer last axis.
    Overlapping tiles of rows need not divide them; what is computed twice counts.
    """
    extents = [product.extents[axis] for axis in product.rows]
    factors = _up_to if overlapping else _divisors
    # A depthwise convolution's input is padded band by band, which overlapping rows would not allow.
    options = [(_divisors if product.apart else factors)(extent, MAX_ROWS) for extent in extents]
    lanes_lost = vectors.lost(product.lanes)
    depth = math.prod(product.extents[axis] for axis in product.sums)
    share = (CONSTANTS_APART if product.apart else CONSTANTS) if product.dear else 0
    room = vectors.registers - int(share * vectors.registers)
    for wide in factors(product.columns, MAX_VECTORS):
        columns = -(-product.columns // wide) * wide * product.lanes
        for rows in itertools.product(*options):
            sums = math.prod(rows) * wide
            registers = sums + wide * (depth if product.apart and depth <= SHORT_SUM else 1) + 1
            if registers > room and sums > 1:
                continue
            loads = sum(
                math.prod(
                    height for axis, height in zip(product.rows, rows, strict=True) if axis in axes
                )
                * (wide if product.column in axes else 1)
                for axes, _ in product.operands
            )
            cycles = max(sums / 2, loads / 2, BUSY / 2) + 0.05 * loads
            cycles *= columns / product.group
            for extent, height in zip(extents, rows, strict=True):
                cycles *= -(-extent // height) * height / extent
            first = wide if product.apart else 0
            longest = rows[-1] if rows else 0
            yield first, lanes_lost * cycles / sums, sum(rows), -longest, (wide, rows)


def columns_outside(product: Product) -> bool:
    """Say whether the columns shall be outside: then what has rows is read again for each of them."""
    with_rows = sum(size for axes, size in product.operands if axes & set(product.rows))
    with_columns = sum(size for axes, size in product.operands if product.column in axes)
    return with_rows <= with_columns


def decisions_of(
    product: Product,
    tile: Sequence[Any],
    is_outside: bool,
    unrolled: int,
    cores: int,
    near: bool,
) -> Decisions:
    """Return the decisions that follow from a tile: columns, rows, sums, each its factors.

    Args:
        product: what is scheduled.
        tile: vectors, rows of each axis; they divide the product's.
        is_outside: tiles of columns are the outer loop.
        unrolled: numbers of the last axis of the sum that are unrolled, at most.
        cores: among which the outer axes are divided.
        near: operands are padded tile by tile.
    """
    wide, rows = tile
    column_tiles = product.columns // wide
    row_tiles = [
        product.extents[axis] // height for axis, height in zip(product.rows, rows, strict=True)
    ]
    outside = column_tiles if is_outside else 1
    enough = 4 * cores if cores > 1 else 1
    decisions: list[tuple[int, ...]] = [(outside, column_tiles // outside, wide)]
    share = outside * math.prod(product.extents[axis] for axis in product.batch)
    for place, (count, height) in enumerate(zip(row_tiles, rows, strict=True)):
        whole = place == 0 if near else not is_outside or share < enough
        share *= count if whole else 1
        decisions.append((count, 1, height) if whole else (1, count, height))
    depth = math.prod(product.extents[axis] for axis in product.sums)
    for place, axis in enumerate(product.sums):
        extent = product.extents[axis]
        last = place == len(product.sums) - 1
        limit = MAX_UNROLLED if depth <= SHORT_SUM else unrolled if last else 1
        inner = max(_divisors(extent, limit))
        decisions.append((extent // inner, inner))
    return tuple(decisions)


def _divisors(extent: int, largest: int) -> list[int]:
    return [divisor for divisor in range(1, min(extent, largest) + 1) if extent % divisor == 0]


def _up_to(extent: int, largest: int) -> list[int]:
    return list(range(1, min(extent, largest) + 1))
