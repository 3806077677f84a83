"""Reshapes and transpositions: loops that follow the tensors' order in memory.

What TVM lowers and inlines leaves quotients and remainders in the indices. Where they say nothing, they are left out;
where they do, an axis is split at the number that it is divided by, so that each loop moves by one stride.

A nest that reads along another axis than it writes takes a part of both at a time. Number by number, each one read is
of another cache line, which is thrown out before the line's next number is needed; where lines lie 4 KB apart, all of
them share one set of the first cache (Lam, Rothberg, Wolf, 1991). In blocks of sixteen numbers read by four written a
transposition takes .1 to .3 of the time, on AMD's Zen 5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tencost.programs.codegen.blocks import (
    CHOICES,
    called,
    extent_of,
    kinds_of,
    moves,
    nests_of,
    replaced,
)

VECTOR, ROWS = 16, 4
"""Neighbours that a transposition reads and writes at a time, at most: of 8 to 32 and 4 to 16 the fastest of most."""
LEAST_VECTOR, LEAST_ROWS = 4, 2
"""... and at least, or the nest stays as it is."""
SHORT = 64
"""Numbers of a last loop that is a short one, at most."""
LEAST_NUMBERS = 4096
"""Numbers below which both sides stay in the first cache."""


def with_simple_indices(function: Any) -> Any:
    """Return a function whose indices lack the quotients and remainders that its axes' extents make superfluous."""
    from tvm import sym, tirx
    from tvm.s_tir import SBlock
    from tvm_ffi import structural_map, structural_walk

    analyzer = sym.Analyzer()

    def bound(block: Any) -> None:
        for axis in block.iter_vars:
            analyzer.bind(axis.var, axis.dom)

    def simple(index: Any) -> Any:
        simplified = analyzer.simplify(index)
        return simplified if _divisions(simplified) < _divisions(index) else index

    structural_walk(function.body, (SBlock, bound))
    return structural_map(function, ((tirx.FloorDiv, tirx.FloorMod), simple))


def _divisions(index: Any) -> int:
    """Return how many quotients and remainders an index has."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    nodes: list[Any] = []
    structural_walk(index, ((tirx.FloorDiv, tirx.FloorMod), nodes.append))
    return len(nodes)


def split_at_divisors(schedule: Any) -> None:
    """Split axes at the least number that the address of what a nest reads divides them by."""
    from tvm import sym, tirx
    from tvm_ffi import structural_walk

    for block in nests_of(schedule):
        loops = schedule.get_loops(block)
        stmt = schedule.get(block)
        if len(loops) != len(stmt.iter_vars) or set(kinds_of(schedule, block)) != {"S"}:
            continue
        analyzer = sym.Analyzer()
        for axis in stmt.iter_vars:
            analyzer.bind(axis.var, axis.dom)
        addresses = [analyzer.simplify(_address_of(region)) for region in stmt.reads]
        for loop, iteration in zip(loops, stmt.iter_vars, strict=True):
            extent = extent_of(schedule, loop)
            divisors: set[int] = set()

            def divided(
                node: Any, name: Any = iteration.var, divisors: set[int] = divisors
            ) -> None:
                is_its_own = moves(node.a, name) and not _is_divided(node.a, name)
                if isinstance(node.b, tirx.IntImm) and is_its_own:
                    divisors.add(int(node.b.value))

            structural_walk(addresses, ((tirx.FloorDiv, tirx.FloorMod), divided))
            factors = [
                divisor for divisor in divisors if 1 < divisor < extent and extent % divisor == 0
            ]
            if factors:
                schedule.split(loop, [None, min(factors)])


def _is_divided(index: Any, name: Any) -> bool:
    """Say whether an index depends on a quotient of a variable: its divisors are then not the variable's."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    quotients: list[bool] = []
    structural_walk(index, (tirx.FloorDiv, lambda node: quotients.append(moves(node.a, name))))
    return any(quotients)


