"""A search of one task that begins with starting points and never proposes a program twice.

Stock MetaSchedule begins with random programs, and forgets between runs what it has measured. Here the first batches of
a task that has hardly any measurements yet are tiles known to be good (:mod:`tencost.programs.codegen.seeds`) and
programs known to be fast, re-fitted to it (:mod:`tencost.programs.codegen.refit`): they are measured before anything is
searched, and the evolution (:mod:`tencost.tune.evolutionary_search`) begins from the best of them. MetaSchedule's own evolutionary
search is asked where that finds nothing new. Programs that the database holds are taken out of each batch before it is
built.
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
from tencost.programs.codegen.seeds import seeds
from tencost.programs.starting_points import shipped_starts
from tencost.programs.trace.replay import first_line
from tencost.store.ids import workload_id
from tencost.tune.cost_model import latencies_s
from tencost.tune.evolutionary_search import DecisionSearch
from tencost.workers.keys import program_key

MAX_REPEATED_BATCHES = 5
"""Stop a task after so many batches in a row that hold nothing new: its space is used up."""
FIRST_BATCH = 4
"""Starting points measured at a time: a network's other tasks should not wait long for theirs."""
FIRST_SEARCH_S = 5.0
"""Seconds that the first search of a task may take, before it is known what measuring takes."""
SEARCH_SHARE = 1.0
"""Making a round's programs may take so much of the seconds that measuring a batch takes."""
TAKEN_OVER = 64
"""Programs of earlier runs, the fastest of a task, that the search goes on from."""
STARTS = 16
"""Starting points that a task gets, unless told."""
SEEDS = 6
"""Of them, register tiles, where a task is a product that they fit."""


@derived_object
class ResumableSearch(ms.search_strategy.PySearchStrategy):
    """A search of one task that knows the programs measured before and how many more may be.

    Args:
        search: MetaSchedule's, for tasks whose decisions cannot be evolved.
        known: keys of programs that were measured before; None begins with none, and so does every clone.
        room: how many programs may still be measured.
        refitter: starting points for a task with hardly any known programs; None has none but register tiles.
        starts: starting points that a task gets at most.
        population: decisions in a generation.
        generations: generations a round.
        learn: correct the model's scores by what was measured.
    """

    def __init__(
        self,
        search: Any,
        known: set[int] | None,
        room: Callable[[], int],
        refitter: Refitter | None = None,
        starts: int = STARTS,
        population: int = 512,
        generations: int = 4,
        learn: bool = True,
    ) -> None:
        super().__init__()
        self.search = search
        self.population, self.generations, self.learn = population, generations, learn
        self.known = set() if known is None else known
        self.room = room
        self.refitter = refitter
        self.starts = starts
        self._given = known
        self._context: Any = None
        self._spaces: Sequence[Any] = ()
        self._model: Any = None
        self._batch = self._left = 0
        self._fresh = False
        self._waiting: list[Any] = []
        self._nearby: DecisionSearch | None = None
        self._database: Any = None
        self._proposed, self._measuring_s = 0.0, 0.0

    def _initialize_with_tune_context(self, context: Any) -> None:
        self.search._initialize_with_tune_context(context)
        self._context = context

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Sequence[Any],
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        # As TuneContext.pre_tuning does, but for TVM's own search only: it insists on both.
        inner_database = ms.database.MemoryDatabase() if database is None else database
        inner_model = ms.cost_model.RandomModel() if cost_model is None else cost_model
        self.search.pre_tuning(
            max_trials, num_trials_per_iter, design_spaces, inner_database, inner_model
        )
        self._spaces, self._model, self._batch = design_spaces, cost_model, num_trials_per_iter
        self._left = max_trials
        self._fresh = cost_model is not None and self.starts > 0
        self._nearby, self._database = None, database

    def post_tuning(self) -> None:
        self.search.post_tuning()

    def generate_measure_candidates(self) -> list[Any] | None:
        for _ in range(MAX_REPEATED_BATCHES):
            if min(self.room(), self._left) <= 0:
                return None
            candidates = self._next()
            if candidates is None:
                return None
            found = {program_key(candidate.sch.mod): candidate for candidate in candidates}
            new = [key for key in found if key not in self.known]
            if self._nearby is not None and len(new) < len(candidates):
                chosen = {id(found[key]) for key in new}
                self._nearby.drop([one for one in candidates if id(one) not in chosen])
            new = new[: max(0, min(self._batch, self._left, self.room()))]
            if new:
                self._left -= len(new)
                self.known.update(new)
                self._proposed = time.monotonic()
                return [found[key] for key in new]
        return None

    def _next(self) -> list[Any] | None:
        if self._fresh:  # only now: a network's other tasks should not wait for this one's
            self._fresh = False
            points = self._starting_points()
            self._waiting = [one for one in points if program_key(one.sch.mod) not in self.known]
        if self._waiting:
            size = min(FIRST_BATCH, self._batch)
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            return batch
        if self._model is not None:
            near = self._neighbourhood().propose(self._model, 2 * self._batch, self._budget_s())
            if near:
                return near
        found: list[Any] | None = self.search.generate_measure_candidates()
        return found

    def _budget_s(self) -> float:
        """Return the seconds that the next round's search may take."""
        if not self._measuring_s:
            return FIRST_SEARCH_S
        return SEARCH_SHARE * self._measuring_s

    def _neighbourhood(self) -> DecisionSearch:
        """Return the search nearby; made when it is first asked, of what the database holds of the task."""
        if self._nearby is None:
            context = self._context
            near = DecisionSearch(
                context,
                self._spaces,
                self.population,
                self.generations,
                int(context.rand_state),
                learn=self.learn,
            )
            if self._database is not None:
                token = self._database.commit_workload(context.mod)
                records, candidates = applicable(
                    list(self._database.get_top_k(token, TAKEN_OVER)), str(context.task_name)
                )
                near.learn(candidates, latencies_s(records))
            self._nearby = near
        return self._nearby

    def _starting_points(self) -> list[Any]:
        context = self._context
        seed = int(context.rand_state)
        found = seeds(context, self._spaces, min(SEEDS, self.starts), seed)
        is_new = len(self.known) < self.starts
        if self.refitter is not None and is_new and len(found) < self.starts:
            workload = workload_id(str(save_json(context.mod)))
            found += starting_points(
                self.refitter,
                workload,
                context,
                self._spaces,
                self._model,
                self.starts - len(found),
                seed,
            )
        return found

    def notify_runner_results(
        self, measure_candidates: Sequence[Any], results: Sequence[Any]
    ) -> None:
        self.search.notify_runner_results(measure_candidates, results)
        if len(results) == 0:
            return
        self._measuring_s = (time.monotonic() - self._proposed) * self._batch / len(results)
        if self._nearby is not None:
            self._nearby.learn(measure_candidates, latencies_s(results))

    def clone(self) -> Any:
        return ResumableSearch(
            self.search.clone(),
            self._given,
            self.room,
            self.refitter,
            self.starts,
            self.population,
            self.generations,
            self.learn,
        )


