"""A search of one task that begins with starting points and never proposes a program twice.

Stock MetaSchedule begins with random programs, and forgets between runs what it has measured. Here the first batches of
a task that has hardly any measurements yet are tiles known to be good (:mod:`tencost.programs.codegen.seeds`) and
programs known to be fast, re-fitted to it (:mod:`tencost.programs.codegen.refit`): they are measured before anything is
searched, and the evolution (:mod:`tencost.tune.evolutionary_search`) begins from the best of them. MetaSchedule's own
evolutionary search is asked where that finds nothing new. Programs that the database holds are taken out of each batch
before it is built.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tvm.ir import save_json
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tencost.programs.codegen.refit import Refitter, starting_points
from tencost.programs.codegen.seeds import task_seeds
from tencost.programs.starting_points import shipped_starts
from tencost.programs.trace.replay import error_line
from tencost.store.ids import workload_id
from tencost.tune.cost_model import latencies_s
from tencost.tune.evolutionary_search import DecisionSearch
from tencost.tune.target_records import records_for_target
from tencost.workers.keys import program_key

MAX_REPEATED_BATCHES = 5
"""Stop a task after so many batches in a row that hold nothing new: its space is used up."""
FIRST_BATCH = 4
"""Starting points measured at a time: a network's other tasks should not wait long for theirs."""
FIRST_SEARCH_S = 5.0
"""Seconds that the first search of a task may take, before it is known what measuring takes."""
SEARCH_SHARE = 1.0
"""Making a round's programs may take so much of the seconds that measuring a batch takes."""
RESUMED_PROGRAMS = 64
"""Programs of earlier runs, the fastest of a task, that the search goes on from."""
BATCH = 16
"""Programs that are measured at a time, at most: the model learns after each batch. MetaSchedule's default is 64."""
STARTS = 16
"""Starting points that a task gets, unless told."""
SEEDS = 6
"""Of them, register tiles, where a task is a product that they fit."""


