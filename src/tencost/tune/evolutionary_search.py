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
    apply,
    decisions,
    factorizations,
    plain_values,
    sketch,
)
from tencost.tune.gaussian_process import MAX_KNOWN, GaussianProcess

PARENTS = 24
"""Measured programs that mutations come from, the fastest ones."""
SCORED_PARENTS = 48
"""Programs made and not measured that they come from, too, those with the best scores."""
FEWEST_MADE, MOST_MADE = 16, 40
"""Programs that are made and scored in a generation, at least and at most."""
MAX_KEPT = 256
"""Programs made and not measured that are remembered from round to round."""
CROSSED = 0.3
"""Share of the offspring that has two parents."""
FRESH = 0.1
"""Share of a generation that is random."""
LUCKY = 0.1
"""Share of what is made in a generation that is drawn at random, which keeps the draft honest."""
FIRST = 64
"""Random programs that are made before anything is guessed."""


@dataclass
class Space:
    """A design space: its trace, with and without decisions, and what it decides."""

    trace: Any
    undecided: Any
    sketch: Sketch
    start: Decisions
    seen: list[set[int]]
    """Compute locations and categories known to be possible, by decision."""


@dataclass
class Program:
    """A program by its decisions; the candidate where it was made, the score where it has one."""

    space: int
    decisions: Decisions
    candidate: Any = None
    score: float = 0.0
    """What the model says."""
    value: float = 0.0
    """The score, corrected by what was measured nearby."""
    foreseen: float | None = None
    """Of a measured program: the model's score before it was measured."""
    latency_s: float = math.nan

    @property
    def key(self) -> bytes:
        return key_of(self.space, self.decisions)


def key_of(space: int, values: Decisions) -> bytes:
    return bytes(orjson.dumps((space, values)))


