"""Programs around good ones: tiles of registers known to be good, fast programs re-fitted, and mutations of both.

A search that a model guides asks it mostly about programs like these, and random samples hardly ever come near them.
As in a tuning run, tiles known to be good (:mod:`tencost.programs.codegen.seeds`) and the fastest programs of the same
and of other workloads, re-fitted (:mod:`tencost.programs.codegen.refit`), are the parents; about half of what is made
are they themselves, the rest their mutations (:mod:`tencost.programs.codegen.mutations`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tencost.programs.codegen.mutations import mutate, plain_decisions
from tencost.programs.codegen.refit import Decisions, Refitter, Sketch, apply, plain_values, sketch
from tencost.programs.codegen.seeds import seed_decisions

TILE, FAST, MUTATED = "near: a known tile", "near: a fast program", "near: a mutation of one"
"""How such a program was made."""
FEWEST_PARENTS = 4
"""Good programs that mutations come from, where there are as many."""


class Around:
    """What surrounds the good programs of one workload.

    Args:
        context: tvm.s_tir.meta_schedule.TuneContext of the workload.
        designs: schedules of its design spaces.
        workload: its id.
        refitter: fast programs of this and other workloads; None: there are none.
        seed: of the mutations.
    """

    def __init__(
        self,
        context: Any,
        designs: Sequence[Any],
        workload: str,
        refitter: Refitter | None,
        seed: int,
    ) -> None:
        self._context, self._workload, self._refitter = context, workload, refitter
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._traces: list[Any] = []
        self._plain: list[list[Any]] = []
        for design in designs:
            trace = design.trace.simplified(True)
            plain = plain_values(trace)
            if plain is not None:
                self._traces.append(trace)
                self._plain.append(plain)
        self._sketches: list[Sketch] = [sketch(plain) for plain in self._plain]

    def schedules(self, parents: int) -> Iterator[tuple[Any, str]]:
        """Yield (schedule, how it was made) without end, or none where nothing good is known.

        Args:
            parents: good programs that come first, and that mutations come from.
        """
        known = self._parents(max(parents, FEWEST_PARENTS))
        usable: list[tuple[int, Decisions]] = []
        for number, (space, decisions, word) in enumerate(known):
            schedule = self._made(space, decisions)
            if schedule is None:
                continue
            usable.append((space, decisions))
            if number < parents:
                yield schedule, word
        while usable:
            space, decisions = usable[int(self._random.integers(len(usable)))]
            yield self._made(space, self._mutated(space, decisions, usable)), MUTATED

    def _parents(self, count: int) -> list[tuple[int, Decisions, str]]:
        """Return good programs: a known tile and a fast program in turn, each once."""
        tiles = ((place, one, TILE) for place, one in seed_decisions(self._context, self._sketches))
        fast: Iterator[tuple[int, Decisions, str]] = iter(())
        if self._refitter is not None:
            fitted = self._refitter.fitted(self._workload, self._plain)
            fast = ((one.space, one.decisions, FAST) for one in fitted)
        found: dict[tuple[int, Decisions], str] = {}
        sources = [tiles, fast]
        while sources and len(found) < count:
            for source in list(sources):
                one = next(source, None)
                if one is None:
                    sources.remove(source)
                elif len(found) < count:
                    found.setdefault((one[0], plain_decisions(one[1])), one[2])
        return [(space, decisions, word) for (space, decisions), word in found.items()]

    def _mutated(
        self, space: int, decisions: Decisions, usable: Sequence[tuple[int, Decisions]]
    ) -> Decisions:
        values = list(decisions)
        seen = [
            {value for value in column if isinstance(value, int)}
            for column in zip(*(other for place, other in usable if place == space), strict=True)
        ]
        for _ in range(1 + int(self._random.geometric(0.6)) // 2):
            mutate(self._sketches[space].choices, values, seen, self._random)
        return tuple(values)

    def _made(self, space: int, decisions: Decisions) -> Any:
        self._seed += 1
        places = self._sketches[space].places
        return apply(self._context, self._traces[space], places, decisions, self._seed)
