"""Convolutions of 3 by 3 taps by Winograd's minimal filtering, which multiplies less: 2.25 times less, or 4 times.

Instead of 9 products for each pixel, an image is cut into tiles that overlap, each of m by m pixels of the output; tile
and taps are transformed by small matrices of constants, multiplied number by number (a sum over channels: one product
of matrices for each of the (m + 2) squared places), and transformed back (Winograd, 1980; Lavin and Gray: Fast
Algorithms for Convolutional Neural Networks, 2016). A core that multiplies at its peak, as it does in the direct form,
takes .3 to .6 of the time. Of a sequence, with 3 taps, tiles are m by 1, which multiplies 1.5 and 2 times less; where
it is dilated they lie between each other. Taps are weights: theirs are transformed when the network is read.

Numbers are about as exact with m = 2 as in the direct form; with m = 4 they are four times further off (2e-6 of the
largest for 256 channels). What a band of tile rows needs stays in the second cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from tencost.programs.codegen.blocks import AMONG_CORES, extent_of, kinds_of, nests_of
from tencost.programs.codegen.products import LEAST_LANES, Vectors
from tencost.programs.codegen.tiles import (
    BUSY,
    FAR_RATE,
    MAX_ROWS,
    MAX_VECTORS,
    NOT_HIDDEN,
    SECOND_CACHE,
)

TAPS = 3
SIZES = (2, 4)
"""Pixels of a tile's side, of the output."""
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}
"""Size -> where polynomials are evaluated, beside infinity. For 4 mostly 0, 1, -1, 2 and -2 are taken: these, of whose
powers none is large or needs rounding, have a sixth of the error (256 channels: 2e-6 of the largest sum for 1.3e-5)."""
TRANSFORMING = {2: 2.5, 4: 3.8}
"""Size -> cycles that a vector of a transformed tile takes to be made, or to be transformed back."""
WORTH = 0.8
"""It is chosen if it takes at most this share of the direct form's cycles."""
UNROLLED = 4
_NAME = "winograd"