def evolutionary_search(
    population: int,
    generations: int,
    known: set[int],
    room: Callable[[], int],
    refitter: Refitter | None = None,
    starts: int = STARTS,
    learn: bool = True,
) -> Any:
    """Make the search of one task.

    Args:
        population: programs in a generation.
        generations: generations a round; `population * (generations + 1)` programs are guessed, some 200 of them made.
        known: keys of programs that were measured before, see :func:`program_key`; the search adds its own.
        room: how many programs may still be measured; asked before and after each batch is made. With 0 the search
            ends.
        refitter: starting points for tasks with hardly any known programs; None has none but register tiles.
        starts: starting points that a task gets at most.
        learn: let the search correct the model's scores by what it measured.
    """
    inner = _evolution(population, generations)
    return ResumableSearch(inner, known, room, refitter, starts, population, generations, learn)


def search(model: Any, *, starts: int = STARTS, population: int = 512, generations: int = 4) -> Any:
    """Return a search for `strategy=` of ms.tune_tir, tune_tasks and tune_relax that begins with starting points.

    Args:
        model: from :func:`tencost.load_cost_model`; its bundle ships the fastest programs of its training side. If it
            is frozen, the search does not learn either.
        starts: programs that each task measures before it searches; 0 for none.
        population: programs in a generation.
        generations: generations a round.

    Raises:
        BundleError: the bundle's starting points cannot be read.
    """
    book = None if model.bundle is None else shipped_starts(model.bundle.folder)
    refitter = Refitter(book) if book is not None and starts > 0 else None
    inner = _evolution(population, generations)
    learn = not model.frozen
    return ResumableSearch(
        inner, None, lambda: sys.maxsize, refitter, starts, population, generations, learn
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
            error = first_line(failure)
        else:
            good.append(record)
    if error:
        warnings.warn(
            f"{len(records) - len(good)} of {len(records)} records of {task} in the database do not apply to it and "
            f"are left out: {error}",
            stacklevel=2,
        )
    return good, candidates


def _evolution(population: int, generations: int) -> Any:
    return ms.search_strategy.EvolutionarySearch(
        population_size=population,
        init_min_unmeasured=min(50, max(1, population // 4)),
        genetic_num_iters=generations,
    )
