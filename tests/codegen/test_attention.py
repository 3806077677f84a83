"""Attention by rule is one function, computes what its three parts do, and is left alone where it is something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from product_workloads import Body, Shapes, drawn, fused
from tencost.networks.rewriting import with_free_weights
from tencost.programs.codegen import rules, vector_math
from tencost.programs.codegen.attention import with_attention

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("cpu_intrinsics")]
TARGETS = {
    "avx2": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "sse": {"kind": "llvm", "mcpu": "x86-64"},
}
op = relax.op


def attend(q: Any, k: Any, v: Any, *others: Any, scale: float = 0.5, negate: bool = False) -> Any:
    scores = op.multiply(op.matmul(q, k), relax.const(scale, "float32"))
    for other in others:
        scores = op.add(scores, other)
    weighed = op.matmul(op.nn.softmax(scores, axis=-1), v)
    return op.negative(weighed) if negate else weighed


ATTENTION: dict[str, tuple[Shapes, Body]] = {
    "heads": ([(1, 3, 24, 16), (1, 3, 16, 24), (1, 3, 24, 16)], attend),
    "prime numbers": ([(1, 2, 37, 19), (1, 2, 19, 53), (1, 2, 53, 23)], attend),
    "one function for both products": (
        [(1, 2, 16, 16)] * 3,
        lambda q, k, v: op.matmul(op.nn.softmax(op.matmul(q, k), axis=-1), v),
    ),
    "a batch": ([(2, 3, 20, 8), (2, 3, 8, 31), (2, 3, 31, 8)], attend),
    "no batch": ([(50, 16), (16, 50), (50, 16)], attend),
    "one batch axis": ([(6, 10, 32), (6, 32, 49), (6, 49, 32)], attend),
    "a mask of all heads": (
        [(1, 2, 25, 16), (1, 2, 16, 40), (1, 2, 40, 16), (1, 1, 25, 40)],
        attend,
    ),
    "a mask and a bias": (
        [(2, 2, 25, 16), (2, 2, 16, 40), (2, 2, 40, 16), (2, 1, 1, 40), (1, 2, 25, 40)],
        attend,
    ),
    "something behind it": (
        [(1, 2, 25, 16), (1, 2, 16, 40), (1, 2, 40, 16)],
        lambda q, k, v: attend(q, k, v, negate=True),
    ),
    "few rows": ([(1, 2, 4, 16), (1, 2, 16, 40), (1, 2, 40, 16)], attend),
    "many columns": ([(1, 1, 9, 8), (1, 1, 8, 1900), (1, 1, 1900, 8)], attend),
}


def twice(q: Any, k: Any, v: Any) -> Any:
    weights = op.nn.softmax(op.matmul(q, k), axis=-1)
    return op.add(op.matmul(weights, v), op.sum(weights, axis=[-1], keepdims=True))


APART: dict[str, tuple[Shapes, Body]] = {
    "a decoder's step": ([(1, 2, 1, 16), (1, 2, 16, 40), (1, 2, 40, 16)], attend),
    "weights are used twice": ([(1, 2, 24, 16), (1, 2, 16, 40), (1, 2, 40, 16)], twice),
    "weights are the second": (
        [(1, 2, 24, 16), (1, 2, 16, 40), (1, 2, 16, 24)],
        lambda q, k, v: op.matmul(v, op.nn.softmax(op.matmul(q, k), axis=-1)),
    ),
    "softmax of the rows": (
        [(1, 2, 24, 16), (1, 2, 16, 40), (1, 2, 40, 16)],
        lambda q, k, v: op.matmul(op.nn.softmax(op.matmul(q, k), axis=-2), v),
    ),
    "columns of less than a vector": ([(1, 2, 24, 16), (1, 2, 16, 3), (1, 2, 3, 16)], attend),
    "scores turned around": (
        [(1, 2, 24, 16), (1, 2, 16, 24), (1, 2, 24, 16)],
        lambda q, k, v: op.matmul(
            op.nn.softmax(op.permute_dims(op.matmul(q, k), [0, 1, 3, 2]), axis=-1), v
        ),
    ),
}


def functions(mod: Any) -> list[str]:
    return sorted(
        name.name_hint
        for name, function in mod.functions.items()
        if isinstance(function, tirx.PrimFunc)
    )


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("name", ATTENTION)
def test_one_function_computes_it(name: str, target: dict[str, Any], cores: int) -> None:
    vector_math.register_vector_math()
    shapes, body = ATTENTION[name]
    target = target | {"num-cores": cores}
    mod = with_attention(fused(shapes, body), target)
    assert functions(mod) == ["attention"]
    tensors = drawn(shapes)
    # Before the parts, whose values would be left in memory that TVM uses again.
    output = run(rules.schedule_rest(mod, target), tensors, target)
    expected = run(fused(shapes, body), tensors, target)
    assert np.allclose(output, expected, rtol=2e-5, atol=2e-6)


def test_queries_that_are_known_are_no_reason_to_compute_it_in_parts() -> None:
    """As those of DETR's first layer: they could be laid out otherwise, the keys or values are not."""
    shapes, _ = ATTENTION["heads"]
    queries, keys, values = drawn(shapes)
    target = TARGETS["avx2"]

    def known(*given: int) -> Any:
        tensors = enumerate((queries, keys, values))
        constants = {place: relax.const(tensor) for place, tensor in tensors if place in given}
        inputs = [shape for place, shape in enumerate(shapes) if place not in given]

        def body(*variables: Any) -> Any:
            rest = iter(variables)
            return attend(*(constants.get(place) or next(rest) for place in range(3)))

        mod = fused(inputs, body)
        mod["main"] = mod["main"].with_attr("num_input", len(inputs))
        return with_free_weights(mod)

    assert functions(with_attention(known(0), target)) == ["attention"]
    assert len(functions(with_attention(known(1), target))) == 3
    assert len(functions(with_attention(known(2), target))) == 3


