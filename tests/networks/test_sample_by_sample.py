"""A batch sample by sample: the same numbers, where samples do not meet; where they may, nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx, topi

from relax_networks import written
from tencost.networks import samples
from tencost.networks.lowering import fuse

pytestmark = pytest.mark.tvm
op = relax.op
Shapes = list[tuple[int, ...]]
Body = Callable[..., Any]


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the values are."""
    monkeypatch.setattr(samples, "_parts_of", lambda bindings, divided, count, cores: count)


def network(shapes: Shapes, body: Body, inputs: int = 1) -> tuple[Any, int]:
    """Return a module whose main takes tensors of these shapes, of which the first are inputs."""
    return written(shapes, body), inputs


def image(x: Any, w: Any) -> Any:
    return op.nn.conv2d(x, w, padding=(1, 1), data_layout="NHWC", kernel_layout="HWIO")


def attention(x: Any, w: Any) -> Any:
    heads = op.permute_dims(op.reshape(op.matmul(x, w), (4, 6, 2, 8)), [0, 2, 1, 3])
    stacked = op.reshape(heads, (8, 6, 8))
    scores = op.nn.softmax(op.matmul(stacked, op.permute_dims(stacked, [0, 2, 1])), axis=-1)
    values = op.reshape(op.matmul(scores, stacked), (4, 2, 6, 8))
    return op.reshape(op.permute_dims(values, [0, 2, 1, 3]), (4, 6, 16))


