"""Evolution on decisions: programs are guessed by what their trace decides, and only promising ones are made.

MetaSchedule's EvolutionarySearch makes every candidate, which takes 2 to 11 ms, before anybody asks what it is
worth, and as long again to extract its features: 2,560 candidates for 16 programs to measure. But a program of a design
space is its decisions (tile factors, unroll limits, compute locations). Here these are mutated and crossed as plain
numbers, a draft (:mod:`tencost.models.draft_model`) guesses their scores from tile columns, and only the best
guesses are made into schedules and scored by the cost model, which teaches the draft. Parents are the fastest measured
programs and the best scored ones; some are new at random. The idea of a cheap guess before the model is Pruner's
draft-then-verify (arXiv 2402.02361); its draft is a symbolic analysis of the hardware, this one is learnt from the
model's own scores.

A mutation moves a factor of a tile from one level to another, or takes another category or another compute location
that was seen at this place; a cross takes each decision of one of two parents. All of them keep the product of a tile.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from tvm.s_tir import Trace
from tvm.s_tir import meta_schedule as ms

from tencost.features.rows.ragged import FloatArray
from tencost.models.draft_model import MIN_BATCH, Doubles, Draft
from tencost.programs.codegen.mutations import mutate, other, plain_decisions
from tencost.programs.codegen.refit import (
    Decisions,
    Sketch,
    apply_decisions,
    decisions,
    factorizations,
    plain_values,
    sketch,
)
from tencost.tune.gaussian_process import MAX_PROGRAMS, GaussianProcess

PARENTS = 24
"""Measured programs that mutations come from, the fastest ones."""
SCORED_PARENTS = 48
"""Programs scored and not measured that they come from, too, those with the best scores."""
FEWEST_SCORED, MOST_SCORED = 16, 40
"""Programs that are made and scored in a generation, at least and at most."""
MAX_UNMEASURED = 256
"""Programs scored and not measured that are remembered from round to round."""
CROSSED_SHARE = 0.3
"""Share of the offspring that has two parents."""
RANDOM_SHARE = 0.1
"""Share of a generation that is random."""
EXPLORATION_SHARE = 0.1
"""Share of the scored programs of a generation that is drawn at random, which keeps the draft honest."""
INITIAL_PROGRAMS = 64
"""Random programs that are scored before anything is guessed."""


@dataclass
class DesignSpace:
    """A design space: its trace, with and without decisions, and what it decides."""

    trace: Any
    undecided: Any
    sketch: Sketch
    start: Decisions
    seen: list[set[int]]
    """Compute locations and categories known to be possible, by decision."""


@dataclass
class Program:
    """A program by its decisions; the candidate once it is made into a schedule, the score once it has one."""

    space: int
    decisions: Decisions
    candidate: Any = None
    score: float = 0.0
    """The cost model's."""
    value: float = 0.0
    """The score, corrected by what was measured nearby."""
    foreseen: float | None = None
    """Of a measured program: the model's score before it was measured."""
    latency_s: float = math.nan

    @property
    def key(self) -> bytes:
        return bytes(orjson.dumps((self.space, self.decisions)))


