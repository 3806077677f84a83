from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from matmuls import make_matmul
from tencost.programs.codegen.mutations import move_divisor
from tencost.programs.trace.instructions import trace_values
from tencost.tune.evolutionary_search import (
    FEWEST_SCORED,
    INITIAL_PROGRAMS,
    DecisionSearch,
    columns,
)
from tencost.workers.keys import program_key

pytestmark = pytest.mark.tvm

SIZE = 64


class Preferring:
    """A cost model that likes programs whose tiles' second innermost factors are large; it counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def predict(self, _context: Any, candidates: Any) -> Any:
        self.asked += len(candidates)
        return np.array([liking(one) for one in candidates])


def liking(candidate: Any) -> float:
    tiles = [value for _, value in trace_values(candidate.sch.trace)[1] if isinstance(value, list)]
    return 0.1 + 0.8 * sum(math.log2(tile[-2]) for tile in tiles) / 18


@pytest.fixture
def context(target: dict[str, Any], cpu_intrinsics: None) -> Any:
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    return ms.TuneContext(
        mod=make_matmul(SIZE),
        target=Target(target),
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        task_name="matmul",
        rand_state=1,
        num_threads=1,
    )


def decision_search(context: Any, *, learn: bool = True) -> DecisionSearch:
    return DecisionSearch(context, context.generate_design_space(), 64, 2, 7, learn=learn)


def test_a_moved_factor_keeps_product_and_limit() -> None:
    random = np.random.default_rng(0)
    found = {move_divisor((4, 2, 4, 2), 4, random) for _ in range(200)}
    assert len(found) > 8
    assert all(math.prod(one) == 64 and one[-1] <= 4 for one in found)
    assert move_divisor((1, 1), 64, random) == (1, 1)
    assert move_divisor((7, 1), 4, random) == (7, 1)  # the only move is too long for the innermost


def test_it_finds_what_the_model_likes_and_makes_little_for_it(context: Any) -> None:
    model, search = Preferring(), decision_search(context)
    found = search.propose(model, 8, budget_s=0.0)
    assert len({program_key(one.sch.mod) for one in found}) == 8
    kept = [liking(one.candidate) for one in search.unmeasured.values()]
    assert min(liking(one) for one in found) > np.median(kept)
    assert model.asked <= INITIAL_PROGRAMS + 3 * FEWEST_SCORED
    search.propose(model, 8, budget_s=60.0)
    assert model.asked > 2 * (INITIAL_PROGRAMS + 3 * FEWEST_SCORED) + 3 * FEWEST_SCORED
    args = [list(map(int, arg.shape)) for arg in found[0].args_info]
    assert args == [[SIZE, SIZE]] * 3


def test_what_was_measured_is_not_proposed_again_and_teaches(context: Any) -> None:
    model, search = Preferring(), decision_search(context)
    first = search.propose(model, 8)
    # What the model likes most is slow.
    search.learn(first, np.array([1e-3 * liking(one) for one in first]))
    second = search.propose(model, 8)
    keys = {program_key(one.sch.mod) for one in first}
    assert not keys & {program_key(one.sch.mod) for one in second}
    measured = next(iter(search.measured.values()))
    assert measured.value < 1.0
    assert measured.foreseen == pytest.approx(liking(measured.candidate))


def test_a_frozen_search_ranks_by_the_model_alone(context: Any) -> None:
    search = decision_search(context, learn=False)
    first = search.propose(Preferring(), 8)
    assert [liking(one) for one in first] == sorted((liking(one) for one in first), reverse=True)
    search.learn(first, np.array([1e-3] * 7 + [math.nan]))
    search.propose(Preferring(), 8)
    assert all(one.value == one.score for one in search.unmeasured.values())


def test_failures_alone_teach_nothing_wrong(context: Any) -> None:
    search = decision_search(context)
    first = search.propose(Preferring(), 8)
    search.learn(first, np.full(8, math.nan))
    assert len(search.propose(Preferring(), 8)) == 8
    assert all(math.isfinite(one.value) for one in search.unmeasured.values())


def test_programs_of_another_task_are_left_out(context: Any) -> None:
    from tvm.s_tir import meta_schedule as ms

    search = decision_search(context)
    search.learn([ms.MeasureCandidate(ms_schedule(context.mod), [])], np.array([1e-3]))
    assert not search.measured


def ms_schedule(mod: Any) -> Any:
    from tvm.s_tir import Schedule

    return Schedule(mod)


def test_columns_are_numbers_for_every_space(context: Any) -> None:
    search = decision_search(context)
    search.propose(Preferring(), 4)
    kept = list(search.unmeasured.values())
    found = columns(search.spaces, kept)
    assert found.shape[0] == len(kept)
    assert np.isfinite(found).all()
    assert len(np.unique(found, axis=0)) == len({one.key for one in kept})
