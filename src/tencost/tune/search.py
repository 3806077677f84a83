"""MetaSchedule's evolutionary search that never proposes a program the database already holds.

Stock MetaSchedule forgets between runs what it has measured and measures it again; here the programs of the database
are taken out of each batch before it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm_ffi import structural_hash

MAX_REPEATED_BATCHES = 5
"""Stop a task after so many batches in a row that hold nothing new: its space is used up."""


def program_key(candidate: Any) -> int:
    """Return a hash of the scheduled program; equal in every run on the same machine."""
    return int(structural_hash(candidate.sch.mod))


@derived_object
class ResumableSearch(ms.search_strategy.PySearchStrategy):
    """An evolutionary search of one task that knows the programs measured before and how many more may be."""

    def __init__(self, search: Any, known: set[int], room: Callable[[], int]) -> None:
        super().__init__()
        self.search = search
        self.known = known
        self.room = room

    def _initialize_with_tune_context(self, context: Any) -> None:
        self.search._initialize_with_tune_context(context)

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Sequence[Any],
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        self.search.pre_tuning(max_trials, num_trials_per_iter, design_spaces, database, cost_model)

    def post_tuning(self) -> None:
        self.search.post_tuning()

    def generate_measure_candidates(self) -> list[Any] | None:
        for _ in range(MAX_REPEATED_BATCHES):
            if self.room() <= 0:
                return None
            candidates = self.search.generate_measure_candidates()
            if candidates is None:
                return None
            found = {program_key(candidate): candidate for candidate in candidates}
            new = [key for key in found if key not in self.known][: max(0, self.room())]
            if new:
                self.known.update(new)
                return [found[key] for key in new]
        return None

    def notify_runner_results(
        self, measure_candidates: Sequence[Any], results: Sequence[Any]
    ) -> None:
        self.search.notify_runner_results(measure_candidates, results)

    def clone(self) -> Any:
        return ResumableSearch(self.search.clone(), self.known, self.room)


def evolutionary_search(
    population: int, generations: int, known: set[int], room: Callable[[], int]
) -> Any:
    """Make the search of one task.

    Args:
        population: programs in a generation.
        generations: generations a round; `population * (generations + 1)` candidates are scored.
        known: keys of programs that were measured before, see :func:`program_key`; the search adds its own.
        room: how many programs may still be measured; asked before and after each batch is made. With 0 the search
            ends.
    """
    inner = ms.search_strategy.EvolutionarySearch(
        population_size=population,
        init_min_unmeasured=min(50, max(1, population // 4)),
        genetic_num_iters=generations,
    )
    return ResumableSearch(inner, known, room)
