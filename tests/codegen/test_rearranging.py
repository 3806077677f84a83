"""Reshapes and transpositions by rule: the same numbers, read and written a vector at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from relax_networks import lowered as network
from relax_networks import run
from tencost.programs.codegen import rearranging, rules, vector_math

pytestmark = pytest.mark.tvm
op = relax.op

CHAINS: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any], set[int]]] = {
    "a matrix": ([(128, 256)], op.permute_dims, {16}),
    "of batches": ([(3, 60, 64)], lambda x: op.permute_dims(x, [0, 2, 1]), {16}),
    "written rows without a power of two": ([(105, 64)], op.permute_dims, {16}),
    "read columns without a power of two": ([(64, 105)], op.permute_dims, {15}),
    "no divisor": ([(67, 71)], op.permute_dims, set()),
    "few numbers": ([(16, 16)], op.permute_dims, set()),
    "with a function": (
        [(64, 96), (64, 1)],
        lambda x, scale: op.permute_dims(op.sigmoid(op.multiply(x, scale))),
        {16},
    ),
    "patches apart": (
        [(1, 64, 512)],
        lambda x: op.permute_dims(op.reshape(x, (1, 64, 4, 128)), [0, 2, 3, 1]),
        {16},
    ),
    "groups in rows": (
        [(1, 16, 16, 64)],
        lambda x: op.reshape(op.permute_dims(x, [0, 3, 1, 2]), (1, 8, 2048)),
        {8},
    ),
    "heads apart": (
        [(1, 49, 96)],
        lambda x: op.permute_dims(op.reshape(x, (1, 49, 3, 32)), [0, 2, 1, 3]),
        {16},
    ),
    "heads together": (
        [(1, 3, 49, 32)],
        lambda x: op.reshape(op.permute_dims(x, [0, 2, 1, 3]), (49, 96)),
        {16},
    ),
    "short rows": (
        [(14, 14, 32), (1, 196, 32)],
        lambda x, y: op.add(op.reshape(x, (1, 196, 32)), y),
        {16},
    ),
    "short rows of no vector": ([(14, 14, 33)], lambda x: op.reshape(op.exp(x), (196, 33)), set()),
    "a part of a tensor": (
        [(8, 8, 3, 128), (1,)],
        lambda x, scale: op.permute_dims(
            op.reshape(op.multiply(op.strided_slice(x, [2], [1], [2]), scale), (64, 4, 32)),
            [1, 0, 2],
        ),
        {16},
    ),
    "one number": ([(), ()], op.multiply, set()),
    "places from a table": (
        [(6, 20)],
        lambda x: op.take(x, relax.const(np.array([0, 5, 5, 2, 19], np.int64)), axis=1),
        set(),
    ),
    "together with others": (
        [(60, 64), (60, 64)],
        lambda x, y: op.permute_dims(op.concat([x, y], axis=1)),
        set(),
    ),
}
"""Input shapes, what is computed of them, and of how many numbers the vectors are."""


def schedule_of(shapes: list[tuple[int, ...]], body: Callable[..., Any], target: Any) -> Any:
    mod = network(shapes, body)
    return mod, rules.schedule_rest(mod, target)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", CHAINS)
def test_the_numbers_stay_and_come_in_vectors(
    name: str, cores: int, target: dict[str, Any]
) -> None:
    shapes, body, vectors = CHAINS[name]
    vector_math.register_vector_math()
    target = target | {"num-cores": cores}
    mod, by_rule = schedule_of(shapes, body, target)
    found = re.findall(r"T\.vectorized\((?:T\.int64\()?(\d+)", by_rule.script())
    assert {int(width) for width in found} == vectors
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    granted = rules.leave(by_rule, target)
    assert np.allclose(run(by_rule, arrays, granted), run(mod, arrays, target), rtol=2e-6)


def test_indices_lose_what_says_nothing() -> None:
    """Inlined reshapes leave a quotient and a remainder at each axis; the extents make most of them superfluous."""
    _, by_rule = schedule_of(*CHAINS["heads together"][:2], {"kind": "llvm"})
    (function,) = (one for one in by_rule.functions.values() if isinstance(one, tirx.PrimFunc))
    body = function.script().split("T.writes")[1]
    assert body.count("//") + body.count("%") == 2  # of 96 columns, the head and its column


def test_an_index_that_stays_divided_stays_as_it_was() -> None:
    """Under its condition TVM sees that i - 32 is not negative; (i + 96) % 128, as it would write it, stays divided."""
    x = te.placeholder((128,), name="x")
    y = te.compute((64,), lambda i: te.if_then_else(i >= 32, x[(i - 32) % 128], 0.0), name="y")
    function = te.create_prim_func([x, y])
    assert "%" in function.script()
    tvm.ir.assert_structural_equal(rearranging.with_simple_indices(function), function)