def move_in_vectors(schedule: Any) -> None:
    """Have a function that is one nest read vectors: of a transposition by blocks, of other nests in short last loops.

    LLVM vectorizes long last loops by itself. Short ones it unrolls, and then gathers and scatters numbers along the
    loop around them: 3,136 rows of 32 took .065 ms on Zen 5, a tenth of it in vectors.

    Args:
        schedule: of the function; the nest's loops are in the order in which it writes.
    """
    nests = nests_of(schedule)
    if len(nests) != 1 or set(kinds_of(schedule, nests[0])) != {"S"}:
        return
    block = nests[0]
    if called(schedule.get(block).body) & CHOICES:
        return  # paddings and concatenations: no vector of theirs is read as one
    loops = schedule.get_loops(block)
    if not loops:  # one number
        return
    extents = [extent_of(schedule, loop) for loop in loops]
    written, *reads = _strides(schedule, block)
    if math.prod(extents) >= LEAST_NUMBERS:
        for reading, writing in _transpositions(reads, written):
            width = _part(extents[reading], VECTOR, LEAST_VECTOR)
            height = _part(extents[writing], ROWS, LEAST_ROWS)
            if width >= LEAST_VECTOR and height >= LEAST_ROWS:
                others = [
                    loop for place, loop in enumerate(loops) if place not in (reading, writing)
                ]
                read_blocks, read = schedule.split(loops[reading], [None, width])
                written_blocks, row = schedule.split(loops[writing], [None, height])
                schedule.reorder(*others, read_blocks, written_blocks, row, read)
                schedule.vectorize(read)
                return
    last = max((place for place, extent in enumerate(extents) if extent > 1), default=0)
    width = math.gcd(extents[last], VECTOR)
    is_along = written[last] == 1 and all(steps[last] in (0, 1) for steps in reads)
    if is_along and extents[last] <= SHORT and width >= LEAST_VECTOR:
        schedule.vectorize(schedule.split(loops[last], [None, width])[1])


def _part(extent: int, most: int, least: int) -> int:
    """Return how much of an axis is taken at a time: a power of two if one divides it, else the largest divisor."""
    power = math.gcd(extent, most)
    divisors = (number for number in range(most, 0, -1) if extent % number == 0)
    return power if power >= least else next(divisors)


def _transpositions(
    reads: Sequence[Sequence[int]], written: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the places of the loops along which a nest reads neighbours, and writes them, where these differ."""
    for steps in reads:
        for reading, writing in itertools.permutations(range(len(written)), 2):
            along = steps[reading] == 1 and written[writing] == 1
            if along and steps[writing] > 1 and written[reading] > 1:
                yield reading, writing


def _strides(schedule: Any, block: Any) -> list[list[int]]:
    """Return by how many numbers each loop moves in what a nest writes, and in each tensor that it reads.

    From the first iteration; 0 where that is no constant.
    """
    from tvm import sym, tirx
    from tvm.s_tir import SBlockRealize
    from tvm_ffi import structural_walk

    realized: list[Any] = []
    structural_walk(schedule.mod["main"].body, (SBlockRealize, realized.append))
    name = schedule.get(block).name_hint
    nest = next(each for each in realized if each.block.name_hint == name)
    axes = zip(nest.block.iter_vars, nest.iter_values, strict=True)
    values = {axis.var: value for axis, value in axes}
    variables = [schedule.get(loop).loop_var for loop in schedule.get_loops(block)]
    analyzer = sym.Analyzer()

    def place(address: Any, moved: Any) -> int:
        iteration = {
            name: tirx.const(int(name.same_as(moved)), str(name.ty.dtype)) for name in variables
        }
        number = analyzer.simplify(replaced(address, iteration))
        return int(number.value) if isinstance(number, tirx.IntImm) else 0

    addresses = [
        replaced(_address_of(region), values) for region in (*nest.block.writes, *nest.block.reads)
    ]
    return [
        [place(address, name) - place(address, None) for name in variables] for address in addresses
    ]


def _address_of(region: Any) -> Any:
    """Return the place in memory, in numbers, at which a region of a tensor begins."""
    from tvm import tirx

    address: Any = tirx.const(0, "int64")
    for extent, dimension in zip(region.source.shape, region.region, strict=True):
        address = address * extent + dimension.min
    return address