DIVIDED: dict[str, tuple[Shapes, Body]] = {
    "convolution": ([(4, 8, 8, 3), (3, 3, 3, 5)], lambda x, w: op.nn.relu(image(x, w))),
    "attention": ([(4, 6, 16), (16, 16)], attention),
    "rows": ([(4, 16), (16, 8)], op.matmul),
    "means": ([(4, 5, 6)], lambda x: op.mean(x, axis=[1], keepdims=True)),
    "an operand a sample": ([(4, 6), (4, 6)], op.add),
    "an operand of all samples": ([(4, 6), (1, 6)], op.multiply),
    "two outputs": ([(4, 6)], lambda x: relax.Tuple([op.exp(x), op.negative(x)])),
    "parts of a split": (
        [(4, 6)],
        lambda x: op.concat([op.split(x, 2, axis=1)[1], op.split(x, 2, axis=1)[0]], axis=1),
    ),
    "an output without samples": ([(4, 6), (3,)], lambda x, w: relax.Tuple([op.exp(x), w])),
    "a row of its own for each sample": (
        [(4, 6), (4, 2)],
        lambda x, w: op.concat([w, x], axis=1),
    ),
    "padded": ([(4, 6, 5)], lambda x: op.nn.pad(x, [0, 0, 1, 2, 0, 3], "constant", 2.5)),
    "a slice": ([(4, 6, 5)], lambda x: op.strided_slice(x, [1, -1], [1, 0], [5, 3])),
    "an input as it is": ([(4, 6)], lambda x: relax.Tuple([x, op.exp(x)])),
    "a table": ([(4, 6)], lambda x: op.take(x, relax.const([2, 0]), axis=1)),
}
TOGETHER: dict[str, tuple[Shapes, Body]] = {
    "mean of the batch": ([(4, 6)], lambda x: op.subtract(x, op.mean(x, axis=[0], keepdims=True))),
    "softmax over the batch": ([(4, 6)], lambda x: op.nn.softmax(x, axis=0)),
    "running sum": ([(4, 6)], lambda x: op.cumsum(x, axis=0)),
    "transposed": ([(4, 4)], lambda x: op.permute_dims(x, [1, 0])),
    "reshaped across": ([(4, 6)], lambda x: op.reshape(x, (6, 4))),
    "all of it": ([(4, 6)], lambda x: op.sum(x)),
    "with itself": ([(4, 4)], lambda x: op.matmul(x, x)),
    "beside each other": ([(4, 6)], lambda x: op.concat([x, x], axis=0)),
    "some of them": ([(4, 6)], lambda x: op.take(x, relax.const([2, 0]), axis=0)),
    "a slice of the batch": ([(4, 6)], lambda x: op.strided_slice(x, [0], [0], [2])),
    "both of a split": ([(4, 6)], lambda x: op.split(x, 2, axis=1)),
    "turned round": ([(4, 6)], lambda x: op.flip(x, axis=0)),
    "one sample": ([(1, 6)], op.exp),
    "broadcast": ([(4, 4), (2, 4, 4)], op.add),
}


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("name", DIVIDED)
def test_the_numbers_stay(name: str) -> None:
    mod, inputs = network(*DIVIDED[name])
    written = samples.sample_by_sample(mod, inputs)
    assert not written.same_as(mod)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in DIVIDED[name][0]]
    for found, expected in zip(run(written, arrays), run(mod, arrays), strict=True):
        assert found.shape == expected.shape
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_always")
def test_a_pad_that_is_lowered_already_is_known() -> None:
    """As TVM's ONNX frontend leaves it; another lowered function may mix samples."""

    def lowered(compute: Any) -> tuple[Any, Any, Any]:
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4, 6, 5), "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                made = builder.emit_te(compute, builder.emit(op.exp(x)))
                output = builder.emit_output(builder.emit(op.negative(made)))
            builder.emit_func_output(output)
        mod = builder.get()
        values = np.random.default_rng(0).standard_normal((4, 6, 5)).astype(np.float32)
        return mod, samples.sample_by_sample(mod, 1), values

    mod, written, values = lowered(lambda x: topi.nn.pad(x, [0, 1, 0], [0, 2, 3], 2.5))
    assert operators(written).count("relax.nn.pad") == 4
    (found,), (expected,) = run(written, [values]), run(mod, [values])
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)
    for compute in (
        lambda x: topi.nn.pad(x, [1, 0, 0], [0, 0, 0], 0.0),
        lambda x: topi.flip(x, 0),
        lambda x: te.compute(
            x.shape,
            lambda a, b, c: tirx.if_then_else(b <= c, x[a, b, c], tirx.const(0.0, "float32")),
        ),
        lambda x: topi.nn.mirror_pad(x, [0, 1, 0], [0, 2, 3], "REFLECT"),
    ):
        mod, written, _ = lowered(compute)
        assert written.same_as(mod)


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("name", TOGETHER)
def test_samples_that_meet_stay_together(name: str) -> None:
    mod, inputs = network(*TOGETHER[name])
    assert samples.sample_by_sample(mod, inputs).same_as(mod)


@pytest.mark.usefixtures("_always")
def test_a_sample_ends_before_the_next_begins() -> None:
    def body(x: Any, w: Any) -> Any:
        return op.nn.softmax(image(op.nn.relu(image(x, w)), w))

    mod, inputs = network([(3, 8, 8, 4), (3, 3, 4, 4)], body)
    names = operators(samples.sample_by_sample(mod, inputs))
    one = ["relax.nn.conv2d", "relax.nn.relu", "relax.nn.conv2d", "relax.nn.softmax"]
    assert names == ["relax.strided_slice", *one] * 3 + ["relax.concat"]


def parts(shapes: Shapes, body: Body, name: str, cores: int = 1) -> int:
    mod, inputs = network(shapes, body)
    return operators(samples.sample_by_sample(mod, inputs, cores)).count(f"relax.{name}")


def test_only_what_leaves_the_caches_is_divided() -> None:
    weights = (3, 3, 32, 32)
    assert parts([(8, 64, 64, 32), weights], image, "nn.conv2d") == 8
    assert parts([(8, 32, 32, 32), weights], image, "nn.conv2d") == 2
    assert parts([(8, 8, 8, 32), weights], image, "nn.conv2d") == 1


