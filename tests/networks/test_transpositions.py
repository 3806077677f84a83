"""Transpositions that undo each other are left out, and no number is another one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relax_networks import written as network
from tencost.networks.transpositions import carried, moved, with_few_transpositions

pytestmark = pytest.mark.tvm
op = relax.op


def run(mod: Any) -> list[Any]:
    """Return what a module computes of numbers that are all different."""
    lowered = relax.get_pipeline("zero")(mod)
    machine = relax.VirtualMachine(tvm.compile(lowered, target="llvm"), tvm.cpu())
    arrays = []
    for seed, parameter in enumerate(mod["main"].params):
        shape = [int(size) for size in parameter.ty.shape]
        arrays.append(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
    outputs = machine["main"](*map(tvm.runtime.tensor, arrays))
    found = [outputs] if hasattr(outputs, "numpy") else list(outputs)
    return [output.numpy() for output in found]


def sequence_first(x: Any, packed: Any, bias: Any, out: Any) -> Any:
    """Attend as nn.MultiheadAttention does, exported with batch_first: four samples, six places, two heads of eight."""
    rows = op.add(op.matmul(op.permute_dims(x, [1, 0, 2]), packed), bias)
    parts = op.permute_dims(op.expand_dims(op.reshape(rows, (6, 4, 3, 16)), 0), [3, 1, 2, 0, 4])
    parts = op.squeeze(parts, [-2])
    heads = [
        op.permute_dims(
            op.reshape(op.take(parts, relax.const(place, "int64"), axis=0), (6, 8, 8)), [1, 0, 2]
        )
        for place in range(3)
    ]
    first, second, third = (op.reshape(each, (4, 2, 6, 8)) for each in heads)
    scores = op.matmul(op.multiply(first, relax.const(0.25)), op.permute_dims(second, [0, 1, 3, 2]))
    values = op.matmul(op.nn.softmax(scores, axis=-1), third)
    rows = op.reshape(op.permute_dims(values, [2, 0, 1, 3]), (24, 16))
    return op.permute_dims(op.reshape(op.matmul(rows, out), (6, 4, 16)), [1, 0, 2])


def test_an_attention_of_pytorch_turns_heads_alone() -> None:
    """To [batch, heads, places, numbers] three times, and back: what any attention does."""
    mod = network([(4, 6, 16), (16, 48), (48,), (16, 16)], sequence_first)
    found = with_few_transpositions(mod)
    names = [
        binding.value.op.name
        for block in found["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    assert names.count("relax.permute_dims") == 4
    assert moved(found) == 4 * 4 * 6 * 16 < moved(mod)
    np.testing.assert_allclose(run(found)[0], run(mod)[0], rtol=1e-5, atol=1e-5)


def test_what_undoes_nothing_stays_as_it_is() -> None:
    mod = network([(4, 6, 16)], lambda x: op.exp(op.permute_dims(x, [0, 2, 1])))
    assert with_few_transpositions(mod) is mod


def test_axes_of_size_1_move_nothing() -> None:
    mod = network([(1, 6, 16)], lambda x: op.permute_dims(x, [1, 0, 2]))
    assert moved(mod) == 0
    assert moved(network([(2, 6, 16)], lambda x: op.permute_dims(x, [1, 0, 2]))) == 192


def test_a_tensor_without_numbers_is_not_carried() -> None:
    """Nothing of it can be divided or joined; the graph would be refused, and compiled as it came."""

    def body(x: Any) -> Any:
        emit = relax.BlockBuilder.current().emit
        turned = emit(op.permute_dims(emit(op.strided_slice(x, [0], [0], [0])), [1, 0, 2]))
        return op.reshape(turned, (96, 0))

    found = carried(network([(4, 6, 16)], body))
    assert [int(size) for size in found["main"].ret_ty.shape] == [96, 0]


def drawn(choose: random.Random, x: Any) -> Any:
    """Return what ten operators, drawn at random, make of a tensor."""
    builder = relax.BlockBuilder.current()
    for _ in range(10):
        shape = [int(size) for size in x.ty.shape]
        rank = len(shape)
        kind = choose.choice(
            [
                "turn",
                "turn",
                "reshape",
                "widen",
                "narrow",
                "take",
                "slice",
                "product",
                "bias",
                "relu",
                "sum",
            ]
        )
        if kind == "turn":
            x = op.permute_dims(x, choose.sample(range(rank), rank))
        elif kind == "reshape":
            place = choose.randrange(rank)
            divisors = [n for n in range(1, shape[place] + 1) if shape[place] % n == 0]
            first = choose.choice(divisors)
            split = [*shape[:place], first, shape[place] // first, *shape[place + 1 :]]
            joined = choose.randrange(rank)
            x = op.reshape(
                x, (*split[:joined], split[joined] * split[joined + 1], *split[joined + 2 :])
            )
        elif kind == "widen":
            x = op.expand_dims(x, choose.randrange(rank + 1))
        elif kind == "narrow" and rank > 2 and 1 in shape:
            x = op.squeeze(x, [shape.index(1)])
        elif kind == "take" and rank > 2:
            place = choose.randrange(rank)
            index = relax.const(choose.randrange(shape[place]), "int64")
            x = op.take(x, index, axis=place)
        elif kind == "slice":
            place = choose.randrange(rank)
            begin = choose.randrange(shape[place])
            x = op.strided_slice(x, [place], [begin], [shape[place]])
        elif kind == "product":
            values = np.random.default_rng(rank).standard_normal((shape[-1], 6)).astype(np.float32)
            x = op.matmul(x, relax.const(values))
        elif kind == "bias":
            bias = relax.const(np.arange(shape[-1], dtype=np.float32))
            x = op.add(x, bias) if choose.random() < 0.5 else op.subtract(bias, x)
        elif kind == "relu":
            x = op.nn.relu(x)
        elif kind == "sum":
            x = op.add(x, op.multiply(x, relax.const(2.0)))
        x = builder.emit(x)
    return x


@pytest.mark.parametrize("seed", range(4))
def test_the_numbers_stay(seed: int) -> None:
    """Of 15 chains of operators each, of which two are put together."""

    def body(x: Any) -> Any:
        choose = random.Random(seed)
        outputs = [drawn(choose, x) for _ in range(15)]
        return relax.Tuple([*outputs, op.multiply(outputs[0], outputs[0])])

    mod = network([(4, 6, 2, 12)], body)
    found = carried(mod)
    assert "permute_dims" in mod.script()
    for one, other in zip(run(found), run(mod), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)
