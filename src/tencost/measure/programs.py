"""Distinct programs of a task: random samples of MetaSchedule's design space, and some that a search picks.

TenSet samples a population, evolves it without a model and keeps what is new, until there is enough or ten rounds
in a row add nothing. Here the first share is random samples alone, and the rest comes from one evolutionary search
that a cost model steers (or, without one, from mutation alone), so that a task has poor, middling and good programs.
Two programs are the same if their scheduled modules are structurally equal, whatever their traces.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.target import Target

from tencost.features.intrinsics import register_intrinsics
from tencost.features.replay import load_module
from tencost.records.formats.metaschedule import RECORD_FILE, WORKLOAD_FILE, LoggedProgram
from tencost.store.allowed import check_trace
from tencost.workers.keys import program_key

BARREN_ROUNDS = 5
"""The space is used up when so many rounds in a row add nothing new."""
_BATCH = (64, 1024)


@dataclass(frozen=True)
class Sample:
    """New programs of a task.

    Attributes:
        schedules: schedules, all structurally different.
        exhausted: the design space seems to hold no more.
    """

    schedules: tuple[Any, ...]
    exhausted: bool


class ProgramSpace:
    """The design space of one workload for one target.

    Args:
        mod_json: the workload's module as TVM's JSON text.
        target: TVM target as a mapping; decides which rules and intrinsics apply.
        seed: of the sampling; the same seed and arguments give the same programs.
        population: programs in a generation of the search.
        generations: generations of the search.
        model: cost model of the search (ms.CostModel); None searches blindly.
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
    ) -> None:
        register_intrinsics(target["kind"])
        self.mod = load_module(mod_json)
        self.target = Target(target)
        self._population = population
        search = ms.search_strategy.EvolutionarySearch(
            population_size=population, genetic_num_iters=generations
        )
        self._context = ms.TuneContext(
            mod=self.mod,
            target=self.target,
            space_generator="post-order-apply",
            search_strategy=search,
            task_name="programs",
            rand_state=1 + seed % (2**31 - 2),
            num_threads=1,
        )
        self._context.pre_tuning(
            max_trials=2**31 - 1,
            num_trials_per_iter=64,
            design_spaces=self._context.generate_design_space(),
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
        return Sample(tuple(found), barren >= BARREN_ROUNDS)

    def evolved(self, count: int, known: set[int]) -> Sample:
        """Return up to `count` new programs, those that the model ranks first after the search."""
        start = self._sample(self._population)
        picked = _ffi_api.SearchStrategyEvolutionarySearchEvolveWithCostModel(
            self._context.search_strategy, start, min(4 * count, self._population)
        )
        fresh = _new(picked, known, count)
        return Sample(tuple(fresh), False)

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
        from tvm.s_tir.schedule import Trace

        found = set()
        for program in programs:
            schedule = tvm.s_tir.Schedule(self.mod, debug_mask=0)
            check_trace(program.trace)
            Trace.apply_json_to_schedule(program.trace, schedule)
            found.add(program_key(schedule.mod))
        return found

    def _sample(self, count: int) -> list[Any]:
        return list(
            _ffi_api.SearchStrategyEvolutionarySearchSampleInitPopulation(
                self._context.search_strategy, count
            )
        )


def task_seed(seed: int, workload_id: str, have: int) -> int:
    """Return the seed of a task's sampling, another one when `have` programs are there already."""
    return zlib.crc32(f"{seed} {workload_id} {have}".encode())


def _new(schedules: Sequence[Any], known: set[int], count: int) -> list[Any]:
    fresh: list[Any] = []
    for schedule in schedules:
        if len(fresh) == count:
            break
        key = program_key(schedule.mod)
        if key not in known:
            known.add(key)
            fresh.append(schedule)
    return fresh
