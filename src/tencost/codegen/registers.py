"""A design space of register tiles: what the kernels of BLAS libraries do, as decisions that a tuner can make.

TVM's own space for a CPU (multi-level tiling SSRSRS) leaves the sums in memory between two levels of a reduction, and
its innermost tile is sampled among all that divides. A product runs near the core's peak where a few rows by a few
vectors of the output stay in registers over the whole sum (Goto, van de Geijn: Anatomy of High-Performance Matrix
Multiplication, 2008; BLIS), which needs things that this space fixes and that the other leaves to chance:

    columns     the output's last axis: so many whole vectors, unrolled; tile o1 o2 v, times the vector's numbers
    rows        up to two axes that one operand has and the other lacks, unrolled inside the sum; tiles o1 o2 i
    sum         runs over everything else; a part of each axis may be unrolled; tiles o i
    order       o1 of columns and rows, o2 of rows and columns, o of the sum, i of the sum, rows, vectors
    epilogue    what follows (bias, activation, residual) where a tile of sums is done, from the registers; what calls
                functions is a loop over the tile, as their code would stand there for each vector of it
    before      padding stays a pass of its own; what only computes is inlined; rows without a divisor are padded

Weights that the graph lets programs reorder (``network.pack_weights``) are laid out tile by tile by MetaSchedule's
RewriteLayout. With more than one core the o1 axes are divided among them.

:func:`seeds` ranks tiles without a measurement, for a core that does two vector products and two loads a cycle, needs
four cycles from one sum to the next, and has the target's registers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tencost.codegen.blocks import (
    CHOICES,
    PARALLEL_WORK,
    called,
    extent_of,
    kinds_of,
    moves,
    nests_of,
    tried,
)

MAX_ROWS, MAX_VECTORS, MAX_UNROLLED = 16, 8, 8
"""Largest innermost factors of a row axis, of the columns' vectors, and of an axis of the sum."""
MAX_ROW_AXES = 2
BUSY = 8
"""Sums at a time that keep two units busy which need four cycles each."""
SHORT_SUM = 32
"""A sum of so few numbers is unrolled whole: a depthwise convolution's."""
CONSTANTS = 7 / 16
"""Share of the registers that LLVM keeps numbers of an epilogue's polynomials in, all the while that sums are made."""
SEEDS = 8
"""Tiles that :func:`seeds` returns at most."""

PADDED_ROWS = (6, 7, 8, 10, 12, 14)
"""Tiles that rows are padded for, where their number has no good divisor."""
WORTH_PADDING = 0.85
"""... if the padded product takes at most this share of the cycles."""
HALF_SEEDS = 2
"""... where columns are half vectors only: TVM's tiles are often faster then, and the search should get to them."""

Decisions = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Vectors:
    """What a target's core has: float32 numbers of a vector, and vector registers."""

    lanes: int
    registers: int


