"""Starting points for a task: programs known to be fast, re-fitted to it and measured before anything is searched.

A book (:mod:`tencost.programs.starting_points`) holds the fastest programs of workloads measured before on the same
hardware. For a task it gives, first, the programs of its own workload as they are, then those of the nearest workloads
with their decisions re-fitted:

- A program fits a design space of the task when both make the same sampling decisions in the same order: the same
  numbers of tile levels, the same categories, as many compute locations.
- A tile keeps its inner factors: of all factorizations of the new extent, the one is taken whose factors are nearest to
  the old ones, in octaves, the outermost counting least, since it is where a larger or smaller workload is so.
- Categories (unroll limits) and compute locations stay.

Near means few octaves between the extents of corresponding tiles; the same operator and the same primitives before
others. What TopHub and Lorien look up is the exact workload or nothing; MetaSchedule's ScheduleUsingAnchorTrace applies
one trace to a workload of the same anchor and shape. The cost model chooses among what fits: of three starting points
two are those that it scores best, one the nearest, which holds where the model is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tencost.programs.starting_points import StartBook, StartingPoint, Trace
from tencost.programs.trace.instructions import trace_values

MAX_APPLIED = 64
"""Re-fitted programs that are made into schedules for a task; each takes some 10 milliseconds."""
OUTERMOST, INNERMOST = 0.1, 2.0
"""Weights of a tile's outermost and innermost factor in the distance; the others count 1."""
OTHER_OPERATOR, OTHER_PRIMITIVES = 4.0, 1.0
"""Octaves that another operator, or other primitives around the same decisions, count as."""
STRUCTURAL = frozenset(
    ("Split", "Reorder", "Fuse", "ComputeAt", "ReverseComputeAt", "ComputeInline", "ReverseComputeInline", "RFactor",
     "CacheRead", "CacheWrite", "Tensorize", "Blockize")
)  # fmt: skip
"""Primitives that give a program its shape; the rest looks things up or annotates."""

Decisions = tuple[Any, ...]


@dataclass(frozen=True)
class Sketch:
    """What a trace decides, apart from the values.

    Attributes:
        choices: the sampling instructions in order: ("tile", levels, largest innermost factor), ("category", values),
            ("SampleComputeLocation",).
        places: their indices among the trace's instructions.
        primitives: how often each structural primitive occurs, and at which tile level an epilogue is computed.
        operator: name of the first block that is tiled.
    """

    choices: tuple[tuple[Any, ...], ...]
    places: tuple[int, ...]
    primitives: tuple[tuple[str, int], ...]
    operator: str


@dataclass(frozen=True)
class Fitted:
    """A program re-fitted to a task: a design space of the task, decisions for it, and where they come from."""

    space: int
    decisions: Decisions
    source: StartingPoint
    octaves: float
    """How far the source is; -1 for the task's own workload."""


class Refitter:
    """A book of starting points, ready to be re-fitted."""

    def __init__(self, book: StartBook) -> None:
        self._known = []
        for start in book.starts:
            start_sketch = sketch(start.trace)
            self._known.append((start, start_sketch, decisions(start.trace, start_sketch)))

    def fitted(self, workload: str, spaces: Sequence[Trace]) -> Iterator[Fitted]:
        """Yield starting points fitted to a task, the most promising first, each program once.

        Args:
            workload: the task's workload id.
            spaces: traces of the task's design spaces, plain JSON values without post-processing.
        """
        sketches = [sketch(space) for space in spaces]
        extents = [
            tile_extents(task_sketch, decisions(space, task_sketch))
            for task_sketch, space in zip(sketches, spaces, strict=True)
        ]
        ranked: list[tuple[float, int, int]] = []
        for number, (start, start_sketch, values) in enumerate(self._known):
            for place, task_sketch in enumerate(sketches):
                if task_sketch.choices != start_sketch.choices:
                    continue
                octaves = distance(tile_extents(start_sketch, values), extents[place])
                octaves += OTHER_OPERATOR * (start_sketch.operator != task_sketch.operator)
                octaves += OTHER_PRIMITIVES * (start_sketch.primitives != task_sketch.primitives)
                ranked.append((octaves - math.log2(start.share), number, place))
        same = [
            (-1.0, number, place)
            for _, number, place in ranked
            if self._known[number][0].workload == workload
        ]
        seen = set()
        for octaves, number, place in (*same, *sorted(ranked)):
            start, start_sketch, values = self._known[number]
            refitted = refit_decisions(start_sketch, values, extents[place])
            key = (place, orjson.dumps(refitted))
            if key not in seen:
                seen.add(key)
                yield Fitted(place, refitted, start, octaves)


