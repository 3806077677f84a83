"""Candidates of a product: the rule's own first, all of them compute the same, and none stands twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm_ffi import structural_equal

from product_workloads import PRODUCTS, call, drawn, fused, task_of
from tencost.programs.codegen import candidates as space
from tencost.programs.codegen import vector_math

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("cpu_intrinsics")]
TARGET = {"kind": "llvm", "mcpu": "x86-64-v3"}


def workload(name: str) -> Any:
    return task_of(fused(*PRODUCTS[name]))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_first_is_the_rule_s(name: str, cores: int) -> None:
    target = TARGET | {"num-cores": cores}
    task = workload(name)
    by_rule = space.by_rule(task, target)
    (first,) = space.draw_candidates(task, target, 1)
    scheduled = space.schedule_candidate(task, target, first)
    assert structural_equal(scheduled["main"], by_rule["main"])


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_candidate_computes_the_same(name: str) -> None:
    vector_math.register_vector_math()
    task = workload(name)
    several = space.draw_candidates(task, TARGET, 400)
    keys = {(one.product, one.decisions, one.overlaps, one.near) for one in several}
    assert len(keys) == len(several) > 3
    arrays = drawn(PRODUCTS[name][0])
    shape = tuple(int(size) for size in task["main"].params[-1].ty.shape)
    modules = [
        space.schedule_candidate(task, TARGET, one) for one in several[:: max(1, len(several) // 8)]
    ]
    outputs = [call(module, arrays, shape, TARGET) for module in modules if module is not None]
    expected = call(task, arrays, shape, TARGET)
    assert len(outputs) > 2
    assert all(np.allclose(values, expected, rtol=1e-4, atol=1e-4) for values in outputs)


def test_what_is_no_product_has_none() -> None:
    softmax = task_of(fused([(4, 12)], relax.op.nn.softmax))
    assert space.draw_candidates(softmax, TARGET, 8) == []


def test_of_equal_cycles_the_widest_vectors_come_first() -> None:
    """On a core that multiplies two half vectors in the time of a whole one: whole ones are half the instructions."""
    zen4 = {"kind": "llvm", "mcpu": "znver4"}
    task = task_of(fused([(49, 256), (256, 256)], relax.op.matmul))
    ranked = space.rank_candidates(task, zen4)
    first, *others = ranked
    equal = [one for one in others if one.cycles == first.cycles and one.tile == first.tile]
    assert {one.product.lanes for one in equal} >= {8}
    assert first.product.lanes == 16
