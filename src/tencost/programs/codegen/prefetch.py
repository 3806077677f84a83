"""The weights of the next columns are fetched while the ones before them are used.

A product keeps the weights of a few columns, a panel, near for all of its rows; the first rows of each panel wait for
it, as a network's weights are more than its caches hold. The hardware does not see the next panel coming: it follows
what is read, to the end of a memory page. So every few steps of the innermost loop ask for some of the next panel's
cache lines (Goto, van de Geijn, 2008, fetch theirs like this). On an Intel Xeon a network's products of 257 rows take
.90 to .94 of the time that they take without; what the caches hold already loses nothing measurable.

Only weights that a program has reordered (MetaSchedule's RewriteLayout) are fetched: a panel of theirs lies in a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tencost.programs.codegen.blocks import moves, number_like, replaced

LINE = 64
"""Bytes that are fetched at a time: a cache line."""
PANEL = 4096
"""Bytes of a panel that are worth it."""
MOST = 4
"""Lines a step of the innermost loop, at most: a panel that is used for a few rows only would be all fetching."""
STEPS = 4
"""Steps of the innermost loop for which lines are fetched at a time, before a loop over them. Among the step's own
instructions LLVM orders loads otherwise, and 28 sums of 32 registers no longer stay in them (mobilenet's 14x14x512:
4.0 instead of 2.7 ms)."""
_REORDERS = "meta_schedule.layout_rewrite_preproc"
_TO_SECOND_CACHE = 2
"""LLVM's locality 0 to 3: the first cache is full of the panel in use."""


@dataclass(frozen=True)
class _Axis:
    """A loop, or a part of a loop over cores.

    Attributes:
        name: its variable.
        extent: its iterations; 0 where their number is no constant.
        is_serial: it is a loop in the machine code, not unrolled or a vector.
    """

    name: Any
    extent: int
    is_serial: bool


@dataclass(frozen=True)
class _Nest:
    """A block that computes something, and the loops around it.

    Attributes:
        loops: the outermost first.
        realize: the block, and what its axes are for an iteration of the loops.
    """

    loops: tuple[Any, ...]
    realize: Any


@dataclass(frozen=True)
class _Fetches:
    """What is fetched in the innermost loop of a sum.

    Attributes:
        loop: its variable.
        steps: of the loop, that follow each other after the lines of all of them are fetched.
        several: variable of a loop over so many steps.
        statements: that fetch, for an iteration of it.
    """

    loop: Any
    steps: int
    several: Any
    statements: list[Any]