def starting_points(
    refitter: Refitter,
    workload: str,
    context: Any,
    designs: Sequence[Any],
    model: Any,
    count: int,
    seed: int,
) -> list[Any]:
    """Return candidates to measure first, best guess first; fewer, or none, where little fits.

    Args:
        refitter: of a book for the context's target.
        workload: the task's workload id.
        context: tvm.s_tir.meta_schedule.TuneContext of the task.
        designs: schedules of the task's design spaces.
        model: the cost model, which chooses among the fitted programs.
        count: of candidates at most.
        seed: of the schedules.

    Returns:
        tvm.s_tir.meta_schedule.MeasureCandidate, after post-processing, with different decisions.
    """
    readable = [
        (trace, values)
        for trace in (space.trace.simplified(True) for space in designs)
        if (values := plain_values(trace)) is not None
    ]
    spaces, plain = [trace for trace, _ in readable], [values for _, values in readable]
    sketches = [sketch(trace) for trace in plain]
    candidates: list[Any] = []
    for number, fitted in enumerate(refitter.fitted(workload, plain)):
        if len(candidates) == MAX_APPLIED or number == 2 * MAX_APPLIED:
            break
        places = sketches[fitted.space].places
        schedule = apply_decisions(
            context, spaces[fitted.space], places, fitted.decisions, seed + number
        )
        if schedule is not None:
            args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
            candidates.append(ms.MeasureCandidate(schedule, args))
    if not candidates:
        return []
    liked = [int(at) for at in np.argsort(-model.predict(context, candidates), kind="stable")]
    return [
        candidates[at] for at in interleave_neighbours(liked, list(range(len(candidates))))[:count]
    ]


def plain_values(trace: Any, *, remove_postproc: bool = False) -> list[Any] | None:
    """Return a trace as plain values; None where it holds what has none, an index map."""
    if trace is None:
        return None
    try:
        return trace_values(trace, remove_postproc=remove_postproc)
    except TypeError:
        return None


def interleave_neighbours(liked: Sequence[int], nearest: Sequence[int]) -> list[int]:
    """Return all positions: two of the best liked, one of the nearest, and so on, each once."""
    order = []
    for turn, near in enumerate(nearest):
        order += [*liked[2 * turn : 2 * turn + 2], near]
    return list(dict.fromkeys(order))


def apply_decisions(
    context: Any, space: Any, places: Sequence[int], values: Decisions, seed: int
) -> Any:
    """Return the schedule that a design space with these decisions gives, or None where it gives none."""
    seed = 1 + abs(seed) % (2**31 - 2)  # TVM's range
    try:
        trace = space
        for place, value in zip(places, values, strict=True):
            if value is not None:
                decision = list(value) if isinstance(value, list | tuple) else value
                trace = trace.with_decision(trace.insts[place], decision, remove_postproc=True)
        # Some programs do not fit; by default TVM would render the module into each message.
        schedule = Schedule(context.mod, seed=seed, debug_mask=0, error_render_level="none")
        trace.apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        passed = all(rule.apply(schedule) for rule in context.space_generator.postprocs)
    except Exception:  # noqa: BLE001 - TVM raises whatever its C++ side says for what does not fit
        return None
    return schedule if passed else None


