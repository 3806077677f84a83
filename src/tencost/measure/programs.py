"""Distinct programs of a task: random samples of its design spaces, what a search picks, and what is near good ones.

TenSet samples a population, evolves it without a model and keeps what is new, until there is enough or ten rounds
in a row add nothing. Here one share is random samples alone, one comes from an evolutionary search that a cost model
steers (or, without one, from mutation alone), and one are programs known to be good, and mutations of them
(:mod:`tencost.measure.around`), so that a task has poor, middling and good programs, and many of the kind that a tuner
has to tell apart. The design spaces are those that `tencost tune` searches: TVM's and register tiles
(:mod:`tencost.programs.codegen.spaces`). Two programs are the same if their scheduled modules are structurally equal,
whatever their traces.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import Trace
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.target import Target

from tencost.measure.around import Around
from tencost.programs.codegen.refit import Refitter, apply
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
"""Programs near good ones that are made for each that is wanted: many are known, or do not fit."""
RANDOM = "random"
"""How a sample of a design space is said to be made."""
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

    def random(
        self, count: int, known: set[int], on_new: Callable[[int], None] = lambda _: None
    ) -> Sample:
        """Sample `count` programs that are not in `known` (keys of :func:`program_key`, added to)."""
        found: list[Any] = []
        barren = 0
        while len(found) < count and barren < BARREN_ROUNDS:
            least, most = _BATCH
            batch = self._sample(min(most, max(least, count - len(found))))
            fresh = _new(batch, known, count - len(found))
            barren = 0 if fresh else barren + 1
            found += fresh
            on_new(len(fresh))
        return Sample(tuple(found), barren >= BARREN_ROUNDS, (RANDOM,) * len(found))

    def evolved(self, count: int, known: set[int]) -> Sample:
        """Return up to `count` new programs, those that the model ranks first after the search."""
        start = self._sample(self._population)
        try:
            picked = _ffi_api.SearchStrategyEvolutionarySearchEvolveWithCostModel(
                self._context.search_strategy, start, min(4 * count, self._population)
            )
        except RuntimeError:  # see _sample: no search where TVM cannot make one of the programs
            picked = []
        fresh = _new(picked, known, count)
        return Sample(tuple(fresh), False, (f"evolved: {self._steered_by}",) * len(fresh))

    def near(self, count: int, known: set[int], refitter: Refitter | None = None) -> Sample:
        """Return up to `count` new programs around good ones; none where no good one is known.

        Args:
            count: programs wanted; every second one is itself a program known to be good, as long as there are any.
            known: keys of programs, added to.
            refitter: fast programs of this and other workloads.
        """
        around = Around(self._context, self._designs, self._workload, refitter, self._seed)
        found: list[Any] = []
        origins: list[str] = []
        made = zip(range(MAX_TRIES * count), around.schedules(-(-count // 2)), strict=False)
        for _, (schedule, origin) in made:
            fresh = [] if schedule is None else _new([schedule], known, 1)
            found += fresh
            origins += [origin] * len(fresh)
            if len(found) == count:
                break
        return Sample(tuple(found), False, tuple(origins))

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
        found = set()
        for program in programs:
            schedule = tvm.s_tir.Schedule(self.mod, debug_mask=0)
            check_trace(program.trace)
            Trace.apply_json_to_schedule(program.trace, schedule)
            found.add(program_key(schedule.mod))
        return found

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
            return [one for one in (self._draw() for _ in range(count)) if one is not None]

    def _draw(self) -> Any:
        trace = self._designs[int(self._random.integers(len(self._designs)))].trace
        seed = int(self._random.integers(2**31 - 2))
        return apply(self._context, Trace(trace.simplified(True).insts, {}), (), (), seed)


def task_seed(seed: int, workload_id: str, have: int) -> int:
    """Return the seed of a task's sampling, another one when `have` programs are there already."""
    return zlib.crc32(f"{seed} {workload_id} {have}".encode())


def _new(schedules: Iterable[Any], known: set[int], count: int) -> list[Any]:
    fresh: list[Any] = []
    for schedule in schedules:
        if len(fresh) == count:
            break
        key = program_key(schedule.mod)
        if key not in known:
            known.add(key)
            fresh.append(schedule)
    return fresh
