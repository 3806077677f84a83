"""Distinct programs of a task: random samples of its design spaces, what a search picks, and what is near good ones.

TenSet samples a population, evolves it without a model and keeps what is new, until there is enough or ten rounds
in a row add nothing. Here one share is random samples alone, one comes from an evolutionary search that a cost model
steers (or, without one, from mutation alone), and one are good programs and their mutations, about half each, so that a
task has poor, middling and good programs, and many of the kind that a tuner has to tell apart. As in a tuning run, the
good ones are register tiles (:mod:`tencost.programs.codegen.seeds`) and the fastest programs of the same and of other
workloads, re-fitted (:mod:`tencost.programs.codegen.refit`). The design spaces are those that `tencost tune` searches:
TVM's and register tiles (:mod:`tencost.programs.codegen.spaces`). Two programs are the same if their scheduled modules
are structurally equal, whatever their traces.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count as counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import Trace
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.target import Target

from tencost.programs.codegen.mutations import mutate, plain_decisions
from tencost.programs.codegen.refit import (
    Decisions,
    Refitter,
    apply_decisions,
    plain_values,
    sketch,
)
from tencost.programs.codegen.seeds import seed_decisions
from tencost.programs.codegen.spaces import search_space
from tencost.programs.trace.allowed import check_trace
from tencost.programs.trace.intrinsics import register_intrinsics
from tencost.programs.trace.replay import load_module
from tencost.records.formats.metaschedule import RECORD_FILE, WORKLOAD_FILE, LoggedProgram
from tencost.store.ids import workload_id
from tencost.workers.keys import program_key

BARREN_ROUNDS = 5
"""The space is used up when so many rounds in a row add nothing new."""
MAX_TRIES = 8
"""Programs near good ones that are made for each that is requested: many are there already, or do not fit."""
FEWEST_PARENTS = 4
"""Good programs that mutations come from, where there are as many."""
RANDOM = "random"
TILE, FAST, MUTATED = "near: a known tile", "near: a fast program", "near: a mutation of one"
"""How a program was made."""
_BATCH = (16, 1024)


@dataclass(frozen=True)
class Sample:
    """New programs of a task.

    Attributes:
        schedules: schedules, all structurally different.
        exhausted: the design spaces seem to hold no more.
        origins: how each was made.
    """

    schedules: tuple[Any, ...]
    exhausted: bool
    origins: tuple[str, ...]


class ProgramSpace:
    """The design spaces of one workload for one target.

    Args:
        mod_json: the workload's module as TVM's JSON text.
        target: TVM target as a mapping; decides which rules and intrinsics apply.
        seed: of the sampling; the same seed and arguments give the same programs.
        population: programs in a generation of the search.
        generations: generations of the search.
        model: cost model of the search (ms.CostModel); None searches blindly.
        steered_by: name of the model.
    """

    def __init__(
        self,
        mod_json: str,
        target: dict[str, Any],
        seed: int,
        *,
        population: int = 256,
        generations: int = 3,
        model: Any = None,
        steered_by: str = "mutation alone",
    ) -> None:
        register_intrinsics(target["kind"])
        self.mod = load_module(mod_json)
        self.target = Target(target)
        self._population = population
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._steered_by = steered_by
        self._workload = workload_id(mod_json)
        search = ms.search_strategy.EvolutionarySearch(
            population_size=population, genetic_num_iters=generations
        )
        self._context = ms.TuneContext(
            mod=self.mod,
            target=self.target,
            space_generator=search_space(target),
            search_strategy=search,
            task_name="programs",
            rand_state=1 + seed % (2**31 - 2),
            num_threads=1,
        )
        self._designs = list(self._context.generate_design_space())
        self._context.pre_tuning(
            max_trials=2**31 - 1,
            num_trials_per_iter=64,
            design_spaces=self._designs,
            database=ms.database.MemoryDatabase(),
            cost_model=model or ms.cost_model.RandomModel(seed=seed % 2**31),
        )

    def random(self, count: int, keys: set[int]) -> Sample:
        """Sample `count` programs that are not in `keys` (keys of :func:`program_key`, added to)."""
        schedules: list[Any] = []
        barren = 0
        least, most = _BATCH
        while len(schedules) < count and barren < BARREN_ROUNDS:
            missing = count - len(schedules)
            fresh = _new(self._sample(min(most, max(least, missing))), keys, missing)
            barren = 0 if fresh else barren + 1
            schedules += fresh
        return Sample(tuple(schedules), barren >= BARREN_ROUNDS, (RANDOM,) * len(schedules))

    def evolved(self, count: int, keys: set[int]) -> Sample:
        """Return up to `count` new programs, those that the model ranks first after the search."""
        start = self._sample(self._population)
        try:
            picked = _ffi_api.SearchStrategyEvolutionarySearchEvolveWithCostModel(
                self._context.search_strategy, start, min(4 * count, self._population)
            )
        except RuntimeError:  # see _sample: no search where TVM cannot make one of the programs
            picked = []
        fresh = _new(picked, keys, count)
        return Sample(tuple(fresh), False, (f"evolved: {self._steered_by}",) * len(fresh))

    def near(self, count: int, keys: set[int], refitter: Refitter | None = None) -> Sample:
        """Return up to `count` new programs near good ones; none without a good one.

        Args:
            count: programs requested; every second one is itself a good program, as long as there are any.
            keys: keys of programs, added to.
            refitter: fast programs of this and other workloads.
        """
        schedules: list[Any] = []
        origins: list[str] = []
        candidates = self._near_good(refitter, -(-count // 2))
        for _, (schedule, origin) in zip(range(MAX_TRIES * count), candidates, strict=False):
            fresh = [] if schedule is None else _new([schedule], keys, 1)
            schedules += fresh
            origins += [origin] * len(fresh)
            if len(schedules) == count:
                break
        return Sample(tuple(schedules), False, tuple(origins))

    def lines(self, schedules: Sequence[Any]) -> tuple[str, list[str]]:
        """Return (TVM's hash of the workload, a database line for each schedule), written by TVM itself."""
        with tempfile.TemporaryDirectory(prefix="tencost-programs-") as scratch:
            database = ms.database.JSONDatabase(work_dir=scratch)
            workload = database.commit_workload(self.mod)
            for schedule in schedules:
                # Not the workload's arguments: a layout rewrite changes the shape of a weight.
                args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
                database.commit_tuning_record(
                    ms.database.TuningRecord(schedule.trace, workload, None, self.target, args)
                )
            head = (Path(scratch) / WORKLOAD_FILE).read_text(encoding="utf-8")
            lines = (Path(scratch) / RECORD_FILE).read_text(encoding="utf-8").splitlines()
        return head.split('"', 2)[1], lines

    def keys(self, programs: Sequence[LoggedProgram]) -> set[int]:
        """Return the keys of programs made before, by replaying their traces."""
        keys = set()
        for program in programs:
            schedule = tvm.s_tir.Schedule(self.mod, debug_mask=0)
            check_trace(program.trace)
            Trace.apply_json_to_schedule(program.trace, schedule)
            keys.add(program_key(schedule.mod))
        return keys

    def _sample(self, count: int) -> list[Any]:
        """Draw programs; fewer where some cannot be made.

        TVM's sampler leaves out what does not fit, but a check that fails in a post-processor (a bias of two uses whose
        layout is rewritten) ends it: then they are drawn one by one.
        """
        try:
            return list(
                _ffi_api.SearchStrategyEvolutionarySearchSampleInitPopulation(
                    self._context.search_strategy, count
                )
            )
        except RuntimeError:
            drawn = (self._draw() for _ in range(count))
            return [schedule for schedule in drawn if schedule is not None]

    def _draw(self) -> Any:
        trace = self._designs[int(self._random.integers(len(self._designs)))].trace
        seed = int(self._random.integers(2**31 - 2))
        return apply_decisions(self._context, Trace(trace.simplified(True).insts, {}), (), (), seed)

    def _near_good(self, refitter: Refitter | None, num_parents: int) -> Iterator[tuple[Any, str]]:
        """Yield (schedule or None, how it was made): good programs, then mutations of them without end."""
        random, seeds = np.random.default_rng(self._seed), counter(self._seed + 1)
        simplified = [design.trace.simplified(True) for design in self._designs]
        pairs = [(trace, flat) for trace in simplified if (flat := plain_values(trace)) is not None]
        plain = [flat for _, flat in pairs]
        sketches = [sketch(flat) for flat in plain]

        def applied(space: int, decisions: Decisions) -> Any:
            places = sketches[space].places
            return apply_decisions(self._context, pairs[space][0], places, decisions, next(seeds))

        fitted = refitter.fitted(self._workload, plain) if refitter is not None else ()
        fast = ((program.space, program.decisions, FAST) for program in fitted)
        tiles = ((space, tile, TILE) for space, tile in seed_decisions(self._context, sketches))
        parents: dict[tuple[int, Decisions], str] = {}
        for parent in (parent for pair in zip_longest(tiles, fast) for parent in pair if parent):
            parents.setdefault((parent[0], plain_decisions(parent[1])), parent[2])
            if len(parents) == max(num_parents, FEWEST_PARENTS):
                break
        usable: list[tuple[int, Decisions]] = []
        for number, ((space, decisions), origin) in enumerate(parents.items()):
            schedule = applied(space, decisions)
            if schedule is not None:
                usable.append((space, decisions))
                if number < num_parents:
                    yield schedule, origin
        while usable:
            space, decisions = usable[int(random.integers(len(usable)))]
            columns = zip(*(other for place, other in usable if place == space), strict=True)
            seen = [{choice for choice in column if isinstance(choice, int)} for column in columns]
            mutated = list(decisions)
            for _ in range(1 + int(random.geometric(0.6)) // 2):
                mutate(sketches[space].choices, mutated, seen, random)
            yield applied(space, tuple(mutated)), MUTATED


def task_seed(seed: int, workload_id: str, have: int) -> int:
    """Return the seed of a task's sampling, another one when `have` programs are there already."""
    return zlib.crc32(f"{seed} {workload_id} {have}".encode())


def _new(schedules: Iterable[Any], keys: set[int], count: int) -> list[Any]:
    fresh: list[Any] = []
    for schedule in schedules:
        if len(fresh) == count:
            break
        key = program_key(schedule.mod)
        if key not in keys:
            keys.add(key)
            fresh.append(schedule)
    return fresh