def test_many_samples_are_some_parts() -> None:
    assert parts([(64, 32, 32, 32), (3, 3, 32, 32)], image, "nn.conv2d") == samples.MOST_PARTS


@pytest.mark.parametrize(("cores", "expected"), [(1, 8), (2, 4), (4, 2), (3, 8), (16, 1)])
def test_each_core_has_a_sample_of_a_part(cores: int, expected: int) -> None:
    """With the rows of one sample among them, each would read of the other's at every border and in attention."""
    shapes: Shapes = [(8, 64, 64, 32), (3, 3, 32, 32)]
    assert parts(shapes, image, "nn.conv2d", cores) == expected


def test_a_graph_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part's operators stand in it: of one operator eight calls are eight parts."""
    shapes: Shapes = [(8, 64, 64, 32), (3, 3, 32, 32)]
    monkeypatch.setattr(samples, "MOST_CALLS", 8)
    assert parts(shapes, image, "nn.conv2d") == 8
    monkeypatch.setattr(samples, "MOST_CALLS", 7)
    assert parts(shapes, image, "nn.conv2d") == 1  # four parts would not fit the caches


def test_weights_are_not_read_again_for_less_than_they_are() -> None:
    assert parts([(64, 64, 256), (256, 256)], op.matmul, "matmul") == 8
    assert parts([(64, 1, 1024), (1024, 4096)], op.matmul, "matmul") == 1
    assert parts([(8, 100, 64), (64, 4096)], op.matmul, "matmul") == 1


def test_what_only_memory_holds_is_divided_for_the_last_cache() -> None:
    """No part's values stay in a second cache; those of all samples together do not stay in any."""
    assert parts([(8, 256, 64), (64, 4096)], op.matmul, "matmul") == 4


def test_what_is_not_stored_is_no_reason_to_divide() -> None:
    """The scores of an attention, and what is computed where a product stores its sums."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = op.multiply(op.matmul(q, k), relax.const(0.5))
        return op.matmul(op.nn.softmax(scores), v)

    shapes: Shapes = [(8, 4, 200, 8), (8, 4, 8, 200), (8, 4, 200, 8)]
    mod, _ = network(shapes, attention)
    assert operators(samples.sample_by_sample(mod, 3)).count("relax.nn.softmax") == 1
    products: Shapes = [(8, 250, 64), (64, 128)]
    assert parts(products, op.matmul, "matmul") == 2
    assert parts(products, lambda x, w: op.nn.relu(op.nn.silu(op.matmul(x, w))), "matmul") == 2


def test_tensors_without_numbers_are_no_obstacle() -> None:
    def cached(x: Any, w: Any) -> Any:
        return op.concat([op.matmul(op.strided_slice(x, [1], [0], [0]), w), op.matmul(x, w)], 1)

    assert parts([(4, 3, 6), (6, 8)], cached, "concat") == 1
    assert parts([(4, 0)], op.exp, "exp") == 1
    assert parts([(0, 6)], op.exp, "exp") == 1


def test_a_table_is_not_read_whole() -> None:
    """Of an embedding's rows a sample reads its own."""

    def embedded(x: Any, table: Any) -> Any:
        return op.nn.softmax(op.take(table, op.astype(x, "int32"), axis=0))

    assert parts([(8, 512), (50000, 256)], embedded, "take") == 8


def operators(mod: Any) -> list[str]:
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return [binding.value.op.name for binding in bindings if isinstance(binding.value, relax.Call)]


def run(mod: Any, arrays: list[Any]) -> list[Any]:
    target = tvm.target.Target("llvm")
    with target:
        lowered = relax.get_pipeline("default_build")(fuse(mod))
    machine = relax.VirtualMachine(tvm.compile(lowered, target=target), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, arrays))
    return [each.numpy() for each in ([found] if hasattr(found, "numpy") else found)]


def test_a_network_without_operators_stays() -> None:
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    mod = builder.finalize()
    assert samples.sample_by_sample(mod, 1) is mod
