"""A design space of register tiles: what the kernels of BLAS libraries do, as decisions that a tuner can make.

TVM's own space for a CPU (multi-level tiling SSRSRS) leaves the sums in memory between two levels of a reduction, and
its innermost tile is sampled among all that divides. A product runs near the core's peak where a few rows by a few
vectors of the output stay in registers over the whole sum (Goto, van de Geijn: Anatomy of High-Performance Matrix
Multiplication, 2008; BLIS), which needs things that this space fixes and that the other leaves to chance:

    columns     the output's last axis: so many vectors, unrolled; tile o1 o2 v, times the vector's numbers, which are
                all that a register holds, or the most that divide the axis: 14 of 16 for 56 channels
    rows        up to two axes that one operand has and the other lacks, unrolled inside the sum; tiles o1 o2 i
    sum         runs over everything else; a part of each axis may be unrolled; tiles o i
    order       o1 of columns and rows, o2 of rows and columns, o of the sum, i of the sum, rows, vectors
    epilogue    what follows (bias, activation, residual) where a tile of sums is done, from the registers; what calls
                functions is a loop over the tile, as their code would stand there for each vector of it
    before      padding stays a pass of its own; what only computes is inlined; rows and columns that have no divisor
                are padded

Weights that the graph lets programs reorder (``network.pack_weights``) are laid out tile by tile by MetaSchedule's
RewriteLayout. With more than one core the o1 axes are divided among them, the first rows before the columns.

Which workloads it fits: :mod:`tencost.programs.codegen.products`; which tiles come first:
:mod:`tencost.programs.codegen.tiles`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tencost.programs.codegen.blocks import extent_of, remember_annotations, tried
from tencost.programs.codegen.overlap import Axis, widened
from tencost.programs.codegen.products import (
    Product,
    Vectors,
    free_buffers,
    product_of,
    vectors_of,
)
from tencost.programs.codegen.tiles import (
    MAX_ROWS,
    MAX_UNROLLED,
    MAX_VECTORS,
    Decisions,
    busy_cores,
    padded,
    product_seeds,
    waiting,
)
from tencost.programs.refusals import StepRefusal

MORE_ROWS = 1.05
"""How many more rows are computed, at most, so that each core gets as many tiles of them."""
HALF_SEEDS = 2
"""Seeds where vectors are half full at best: TVM's tiles are often faster then, and the search should get to them."""


@dataclass(frozen=True)
class Design:
    """A design space: a schedule whose trace holds the decisions that it begins with, and better-known ones.

    Attributes:
        schedule: tvm.s_tir.Schedule, without post-processing.
        seeds: decisions of the trace's sampling instructions in order, the most promising first.
    """

    schedule: Any
    seeds: tuple[Decisions, ...]


def designs(mod: Any, target: Any) -> list[Design]:
    """Return the design spaces of a workload; none where it is no product whose tiles fit the registers.

    Args:
        mod: IRModule with one function "main", unscheduled.
        target: TVM target or its dictionary; num-cores more than 1 divides the outer axes among cores.

    Returns:
        One space, or two where an operand is padded: as a whole before the product, or tile by tile. The more promising
        one comes first.
    """
    from tvm.s_tir import Schedule
    from tvm.target import Target

    vectors = vectors_of(target)
    if vectors is None:
        return []
    remember_annotations()
    product = product_of(Schedule(mod, debug_mask=0), vectors)
    product = product and padded(mod, product, vectors)
    if product is None:
        return []
    cores = int(Target(target).attrs.get("num-cores", 1))
    spaces = []
    for near in (product.padded_near, not product.padded_near) if product.copied else (False,):
        tile_seeds = tuple(product_seeds(product, vectors, cores, near=near))
        tile_seeds = tile_seeds if vectors.lost(product.lanes) < 2 else tile_seeds[:HALF_SEEDS]
        schedule = Schedule(mod, debug_mask=0, error_render_level="none")
        if tile_seeds and tried(_tile, schedule, product, tile_seeds[0], cores, near):
            spaces.append(Design(schedule, tile_seeds))
    return spaces