def sketch(trace: Trace) -> Sketch:
    """Read a trace's sampling instructions and primitives."""
    choices: list[tuple[Any, ...]] = []
    places: list[int] = []
    counts: dict[str, int] = {}
    blocks: dict[str, str] = {}
    owners: dict[str, str] = {}
    levels: dict[str, int] = {}
    operator = ""
    for at, (kind, inputs, attributes, outputs) in enumerate(trace[0]):
        if kind == "GetSBlock":
            blocks[outputs[0]] = str(attributes[0])
        elif kind == "GetLoops":
            owners.update(dict.fromkeys(outputs, blocks.get(inputs[0], "")))
        elif kind == "Split":
            levels.update({loop: level for level, loop in enumerate(outputs)})
        elif kind == "SamplePerfectTile":
            choices.append(("tile", *attributes))
            operator = operator or owners.get(inputs[0], "")
        elif kind == "SampleCategorical":
            choices.append(("category", tuple(attributes[0])))
        elif kind.startswith("Sample"):
            choices.append((kind,))
        if kind.startswith("Sample"):
            places.append(at)
        if kind in STRUCTURAL:
            at_level = f"@{levels.get(inputs[1], '')}" if kind == "ReverseComputeAt" else ""
            counts[kind + at_level] = counts.get(kind + at_level, 0) + 1
    return Sketch(tuple(choices), tuple(places), tuple(sorted(counts.items())), operator)


def decisions(trace: Trace, sketch: Sketch) -> Decisions:
    """Return the trace's decisions in the sketch's order; None for an instruction without one."""
    decided = {int(decision[0]): decision[1] for decision in trace[1]}
    return tuple(decided.get(place) for place in sketch.places)


def tile_extents(sketch: Sketch, values: Decisions) -> tuple[int, ...]:
    """Return the extents that the tiles split, in order."""
    pairs = zip(sketch.choices, values, strict=True)
    return tuple(math.prod(value) for choice, value in pairs if choice[0] == "tile")


def distance(old: Sequence[int], new: Sequence[int]) -> float:
    """Return the octaves between the extents of corresponding tiles, summed; 0 for the same shape."""
    return sum(abs(math.log2(a / b)) for a, b in zip(old, new, strict=True))


def refit_decisions(sketch: Sketch, values: Decisions, extents: Sequence[int]) -> Decisions:
    """Return the decisions for tiles of other extents."""
    remaining = iter(extents)
    return tuple(
        fit_tile(tuple(value), next(remaining), int(choice[2])) if choice[0] == "tile" else value
        for choice, value in zip(sketch.choices, values, strict=True)
    )


@lru_cache(maxsize=4096)
def fit_tile(factors: tuple[int, ...], extent: int, largest_innermost: int) -> tuple[int, ...]:
    """Return the factorization of an extent that is nearest to the factors, outermost first.

    Args:
        factors: of another extent.
        extent: what the new factors' product must be.
        largest_innermost: limit of the last factor.
    """
    weights = [OUTERMOST, *[1.0] * (len(factors) - 2), INNERMOST][: len(factors)]

    def cost(candidate: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        pairs = zip(weights, candidate, factors, strict=True)
        return sum(weight * abs(math.log2(new / old)) for weight, new, old in pairs), candidate

    allowed = (
        candidate
        for candidate in factorizations(extent, len(factors))
        if candidate[-1] <= largest_innermost
    )
    return min(allowed, key=cost)


@lru_cache(maxsize=1024)
def factorizations(extent: int, parts: int) -> tuple[tuple[int, ...], ...]:
    """Return every way to write an extent as an ordered product of so many factors."""
    if parts == 1:
        return ((extent,),)
    divisors = [divisor for divisor in range(1, math.isqrt(extent) + 1) if extent % divisor == 0]
    divisors += [extent // divisor for divisor in divisors if divisor * divisor != extent]
    return tuple(
        (first, *rest)
        for first in sorted(divisors)
        for rest in factorizations(extent // first, parts - 1)
    )
