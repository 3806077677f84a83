"""Which tiles of registers a product runs fastest with, ranked without a measurement.

For a core that does two vector products and two loads a cycle, needs four cycles from one sum to the next, has the
target's registers, and reads from its caches at different rates: where the operands of a tile do not stay in the first
one, a step waits for the second (Goto, van de Geijn, 2008; as the ECM model of Hager, Treibig et al. counts it). A tile
is so many vectors of the columns by so many rows; the rest of the decisions follow from it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tencost.programs.codegen.blocks import PARALLEL_WORK, tried
from tencost.programs.codegen.products import Product, Vectors, filled, product_of

MAX_ROWS, MAX_VECTORS, MAX_UNROLLED = 16, 8, 8
"""Largest innermost factors of a row axis, of the columns' vectors, and of an axis of the sum."""
BUSY = 8
"""Sums at a time that keep two units busy which need four cycles each."""
FIRST_CACHE, SECOND_CACHE = 32 << 10, 1 << 20
"""Bytes of the caches, of the smallest cores in use."""
LAST_CACHE = 16 << 20
"""Bytes up to which a core finds again what it has read; what is more comes from memory each time."""
SECOND_RATE, FAR_RATE, MEMORY_RATE = 32.0, 10.0, 4.0
"""Bytes a cycle that come from the second cache, from what is behind it, and from memory."""
SHARED_RATE = 6.0
"""Bytes a cycle that a core reads of what another core has just computed: they are in that one's caches."""
NOT_HIDDEN = 0.3
"""Share of the time that weights take from behind the second cache in which a core waits for them."""
LOOP = 0.5
"""Cycles of an iteration of the innermost loop beside what it computes."""
SHORT_SUM = 32
"""A sum of so few numbers is unrolled whole: a depthwise convolution's."""
MOST_WHOLE, MORE_THAN_WHOLE = 16, 1.5
"""Sums at a time of a convolution whose sum is unrolled whole (three channels, 3 by 3), and how much longer it takes
with more: the code is then too long for LLVM to keep the image's numbers where they are (28 sums take twice as long as
14)."""
PIXEL_VECTORS = 4
"""Vectors of a pixel that a depthwise convolution takes one after the other: of each alone, the image would be read in
steps of a pixel, which no hardware reads ahead."""
STREAMED, STREAMED_TAPS = 768 << 10, 9
"""Bytes that a depthwise convolution writes from which on it writes in streams, of so many taps at most, see
:func:`streams`. Of 5 by 5 taps a row of pixels is faster, for AVX2 by a tenth."""
MOST_STREAMED, MOST_ROWS, AVX2_LANES = 32, (4, 6, 8), 8
"""Vectors of a pixel that it takes one after the other, at most; rows: at least, at most of 16, of 32 registers."""
BAND, BAND_TILES = 256 << 10, 8
"""Bytes of the rows of an image, and tiles of them, that it takes at a time: each band's border is read twice. Where
windows lie two pixels apart (`is_strided`), and share little, each tile pads what it reads: .75 to .9 of the time."""
SEEDS = 8
"""Decisions that :func:`product_seeds` returns at most."""
PLANS_OF_A_TILE = 2
"""... for one tile."""

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
        candidate = padded_as(mod, product, vectors, *tile)
        if candidate is None:
            continue
        cycles = least_cycles(candidate, vectors)
        cycles *= math.prod(candidate.extents) / math.prod(product.extents)
        cycles += copying(candidate, product, vectors)
        if cycles < least * WORTH_PADDING:
            best, least = candidate, cycles / WORTH_PADDING
    return filled(best or product, vectors)


def least_cycles(product: Product, vectors: Vectors) -> float:
    """Return cycles of the product's best tile, for a vector of sums."""
    return min(order[1] for order, *_ in _plans(product, vectors, 1, False))


