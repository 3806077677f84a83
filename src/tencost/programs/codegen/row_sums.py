"""Sums along rows in vectors: what a layer norm, a norm of rows or a mean is made of.

LLVM makes four vectors of sums of a row, if it may order them anew, and leaves rows that are shorter than four vectors
to half a vector, or to single numbers. Here each row is summed in as many vectors as its length is worth, and their
numbers at the end: a layer norm of 32 numbers a row takes a third of the time, one of 384 two thirds.
"""

from __future__ import annotations

from typing import Any

from tencost.programs.codegen.blocks import called, extent_of, kinds_of, moves, nests_of, tried

_FEWEST = 2
"""Vectors of a row below which it is left to LLVM."""
_ROUNDS = 8
"""Vectors of a row to one that is summed in, at least, where those are several: adding them up takes time, too."""


def split_sums(schedule: Any, lanes: int) -> list[str]:
    """Divide each sum along rows that lie in memory into one a lane and one over lanes; return names of the former.

    Args:
        schedule: of nests, none below another.
        lanes: numbers of a vector; rows of half of it are divided by that.
    """
    names = []
    for block in nests_of(schedule):
        kinds, loops = kinds_of(schedule, block), schedule.get_loops(block)
        if (
            not kinds.endswith("R")
            or len(loops) != len(kinds)
            or not _lies_in_rows(schedule, block)
        ):
            continue
        extent = extent_of(schedule, loops[-1])
        width = next((width for width in (lanes, lanes // 2) if extent % width == 0), 0)
        if not width or extent < _FEWEST * width:
            continue
        vectors = extent // width
        several = next((n for n in (4, 2) if vectors % n == 0 and vectors >= _ROUNDS * n), 1)
        if tried(_split, schedule, block, several * width):
            names.append(f"{schedule.get(block).name_hint}_rf")
    return names


def _split(schedule: Any, block: Any, width: int) -> None:
    trial = schedule.copy()
    name = schedule.get(block).name_hint
    for each in (trial, schedule):  # a loop that was split stays so if what follows fails
        sums = each.get_sblock(name)
        rows = len(each.get(sums).writes[0].region)
        each.rfactor(each.split(each.get_loops(sums)[-1], [None, width])[1], rows)


def _lies_in_rows(schedule: Any, block: Any) -> bool:
    """Say whether a nest sums float32, and what it reads lies in a row along its last axis.

    It may have two sums, of numbers and of their squares.

    A number that is read only if it is there (below a padding) is asked for one by one: TVM makes no vectors of it.
    """
    stmt = schedule.get(block)
    if {str(region.source.dtype) for region in stmt.writes} != {"float32"}:
        return False
    if "if" in called(stmt.body):
        return False
    last = stmt.iter_vars[-1].var
    return any(moves(region.region[-1].min, last) for region in stmt.reads) and not any(
        moves(axis.min, last) for region in stmt.reads for axis in list(region.region)[:-1]
    )


def vectorize_sums(schedule: Any, names: list[str]) -> None:
    """Vectorize what :func:`split_sums` has divided, once it is where it stays.

    Args:
        schedule: of the nests.
        names: of the sums' blocks.
    """
    for name in names:
        block = schedule.get_sblock(name)
        (total,) = schedule.get_consumers(block)
        loops, rows = schedule.get_loops(block), schedule.get_loops(total)[:-1]
        if rows and not schedule.get(loops[0]).same_as(schedule.get(rows[0])):
            schedule.compute_at(block, rows[-1])  # no other nest shares its rows
            loops = schedule.get_loops(block)
        count = kinds_of(schedule, block).count("R")
        *_, lane = order = [*loops[-count:], loops[-1 - count]]
        schedule.reorder(*order)
        schedule.vectorize(lane)
        start = schedule.decompose_reduction(block, order[0])
        schedule.vectorize(schedule.get_loops(start)[-1])