class DecisionSearch:
    """The search of one task; remembers what was measured, and what it scored before.

    Args:
        context: tvm.s_tir.meta_schedule.TuneContext of the task.
        designs: schedules of its design spaces.
        population: decisions in a generation.
        generations: generations a round.
        seed: of everything random.
        learn: correct the model's scores by what was measured, see :mod:`tencost.tune.gaussian_process`.
    """

    def __init__(
        self,
        context: Any,
        designs: Sequence[Any],
        population: int,
        generations: int,
        seed: int,
        *,
        learn: bool = True,
    ) -> None:
        self.spaces = _design_spaces(designs)
        self.unmeasured: dict[bytes, Program] = {}
        self.measured: dict[bytes, Program] = {}
        self._context = context
        self._population, self._generations = population, generations
        self._seed, self._learn = seed, learn
        self._num_scored, self._scoring_s = 0, 0.0
        self._random = np.random.default_rng(seed)
        self._refused: set[bytes] = set()
        self._errors = GaussianProcess(columns(self.spaces, []), np.zeros(0))

    def learn(self, candidates: Sequence[Any], latencies_s: Doubles) -> None:
        """Take in measured programs; NaN seconds for a failure. Those of no design space of the task are left out."""
        for candidate, latency in zip(candidates, latencies_s, strict=True):
            program = self._read(candidate)
            if program is not None:
                before = self.unmeasured.pop(program.key, None)
                program.latency_s = float(latency)
                program.foreseen = None if before is None else before.score
                self.measured[program.key] = program
        for program in list(self.measured.values())[:-MAX_PROGRAMS]:
            program.candidate = None  # a schedule takes memory, and is not asked for again

    def propose(self, model: Any, count: int, budget_s: float = math.inf) -> list[Any]:
        """Return up to so many new candidates, the best scored first; none where a design space cannot be read.

        Args:
            model: the cost model.
            count: candidates to return.
            budget_s: seconds that making programs may take; a few are made in any case.
        """
        if not self.spaces:
            return []
        self._score(model, self._scored())
        self._correct()
        if len(self.unmeasured) + len(self.measured) < INITIAL_PROGRAMS:
            self._begin(model)
        for _ in range(self._generations + 1):
            offspring = self._offspring()
            if not offspring:
                break
            self._make(model, self._promising(offspring, self._affordable(budget_s)))
        best = sorted(self.unmeasured.values(), key=lambda program: -program.value)
        best = best[:MAX_UNMEASURED]
        self.unmeasured = {program.key: program for program in best}
        if not self._learn or not best:
            return [program.candidate for program in best[:count]]
        values = np.array([program.value for program in best], np.float64)
        picked = self._errors.pick(columns(self.spaces, best), values, count)
        return [best[position].candidate for position in picked]

    def drop(self, candidates: Sequence[Any]) -> None:
        """Forget candidates whose modules were measured under other decisions."""
        dropped = {id(candidate) for candidate in candidates}
        for key, program in list(self.unmeasured.items()):
            if id(program.candidate) in dropped:
                self._refused.add(key)
                del self.unmeasured[key]

    def _scored(self) -> list[Program]:
        """Return the programs that have a score: the latest measured ones, and those not measured."""
        return [*list(self.measured.values())[-MAX_PROGRAMS:], *self.unmeasured.values()]

    def _affordable(self, budget_s: float) -> int:
        """Return how many programs a generation makes for its part of the seconds, by what they took until now."""
        each_s = self._scoring_s / self._num_scored if self._num_scored else 0.0
        count = budget_s / (self._generations + 1) / each_s if each_s else math.inf
        return int(min(MOST_SCORED, max(FEWEST_SCORED, count)))

    def _correct(self) -> None:
        """Learn how the model errs on what was measured, and correct the scores by that."""
        measured = list(self.measured.values())[-MAX_PROGRAMS:] if self._learn else []
        for program in measured:
            if program.foreseen is None:
                program.foreseen = program.score
        latency = np.array([program.latency_s for program in measured], np.float64)
        fastest = np.nanmin(latency, initial=np.inf)
        labels = np.nan_to_num(fastest / latency, nan=0.0, posinf=0.0)
        foreseen = np.array([program.foreseen for program in measured], np.float64)
        self._errors = GaussianProcess(columns(self.spaces, measured), labels - foreseen)
        self._value(self._scored())

    def _value(self, programs: Sequence[Program]) -> None:
        corrections = self._errors.correction(columns(self.spaces, programs)).tolist()
        for program, correction in zip(programs, corrections, strict=True):
            program.value = program.score + correction

    def _score(self, model: Any, programs: Sequence[Program]) -> None:
        """Ask the model, in batches that are too small for a draft of its own."""
        size = MIN_BATCH - 1
        for start in range(0, len(programs), size):
            batch = programs[start : start + size]
            scores = model.predict(self._context, [program.candidate for program in batch])
            for program, score in zip(batch, scores, strict=True):
                program.score = float(score)

    def _begin(self, model: Any) -> None:
        """Let TVM draw programs at random, which also tells what compute locations there are."""
        started = time.perf_counter()
        programs = []
        for _ in range(INITIAL_PROGRAMS):
            space = self.spaces[int(self._random.integers(len(self.spaces)))]
            candidate = self._schedule(space.undecided, (), ())
            program = None if candidate is None else self._read(candidate)
            if program is not None and program.key not in self.measured:
                programs.append(program)
        self._add(model, programs, started)

    def _make(self, model: Any, programs: Sequence[Program]) -> None:
        """Make programs into schedules and score them; what cannot be made is not tried again."""
        started = time.perf_counter()
        for program in programs:
            space = self.spaces[program.space]
            program.candidate = self._schedule(space.trace, space.sketch.places, program.decisions)
        self._refused |= {program.key for program in programs if program.candidate is None}
        self._add(
            model, [program for program in programs if program.candidate is not None], started
        )

    def _add(self, model: Any, programs: Sequence[Program], started: float) -> None:
        """Score programs that were made since a moment, and note what that took."""
        self.unmeasured |= {program.key: program for program in programs}
        self._score(model, programs)
        self._value(programs)
        self._num_scored += len(programs)
        self._scoring_s += time.perf_counter() - started

    def _schedule(self, trace: Any, places: Sequence[int], values: Decisions) -> Any:
        """Return the measure candidate of a trace with decisions at its places; None where it does not apply."""
        self._seed += 1
        schedule = apply_decisions(self._context, trace, places, values, self._seed)
        if schedule is None:
            return None
        args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
        return ms.MeasureCandidate(schedule, args)

    def _read(self, candidate: Any) -> Program | None:
        """Return a candidate by its decisions; None where it is of no design space of the task."""
        plain = plain_values(candidate.sch.trace, remove_postproc=True)
        if plain is None:
            return None
        outline = sketch(plain)
        for number, space in enumerate(self.spaces):
            same = (space.sketch.choices, space.sketch.primitives)
            if same == (outline.choices, outline.primitives):
                values = plain_decisions(decisions(plain, outline))
                for seen, value in zip(space.seen, values, strict=True):
                    if isinstance(value, int):
                        seen.add(value)
                return Program(number, values, candidate)
        return None

    def _promising(self, offspring: Sequence[Program], count: int) -> list[Program]:
        """Return so many of a generation: those that the draft guesses best, and a few at random."""
        scored = self._scored()
        if not scored:
            return list(offspring[:count])
        values = np.array([program.value for program in scored], np.float64)
        guesses = Draft(columns(self.spaces, scored), values).guess(columns(self.spaces, offspring))
        order = np.argsort(-guesses, kind="stable")
        explored = math.ceil(EXPLORATION_SHARE * count)
        rest = order[count - explored :]
        drawn = self._random.choice(rest, min(explored, len(rest)), replace=False)
        return [offspring[position] for position in [*order[: count - explored], *drawn]]

    def _offspring(self) -> list[Program]:
        """Return a generation of programs that are neither scored nor measured."""
        parents = self._parents()
        offspring: dict[bytes, Program] = {}
        for _ in range(2 * self._population):
            if len(offspring) == self._population:
                break
            is_random = not parents or self._random.random() < RANDOM_SHARE
            program = self._random_program() if is_random else self._child(parents)
            key = program.key
            if not any(key in seen for seen in (self.unmeasured, self.measured, self._refused)):
                offspring.setdefault(key, program)
        return list(offspring.values())

    def _parents(self) -> list[Program]:
        ran = [program for program in self.measured.values() if math.isfinite(program.latency_s)]
        fastest = sorted(ran, key=lambda program: program.latency_s)[:PARENTS]
        best = sorted(self.unmeasured.values(), key=lambda program: -program.value)
        return [*fastest, *best[:SCORED_PARENTS]]

    def _pick(self, parents: Sequence[Program]) -> Program:
        """Draw a parent: the first half of them twice as often."""
        position = int(len(parents) * self._random.random() ** 1.5)
        return parents[min(position, len(parents) - 1)]

    def _child(self, parents: Sequence[Program]) -> Program:
        parent = self._pick(parents)
        values = list(parent.decisions)
        mutations = 1 + int(self._random.geometric(0.6)) // 2
        if self._random.random() < CROSSED_SHARE:
            mate = self._pick(parents)
            if mate.space == parent.space:
                takes = self._random.random(len(values)) < 0.5
                pairs = zip(values, mate.decisions, takes, strict=True)
                values = [theirs if take else ours for ours, theirs, take in pairs]
                mutations -= 1
        space = self.spaces[parent.space]
        for _ in range(mutations):
            mutate(space.sketch.choices, values, space.seen, self._random)
        return Program(parent.space, tuple(values))

    def _random_program(self) -> Program:
        number = int(self._random.integers(len(self.spaces)))
        space = self.spaces[number]
        values = []
        for choice, value, seen in zip(space.sketch.choices, space.start, space.seen, strict=True):
            if choice[0] != "tile":
                values.append(other(choice, value, seen, self._random))
                continue
            ways = factorizations(math.prod(value), len(value))
            while (way := ways[int(self._random.integers(len(ways)))])[-1] > int(choice[2]):
                pass
            values.append(way)
        return Program(number, tuple(values))