@dataclass(frozen=True)
class Convolution:
    """A convolution of 3 by 3 taps of an image, or of 3 taps of a sequence; stride 1, channels last.

    Attributes:
        images, height, width: of the output; a sequence is a column.
        above, left: rows and columns of zeros before the image's.
        channels: of the image.
        filters: channels of the output.
        rows, columns: of the image.
        dilation: of a sequence, how far its taps are apart; None of an image.
    """

    images: int
    height: int
    width: int
    above: int
    left: int
    channels: int
    filters: int
    rows: int
    columns: int
    dilation: int | None = None

    @property
    def taps(self) -> int:
        return TAPS**2 if self.dilation is None else TAPS

    def sides(self, size: int) -> tuple[int, int]:
        """Return the rows and columns of a tile of the image."""
        side = size + TAPS - 1
        return side, side if self.dilation is None else 1

    def tiles(self, size: int) -> tuple[int, int]:
        """Return how many tiles there are below and beside each other; with dilation they lie between each other."""
        if self.dilation is None:
            return -(-self.height // size), -(-self.width // size)
        return -(-self.height // (size * self.dilation)), self.dilation


@cache
def matrices(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what transforms a tile of the image, taps and a tile of products, by Toom and Cook's construction.

    Args:
        size: of the tiles.

    Returns:
        float64 [size + 2, size + 2], [size + 2, 3], [size, size + 2], each from the left and, transposed, from the
        right.
    """
    points = np.array(POINTS[size])
    side = size + TAPS - 1
    data, taps, back = np.zeros((side, side)), np.zeros((side, TAPS)), np.zeros((size, side))
    for place, point in enumerate(points):
        others = np.delete(points, place)
        data[place, : side - 1] = np.poly(others)[::-1]
        taps[place] = point ** np.arange(TAPS) / np.prod(point - others)
        back[:, place] = point ** np.arange(size)
    data[-1] = np.poly(points)[::-1]
    taps[-1, -1] = back[-1, -1] = 1
    return data, taps, back


def best_size(convolution: Convolution, vectors: Vectors, cores: int = 1) -> int | None:
    """Return the size of the tiles that take the least time; None if that is not well below the direct form's.

    Args:
        convolution: what is computed.
        vectors: of the target.
        cores: among which bands of tiles are divided.
    """
    channels, filters = convolution.channels, convolution.filters
    lanes = _lanes(filters, vectors)
    if lanes is None or _lanes(channels, vectors) is None:
        return None
    pixels = convolution.images * convolution.height * convolution.width
    # The direct form's vectors are full: its rows and columns overlap where nothing divides them.
    direct = pixels * convolution.taps * channels * filters / (2 * vectors.lanes)
    direct += NOT_HIDDEN * 4 * convolution.taps * channels * filters / FAR_RATE
    lost = vectors.lost(lanes)
    cycles = {size: _band(convolution, size, vectors, lost, cores)[0] for size in SIZES}
    best = min(SIZES, key=lambda size: cycles[size])
    return best if cycles[best] < WORTH * direct / cores else None


def _band(
    convolution: Convolution, size: int, vectors: Vectors, lost: float, cores: int
) -> tuple[float, int]:
    """Return cycles of a convolution in tiles, and how many rows of tiles are computed at a time for that.

    Each band reads all taps again; what it stores comes back from behind the second cache if that does not hold it.
    """
    places = math.prod(convolution.sides(size))
    high, wide = convolution.tiles(size)
    channels, filters = convolution.channels, convolution.filters
    taps = 4 * places * channels * filters

    def cycles(band: int) -> float:
        tiles, count = band * wide, convolution.images * high // band
        computed = places * tiles * channels * filters * lost / (2 * vectors.lanes)
        computed *= max(1.0, BUSY / 2 / tiles)  # few sums at a time
        moved = places * tiles * (channels + filters)
        far = taps if taps > SECOND_CACHE // 2 else 0
        far += 8 * moved if 4 * moved > SECOND_CACHE // 2 else 0
        read = max(computed + NOT_HIDDEN * far / FAR_RATE, far / FAR_RATE)
        return (read + TRANSFORMING[size] * moved / vectors.lanes) * -(-count // cores)

    best, band = min((cycles(band), -band) for band in _divisors(high, high))
    return best, -band


def _lanes(extent: int, vectors: Vectors) -> int | None:
    """Return the most numbers of a vector that divide an axis; None if that is less than half of one."""
    least = max(LEAST_LANES, vectors.lanes // 2)
    widths = [lanes for lanes in range(vectors.lanes, least - 1, -1) if extent % lanes == 0]
    return min(widths, key=vectors.lost) if widths else None


def convolve(convolution: Convolution, size: int) -> Any:
    """Return the unscheduled function of a convolution: data, transformed taps, output.

    Taps are [size + 2, size + 2 (of a sequence: 1), channels, filters]. Data and output are [images, rows, columns,
    channels], without columns of a sequence. Operators that follow number by number may be fused with it.
    """
    from tvm import te, tirx

    of = convolution
    (side, beside), (high, wide) = of.sides(size), of.tiles(size)
    of_data, _, of_products = matrices(size)
    across_data, across_products = (of_data, of_products) if of.dilation is None else _ALONE

    def sizes(*extents: int) -> list[Any]:
        return [tirx.const(extent, "int64") for extent in extents]  # as Relax's shapes are

    def weighted(matrix: np.ndarray, place: Any, value: Callable[[int], Any]) -> Any:
        """Return the sum of values weighted by the matrix's row at a place."""
        sums = [_weighted(row, value) for row in matrix]
        chosen = sums[-1]
        for number in reversed(range(len(sums) - 1)):
            chosen = tirx.Select(place == number, sums[number], chosen)
        return chosen

    def image(n: Any, y: Any, x: Any, c: Any) -> Any:
        inside = tirx.all(
            y >= of.above, y < of.rows + of.above, x >= of.left, x < of.columns + of.left
        )
        return tirx.if_then_else(inside, data[n, y - of.above, x - of.left, c], 0.0)

    def sequence(n: Any, y: Any, c: Any) -> Any:
        inside = tirx.all(y >= of.above, y < of.rows + of.above)
        return tirx.if_then_else(inside, data[n, y - of.above, c], 0.0)

    def pixel(n: Any, i: Any, j: Any, k: int, f: Any, c: Any) -> Any:
        """Return the number at row k and column f of a tile."""
        if of.dilation is None:
            return padded[n, i * size + k, j * size + f, c]
        return padded[n, (i * size + k) * of.dilation + j, c]

    extents = [of.rows, of.columns] if of.dilation is None else [of.rows]
    data = te.placeholder(sizes(of.images, *extents, of.channels), name="data")
    taps = te.placeholder(sizes(side, beside, of.channels, of.filters), name="taps")
    if of.dilation is None:
        extents = [high * size + TAPS - 1, wide * size + TAPS - 1]
    else:
        extents = [(high * size + TAPS - 1) * of.dilation]
    padded = te.compute(
        sizes(of.images, *extents, of.channels),
        image if of.dilation is None else sequence,
        name=f"{_NAME}_padded",
    )
    across = te.compute(
        sizes(of.images, high, wide, side, beside, of.channels),
        lambda n, i, j, e, f, c: weighted(of_data, e, lambda k: pixel(n, i, j, k, f, c)),
        name=f"{_NAME}_across",
    )
    tiles = te.compute(
        sizes(side, beside, of.images, high, wide, of.channels),
        lambda e, f, n, i, j, c: weighted(across_data, f, lambda k: across[n, i, j, e, k, c]),
        name=f"{_NAME}_tiles",
    )
    c = te.reduce_axis((tirx.const(0, "int64"), *sizes(of.channels)), name="c")
    product = te.compute(
        sizes(side, beside, of.images, high, wide, of.filters),
        lambda e, f, n, i, j, k: te.sum(tiles[e, f, n, i, j, c] * taps[e, f, c, k], axis=c),
        name=f"{_NAME}_product",
    )
    back = te.compute(
        sizes(of.images, high, wide, size, beside, of.filters),
        lambda n, i, j, y, f, k: weighted(of_products, y, lambda e: product[e, f, n, i, j, k]),
        name=f"{_NAME}_back",
    )

    def of_image(n: Any, y: Any, x: Any, k: Any) -> Any:
        place = n, y // size, x // size, y % size
        return weighted(across_products, x % size, lambda f: back[*place, f, k])

    def of_sequence(n: Any, y: Any, k: Any) -> Any:
        step = of.dilation or 1
        return back[n, y // (size * step), y % step, y // step % size, 0, k]

    extents = [of.height, of.width] if of.dilation is None else [of.height]
    output = te.compute(
        sizes(of.images, *extents, of.filters),
        of_image if of.dilation is None else of_sequence,
        name=f"{_NAME}_output",
    )
    function = te.create_prim_func([data, taps, output])
    # One of many in its module; kOutEWiseFusable.
    return function.without_attr("global_symbol").with_attr("op_pattern", 4)


_ALONE = np.ones((1, 1)), np.ones((1, 1))
"""What transforms the one column of a sequence, before and after."""


def _weighted(row: np.ndarray, value: Callable[[int], Any]) -> Any:
    """Return the sum of values weighted by constants, without those of 0 and products with 1."""
    total: Any = None
    for place, factor in enumerate(row):
        if factor == 0:
            continue
        term = value(place) if abs(factor) == 1 else value(place) * float(abs(factor))
        if total is None:
            total = term if factor > 0 else -term
            continue
        total = total + term if factor > 0 else total - term
    return total


def is_winograd(function: Any) -> bool:
    """Say whether a function is what :func:`convolve` returns, or has it in it."""
    from tvm.s_tir import SBlock
    from tvm_ffi import structural_walk

    names: list[str] = []
    structural_walk(function, (SBlock, lambda block: names.append(str(block.name_hint))))
    return f"{_NAME}_product" in names


def schedule_winograd(schedule: Any, vectors: Vectors, cores: int) -> None:
    """Schedule a function with such a convolution: a band of tile rows at a time, from the image to the last nest.

    Args:
        schedule: of a function for which :func:`is_winograd` is true.
        vectors: of the target.
        cores: among which bands are divided.
    """

    def get(part: str) -> Any:
        return schedule.get_sblock(f"{_NAME}_{part}")

    product = schedule.get_loops(get("product"))
    side, _, images, _, wide, filters, channels = map(partial(extent_of, schedule), product)
    size = side - TAPS + 1
    lanes, of_channels = _lanes(filters, vectors), _lanes(channels, vectors)
    assert lanes is not None
    assert of_channels is not None
    schedule.compute_inline(get("padded"))
    last = _last_of_same_loops(schedule, get("output"))
    n, y, *x, k = schedule.get_loops(last)
    height, width = extent_of(schedule, y), extent_of(schedule, x[0]) if x else 1
    of = Convolution(
        images, height, width, 0, 0, channels, filters, height, width, None if x else wide
    )
    band = _band(of, size, vectors, vectors.lost(lanes), cores)[1]
    # The last nest: bands, their tiles, the vectors of a tile, its pixels.
    if x:
        bands, row, inner_y = schedule.split(y, [None, band, size])
        column, inner_x = schedule.split(x[0], [None, size])
    else:
        bands, row, inner_y, column = schedule.split(y, [None, band, size, wide])
        inner_x = None
    vector, lane = schedule.split(k, [None, lanes])
    pixels = [inner_y] if inner_x is None else [inner_y, inner_x]
    schedule.reorder(n, bands, row, column, vector, *pixels, lane)
    for loop in pixels:
        schedule.unroll(loop)
    schedule.vectorize(lane)
    outer = schedule.fuse(n, bands)
    _in_registers(schedule, get("back"), vector)
    schedule.compute_at(get("product"), outer, preserve_unit_loops=True)
    _product(schedule, get("product"), vectors, lanes)
    # The image's tiles: a vector of channels of one tile at a time.
    schedule.compute_at(get("tiles"), outer, preserve_unit_loops=True)
    *_, e, f, image, i, j, c = schedule.get_loops(get("tiles"))
    part, lane = schedule.split(c, [None, of_channels])
    schedule.reorder(image, i, j, part, e, f, lane)
    for loop in (e, f):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    _in_registers(schedule, get("across"), part)
    if cores > 1:
        schedule.annotate(outer, AMONG_CORES, True)


def _last_of_same_loops(schedule: Any, output: Any) -> Any:
    """Inline a convolution's output, and what is done with it number by number, in the last nest that does; return it.

    Nests of other loops after that one stay as they are.
    """
    name = schedule.get(output).name_hint
    nests = nests_of(schedule)
    after = nests[[schedule.get(nest).name_hint for nest in nests].index(name) :]
    extents = [extent_of(schedule, loop) for loop in schedule.get_loops(output)]
    same = list(
        itertools.takewhile(
            lambda nest: (
                set(kinds_of(schedule, nest)) == {"S"}
                and [extent_of(schedule, loop) for loop in schedule.get_loops(nest)] == extents
            ),
            after,
        )
    )
    for nest in same[:-1]:
        schedule.compute_inline(nest)
    return same[-1]


def _in_registers(schedule: Any, block: Any, loop: Any) -> None:
    """Compute a part of a transformed tile where it is needed, all of it unrolled."""
    schedule.compute_at(block, loop, preserve_unit_loops=True)
    *_, first, second, lane = schedule.get_loops(block)
    for each in (first, second):
        schedule.unroll(each)
    schedule.vectorize(lane)
    schedule.set_scope(block, 0, "local")


def _product(schedule: Any, block: Any, vectors: Vectors, lanes: int) -> None:
    """Schedule the products of a band in tiles of registers: sums of some tiles by some vectors of filters."""
    *_, e, f, image, i, j, k, c = schedule.get_loops(block)
    high, wide, columns = (extent_of(schedule, loop) for loop in (i, j, k))
    below, beside, across = _register_tile(high, wide, columns // lanes, vectors)
    rows, row = schedule.split(i, [None, below])
    tiles, tile = schedule.split(j, [None, beside])
    vectors_of_tile, vector, lane = schedule.split(k, [None, across, lanes])
    sums, step = schedule.split(c, [None, math.gcd(extent_of(schedule, c), UNROLLED)])
    outside = (e, f, image, vectors_of_tile, rows, tiles)
    schedule.reorder(*outside, sums, step, row, tile, vector, lane)
    writer = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(writer, tiles, preserve_unit_loops=True)
    for loop in (step, row, tile, vector):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    *_, row, tile, final = schedule.get_loops(writer)
    vector, lane = schedule.split(final, [None, lanes])
    for loop in (row, tile, vector):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    schedule.decompose_reduction(block, sums)


def _register_tile(high: int, wide: int, columns: int, vectors: Vectors) -> tuple[int, int, int]:
    """Return a tile of sums that fits the registers: tiles below and beside each other, vectors; they divide theirs."""

    def cycles(tile: tuple[int, int, int]) -> float:
        below, beside, across = tile
        sums, loads = math.prod(tile), below * beside + across
        return (max(sums / 2, loads / 2, BUSY / 2) + 0.05 * loads) / sums

    shapes = [(1, beside) for beside in _divisors(wide, MAX_ROWS)]
    shapes += [(below, wide) for below in _divisors(high, max(1, MAX_ROWS // wide))]
    return min(
        (
            (below, beside, across)
            for below, beside in shapes
            for across in _divisors(columns, MAX_VECTORS)
            if below * beside * across + across + 1 <= vectors.registers or across == 1
        ),
        key=cycles,
    )


def _divisors(extent: int, largest: int) -> list[int]:
    return [divisor for divisor in range(1, min(extent, largest) + 1) if extent % divisor == 0]