def schedule_overlapping(
    mod: Any,
    vectors: Vectors,
    product: Product,
    tile: tuple[int, tuple[int, ...]],
    decisions: Decisions,
    cores: int,
) -> Any:
    """Return the scheduled module of a product in tiles that overlap; None where that cannot be done.

    Args:
        mod: IRModule with one function "main", unscheduled.
        vectors: of the target.
        product: of `mod`, with the lanes of its vectors.
        tile: vectors, rows of each axis; they need not divide the product's.
        decisions: of the product that :func:`widened_product` returns.
        cores: among which the outer axes are divided.
    """
    from tvm import IRModule
    from tvm.s_tir import Schedule

    scheduled: list[Any] = []

    def schedule_widened() -> None:
        wide = widened(mod["main"], product.block, _widened_axes(product, *tile, cores))
        schedule = Schedule(
            IRModule({"main": wide.function}), debug_mask=0, error_render_level="none"
        )
        again = product_of(schedule, vectors)
        if again is None:
            raise StepRefusal("the widened product is none")
        # Operands are padded as a whole: a part for each tile would not be where the narrowed tile is.
        _tile(schedule, replace(again, lanes=product.lanes), decisions, cores, False)
        _finish(schedule)
        scheduled.append(IRModule({"main": wide.narrowed(schedule.mod["main"])}))

    return scheduled[0] if tried(schedule_widened) else None


def schedule_dividing(
    mod: Any, product: Product, decisions: Decisions, cores: int, near: bool
) -> Any:
    """Return the scheduled module of a product in tiles that divide it; None where that cannot be done.

    Args:
        mod: IRModule with one function "main", unscheduled.
        product: of `mod`, with its padding and the lanes of its vectors.
        decisions: of the product.
        cores: among which the outer axes are divided.
        near: operands are padded tile by tile.
    """
    from tvm.s_tir import Schedule

    schedule = Schedule(mod, debug_mask=0, error_render_level="none")
    fits = tried(_tile, schedule, product, decisions, cores, near) and tried(_finish, schedule)
    return schedule.mod if fits else None


def widened_product(product: Product, tile: tuple[int, tuple[int, ...]], cores: int = 1) -> Product:
    """Return a product with the extents that overlapping tiles are scheduled with: multiples of the tile's.

    Args:
        product: what is widened.
        tile: vectors, rows of each axis.
        cores: among which the rows are divided: where there are many, each gets as many tiles of them.
    """
    extents = list(product.extents)
    for place, axis in _widened_axes(product, *tile, cores).items():
        extents[place] = axis.widened
    whole = product.group == product.extents[product.column]
    return replace(
        product,
        extents=tuple(extents),
        group=extents[product.column] if whole else product.group,
    )