def columns(spaces: Sequence[DesignSpace], programs: Sequence[Program]) -> FloatArray:
    """Return what a draft sees of programs, float32 [N, C]: a row of decisions, and what their tiles multiply to.

    Columns: the design space; each decision, tile factors as their logarithm; over all tiles of as many levels, the
    factors of each level and of each level with those inside it, in octaves; of the last tile whether its innermost
    factor fills vectors of 16. Absent decisions are -9.
    """
    width = max((_width(space.sketch) for space in spaces), default=0)
    rows = np.full((len(programs), width), -9.0, np.float32)
    for row, program in zip(rows, programs, strict=True):
        values: list[float] = [program.space]
        levels: dict[int, Any] = {}
        last = 0
        for value in program.decisions:
            if isinstance(value, tuple):
                octaves = np.log2(value)
                values += octaves.tolist()
                levels[len(value)] = levels.get(len(value), 0.0) + octaves
                last = value[-1] if len(value) > 2 else last
            else:
                values.append(-9.0 if value is None else value)
        for total in levels.values():
            values += [*total, *np.cumsum(total[::-1])]
        values.append(float(last % 16 == 0))
        row[: len(values)] = values
    return rows


def _width(outline: Sketch) -> int:
    tiles = [int(choice[1]) for choice in outline.choices if choice[0] == "tile"]
    return 2 + sum(tiles) + len(outline.choices) - len(tiles) + 2 * sum(set(tiles))


def _design_spaces(designs: Sequence[Any]) -> list[DesignSpace]:
    """Return the design spaces; none of them where one cannot be read, as it would never be searched."""
    spaces = []
    for design in designs:
        trace = design.trace.simplified(True)
        plain = plain_values(trace, remove_postproc=True)
        if plain is None:
            return []
        outline = sketch(plain)
        start = plain_decisions(decisions(plain, outline))
        seen = [{value} if isinstance(value, int) else set() for value in start]
        spaces.append(DesignSpace(trace, Trace(trace.insts, {}), outline, start, seen))
    return spaces