@dataclass(frozen=True)
class Product:
    """A sum of products that tiles of registers fit, before it is scheduled. Axes are numbers of the block's.

    Attributes:
        block: its block's name.
        inlined, copied: names of the blocks before it: computed where they are read, or passes of their own (padding).
        after: names of the blocks after it.
        dear: whether these call functions.
        extents: of all axes.
        batch, rows, sums: axes of each part; rows are at most two, the innermost ones.
        column: the axis of vectors.
        group: columns that read the same of every operand without them: all, but of a convolution in groups.
        lanes: numbers of a vector; divides a group.
        channels: extent of the last axis of what is padded; 1 where nothing is.
        operands: for each operand, the axes that its indices move with, and its size in bytes.
        padding: of each axis, to a multiple of what its extent is padded before all else; empty: nothing is.
    """

    block: str
    inlined: tuple[str, ...]
    copied: tuple[str, ...]
    after: tuple[str, ...]
    dear: bool
    extents: tuple[int, ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    column: int
    sums: tuple[int, ...]
    group: int
    lanes: int
    channels: int
    operands: tuple[tuple[frozenset[int], int], ...]
    padding: tuple[int, ...] = ()

    @property
    def columns(self) -> int:
        """Vectors of a row, in a group."""
        return self.group // self.lanes

    @property
    def staged(self) -> bool:
        """Whether a tile of sums is stored before what follows is a loop over it: code, or choices, at each vector."""
        return self.dear or bool(self.padding)

    @property
    def apart(self) -> bool:
        """Whether columns have nothing in common, as the channels of a depthwise convolution."""
        return all(self.column in axes for axes, _ in self.operands)


@dataclass(frozen=True)
class Design:
    """A design space: a schedule whose trace holds the decisions that it begins with, and better-known ones.

    Attributes:
        schedule: tvm.s_tir.Schedule, without post-processing.
        seeds: decisions of the trace's sampling instructions in order, the most promising first.
    """

    schedule: Any
    seeds: tuple[Decisions, ...]


def vectors_of(target: Any) -> Vectors | None:
    """Return what a target's core has; None for a device that is no CPU."""
    from tvm.target import Target, codegen

    target = Target(target)
    if target.kind.name != "llvm":
        return None
    for feature, found in (
        ("avx512f", Vectors(16, 32)),
        ("avx", Vectors(8, 16)),
        ("neon", Vectors(4, 32)),
    ):
        if codegen.target_has_features(feature, target):
            return found
    return Vectors(4, 16)


def designs(mod: Any, target: Any) -> list[Design]:
    """Return the design spaces of a workload; none where it is no product that registers fit.

    Args:
        mod: IRModule with one function "main", unscheduled.
        target: TVM target or its dictionary; num-cores more than 1 divides the outer axes among cores.

    Returns:
        One space, or two where something is padded: before all of it, or a tile's part before the tile; the more
        promising one first.
    """
    from tvm.s_tir import Schedule
    from tvm.target import Target

    vectors = vectors_of(target)
    if vectors is None:
        return []
    product = product_of(Schedule(mod, debug_mask=0), vectors)
    if product is None:
        return []
    product = _with_rows_padded(mod, product, vectors)
    cores = int(Target(target).attrs.get("num-cores", 1))
    made = []
    padded = (product.apart, not product.apart) if product.copied else (False,)
    for near in padded:
        found = tuple(seeds(product, vectors, cores, near=near))
        found = found if product.lanes == vectors.lanes else found[:HALF_SEEDS]
        schedule = Schedule(mod, debug_mask=0, error_render_level="none")
        if found and tried(_tile, schedule, product, found[0], cores, near):
            made.append(Design(schedule, found))
    return made


def by_rule(mod: Any, target: Any) -> Any:
    """Return a workload as its first seed schedules it, with nothing measured; None where no tile fits.

    Weights whose layout is a program's own get a block that reorders them, as MetaSchedule's programs have it.
    """
    from tvm.s_tir.meta_schedule import postproc

    for one in designs(mod, target)[:1]:
        schedule = one.schedule
        rules = [postproc.RewriteReductionBlock()]
        if free_buffers(schedule):
            rules.append(postproc.RewriteLayout())
        if tried(_applied, schedule, rules):
            return schedule.mod
    return None


def _applied(schedule: Any, rules: Sequence[Any]) -> None:
    """Post-process a schedule; raises ValueError where that cannot be done."""
    if not all(rule.apply(schedule) for rule in rules):
        raise ValueError("a post-processor refuses it")


def interleaved(found: Sequence[Design]) -> list[tuple[Design, Decisions]]:
    """Return all designs' seeds in the order in which they are worth measuring: the first one's best first."""
    ranked = [
        (rank * (1 + place), place, rank, one, seed)
        for place, one in enumerate(found)
        for rank, seed in enumerate(one.seeds)
    ]
    return [(one, seed) for *_, one, seed in sorted(ranked, key=lambda row: row[:3])]


def product_of(schedule: Any, vectors: Vectors) -> Product | None:
    """Return the product of an unscheduled function, None where there is none, or more than one, or another shape."""
    blocks = nests_of(schedule)
    kinds = [kinds_of(schedule, block) for block in blocks]
    places = [place for place, letters in enumerate(kinds) if set(letters) != {"S"}]
    if len(places) != 1 or set(kinds[places[0]]) != {"S", "R"}:
        return None
    place = places[0]
    if any("if" in called(schedule.get(one).body) for one in blocks[place + 1 :]):
        return None  # reverse_compute_at would leave out what no sum is read for: a border, another operand
    block, letters = blocks[place], kinds[place]
    stmt, loops = schedule.get(block), schedule.get_loops(block)
    if len(loops) != len(letters) or len(stmt.reads) != 2 or len(stmt.writes) != 1:
        return None
    if called(stmt.body) or not _multiplies(stmt.body):
        return None
    extents = tuple(extent_of(schedule, loop) for loop in loops)
    names = [one.var for one in stmt.iter_vars]
    if 0 in extents or str(stmt.writes[0].source.dtype) != "float32":
        return None
    columns = [
        axis for axis, name in enumerate(names) if moves(stmt.writes[0].region[-1].min, name)
    ]
    if len(columns) != 1:
        return None
    column = columns[0]
    free = free_buffers(schedule)
    group = extents[column]
    operands = []
    for region in stmt.reads:
        axes = {
            axis
            for axis, name in enumerate(names)
            if any(moves(one.min, name) for one in region.region)
        }
        if column in axes and not (
            _beside(region.region[-1].min, names[column]) or region.source.name in free
        ):
            group = _group_of([one.min for one in region.region], names[column])
            if not group or extents[column] % group:
                return None
            axes.remove(column)
        if not all(hasattr(one, "value") for one in region.source.shape):
            return None
        size = 4 * math.prod(int(one) for one in region.source.shape)
        operands.append((frozenset(axes), size))
    if not any(column in axes for axes, _ in operands):
        return None
    outer = [axis for axis, kind in enumerate(letters) if kind == "S" and axis != column]
    shared = [
        axis
        for axis in outer
        if extents[axis] > 1 and any(axis not in axes for axes, _ in operands)
    ]
    rows = tuple(shared[-MAX_ROW_AXES:])
    lanes = next(
        (one for one in (vectors.lanes, vectors.lanes // 2) if one >= 4 and group % one == 0),
        0,
    )
    if not lanes:
        return None
    plain = [one for one in blocks[:place] if not called(schedule.get(one).body)]
    widths = [
        extent_of(schedule, schedule.get_loops(one)[-1])
        for one in blocks[:place]
        if one not in plain
    ]
    return Product(
        block=stmt.name_hint,
        inlined=tuple(schedule.get(one).name_hint for one in plain),
        copied=tuple(schedule.get(one).name_hint for one in blocks[:place] if one not in plain),
        after=tuple(schedule.get(one).name_hint for one in blocks[place + 1 :]),
        dear=any(called(schedule.get(one).body) - CHOICES for one in blocks[place + 1 :]),
        extents=extents,
        batch=tuple(axis for axis in outer if axis not in rows),
        rows=rows,
        column=column,
        sums=tuple(axis for axis, kind in enumerate(letters) if kind == "R"),
        lanes=lanes,
        channels=math.gcd(*widths) if widths else 1,
        operands=tuple(operands),
        group=group,
    )


def _with_rows_padded(mod: Any, product: Product, vectors: Vectors) -> Product:
    """Return the product with its rows padded to a multiple of a tile, where that is well worth it; else as it is.

    The 197 rows of a vision transformer's tokens are a prime: tiles of one row, at two fifths of the speed.
    """
    from tvm.s_tir import Schedule

    if not product.rows:
        return product
    axis = product.rows[-1]
    extent, best = product.extents[axis], min(one[1] for one in _tiles(product, vectors))
    found = product
    for tile in PADDED_ROWS:
        whole = -(-extent // tile) * tile
        if whole == extent:
            continue
        schedule = Schedule(mod, debug_mask=0, error_render_level="none")
        padding = [tile if at == axis else 1 for at in range(len(product.extents))]
        block = schedule.get_sblock(product.block)
        if not tried(schedule.pad_einsum, block, padding):
            return product  # an index is more than an axis: a convolution's
        padded = product_of(schedule, vectors)
        if padded is None:
            continue
        cycles = min(one[1] for one in _tiles(padded, vectors)) * whole / extent
        if cycles < best * WORTH_PADDING:
            best, found = cycles / WORTH_PADDING, replace(padded, padding=tuple(padding))
    return found


def seeds(
    product: Product, vectors: Vectors, cores: int = 1, *, near: bool = False
) -> Iterator[Decisions]:
    """Yield decisions for a product's tiles, the most promising first: columns, rows, sums, each its factors.

    Args:
        product: what is scheduled.
        vectors: of the target.
        cores: among which the outer axes are divided.
        near: what is padded is padded for a tile of the outer axes: a band of rows.
    """
    ranked = sorted(_tiles(product, vectors))[: SEEDS // 2]
    outside = near if product.apart else _columns_outside(product)
    first, second = outside, not outside
    plans = [(tile, first, 1) for *_, tile in ranked[:1]]
    plans += [(tile, second, 1) for *_, tile in ranked[:1]]
    plans += [(tile, first, 1) for *_, tile in ranked[1:]]
    plans += [(tile, first, 4) for *_, tile in ranked[:1]]
    plans += [(tile, second, 1) for *_, tile in ranked[1:]]
    seen: set[Decisions] = set()
    for tile, columns_outside, unrolled in plans:
        one = _decisions(product, tile, columns_outside, unrolled, cores, near)
        if one not in seen and len(seen) < SEEDS:
            seen.add(one)
            yield one


def _tiles(
    product: Product, vectors: Vectors
) -> Iterator[tuple[int, float, int, int, tuple[int, tuple[int, ...]]]]:
    """Yield what orders it, and (vectors, rows of each axis), of every tile that registers hold.

    First come fewer cycles a product; where columns have nothing in common, one vector first. Of equal tiles the one
    that is nearer to a square, as neighbours share what a window reads, and the one with the longer last axis.
    """
    options = [_divisors(product.extents[axis], MAX_ROWS) for axis in product.rows]
    lanes_lost = vectors.lanes / product.lanes
    depth = math.prod(product.extents[axis] for axis in product.sums)
    room = vectors.registers - (int(CONSTANTS * vectors.registers) if product.dear else 0)
    for wide in _divisors(product.columns, MAX_VECTORS):
        for rows in itertools.product(*options):
            sums = math.prod(rows) * wide
            held = sums + wide * (depth if product.apart and depth <= SHORT_SUM else 1) + 1
            if held > room and sums > 1:
                continue
            loads = sum(
                math.prod(one for axis, one in zip(product.rows, rows, strict=True) if axis in axes)
                * (wide if product.column in axes else 1)
                for axes, _ in product.operands
            )
            cycles = max(sums / 2, loads / 2, BUSY / 2) + 0.05 * loads
            first = wide if product.apart else 0
            longest = rows[-1] if rows else 0
            yield first, lanes_lost * cycles / sums, sum(rows), -longest, (wide, rows)


def _columns_outside(product: Product) -> bool:
    """Say whether the columns shall be outside: then what has rows is read again for each of them."""
    with_rows = sum(size for axes, size in product.operands if axes & set(product.rows))
    with_columns = sum(size for axes, size in product.operands if product.column in axes)
    return with_rows <= with_columns


def _decisions(
    product: Product,
    tile: Sequence[Any],
    columns_outside: bool,
    unrolled: int,
    cores: int,
    near: bool,
) -> Decisions:
    wide, rows = tile
    column_tiles = product.columns // wide
    row_tiles = [product.extents[axis] // one for axis, one in zip(product.rows, rows, strict=True)]
    outside = column_tiles if columns_outside else 1
    enough = 4 * cores if cores > 1 else 1
    made: list[tuple[int, ...]] = [(outside, column_tiles // outside, wide)]
    share = outside * math.prod(product.extents[axis] for axis in product.batch)
    for place, (count, one) in enumerate(zip(row_tiles, rows, strict=True)):
        whole = place == 0 if near else not columns_outside or share < enough
        share *= count if whole else 1
        made.append((count, 1, one) if whole else (1, count, one))
    depth = math.prod(product.extents[axis] for axis in product.sums)
    for place, axis in enumerate(product.sums):
        extent = product.extents[axis]
        last = place == len(product.sums) - 1
        limit = MAX_UNROLLED if depth <= SHORT_SUM else unrolled if last else 1
        inner = max(_divisors(extent, limit))
        made.append((extent // inner, inner))
    return tuple(made)


def _tile(schedule: Any, product: Product, first: Decisions, cores: int, near: bool) -> None:
    """Schedule a product; each tile is a sampling instruction with the first decision."""
    if product.padding:
        schedule.pad_einsum(schedule.get_sblock(product.block), product.padding)
    for name in product.inlined:
        schedule.compute_inline(schedule.get_sblock(name))
    for name in product.after[:-1]:
        schedule.compute_inline(schedule.get_sblock(name))
    block = schedule.get_sblock(product.block)
    loops = schedule.get_loops(block)
    decided = iter(first)

    def sampled(loop: Any, parts: int, largest: int) -> list[Any]:
        factors = schedule.sample_perfect_tile(loop, parts, largest, decision=next(decided))
        return list(schedule.split(loop, factors))

    groups, inside_group = schedule.split(loops[product.column], [None, product.group])
    columns, lane = schedule.split(inside_group, [None, product.lanes])
    column = sampled(columns, 3, MAX_VECTORS)
    rows = [sampled(loops[axis], 3, MAX_ROWS) for axis in product.rows]
    sums = [sampled(loops[axis], 2, MAX_UNROLLED) for axis in product.sums]
    batch = [*(loops[axis] for axis in product.batch), groups]
    outer = [*batch, column[0], *(row[0] for row in rows)]
    middle = [*(row[1] for row in rows), column[1]]
    inside = [*(one[1] for one in sums), *(row[2] for row in rows), column[2]]
    schedule.reorder(*outer, *middle, *(one[0] for one in sums), *inside, lane)
    if product.after:
        last = schedule.get_sblock(product.after[-1])
        finished = [(last, not product.staged)]
        if product.staged:
            finished.insert(0, (schedule.cache_write(block, 0, "local"), True))
    else:
        finished = [(schedule.cache_write(block, 0, "local"), True)]
    for one, _ in finished:
        schedule.reverse_compute_at(one, column[1], preserve_unit_loops=True)
    if product.after:
        schedule.set_scope(finished[0][0] if product.staged else block, 0, "local")
    for loop in inside:
        schedule.unroll(loop)
    schedule.vectorize(lane)
    for one, is_unrolled in finished:
        *others, final = schedule.get_loops(one)[len(outer) + len(middle) :]
        whole, lane = schedule.split(final, [None, product.lanes])
        for loop in (*others, whole) if is_unrolled else ():
            schedule.unroll(loop)
        schedule.vectorize(lane)
    last_outer = outer[-1]
    cores = cores if math.prod(product.extents) >= PARALLEL_WORK else 1
    if cores > 1:
        last_outer = schedule.fuse(*outer)
        schedule.parallel(last_outer)
    for name in product.copied:
        pad = schedule.get_sblock(name)
        if near:
            schedule.compute_at(pad, last_outer, preserve_unit_loops=True)
            final = schedule.get_loops(pad)[-1]
            if product.channels % product.lanes == 0:
                schedule.vectorize(schedule.split(final, [None, product.lanes])[1])
        else:
            _pad(schedule, pad, product, cores)


def _pad(schedule: Any, pad: Any, product: Product, cores: int) -> None:
    """Schedule a pass that pads: whole vectors, its outer axes among the cores.

    Zeros first and then what is padded, without a choice (decompose_padding), would be faster where channels are no
    whole vector; TVM 0.27 cannot print a trace with it, which its task scheduler does.
    """
    *others, number = schedule.get_loops(pad)
    if product.channels % product.lanes == 0:
        schedule.vectorize(schedule.split(number, [None, product.lanes])[1])
    if cores > 1:
        schedule.parallel(schedule.fuse(*others[:2]))


def _group_of(indices: Sequence[Any], name: Any) -> int:
    """Return by what a variable is divided wherever indices depend on it; 0 where it is not, or not by one number."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    divisors: list[int] = []
    used: list[bool] = []

    def divided(node: Any) -> None:
        if isinstance(node.b, tirx.IntImm) and node.a.same_as(name):
            divisors.append(int(node.b.value))

    for index in indices:
        structural_walk(index, (tirx.FloorDiv, divided))
        structural_walk(index, (tirx.Var, lambda one: used.append(one.same_as(name))))
    return divisors[0] if len(set(divisors)) == 1 and sum(used) == len(divisors) else 0


def _divisors(extent: int, largest: int) -> list[int]:
    return [one for one in range(1, min(extent, largest) + 1) if extent % one == 0]


def _multiplies(body: Any) -> bool:
    """Say whether a statement adds the product of two numbers to the sum."""
    from tvm import tirx

    value = getattr(body, "value", None)
    return isinstance(value, tirx.Add) and isinstance(value.b, tirx.Mul)


def _beside(index: Any, name: Any) -> bool:
    """Say whether a step of a variable is a step to the next number."""
    from tvm import sym

    found = sym.detect_linear_equation(index, [name])
    return bool(found) and hasattr(found[0], "value") and int(found[0].value) == 1


def free_buffers(schedule: Any) -> set[str]:
    """Return the names of the function's buffers whose layout is a program's own."""
    function = schedule.mod["main"]
    given = dict(function.attrs or {}).get("layout_free_buffers", ())
    return {str(function.params[int(place)].name) for place in given}
