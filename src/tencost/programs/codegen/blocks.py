"""Reading and trying on TVM's schedules, as rules do it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from tencost.programs.refusals import StepRefusal, TvmRefusal, tvm_call

PARALLEL_WORK = 65_536
"""Multiply-adds of a product below which waking other cores costs more than they save."""
PARALLEL_NUMBERS = 16_384
"""... and numbers of any other loop nest: to give work to others costs about a microsecond, and one core alone would
read from their caches what they have computed, which takes as long for 16 KB. Of many cores not more: on 16 of a Xeon
layer normalizations of 65,536 numbers took a quarter of segformer's time on one of them."""
AMONG_CORES = "tencost.among_cores"
"""Annotation of a loop whose iterations several cores divide among them, if the target has several."""
CHOICES = {"if", "select"}
"""What :func:`called` says that is no function."""


@cache
def remember_annotations() -> None:
    """Let TVM's schedules take the types of their methods apart once, not at each call: a fifth of a rule's time.

    Arguments are checked as before.
    """
    from tvm.s_tir.schedule import _type_checker

    _type_checker._dispatcher = cache(_type_checker._dispatcher)


def tried(primitive: Any, *args: Any) -> bool:
    """Take a step of a schedule; say whether it could be taken. What cannot be scheduled stays as it was."""
    try:
        with tvm_call():
            primitive(*args)
    except (StepRefusal, TvmRefusal):
        return False
    return True


def nests_of(schedule: Any) -> list[Any]:
    """Return the loop nests' blocks in order, without blocks inside of blocks; none of a function without blocks."""
    try:
        with tvm_call():
            root = schedule.get_sblock("root")
    except TvmRefusal:
        return []
    return list(schedule.get_child_blocks(root))


def kinds_of(schedule: Any, block: Any) -> str:
    """Return S for each data-parallel and R for each summed axis of a block; O for others."""
    from tvm import tirx

    letters = {tirx.IterVar.DataPar: "S", tirx.IterVar.CommReduce: "R"}
    return "".join(letters.get(axis.iter_type, "O") for axis in schedule.get(block).iter_vars)


def extent_of(schedule: Any, loop: Any) -> int:
    """Return a loop's extent; 0 where it is no constant."""
    extent = schedule.get(loop).extent
    return int(extent) if hasattr(extent, "value") else 0


def size_of(schedule: Any, block: Any) -> int:
    """Return how often a block runs."""
    return math.prod(extent_of(schedule, loop) for loop in schedule.get_loops(block))


def called(node: Any) -> set[str]:
    """Return the names of the functions that a statement calls; if_then_else is "if" here, and Select is "select"."""
    from tvm import ir, tirx
    from tvm_ffi import structural_walk

    names: set[str] = set()

    def call(expression: Any) -> None:
        name = str(getattr(expression.op, "name", "")).rpartition(".")[2]
        names.add("if" if name == "if_then_else" else name)

    structural_walk(node, [(ir.Call, call), (tirx.Select, lambda _: names.add("select"))])
    return names


def moves(index: Any, name: Any) -> bool:
    """Say whether an index depends on a variable."""
    from tvm import tirx
    from tvm_ffi import structural_walk

    matches: list[bool] = []

    def compared(variable: Any) -> None:
        matches.append(variable.same_as(name))

    structural_walk(index, (tirx.Var, compared))
    return any(matches)


def replaced(node: Any, values: Mapping[Any, Any]) -> Any:
    """Return an expression, a statement or a function with other variables."""
    from tvm import ir
    from tvm_ffi import structural_map

    return structural_map(node, (ir.Var, lambda name: values.get(name, name)))


def number_like(value: float, like: Any) -> Any:
    """Return a number of the type of an expression."""
    from tvm import tirx

    return tirx.const(value, str(like.ty.dtype))