def _widened_axes(
    product: Product, vectors: int, rows: Sequence[int], cores: int
) -> dict[int, Axis]:
    """Return the axes of a product that a tile does not divide, by number; no two extents are the same."""
    tiles = [(product.column, vectors * product.lanes, product.lanes)]
    tiles += [(axis, height, height) for axis, height in zip(product.rows, rows, strict=True)]
    axes: dict[int, Axis] = {}
    for place, step, tile in tiles:
        extent = product.extents[place]
        count = -(-extent // step)
        if place in product.rows[:1] and waiting(count, cores) <= MORE_ROWS:
            count = -(-count // cores) * cores
        size = count * step
        if size > extent:
            taken = {*product.extents, *(axis.widened for axis in axes.values())}
            while size in taken:
                size += step
            axes[place] = Axis(extent, size, tile)
    return axes


def _finish(schedule: Any) -> None:
    """Post-process a schedule; raises StepRefusal where that cannot be done."""
    from tvm.s_tir.meta_schedule import postproc

    rules = [postproc.RewriteReductionBlock()]
    if free_buffers(schedule):
        rules.append(postproc.RewriteLayout())
    if not all(rule.apply(schedule) for rule in rules):
        raise StepRefusal("a post-processor refuses it")


def interleave_spaces(spaces: Sequence[Design]) -> list[tuple[Design, Decisions]]:
    """Return the seeds of all spaces in the order in which they are worth measuring, the first space's best first."""
    ranked = [
        (rank * (1 + place), place, rank, design, seed)
        for place, design in enumerate(spaces)
        for rank, seed in enumerate(design.seeds)
    ]
    return [(design, seed) for *_, design, seed in sorted(ranked, key=lambda row: row[:3])]


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
    batch = [loops[axis] for axis in product.batch]
    cores = busy_cores(product, cores)
    outer = [*batch, groups, column[0], *(row[0] for row in rows)]
    if cores > 1 and rows:
        # Rows first: each core has the same ones in every operator, and finds them in its own caches.
        outer = [*batch, rows[0][0], groups, column[0], *(row[0] for row in rows[1:])]
    middle = [*(row[1] for row in rows), column[1]]
    inside = [*(split[1] for split in sums), *(row[2] for row in rows), column[2]]
    schedule.reorder(*outer, *middle, *(split[0] for split in sums), *inside, lane)
    if product.shuffled:
        _load_vectors(schedule, block, product, sums[-1][0])
    last, lanes = None, product.lanes
    if product.after:
        last = schedule.get_sblock(product.after[-1])
        if product.padding:
            # A vector across the end of the unpadded columns would be computed number by number.
            lanes = math.gcd(lanes, extent_of(schedule, schedule.get_loops(last)[-1]))
        finished = [(last, not product.staged)]
        if product.staged:
            finished.insert(0, (schedule.cache_write(block, 0, "local"), True))
    else:
        finished = [(schedule.cache_write(block, 0, "local"), True)]
    for writer, _ in finished:
        schedule.reverse_compute_at(writer, column[1], preserve_unit_loops=True)
    if product.after:
        schedule.set_scope(finished[0][0] if product.staged else block, 0, "local")
    for loop in inside:
        schedule.unroll(loop)
    schedule.vectorize(lane)
    for writer, is_unrolled in finished:
        *others, final = schedule.get_loops(writer)[len(outer) + len(middle) :]
        whole, lane = schedule.split(final, [None, lanes if writer is last else product.lanes])
        for loop in (*others, whole) if is_unrolled else ():
            schedule.unroll(loop)
        schedule.vectorize(lane)
    last_outer = outer[-1]
    if cores > 1:
        last_outer = schedule.fuse(*outer)
        schedule.parallel(last_outer)
    for name in () if product.shuffled else product.copied:
        pad = schedule.get_sblock(name)
        if near:
            schedule.compute_at(pad, last_outer, preserve_unit_loops=True)
            final = schedule.get_loops(pad)[-1]
            if product.channels % product.lanes == 0:
                schedule.vectorize(schedule.split(final, [None, product.lanes])[1])
        else:
            _pad(schedule, pad, product, cores)


def _load_vectors(schedule: Any, block: Any, product: Product, loop: Any) -> None:
    """Hold a tile's vectors of the operand whose channels are shuffled, for a tap: LLVM then shuffles registers.

    What pads is computed there. From a tensor in memory, each number of a vector would be read by itself.
    """
    if product.copied:
        held = schedule.get_sblock(product.copied[-1])
        schedule.set_scope(held, 0, "local")
    else:
        names = [str(region.source.name) for region in schedule.get(block).reads]
        if product.shuffled not in names:
            raise StepRefusal("what the product reads in vectors was inlined into it")
        held = schedule.cache_read(block, names.index(product.shuffled), "local")
    schedule.compute_at(held, loop, preserve_unit_loops=True)
    copied = len(schedule.get(held).iter_vars)
    *others, last = schedule.get_loops(held)[-copied:]
    whole, lane = schedule.split(last, [None, product.lanes])
    for each in (*others, whole):
        schedule.unroll(each)
    schedule.vectorize(lane)


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