def with_prefetches(function: Any) -> Any:
    """Return a scheduled PrimFunc that fetches the next panel of its reordered weights; the same one without such.

    Args:
        function: for a CPU, in blocks; the blocks that reorder weights are still in it.
    """
    from tvm import tirx
    from tvm_ffi import structural_map

    nests = list(_nests(function.body, ()))
    reordered = [
        region.source
        for nest in nests
        if _REORDERS in nest.realize.block.annotations
        for region in nest.realize.block.writes
    ]
    fetches: dict[Any, _Fetches] = {}
    for nest in nests:
        for region in nest.realize.block.reads:
            if any(region.source.same_as(weights) for weights in reordered):
                found = _fetches_of(nest, region)
                if found is not None:
                    fetches.setdefault(found.loop, found)
    if not fetches:
        return function

    def fetching(loop: Any) -> Any:
        found = fetches.get(loop.loop_var)
        if found is None:
            return loop
        steps, zero = number_like(found.steps, loop.loop_var), number_like(0, loop.loop_var)
        inner = tirx.Var(f"{loop.loop_var.name}_step", str(loop.loop_var.ty.dtype))
        body = replaced(loop.body, {loop.loop_var: found.several * steps + inner})
        whole = number_like(_extent(loop), loop.loop_var)
        left = tirx.Min(steps, whole - found.several * steps)
        divides = _extent(loop) % found.steps == 0
        few = tirx.For(inner, zero, steps if divides else left, loop.kind, body)
        extent = number_like(-(-_extent(loop) // found.steps), loop.loop_var)
        return tirx.For(
            found.several, zero, extent, loop.kind, tirx.SeqStmt([*found.statements, few])
        )

    return structural_map(function, (tirx.For, fetching))


def _nests(statement: Any, loops: tuple[Any, ...]) -> Iterator[_Nest]:
    """Yield the blocks without blocks in them."""
    from tvm import tirx
    from tvm.s_tir import SBlockRealize

    if isinstance(statement, tirx.For):
        yield from _nests(statement.body, (*loops, statement))
    elif isinstance(statement, tirx.SeqStmt):
        for part in statement.seq:
            yield from _nests(part, loops)
    elif isinstance(statement, SBlockRealize):
        if statement.block.iter_vars:
            yield _Nest(loops, statement)
        else:
            yield from _nests(statement.block.body, loops)


def _fetches_of(nest: _Nest, region: Any) -> _Fetches | None:
    """Return what fetches a share of the next panel in the steps of a sum's innermost loop; None where that is nothing.

    A step is a serial loop's iteration: what is unrolled inside of it reads many lines.
    """
    from tvm import tirx

    serial = [loop for loop in nest.loops if _is_serial(loop)]
    if not serial or not _is_summed(nest, serial[-1]) or any(map(_is_wide, region.region)):
        return None
    places, axes, whole = _places_of(nest, region)
    reads = [any(moves(place, axis.name) for place in places) for axis in axes]
    # The panel's axis: it moves on to other weights, and one inside of it runs over the same ones again.
    again = [
        place
        for place, axis in enumerate(axes)
        if axis.is_serial and axis.extent > 1 and not reads[place]
    ]
    outer = [place for place in range(again[-1] if again else 0) if reads[place]]
    if not outer:
        return None
    panel, inside = axes[outer[-1]], [axis for axis in axes[outer[-1] + 1 :] if axis.is_serial]
    ahead = [axis.name for axis in axes[: outer[-1] + 1]]
    first = 1 + max(
        dimension
        for dimension, place in enumerate(places)
        if any(moves(place, name) for name in ahead)
    )
    shape = [int(size) for size in region.source.shape]
    width = int(region.source.dtype.bits) // 8
    size = math.prod(shape[first:]) * width
    loop, innermost = serial[-1], inside[-1]
    if not innermost.name.same_as(loop.loop_var) or not all(axis.extent for axis in inside):
        return None
    together = min(_extent(loop), STEPS)
    times = -(-_extent(loop) // together)
    share = -(-size // (LINE * times * math.prod(axis.extent for axis in inside[:-1])))
    if size < PANEL or share > MOST * together:
        return None
    # Where the next panel's first number is: the axes inside begin anew.
    begun = {axis.name: number_like(0, axis.name) for axis in axes if axis.name not in ahead}
    last = number_like(panel.extent - 1, panel.name)
    begun[panel.name] = tirx.Min(panel.name + number_like(1, panel.name), last)
    lead = [replaced(place, begun) for place in places[:first]]
    several = tirx.Var(f"{loop.loop_var.name}_steps", str(loop.loop_var.ty.dtype))
    step: Any = tirx.const(0, "int64")
    for axis in inside[:-1]:
        step = step * axis.extent + axis.name
    step = step * times + several
    final = tirx.const(-(-size // LINE) - 1, "int64")
    lines = [tirx.Min(step * share + more, final) for more in range(share)]
    # Along the last dimension, beyond its end: so an address is one sum, as a panel's numbers lie in a row.
    begin = [tirx.const(0, "int64")] * (len(shape) - first - 1)
    fetches = [_fetch(region.source, [*lead, *begin, line * (LINE // width)]) for line in lines]
    return _Fetches(loop.loop_var, together, several, [replaced(fetch, whole) for fetch in fetches])


def _places_of(nest: _Nest, region: Any) -> tuple[list[Any], list[_Axis], dict[Any, Any]]:
    """Return where a tensor is read, by the loops' axes; the axes; and what those are that are a part of a loop.

    A loop over cores is of several axes: the weights that it reads are the same for so many of its iterations.
    """
    from tvm import ir, sym, tirx
    from tvm_ffi import structural_walk

    names = [axis.var for axis in nest.realize.block.iter_vars]
    values = dict(zip(names, nest.realize.iter_values, strict=True))
    analyzer = sym.Analyzer()
    for loop in nest.loops:
        analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
    places = [analyzer.simplify(replaced(bound.min, values)) for bound in region.region]
    axes: list[_Axis] = []
    whole: dict[Any, Any] = {}
    for loop in nest.loops:
        name, extent = loop.loop_var, _extent(loop)
        repeats: list[int] = []

        def divided(node: Any, name: Any = name, repeats: list[int] = repeats) -> None:
            if node.a.same_as(name) and hasattr(node.b, "value"):
                repeats.append(int(node.b))

        for place in places:
            structural_walk(place, (tirx.FloorDiv, divided))
        times = math.gcd(extent, *repeats) if repeats else 1
        if times > 1:
            kind = str(name.ty.dtype)
            outer, inner = (
                tirx.Var(f"{name.name}_panel", kind),
                tirx.Var(f"{name.name}_again", kind),
            )
            analyzer.bind(outer, ir.Range(number_like(0, name), number_like(extent // times, name)))
            analyzer.bind(inner, ir.Range(number_like(0, name), number_like(times, name)))
            parts = {name: outer * number_like(times, name) + inner}
            places = [analyzer.simplify(replaced(place, parts)) for place in places]
            whole |= {
                outer: tirx.floordiv(name, number_like(times, name)),
                inner: tirx.floormod(name, number_like(times, name)),
            }
            axes += [_Axis(outer, extent // times, True), _Axis(inner, times, True)]
        else:
            axes.append(_Axis(name, extent, _is_serial(loop)))
    return places, axes, whole


def _fetch(weights: Any, places: list[Any]) -> Any:
    """Return a statement that asks for the cache line of a number."""
    from tvm import tirx

    address = tirx.address_of(tirx.BufferLoad(weights, places))
    numbers = [tirx.const(number, "int32") for number in (0, _TO_SECOND_CACHE, 1)]
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch.p0", address, *numbers))


def _is_serial(loop: Any) -> bool:
    from tvm import tirx

    return int(loop.kind) in (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)


def _is_summed(nest: _Nest, loop: Any) -> bool:
    """Say whether a loop is one of a sum."""
    from tvm import tirx

    return any(
        axis.iter_type == tirx.IterVar.CommReduce and moves(value, loop.loop_var)
        for axis, value in zip(nest.realize.block.iter_vars, nest.realize.iter_values, strict=True)
    )


def _extent(loop: Any) -> int:
    return int(loop.extent) if hasattr(loop.extent, "value") else 0


def _is_wide(bound: Any) -> bool:
    """Say whether a block reads more than one number along a dimension."""
    return not hasattr(bound.extent, "value") or int(bound.extent) != 1
