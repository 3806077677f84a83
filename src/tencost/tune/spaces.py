"""Candidates for the tiles that are known to be good: a search measures them first, see tencost.codegen.spaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.s_tir import meta_schedule as ms

from tencost.codegen import registers
from tencost.tune.refit import apply, plain_values, sketch


def seeds(context: Any, spaces: Sequence[Any], count: int, seed: int) -> list[Any]:
    """Return candidates for the best-known tiles of those register spaces that a task's search has, the best first.

    Args:
        context: tvm.s_tir.meta_schedule.TuneContext of the task.
        spaces: schedules of its design spaces.
        count: candidates wanted at most.
        seed: of the schedules.

    Returns:
        tvm.s_tir.meta_schedule.MeasureCandidate, after post-processing; none where the task has no such space.
    """
    traces = [one.trace.simplified(True) for one in spaces]
    sketches = [_sketch(one) for one in traces]
    found: list[Any] = []
    for design, decisions in registers.interleaved(registers.designs(context.mod, context.target)):
        own = _sketch(design.schedule.trace.simplified(True))
        if own is None or own not in sketches or len(found) == count:
            continue
        made = apply(context, traces[sketches.index(own)], own.places, decisions, seed + len(found))
        if made is not None:
            args = ms.arg_info.ArgInfo.from_entry_func(made.mod, remove_preproc=True)
            found.append(ms.MeasureCandidate(made, args))
    return found


def _sketch(trace: Any) -> Any:
    """Return what a trace decides; None where that cannot be read."""
    values = plain_values(trace)
    return None if values is None else sketch(values)