def test_a_mask_of_infinities_stays_a_mask() -> None:
    vector_math.register_vector_math()
    shapes, body = ATTENTION["a mask of all heads"]
    *others, mask = drawn(shapes)
    mask[..., 30:] = -np.inf
    others[2][:, :, 30:] = 1e30
    target = TARGETS["avx2"]
    mod = rules.schedule_rest(with_attention(fused(shapes, body), target), target)
    output = run(mod, [*others, mask], rules.leave(mod, target))
    q, k, v = (each.astype(np.float64) for each in others)
    scores = 0.5 * (q @ k) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)) @ v
    assert np.allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_values_may_be_as_large_as_numbers_are() -> None:
    """A share of each is what counts: the sum before it is divided is no larger."""
    shapes: Shapes = [(1, 1, 8, 16), (1, 1, 16, 64), (1, 1, 64, 16)]
    queries, keys, values = drawn(shapes)
    values = np.abs(values) * np.float32(1e37) + np.float32(1e38)
    target = TARGETS["avx2"]
    mod = rules.schedule_rest(with_attention(fused(shapes, attend), target), target)
    output = run(mod, [queries * np.float32(1e-3), keys, values], rules.leave(mod, target))
    q, k, v = (each.astype(np.float64) for each in (queries * 1e-3, keys, values))
    weights = np.exp(0.5 * (q @ k))
    expected = (weights / weights.sum(-1, keepdims=True)) @ v
    assert np.allclose(output / expected, 1, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", APART)
def test_other_functions_stay(name: str) -> None:
    mod = fused(*APART[name])
    assert with_attention(mod, TARGETS["avx2"]) is mod


def test_what_has_a_program_stays() -> None:
    mod = fused(*ATTENTION["heads"])
    parts = {
        name: function.with_attr("tirx.is_scheduled", True)
        if "softmax" in name.name_hint
        else function
        for name, function in mod.functions.items()
    }
    mod = tvm.IRModule(parts, attrs=mod.attrs)
    assert with_attention(mod, TARGETS["avx2"]) is mod


def run(mod: Any, tensors: list[Any], target: dict[str, Any]) -> Any:
    machine = relax.VirtualMachine(tvm.compile(mod, target=tvm.target.Target(target)), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, tensors)).numpy()
