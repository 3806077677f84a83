"""Candidates for the tiles that are known to be good: what a search measures first, see `programs.codegen.spaces`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm.s_tir import meta_schedule as ms

from tencost.programs.codegen import registers
from tencost.programs.codegen.refit import Decisions, apply_decisions, plain_values, sketch


def task_seeds(context: Any, spaces: Sequence[Any], count: int, seed: int) -> list[Any]:
    """Return candidates for the best-known tiles of those register spaces that a task's search has, the best first.

    Args:
        context: tvm.s_tir.meta_schedule.TuneContext of the task.
        spaces: schedules of its design spaces.
        count: of candidates at most.
        seed: of the schedules.

    Returns:
        tvm.s_tir.meta_schedule.MeasureCandidate, after post-processing; none where the task has no such space.
    """
    traces = [space.trace.simplified(True) for space in spaces]
    sketches = [_sketch(trace) for trace in traces]
    candidates: list[Any] = []
    for place, decisions in seed_decisions(context, sketches):
        if len(candidates) == count:
            break
        schedule = apply_decisions(
            context, traces[place], sketches[place].places, decisions, seed + len(candidates)
        )
        if schedule is not None:
            args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
            candidates.append(ms.MeasureCandidate(schedule, args))
    return candidates


def seed_decisions(context: Any, sketches: Sequence[Any]) -> Iterator[tuple[int, Decisions]]:
    """Yield (place of a register space among the sketches, decisions of a known tile), the best first.

    Args:
        context: as for :func:`task_seeds`.
        sketches: of the task's design spaces; None for one that cannot be read.
    """
    for design, decisions in registers.interleave_spaces(
        registers.designs(context.mod, context.target)
    ):
        design_sketch = _sketch(design.schedule.trace.simplified(True))
        if design_sketch is not None and design_sketch in sketches:
            yield sketches.index(design_sketch), decisions


def _sketch(trace: Any) -> Any:
    """Return what a trace decides; None where that cannot be read."""
    values = plain_values(trace)
    return None if values is None else sketch(values)