def padded_as(
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
    yielded: Counter[Decisions] = Counter()
    tiles: Counter[Any] = Counter()
    for _, tile, decisions in sorted(_plans(product, vectors, cores, near)):
        if decisions not in yielded and tiles[tile] < PLANS_OF_A_TILE:
            yielded[decisions] += 1
            tiles[tile] += 1
            yield decisions
            if len(yielded) == SEEDS:
                return


def _plans(
    product: Product, vectors: Vectors, cores: int, near: bool
) -> Iterator[tuple[tuple[Any, ...], tuple[int, tuple[int, ...]], Decisions]]:
    """Yield what to sort by (the first is best), a tile that divides the product, and decisions for it."""
    for tile in register_tiles(product, vectors):
        for is_outside in (True, False):
            unrolled = unrolled_of(product, tile[0])
            decisions = decisions_of(product, tile, is_outside, unrolled, cores, near)
            cycles = cycles_of(product, vectors, tile, decisions, cores)
            yield order_of(product, tile, decisions, cycles, cores), tile, decisions


def order_of(
    product: Product,
    tile: tuple[int, tuple[int, ...]],
    decisions: Decisions,
    cycles: float,
    cores: int = 1,
) -> tuple[Any, ...]:
    """Return what tiles are sorted by: of a depthwise convolution one vector and streams first; then the fewest cycles.

    Streams are those of :func:`streams`. Of equal ones come those first that make no blocks of tiles (but for the rows
    of each core), that walk along the larger operand once, that read the least around their rows of an image (where the
    sum is not unrolled whole), that have rows of one axis, and many of the last.
    """
    wide, rows = tile
    outside, inside, _ = decisions[0]
    again = outside * inside > 1 and (outside > 1) != columns_outside(product)
    tiles = list(decisions[: 1 + len(rows)])
    if cores > 1:
        del tiles[1:2]
    blocks = sum(outer > 1 and middle > 1 for outer, middle, _ in tiles)
    if product.apart:
        again, blocks = inside > PIXEL_VECTORS, 0
    several = sum(height > 1 for height in rows)
    last = rows[-1] if rows else 0
    is_read_once = (product.apart and not is_strided(product)) or is_whole(product, decisions)
    around = 0.0 if is_read_once else read_around(product, rows)
    first = (wide, not streams(product, tile, decisions, cores)) if product.apart else (0, False)
    return first, cycles, blocks, again, around, several, -last


def streams(
    product: Product,
    tile: tuple[int, tuple[int, ...]],
    decisions: Decisions,
    cores: int = 1,
) -> bool:
    """Say whether a depthwise convolution of a large image writes a few rows side by side, each from end to end.

    Then the hardware fetches what is written before it is: where neither the image nor what is written is in the second
    cache, as in a network, a tile of pixels of one row takes up to 2.6 times as long (a Zen 4; .81 to .38 of the time,
    for AVX2 .91 to .49). Timed again and again on the same numbers, both take the same time.
    """
    wide, rows = tile
    taps = math.prod(product.extents[axis] for axis in product.sums)
    if len(rows) < 2 or wide > 1 or taps > STREAMED_TAPS or is_strided(product):
        return False
    pixels = math.prod(product.extents[axis] for axis in (*product.batch, *product.rows))
    written = 4 * pixels * product.extents[product.column]
    outside, inside, _ = decisions[0]
    bands = decisions[1][0] * math.prod(product.extents[axis] for axis in product.batch)
    *_, height, last = rows
    return (
        written > STREAMED
        and (outside, last) == (1, 1)
        and inside <= MOST_STREAMED
        and MOST_ROWS[0] <= height <= MOST_ROWS[1 if product.lanes <= AVX2_LANES else 2]
        and (cores == 1 or bands >= 4 * cores)
    )


def is_strided(product: Product) -> bool:
    """Say whether it is a depthwise convolution of few taps whose windows lie two or more pixels apart."""
    taps = math.prod(product.extents[axis] for axis in product.sums)
    if not product.apart or taps > SHORT_SUM:
        return False
    axes = (*product.batch, *product.rows, product.column)
    written = 4 * math.prod(product.extents[axis] for axis in axes)
    return max(size for _, size in product.operands) > 2 * written


def is_whole(product: Product, decisions: Decisions) -> bool:
    """Say whether a convolution's sum, which is not of a channel alone, is unrolled whole."""
    sums = decisions[1 + len(product.rows) :]
    return not product.apart and len(sums) > 1 and all(outer == 1 for outer, _ in sums)


def read_around(product: Product, rows: Sequence[int]) -> float:
    """Return how many rows of an image a tile's windows read, for each row: 2 by 7 under 3 by 3 taps read 4 by 9."""
    taps = [product.extents[axis] for axis in product.sums[:-1]]
    if len(taps) != len(rows):
        return 1.0
    return math.prod((height + tap - 1) / height for height, tap in zip(rows, taps, strict=True))


def unrolled_of(product: Product, wide: int) -> int:
    """Return how many numbers of the last axis of the sum are unrolled, for tiles so many vectors wide.

    Of one vector half as many: each product then has a number of its rows to itself, and LLVM reads eight of them that
    lie in a row at once, to shuffle them (28 rows by 16 columns: 110 GFLOP/s unrolled by 8, 147 by 4). Not by the rows:
    programs of other numbers of rows then have the same layout of weights, and share them.
    """
    most = MAX_UNROLLED if wide > 1 else MAX_UNROLLED // 2
    return max(_divisors(product.extents[product.sums[-1]], most))


def register_tiles(
    product: Product, vectors: Vectors, *, overlapping: bool = False
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield every tile that the registers hold: vectors, rows of each axis. Overlapping ones need not divide them."""
    extents = [product.extents[axis] for axis in product.rows]
    factors = _up_to if overlapping else _divisors
    # A depthwise convolution's input is padded band by band, which overlapping rows would not allow.
    options = [(_divisors if product.apart else factors)(extent, MAX_ROWS) for extent in extents]
    depth = math.prod(product.extents[axis] for axis in product.sums)
    for wide in factors(product.columns, MAX_VECTORS):
        for rows in itertools.product(*options):
            sums = math.prod(rows) * wide
            registers = sums + wide * (depth if product.apart and depth <= SHORT_SUM else 1) + 1
            # Few sums wait for each other: rather are weights read again, 25 of them beside 7 rows of an image.
            few = BUSY if sums + wide + 1 <= vectors.registers else 1
            # LLVM moves a vector that is not full in parts, which take registers of their own: of 12 of 16 numbers 16
            # sums take .8 of the time of 28.
            most = vectors.registers // (2 if product.lanes.bit_count() > 1 else 1)
            if sums <= few or (registers <= vectors.registers and sums <= most):
                yield wide, rows


def cycles_of(
    product: Product,
    vectors: Vectors,
    tile: tuple[int, tuple[int, ...]],
    decisions: Decisions,
    cores: int = 1,
) -> float:
    """Return cycles for a vector of sums, of those that are computed, with a tile and what was decided for it.

    Of several cores those of the one with the most work, times their number.
    """
    wide, rows = tile
    sums = math.prod(rows) * wide
    columns = decisions[0]
    unrolled = math.prod(inner for _, inner in decisions[1 + len(rows) :])
    depth = math.prod(product.extents[axis] for axis in product.sums)
    step = {
        axes: math.prod(
            height for axis, height in zip(product.rows, rows, strict=True) if axis in axes
        )
        * (wide if product.column in axes else 1)
        for axes, _ in product.operands
    }
    panels = {
        axes: 4 * depth * count * (product.lanes if product.column in axes else 1)
        for axes, count in step.items()
    }
    # Of two operands one stays while the innermost of the outer loops runs: rows, unless there are columns.
    waits = 0.0  # for what comes from beyond the first cache
    for axes, size in product.operands:
        has_columns = product.column in axes
        changes = has_columns == (columns[1] > 1)
        block = panels[axes] * (columns[1] if has_columns else 1)
        if changes and not has_columns:
            block = size
        others = sum(panels.values()) - panels[axes]
        if product.apart or (block if changes else panels[axes]) + others <= FIRST_CACHE:
            continue
        read = 4.0 * step[axes] * (product.lanes if has_columns else 1)
        if block > LAST_CACHE:
            waits += read / MEMORY_RATE
        else:
            waits += read / (FAR_RATE if block > SECOND_CACHE // 2 else SECOND_RATE)
    # LLVM reads a vector that is not full in parts that are powers of two: 14 numbers as 8, 4 and 2.
    parts = product.lanes.bit_count()
    loads = sum(count * (parts if product.column in axes else 1) for axes, count in step.items())
    cycles = max(sums / 2, loads / 2, BUSY / 2, waits)
    cycles += 0.05 * loads + LOOP / unrolled
    if sums > MOST_WHOLE and is_whole(product, decisions):
        cycles *= MORE_THAN_WHOLE
    cycles *= sharing(product, decisions, busy_cores(product, cores))
    return vectors.lost(product.lanes) * cycles / sums


def busy_cores(product: Product, cores: int) -> int:
    """Return among how many of the cores a product is divided: one, where it is not worth waking the others."""
    return cores if math.prod(product.extents) >= PARALLEL_WORK else 1


def outer_tiles(product: Product, decisions: Decisions) -> int:
    """Return how many iterations the outer loops have, which are divided among cores."""
    batch = math.prod(product.extents[axis] for axis in product.batch)
    groups = product.extents[product.column] // product.group
    return batch * groups * math.prod(outer for outer, *_ in decisions[: 1 + len(product.rows)])


def waiting(count: int, cores: int) -> float:
    """Return by how much longer a loop takes, as its iterations are no multiple of the cores."""
    return -(-count // cores) * cores / count


def sharing(product: Product, decisions: Decisions, cores: int) -> float:
    """Return how long several cores take for a product, over an equal share of what one core alone would compute.

    A core that has the same rows in each operator finds what it reads in its own caches; of columns it would have all
    rows, most of them from other cores. But it reads the weights of all columns, again for each of its parts of rows
    where they are more than stays in its second cache. And it waits for the one that has most tiles.
    """
    if cores == 1:
        return 1.0
    batch = math.prod(product.extents[axis] for axis in product.batch)
    with_rows = [size for axes, size in product.operands if axes & set(product.rows)]
    without = [(axes, size) for axes, size in product.operands if not axes & set(product.rows)]
    is_stacked = any(axes & set(product.batch) for axes, _ in without)
    weights = sum(size for _, size in without) // (batch if is_stacked else 1)
    written = 4 * math.prod(product.extents[axis] for axis in (*product.batch, *product.rows))
    written *= product.extents[product.column]
    pieces = batch * (decisions[1][0] if product.rows else 1)
    walks_once = decisions[0][1] == 1
    is_again = is_stacked or (walks_once and weights > SECOND_CACHE // 2)
    far = weights * min(1.0, pieces / cores) * (-(-pieces // cores) if is_again else 1)
    # What others computed: of the rows that are read, and of what is written, by the next operator.
    foreign = max(0.0, 1 - pieces / cores) * (sum(with_rows) / pieces + written / cores)
    waits = NOT_HIDDEN * far / FAR_RATE + foreign / SHARED_RATE
    share = math.prod(product.extents) / (2 * product.lanes * cores)
    return waiting(outer_tiles(product, decisions), cores) + waits / share


def copying(product: Product, whole: Product, vectors: Vectors) -> float:
    """Return cycles, for a vector of the whole product's sums, that padding takes; 0 for a product without."""
    grown = {axis for axis, size in enumerate(product.padding) if size > 1}
    numbers = sum(size // 4 for axes, size in product.operands if axes & grown)
    # Rows are padded a vector at a time; columns number by number.
    step = vectors.lanes if product.column in grown else 1
    return numbers * step / math.prod(whole.extents)


def columns_outside(product: Product) -> bool:
    """Say whether the columns shall be outside: then what has rows is read again for each of them.

    So they are where what has columns fills the second cache: the next ones are fetched then, and stay there.
    """
    with_rows = sum(size for axes, size in product.operands if axes & set(product.rows))
    with_columns = sum(size for axes, size in product.operands if product.column in axes)
    return with_rows <= with_columns or with_columns > SECOND_CACHE // 2


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
    cores = busy_cores(product, cores)
    small = near and is_strided(product)
    if product.apart and is_outside:
        outside //= max(_divisors(column_tiles, PIXEL_VECTORS))
    decisions: list[tuple[int, ...]] = [(outside, column_tiles // outside, wide)]
    for place, (count, height) in enumerate(zip(row_tiles, rows, strict=True)):
        whole = small or (place == 0 if near else not is_outside)
        decisions.append((count, 1, height) if whole else (1, count, height))
    if product.apart and near and rows and not small:
        count, height = row_tiles[0], rows[0]
        others = outside * math.prod(product.extents[axis] for axis in product.batch)
        most = max(1, others * count // (4 * cores if cores > 1 else 1))
        band = band_tiles(product, count, column_tiles // outside * wide, most)
        decisions[1] = (count // band, band, height)
    elif rows and is_outside and cores > 1 and not small:
        count, height = row_tiles[0], rows[0]
        parts = [(part, count // part, height) for part in _divisors(count, count)]
        columns, _, *others = decisions
        decisions[1] = min(
            parts, key=lambda part: sharing(product, (columns, part, *others), cores)
        )
    depth = math.prod(product.extents[axis] for axis in product.sums)
    for place, axis in enumerate(product.sums):
        extent = product.extents[axis]
        last = place == len(product.sums) - 1
        limit = MAX_UNROLLED if depth <= SHORT_SUM else unrolled if last else 1
        inner = max(_divisors(extent, limit))
        decisions.append((extent // inner, inner))
    return tuple(decisions)


def band_tiles(product: Product, count: int, vectors: int, most: int) -> int:
    """Return how many of `count` tiles of an image's rows a depthwise convolution takes at a time, of some vectors.

    They divide `count`, and are at most `most`.
    """
    image = max(size for axes, size in product.operands if set(product.rows) <= axes)
    share = vectors * product.lanes / product.extents[product.column]
    images = math.prod(product.extents[axis] for axis in product.batch)
    tile = image * share / (images * count)
    fits = _divisors(count, min(BAND_TILES, most))
    return max(tiles for tiles in fits if tiles == 1 or tiles * tile <= BAND)


def _divisors(extent: int, largest: int) -> list[int]:
    return [divisor for divisor in range(1, min(extent, largest) + 1) if extent % divisor == 0]


def _up_to(extent: int, largest: int) -> list[int]:
    return list(range(1, min(extent, largest) + 1))