@derived_object
class ResumableSearch(ms.search_strategy.PySearchStrategy):
    """A search of one task that knows the programs measured before and how many more may be.

    Args:
        population: programs in a generation.
        generations: generations a round; `population * (generations + 1)` programs are guessed, some 200 of them made.
        measured: keys of programs that were measured before, see :func:`program_key`; the search adds its own. None
            begins with none, and so does every clone.
        room: how many programs may still be measured; asked before and after each batch is made. With 0 the search
            ends.
        refitter: starting points for a task with hardly any known programs; None has none but register tiles.
        starts: starting points that a task gets at most.
        learn: correct the model's scores by what was measured.
        batch: programs in a batch at most, fewer where MetaSchedule asks for fewer (`num_trials_per_iter`).
    """

    def __init__(
        self,
        population: int = 512,
        generations: int = 4,
        measured: set[int] | None = None,
        room: Callable[[], int] = lambda: sys.maxsize,
        refitter: Refitter | None = None,
        starts: int = STARTS,
        learn: bool = True,
        batch: int = sys.maxsize,
    ) -> None:
        super().__init__()
        self._options = (population, generations, measured, room, refitter, starts, learn, batch)
        self._population, self._generations, self._learn = population, generations, learn
        self.measured = set() if measured is None else measured
        self._room, self._refitter, self._starts = room, refitter, starts
        self._stock = ms.search_strategy.EvolutionarySearch(
            population_size=population,
            init_min_unmeasured=min(50, max(1, population // 4)),
            genetic_num_iters=generations,
        )
        self._context: Any = None
        self._spaces: Sequence[Any] = ()
        self._model: Any = None
        self._most, self._batch, self._remaining = batch, 0, 0
        self._begins = False
        self._waiting: list[Any] = []
        self._evolution: DecisionSearch | None = None
        self._database: Any = None
        self._proposed, self._measuring_s = 0.0, 0.0

    def _initialize_with_tune_context(self, context: Any) -> None:
        self._stock._initialize_with_tune_context(context)
        self._context = context

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Sequence[Any],
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        num_trials_per_iter = min(num_trials_per_iter, self._most)
        # As TuneContext.pre_tuning does, but for TVM's own search only: it insists on both.
        stock_database = ms.database.MemoryDatabase() if database is None else database
        stock_model = ms.cost_model.RandomModel() if cost_model is None else cost_model
        self._stock.pre_tuning(
            max_trials, num_trials_per_iter, design_spaces, stock_database, stock_model
        )
        self._spaces, self._model, self._batch = design_spaces, cost_model, num_trials_per_iter
        self._remaining = max_trials
        self._begins = cost_model is not None and self._starts > 0
        self._evolution, self._database = None, database

    def post_tuning(self) -> None:
        self._stock.post_tuning()

    def generate_measure_candidates(self) -> list[Any] | None:
        for _ in range(MAX_REPEATED_BATCHES):
            if min(self._room(), self._remaining) <= 0:
                return None
            candidates = self._next()
            if candidates is None:
                return None
            by_key = {program_key(candidate.sch.mod): candidate for candidate in candidates}
            new = [key for key in by_key if key not in self.measured]
            if self._evolution is not None and len(new) < len(candidates):
                chosen = {id(by_key[key]) for key in new}
                self._evolution.drop([cand for cand in candidates if id(cand) not in chosen])
            new = new[: max(0, min(self._batch, self._remaining, self._room()))]
            if new:
                self._remaining -= len(new)
                self.measured.update(new)
                self._proposed = time.monotonic()
                return [by_key[key] for key in new]
        return None

    def _next(self) -> list[Any] | None:
        if self._begins:  # only now: a network's other tasks should not wait for this one's
            self._begins = False
            self._waiting = [
                candidate
                for candidate in self._starting_points()
                if program_key(candidate.sch.mod) not in self.measured
            ]
        if self._waiting:
            size = min(FIRST_BATCH, self._batch)
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            return batch
        if self._model is not None:
            budget_s = SEARCH_SHARE * self._measuring_s or FIRST_SEARCH_S
            evolved = self._evolving().propose(self._model, 2 * self._batch, budget_s)
            if evolved:
                return evolved
        stock: list[Any] | None = self._stock.generate_measure_candidates()
        return stock

    def _evolving(self) -> DecisionSearch:
        """Return the evolution; begun when it is first asked, with what the database holds of the task."""
        if self._evolution is None:
            context = self._context
            self._evolution = DecisionSearch(
                context,
                self._spaces,
                self._population,
                self._generations,
                int(context.rand_state),
                learn=self._learn,
            )
            if self._database is not None:
                token = self._database.commit_workload(context.mod)
                records = list(self._database.get_top_k(token, max(1, len(self._database))))
                if context.target is not None:
                    records = records_for_target(records, context.target)
                records, candidates = applicable(records[:RESUMED_PROGRAMS], str(context.task_name))
                self._evolution.learn(candidates, latencies_s(records))
        return self._evolution

    def _starting_points(self) -> list[Any]:
        context = self._context
        seed = int(context.rand_state)
        points = task_seeds(context, self._spaces, min(SEEDS, self._starts), seed)
        more = self._starts - len(points)
        if self._refitter is not None and len(self.measured) < self._starts and more > 0:
            workload = workload_id(str(save_json(context.mod)))
            points += starting_points(
                self._refitter, workload, context, self._spaces, self._model, more, seed
            )
        return points

    def notify_runner_results(
        self, measure_candidates: Sequence[Any], results: Sequence[Any]
    ) -> None:
        self._stock.notify_runner_results(measure_candidates, results)
        if len(results) == 0:
            return
        self._measuring_s = (time.monotonic() - self._proposed) * self._batch / len(results)
        if self._evolution is not None:
            self._evolution.learn(measure_candidates, latencies_s(results))

    def clone(self) -> Any:
        return ResumableSearch(*self._options)


def search(
    model: Any,
    *,
    starts: int = STARTS,
    population: int = 512,
    generations: int = 4,
    batch: int = BATCH,
) -> Any:
    """Return a search for `strategy=` of ms.tune_tir, tune_tasks and tune_relax that begins with starting points.

    Args:
        model: from :func:`tencost.load_cost_model`; its bundle ships the fastest programs of its training side. If it
            is frozen, the search does not learn either.
        starts: programs that each task measures before it searches; 0 for none.
        population: programs in a generation.
        generations: generations a round.
        batch: programs that are measured before the model learns from them, at most; fewer where `num_trials_per_iter`
            says so.

    Raises:
        BundleError: the bundle's starting points cannot be read.
    """
    book = None if model.bundle is None else shipped_starts(model.bundle.folder)
    return ResumableSearch(
        population,
        generations,
        refitter=Refitter(book) if book is not None and starts > 0 else None,
        starts=starts,
        learn=not model.frozen,
        batch=batch,
    )


def applicable(records: Sequence[Any], task: str) -> tuple[list[Any], list[Any]]:
    """Return the records of a database whose traces apply to their workloads, and their measure candidates.

    A trace may be of another TVM, or of a workload that was written otherwise. Such records are left out, as TVM's
    search leaves them out, and a warning counts them.

    Args:
        records: tuning records of one task.
        task: name of the task, for the warning.
    """
    good: list[Any] = []
    candidates: list[Any] = []
    error = ""
    for record in records:
        try:
            candidates.append(record.as_measure_candidate())
        except Exception as failure:  # noqa: BLE001 - TVM raises whatever its C++ side says, under many types
            error = error_line(failure)
        else:
            good.append(record)
    if error:
        warnings.warn(
            f"{len(records) - len(good)} of {len(records)} records of {task} in the database do not apply to it and "
            f"are left out: {error}",
            stacklevel=2,
        )
    return good, candidates