class DecisionSearch:
    """The search of one task; knows what was measured, and what it made before.

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
        self._context = context
        self._population, self._generations = population, generations
        self._seed, self._learn = seed, learn
        self._made, self._making_s = 0, 0.0
        self._random = np.random.default_rng(seed)
        self._spaces = _spaces(designs)
        self._kept: dict[bytes, Program] = {}
        self._measured: dict[bytes, Program] = {}
        self._refused: set[bytes] = set()
        self._kriging = GaussianProcess(columns(self._spaces, []), np.zeros(0))

    def learn(self, candidates: Sequence[Any], latencies_s: Doubles) -> None:
        """Take in measured programs; NaN seconds for a failure. Those of no design space of the task are left out."""
        for candidate, latency in zip(candidates, latencies_s, strict=True):
            program = self._read(candidate)
            if program is not None:
                before = self._kept.pop(program.key, None)
                program.latency_s = float(latency)
                program.foreseen = None if before is None else before.score
                self._measured[program.key] = program
        for one in list(self._measured.values())[:-MAX_KNOWN]:
            one.candidate = None  # a schedule takes memory, and is not asked for again

    def propose(self, model: Any, count: int, budget_s: float = math.inf) -> list[Any]:
        """Return up to so many new candidates, the best scored first; none where a design space cannot be read.

        Args:
            model: the cost model.
            count: candidates wanted.
            budget_s: seconds that making programs may take; a few are made in any case.
        """
        if not self._spaces:
            return []
        self._score(model, self._known())
        self._correct()
        if len(self._kept) + len(self._measured) < FIRST:
            self._begin(model)
        for _ in range(self._generations + 1):
            offspring = self._offspring()
            if not offspring:
                break
            self._make(model, self._promising(offspring, self._affordable(budget_s)))
        best = sorted(self._kept.values(), key=lambda one: -one.value)[:MAX_KEPT]
        self._kept = {one.key: one for one in best}
        if not self._learn or not best:
            return [one.candidate for one in best[:count]]
        values = np.array([one.value for one in best], np.float64)
        picked = self._kriging.pick(columns(self._spaces, best), values, count)
        return [best[at].candidate for at in picked]

    def _known(self) -> list[Program]:
        """Return the programs that have a score: the latest measured ones, and those made and not measured."""
        return [*list(self._measured.values())[-MAX_KNOWN:], *self._kept.values()]

    def _affordable(self, budget_s: float) -> int:
        """Return how many programs a generation makes for its part of the seconds, by what they took until now."""
        each = self._making_s / self._made if self._made else 0.0
        wanted = budget_s / (self._generations + 1) / each if each else math.inf
        return int(min(MOST_MADE, max(FEWEST_MADE, wanted)))

    def _correct(self) -> None:
        """Learn how the model errs on what was measured, and correct what is known."""
        measured = list(self._measured.values())[-MAX_KNOWN:] if self._learn else []
        for one in measured:
            if one.foreseen is None:
                one.foreseen = one.score
        latency = np.array([one.latency_s for one in measured], np.float64)
        fastest = np.nanmin(latency, initial=np.inf)
        labels = np.nan_to_num(fastest / latency, nan=0.0, posinf=0.0)
        foreseen = np.array([one.foreseen for one in measured], np.float64)
        self._kriging = GaussianProcess(columns(self._spaces, measured), labels - foreseen)
        self._value(self._known())

    def _value(self, programs: Sequence[Program]) -> None:
        correction = self._kriging.correction(columns(self._spaces, programs))
        for one, more in zip(programs, correction.tolist(), strict=True):
            one.value = one.score + more

    def drop(self, candidates: Sequence[Any]) -> None:
        """Forget candidates whose modules were measured under other decisions."""
        wanted = {id(one) for one in candidates}
        for key, one in list(self._kept.items()):
            if id(one.candidate) in wanted:
                self._refused.add(key)
                del self._kept[key]

    def _begin(self, model: Any) -> None:
        """Let TVM draw programs at random, which also tells what compute locations there are."""
        made = []
        started = time.perf_counter()
        for _ in range(FIRST):
            self._seed += 1
            space = self._spaces[int(self._random.integers(len(self._spaces)))]
            candidate = _candidate(apply(self._context, space.undecided, (), (), self._seed))
            program = None if candidate is None else self._read(candidate)
            if program is not None and program.key not in self._measured:
                self._kept[program.key] = program
                made.append(program)
        self._settle(model, made, started)

    def _settle(self, model: Any, made: Sequence[Program], started: float) -> None:
        """Score what was made since a moment, and note what it took."""
        self._score(model, made)
        self._value(made)
        self._made += len(made)
        self._making_s += time.perf_counter() - started

    def _read(self, candidate: Any) -> Program | None:
        plain = plain_values(candidate.sch.trace, remove_postproc=True)
        if plain is None:
            return None
        made = sketch(plain)
        for number, space in enumerate(self._spaces):
            if (space.sketch.choices, space.sketch.primitives) == (made.choices, made.primitives):
                values = plain_decisions(decisions(plain, made))
                for seen, value in zip(space.seen, values, strict=True):
                    if isinstance(value, int):
                        seen.add(value)
                return Program(number, values, candidate)
        return None

    def _score(self, model: Any, programs: Sequence[Program]) -> None:
        """Ask the model, in batches that are too small for a draft of its own."""
        size = MIN_BATCH - 1
        for start in range(0, len(programs), size):
            batch = programs[start : start + size]
            scores = model.predict(self._context, [one.candidate for one in batch])
            for one, score in zip(batch, scores, strict=True):
                one.score = float(score)

    def _make(self, model: Any, programs: Sequence[Program]) -> None:
        """Make programs into schedules and score them; what cannot be made is not tried again."""
        made: list[Program] = []
        started = time.perf_counter()
        for one in programs:
            if one.key in self._kept or one.key in self._measured or one.key in self._refused:
                continue
            space = self._spaces[one.space]
            self._seed += 1
            schedule = apply(
                self._context, space.trace, space.sketch.places, one.decisions, self._seed
            )
            one.candidate = _candidate(schedule)
            if one.candidate is None:
                self._refused.add(one.key)
                continue
            self._kept[one.key] = one
            made.append(one)
        self._settle(model, made, started)

    def _promising(self, offspring: Sequence[Program], count: int) -> list[Program]:
        """Return so many of a generation: those that the draft guesses best, and a few at random."""
        known = self._known()
        if not known:
            return list(offspring[:count])
        draft = Draft(
            columns(self._spaces, known), np.array([one.value for one in known], np.float64)
        )
        guesses = draft.guess(columns(self._spaces, offspring))
        order = np.argsort(-guesses, kind="stable")
        lucky = math.ceil(LUCKY * count)
        best = order[: count - lucky].tolist()
        rest = order[count - lucky :]
        drawn = self._random.choice(rest, min(lucky, len(rest)), replace=False).tolist()
        return [offspring[at] for at in [*best, *drawn]]

    def _offspring(self) -> list[Program]:
        """Return a generation of programs that are neither made nor measured."""
        parents = self._parents()
        found: dict[bytes, Program] = {}
        for _ in range(2 * self._population):
            if len(found) == self._population:
                break
            new = not parents or self._random.random() < FRESH
            one = self._fresh() if new else self._child(parents)
            key = one.key
            if key in found or key in self._kept or key in self._measured or key in self._refused:
                continue
            found[key] = one
        return list(found.values())

    def _parents(self) -> list[Program]:
        ok = [one for one in self._measured.values() if math.isfinite(one.latency_s)]
        fastest = sorted(ok, key=lambda one: one.latency_s)[:PARENTS]
        liked = sorted(self._kept.values(), key=lambda one: -one.value)[:SCORED_PARENTS]
        return [*fastest, *liked]

    def _pick(self, parents: Sequence[Program]) -> Program:
        """Draw a parent: the first half of them twice as often."""
        at = min(int(len(parents) * self._random.random() ** 1.5), len(parents) - 1)
        return parents[at]

    def _child(self, parents: Sequence[Program]) -> Program:
        parent = self._pick(parents)
        values = list(parent.decisions)
        mutations = 1 + int(self._random.geometric(0.6)) // 2
        if self._random.random() < CROSSED:
            other = self._pick(parents)
            if other.space == parent.space:
                takes = self._random.random(len(values)) < 0.5
                values = [
                    b if take else a
                    for a, b, take in zip(values, other.decisions, takes, strict=True)
                ]
                mutations -= 1
        for _ in range(mutations):
            one = self._spaces[parent.space]
            mutate(one.sketch.choices, values, one.seen, self._random)
        return Program(parent.space, tuple(values))

    def _fresh(self) -> Program:
        space = int(self._random.integers(len(self._spaces)))
        one = self._spaces[space]
        values = []
        for at, (choice, value) in enumerate(zip(one.sketch.choices, one.start, strict=True)):
            if choice[0] == "tile":
                ways = factorizations(math.prod(value), len(value))
                while True:
                    drawn = ways[int(self._random.integers(len(ways)))]
                    if drawn[-1] <= int(choice[2]):
                        break
                values.append(drawn)
            else:
                values.append(other(choice, value, one.seen[at], self._random))
        return Program(space, tuple(values))


def columns(spaces: Sequence[Space], programs: Sequence[Program]) -> FloatArray:
    """Return what a draft sees of programs, float32 [N, C]: a row of decisions, and what their tiles multiply to.

    Columns: the design space; each decision, tile factors as their logarithm; over all tiles of as many levels, the
    factors of each level and of each level with those inside it, in octaves; of the last tile whether its innermost
    factor fills vectors of 16. Absent decisions are -9.
    """
    width = max((_width(space.sketch) for space in spaces), default=0)
    found = np.full((len(programs), width), -9.0, np.float32)
    for row, one in zip(found, programs, strict=True):
        values: list[float] = [one.space]
        levels: dict[int, Any] = {}
        last = 0
        for value in one.decisions:
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
    return found


def _width(made: Sketch) -> int:
    tiles = [int(choice[1]) for choice in made.choices if choice[0] == "tile"]
    return 2 + sum(tiles) + len(made.choices) - len(tiles) + 2 * sum(set(tiles))


def _candidate(schedule: Any) -> Any:
    if schedule is None:
        return None
    args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    return ms.MeasureCandidate(schedule, args)


def _spaces(designs: Sequence[Any]) -> list[Space]:
    """Return the design spaces; none of them where one cannot be read, as it would never be searched."""
    found = []
    for design in designs:
        trace = design.trace.simplified(True)
        plain = plain_values(trace, remove_postproc=True)
        if plain is None:
            return []
        made = sketch(plain)
        start = plain_decisions(decisions(plain, made))
        seen = [{value} if isinstance(value, int) else set() for value in start]
        found.append(Space(trace, Trace(trace.insts, {}), made, start, seen))
    return found
