"""Design spaces of a task: TVM's and register tiles, whose seeds are measured first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms

from tencost.programs.codegen.refit import plain_values, sketch
from tencost.programs.codegen.seeds import task_seeds
from tencost.programs.codegen.spaces import search_space
from tencost.tune.cost_model import load_cost_model
from tencost.tune.evolutionary_search import DecisionSearch
from tencost.tune.search import SEEDS, ResumableSearch, search
from tencost.workers.keys import program_key

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("cpu_intrinsics")]
TARGET = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}


def dense(columns: int = 64) -> Any:
    a, b = te.placeholder((48, 32), name="a"), te.placeholder((32, columns), name="b")
    product = topi.matmul(a, b)
    return tvm.IRModule({"main": te.create_prim_func([a, b, topi.nn.relu(product)])})


def softmax() -> Any:
    a = te.placeholder((16, 64), name="a")
    return tvm.IRModule({"main": te.create_prim_func([a, topi.nn.softmax(a)])})


def context_of(mod: Any, space: Any = None, target: dict[str, Any] = TARGET) -> Any:
    return ms.TuneContext(
        mod=mod,
        target=tvm.target.Target(target),
        space_generator=space or search_space(target),
        num_threads=1,
        rand_state=1,
    )


def test_a_product_has_a_space_more() -> None:
    own = context_of(dense(), ms.space_generator.PostOrderApply()).generate_design_space()
    both = context_of(dense()).generate_design_space()
    assert len(both) == len(own) + 1
    sketches = [sketch(plain_values(one.trace.simplified(True)) or []) for one in both]
    assert len({(one.choices, one.primitives) for one in sketches}) == len(both)


def test_other_tasks_and_devices_have_tvm_s() -> None:
    own = context_of(softmax(), ms.space_generator.PostOrderApply()).generate_design_space()
    assert len(context_of(softmax()).generate_design_space()) == len(own)
    gpu = search_space({"kind": "cuda", "arch": "sm_80"})
    assert isinstance(gpu, ms.space_generator.PostOrderApply)


def searching(make_bundle: Any, starts: int) -> tuple[Any, list[Any], Any]:
    """Return a dense layer's context, its design spaces, and a search that begins with so many starting points."""
    context, model = context_of(dense()), load_cost_model(make_bundle("random"))
    spaces = context.generate_design_space()
    strategy = search(model, starts=starts, population=16, generations=1)
    strategy._initialize_with_tune_context(context)
    strategy.pre_tuning(64, 4, spaces, ms.database.MemoryDatabase(), model)
    return context, spaces, strategy


def test_seeds_are_different_programs_and_the_best_comes_first() -> None:
    context = context_of(dense())
    spaces = context.generate_design_space()
    found = task_seeds(context, spaces, SEEDS, 0)
    assert 1 < len(found) <= SEEDS
    assert len({str(one.sch.mod) for one in found}) == len(found)
    assert "T.vectorized" in str(found[0].sch.mod)
    (again,) = task_seeds(context, spaces, 1, 0)
    assert str(again.sch.mod) == str(found[0].sch.mod)


def test_no_seeds_where_there_is_no_such_space() -> None:
    product = context_of(dense(), ms.space_generator.PostOrderApply())
    assert task_seeds(product, product.generate_design_space(), SEEDS, 0) == []
    other = context_of(softmax())
    assert task_seeds(other, other.generate_design_space(), SEEDS, 0) == []


def test_the_search_measures_seeds_first_and_evolves_them(make_bundle: Any) -> None:
    context, spaces, strategy = searching(make_bundle, 4)
    first = strategy.generate_measure_candidates()
    assert first is not None
    expected = [str(one.sch.mod) for one in task_seeds(context, spaces, 4, 1)]
    assert {str(one.sch.mod) for one in first} == set(expected)
    near = DecisionSearch(context, spaces, 16, 1, 0)
    near.learn(first, 1e-6 * np.arange(1.0, 1 + len(first)))
    assert len(near.measured) == len(first), "a seed is of no design space"


def test_without_starting_points_there_are_no_seeds(make_bundle: Any) -> None:
    *_, strategy = searching(make_bundle, 0)
    assert not strategy._inst._begins


def test_a_run_that_goes_on_does_not_stop_at_seeds_that_it_knows(make_bundle: Any) -> None:
    context, model = context_of(dense()), load_cost_model(make_bundle("random"))
    spaces = context.generate_design_space()
    known = {program_key(one.sch.mod) for one in task_seeds(context, spaces, SEEDS, 1)}
    strategy = ResumableSearch(16, 1, set(known), lambda: 64)
    strategy._initialize_with_tune_context(context)
    strategy.pre_tuning(64, 4, spaces, ms.database.MemoryDatabase(), model)
    first = strategy.generate_measure_candidates()
    assert first
    assert not known & {program_key(one.sch.mod) for one in first}
    assert strategy._inst._waiting == []
