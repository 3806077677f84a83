from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from matmuls import make_matmul
from tencost.programs.codegen.refit import (
    Refitter,
    decisions,
    distance,
    factorizations,
    fit_tile,
    interleave_neighbours,
    sketch,
    starting_points,
    tile_extents,
)
from tencost.programs.starting_points import StartBook, without_postproc
from tencost.programs.trace.instructions import trace_values
from tencost.store.ids import workload_id
from tencost.tune.search import search
from tencost.workers.keys import program_key

pytestmark = pytest.mark.tvm

Workloads = dict[int, Any]


class Preferring:
    """A cost model that likes candidates by a function of their trace."""

    def __init__(self, score: Any) -> None:
        self.score = score

    def predict(self, _context: Any, candidates: Any) -> Any:
        return np.array([self.score(trace_values(one.sch.trace)) for one in candidates])


def make_context(mod: Any, target: dict[str, Any]) -> Any:
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    return ms.TuneContext(
        mod=mod,
        target=Target(target),
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        task_name="matmul",
        rand_state=1,
        num_threads=1,
    )


def key_of(mod: Any) -> str:
    from tvm.ir import save_json

    return workload_id(str(save_json(mod)))


@pytest.fixture(scope="module")
def book(target: dict[str, Any], cpu_intrinsics: None) -> StartBook:
    """Programs of a 32^3 and a 256^3 matmul; the second of each is half as fast."""
    programs = []
    for size in (32, 256):
        context = make_context(make_matmul(size), target)
        for number, space in enumerate(context.generate_design_space()[:2]):
            trace = trace_values(space.trace.simplified(True))
            programs.append((key_of(context.mod), 1e-3 * (1 + number), trace))
    return StartBook.of("here", target, programs)


@pytest.mark.parametrize(
    ("factors", "extent", "limit", "expected"),
    [
        ((4, 2, 4, 8), 256, 64, (4, 2, 4, 8)),  # the same extent stays
        ((4, 2, 4, 8), 1024, 64, (16, 2, 4, 8)),  # the outermost takes what is more
        ((4, 2, 4, 8), 64, 64, (1, 2, 4, 8)),
        ((1, 1, 1, 128), 256, 64, (4, 1, 1, 64)),  # the limit of the innermost holds
        ((4, 1, 2, 16), 7, 64, (1, 1, 1, 7)),  # of a prime, the vectorized axis takes all
        ((2, 3), 12, 64, (4, 3)),
        ((5,), 9, 64, (9,)),
    ],
)
def test_tiles_keep_their_inner_factors(
    factors: tuple[int, ...], extent: int, limit: int, expected: tuple[int, ...]
) -> None:
    assert fit_tile(factors, extent, limit) == expected


def test_factorizations_are_all_there_and_distinct() -> None:
    found = factorizations(12, 3)
    assert len(found) == len(set(found)) == 18
    assert all(math.prod(one) == 12 for one in found)


def test_the_task_s_own_programs_come_first_then_the_nearest(
    book: StartBook, target: dict[str, Any]
) -> None:
    context = make_context(make_matmul(32), target)
    spaces = [
        trace_values(space.trace.simplified(True)) for space in context.generate_design_space()
    ]
    own = key_of(context.mod)
    found = list(Refitter(book).fitted(own, spaces))
    assert [one.source.workload == own for one in found[:2]] == [True, True]
    assert found[0].octaves == -1.0
    made = sketch(spaces[found[0].space])
    first = next(one for one in book.starts if one.workload == own)
    assert list(found[0].decisions) == [
        tuple(value) if isinstance(value, list) else value
        for value in decisions(first.trace, sketch(first.trace))
    ]
    for one in found:
        assert tile_extents(made, one.decisions) == (32, 32, 32)
    strangers = list(Refitter(book).fitted("another", spaces))
    assert strangers[0].octaves == 0.0  # the same shape under another id is as near as can be
    assert strangers[-1].octaves > 5.0
    assert distance((32, 32), (64, 16)) == 2.0


def test_starting_points_are_programs_of_the_new_shape(
    book: StartBook, target: dict[str, Any]
) -> None:
    context = make_context(make_matmul(128), target)
    designs = context.generate_design_space()
    model = Preferring(lambda _trace: 0.5)
    found = starting_points(Refitter(book), "new", context, designs, model, 4, 0)
    assert 2 <= len(found) <= 4
    assert len({program_key(one.sch.mod) for one in found}) == len(found)
    for one in found:
        trace = without_postproc(trace_values(one.sch.trace))
        made = sketch(trace)
        assert tile_extents(made, decisions(trace, made))[:3] == (128, 128, 128)
        assert [list(map(int, arg.shape)) for arg in one.args_info] == [[128, 128]] * 3


def test_two_of_three_are_the_model_s() -> None:
    assert interleave_neighbours([3, 2, 1, 0], [0, 1, 2, 3]) == [3, 2, 0, 1]
    assert interleave_neighbours([5, 4, 3, 2, 1, 0], range(6)) == [5, 4, 0, 3, 2, 1]


def test_the_model_chooses_among_them(book: StartBook, target: dict[str, Any]) -> None:
    context = make_context(make_matmul(64), target)
    designs = context.generate_design_space()

    def largest_innermost(trace: Any) -> float:
        return float(max(value[-1] for _, value in trace[1] if isinstance(value, list)))

    everything = starting_points(
        Refitter(book), "new", context, designs, Preferring(largest_innermost), 100, 0
    )
    liked = max(everything, key=lambda one: largest_innermost(trace_values(one.sch.trace)))
    assert len(everything) > 2
    assert program_key(everything[0].sch.mod) == program_key(liked.sch.mod)


def test_what_does_not_fit_gives_none(book: StartBook, target: dict[str, Any]) -> None:
    from tvm import te
    from tvm.ir import IRModule

    a = te.placeholder((64, 64), name="A")
    doubled = te.compute((64, 64), lambda i, j: a[i, j] * 2.0, name="double")
    mod = IRModule({"main": te.create_prim_func([a, doubled])})
    context = make_context(mod, target)
    designs = context.generate_design_space()
    model = Preferring(lambda _trace: 0.5)
    assert starting_points(Refitter(book), "new", context, designs, model, 4, 0) == []


def test_a_search_measures_them_first_and_then_goes_on(
    book: StartBook, target: dict[str, Any], tmp_path: Any, make_bundle: Any
) -> None:
    from tencost.register.start_records import ship
    from tencost.tune.cost_model import load_cost_model

    model = load_cost_model(ship(make_bundle("random"), book, tmp_path / "shipped"))
    strategy = search(model, starts=3, population=8, generations=1)
    context = make_context(make_matmul(128), target)
    strategy._initialize_with_tune_context(context)
    strategy.pre_tuning(64, 4, context.generate_design_space(), _memory(), model)
    first = strategy.generate_measure_candidates()
    assert first is not None
    assert 1 <= len(first) <= 3
    second = strategy.generate_measure_candidates()
    assert second is not None
    assert len(second) > 0
    assert not {program_key(one.sch.mod) for one in first} & {
        program_key(one.sch.mod) for one in second
    }
    assert strategy._inst.measured
    assert strategy._inst.clone()._inst.measured == set()


def _memory() -> Any:
    from tvm.s_tir import meta_schedule as ms

    return ms.database.MemoryDatabase()
