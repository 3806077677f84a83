"""Products that tiles of registers fit: which function holds one, and what a core has for it.

A product is one sum of products, with what stands before it (padding, or what only computes) and after it (bias,
activation, residual). :mod:`tencost.programs.codegen.tiles` ranks tiles for it,
:mod:`tencost.programs.codegen.registers` schedules it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tencost.programs.codegen.blocks import (
    CHOICES,
    called,
    extent_of,
    kinds_of,
    moves,
    nests_of,
    size_of,
)

MAX_ROW_AXES = 2
LEAST_LANES = 4
"""No vector has fewer numbers."""


HALVES_AS_FAST = frozenset({"znver4"})
"""Cores with AVX-512 (LLVM's names) that multiply two half vectors in the time of a whole one, as it was measured.

Not by what LLVM says of its own preference (prefer-256-bit): Intel's servers have it, and two whole units.
"""


@dataclass(frozen=True)
class Vectors:
    """What a target's core has.

    Attributes:
        lanes: float32 numbers of a vector.
        registers: for vectors.
        halves: whether two half vectors take the time of a whole one.
    """

    lanes: int
    registers: int
    halves: bool = False

    def lost(self, lanes: int) -> float:
        """Return the time of a vector of so many numbers over that of the share of whole vectors that they are."""
        width = self.lanes // 2 if self.halves and 2 * lanes <= self.lanes else self.lanes
        return width / lanes


@dataclass(frozen=True)
class Product:
    """A sum of products that tiles of registers fit, before it is scheduled. Axes are numbers of the block's.

    Attributes:
        block: its block's name.
        inlined, copied: names of the blocks before it: computed where they are read, or passes of their own: padding,
            and what calls functions.
        after: names of the blocks after it.
        dear: whether these call functions.
        extents: of all axes.
        batch, rows, sums: axes of each part; rows are at most two, the innermost ones.
        column: the axis of vectors.
        group: columns that read the same of every operand without them: all, but of a convolution in groups.
        lanes: numbers of a vector, which is at least half a register; divides a group; 0 where no vector does.
        channels: divides the last axes of the passes of their own; 1 where there are none.
        operands: for each operand, the axes that its indices move with, and its size in bytes.
        padding: of each axis, to a multiple of what its extent is padded before all else; empty: nothing is.
        shuffled: name of the operand whose vectors hold several groups of channels each; empty: no operand's do.
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
    shuffled: str = ""

    @property
    def columns(self) -> int:
        """Vectors of a row, in a group; the last one may be part of one."""
        return -(-self.group // self.lanes)

    @property
    def staged(self) -> bool:
        """Whether a tile of sums is stored before what follows is a loop over it: code, or choices, at each vector."""
        return self.dear or bool(self.padding)

    @property
    def apart(self) -> bool:
        """Whether columns have nothing in common, as the channels of a depthwise convolution."""
        return all(self.column in axes for axes, _ in self.operands)

    @property
    def padded_near(self) -> bool:
        """Whether padding is better done tile by tile: of a group, or of a band of channels, which then lies together.

        Of the whole image a group's channels are a short piece of each pixel, often a power of two apart, and share few
        sets of the first cache: a convolution of 32 groups and 16 channels took four times as long.
        """
        return self.apart or self.group < self.extents[self.column]


def vectors_of(target: Any) -> Vectors | None:
    """Return the vector registers of a target's core; None for a target that is no CPU, and for no target."""
    from tvm.target import Target, codegen

    if target is None:
        return None
    target = Target(target)
    if target.kind.name != "llvm":
        return None
    for feature, vectors in (
        ("avx512f", Vectors(16, 32)),
        ("avx", Vectors(8, 16)),
        ("neon", Vectors(4, 32)),
    ):
        if codegen.target_has_features(feature, target):
            halves = vectors.lanes == 16 and str(target.attrs.get("mcpu")) in HALVES_AS_FAST
            return replace(vectors, halves=halves)
    return Vectors(4, 16)


def product_of(schedule: Any, vectors: Vectors) -> Product | None:
    """Return the product of an unscheduled function, None where there is none, or more than one, or another shape.

    Its lanes are 0 where columns are neither whole registers nor halves of them: see :func:`filled`, and padding.
    """
    blocks = nests_of(schedule)
    kinds = [kinds_of(schedule, block) for block in blocks]
    places = [place for place, letters in enumerate(kinds) if set(letters) != {"S"}]
    if len(places) != 1 or set(kinds[places[0]]) != {"S", "R"}:
        return None
    place = places[0]
    if any("if" in called(schedule.get(block).body) for block in blocks[place + 1 :]):
        return None  # reverse_compute_at would drop elements that read no sum: a border, another operand
    block, letters = blocks[place], kinds[place]
    stmt, loops = schedule.get(block), schedule.get_loops(block)
    sums = math.prod(
        extent_of(schedule, loop) for loop, kind in zip(loops, letters, strict=False) if kind == "S"
    )
    # Few sums that scale an image: that is the work, and is divided among cores by itself.
    if any(size_of(schedule, block) > sums for block in blocks[place + 1 :]):
        return None
    if len(loops) != len(letters) or len(stmt.reads) != 2 or len(stmt.writes) != 1:
        return None
    if called(stmt.body) or not _multiplies(stmt.body):
        return None
    extents = tuple(extent_of(schedule, loop) for loop in loops)
    names = [iter_var.var for iter_var in stmt.iter_vars]
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
    operands, shuffled = [], ""
    for region in stmt.reads:
        axes = {
            axis
            for axis, name in enumerate(names)
            if any(moves(dimension.min, name) for dimension in region.region)
        }
        if column in axes and not (
            _beside(region.region[-1].min, names[column]) or region.source.name in free
        ):
            found = _group_of([dimension.min for dimension in region.region], names[column])
            if not found or extents[column] % found:
                return None
            if _are_shuffled(found, extents[column], vectors):
                shuffled = str(region.source.name)
            else:
                group = found
                axes.remove(column)
        if not all(hasattr(extent, "value") for extent in region.source.shape):
            return None
        size = 4 * math.prod(int(extent) for extent in region.source.shape)
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
    halves = (vectors.lanes, vectors.lanes // 2)
    lanes = next((width for width in halves if width >= LEAST_LANES and group % width == 0), 0)
    plain = [block for block in blocks[:place] if not called(schedule.get(block).body)]
    widths = [
        extent_of(schedule, schedule.get_loops(block)[-1])
        for block in blocks[:place]
        if block not in plain
    ]
    return Product(
        block=stmt.name_hint,
        inlined=tuple(schedule.get(block).name_hint for block in plain),
        copied=tuple(
            schedule.get(block).name_hint for block in blocks[:place] if block not in plain
        ),
        after=tuple(schedule.get(block).name_hint for block in blocks[place + 1 :]),
        dear=any(called(schedule.get(block).body) - CHOICES for block in blocks[place + 1 :]),
        extents=extents,
        batch=tuple(axis for axis in outer if axis not in rows),
        rows=rows,
        column=column,
        sums=tuple(axis for axis, kind in enumerate(letters) if kind == "R"),
        lanes=lanes,
        channels=math.gcd(*widths) if widths else 1,
        operands=tuple(operands),
        group=group,
        shuffled=shuffled,
    )


def filled(product: Product, vectors: Vectors) -> Product | None:
    """Return the product with the vectors that divide its columns in the least time; None where none is half full.

    A vector that leaves part of its register empty takes a register, and mostly the time, all the same: 56 columns are
    four times 14 of 16, where halves would be seven. Where halves take half the time, they are 7 times 8.
    """
    least = max(LEAST_LANES, vectors.lanes // 2)
    widths = [lanes for lanes in range(vectors.lanes, least - 1, -1) if product.group % lanes == 0]
    if not widths:
        return None
    return replace(product, lanes=min(widths, key=vectors.lost))


def _group_of(indices: Sequence[Any], name: Any) -> int:
    """Return the one divisor of a variable in all indices that depend on it; 0 where there is none, or several."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    divisors: list[int] = []
    used: list[bool] = []

    def divided(node: Any) -> None:
        if isinstance(node.b, tirx.IntImm) and node.a.same_as(name):
            divisors.append(int(node.b.value))

    for index in indices:
        structural_walk(index, (tirx.FloorDiv, divided))
        structural_walk(index, (tirx.Var, lambda variable: used.append(variable.same_as(name))))
    return divisors[0] if len(set(divisors)) == 1 and sum(used) == len(divisors) else 0


def _are_shuffled(group: int, columns: int, vectors: Vectors) -> bool:
    """Say whether a vector holds several whole groups: it is read as it lies, and each number of a group shuffled."""
    is_narrow = group < max(LEAST_LANES, vectors.lanes // 2)
    return is_narrow and vectors.lanes % group == 0 and columns % vectors.lanes == 0


def _multiplies(body: Any) -> bool:
    """Say whether a statement adds the product of two numbers to the sum."""
    from tvm import tirx

    value = getattr(body, "value", None)
    return isinstance(value, tirx.Add) and isinstance(value.b, tirx.Mul)


def _beside(index: Any, name: Any) -> bool:
    """Say whether an index grows by 1 when a variable does."""
    from tvm import sym

    coefficients = sym.detect_linear_equation(index, [name])
    return (
        bool(coefficients) and hasattr(coefficients[0], "value") and int(coefficients[0].value) == 1
    )


def free_buffers(schedule: Any) -> set[str]:
    """Return the names of the function's buffers whose layout a program may choose."""
    function = schedule.mod["main"]
    places = dict(function.attrs or {}).get("layout_free_buffers", ())
    return {str(function.params[int(place)].name) for place in places}
