"""What becomes whole numbers keeps its order: nearest pixels of every size, data that jumps, chains of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from relax_networks import lowered, run
from tencost.programs.codegen import rules, vector_math
from tencost.programs.codegen.index_arithmetic import kept_in_order

pytestmark = pytest.mark.tvm
op = relax.op
SIZES = (2, 3, 10, 17, 24, 30, 40, 48, 50)
LARGEST = 50


def resized(other: int) -> Callable[[Any], Any]:
    return lambda x: op.image.resize2d(
        x, size=(other, 1), layout="NCHW", method="nearest_neighbor",
        coordinate_transformation_mode="half_pixel", rounding_method="round_prefer_floor",
    )  # fmt: skip


def by_rule(mod: Any, arrays: list[Any], target: dict[str, Any]) -> Any:
    mod = rules.schedule_rest(mod, target)
    return run(mod, arrays, rules.leave(mod, target))


def fences(mod: Any) -> int:
    return str(mod.script()).count("llvm.arithmetic.fence")


def onnx_runtime_pixels(size: int, others: range) -> list[np.ndarray[Any, Any]]:
    """Return which pixel of `size` ONNX Runtime takes for each pixel of each other size."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    nodes, sizes, outputs = [], [], []
    for other in others:
        shape = [1, 1, other, 1]
        sizes.append(helper.make_tensor(f"s{other}", onnx.TensorProto.INT64, [4], shape))
        outputs.append(helper.make_tensor_value_info(f"y{other}", float32, shape))
        nodes.append(
            helper.make_node(
                "Resize", ["x", "", "", f"s{other}"], [f"y{other}"], mode="nearest",
                coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_floor",
            )
        )  # fmt: skip
    inputs = [helper.make_tensor_value_info("x", float32, [1, 1, size, 1])]
    graph = helper.make_graph(nodes, "resize", inputs, outputs, sizes)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 8
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    pixels = np.arange(size, dtype=np.float32).reshape(1, 1, size, 1)
    return [one.ravel() for one in session.run(None, {"x": pixels})]


def pixels_function(size: int, others: range) -> Any:
    """Return a PrimFunc that writes the pixels of all other sizes one after the other, as TVM's Resize does."""
    length = sum(others)
    lines = [
        "@T.prim_func(s_tir=True)",
        f'def main(a: T.Buffer(({size},), "float32"), b: T.Buffer(({length},), "float32")):',
        '    T.func_attr({"global_symbol": "main", "tirx.noalias": True})',
    ]
    offset = 0
    for other in others:
        scale = float(np.float32(size) / np.float32(other))
        at = f'(T.Cast("float32", i{other}) + T.float32(0.5)) * T.float32({scale!r}) - T.float32(0.5)'
        pixel = f'T.Cast("int32", T.ceil({at} - T.float32(0.5)))'
        lines += [
            f"    for i{other} in range({other}):",
            f"        b[{offset} + i{other}] = a[T.max(T.min({pixel}, {size - 1}), 0)]",
        ]
        offset += other
    return tvm.script.from_source("\n".join(lines))


def as_written(size: int, other: int) -> np.ndarray[Any, Any]:
    """Return the pixels by NumPy, which rounds each operation."""
    half = np.float32(0.5)
    at = np.arange(other, dtype=np.float32) + half
    at = at * (np.float32(size) / np.float32(other)) - half
    return np.clip(np.ceil(at - half), 0, size - 1)


@pytest.mark.slow
def test_nearest_pixels_of_many_sizes_are_onnx_runtimes(target: dict[str, Any]) -> None:
    """The formula of TVM's Resize rounds otherwise than ONNX Runtime's for some pairs of sizes: not LLVM's doing."""
    others, granted = range(1, LARGEST + 1), rules.lenient(target)
    by_formula, reordered = 0, 0

    def pixels(function: Any, size: int) -> list[Any]:
        built = tvm.compile(tvm.IRModule({"main": function}), target=tvm.target.Target(granted))
        output = tvm.runtime.empty((sum(others),), "float32")
        built.jit()["main"](tvm.runtime.tensor(np.arange(size, dtype=np.float32)), output)
        return np.split(output.numpy(), np.cumsum(others)[:-1])

    for size in SIZES:
        theirs = onnx_runtime_pixels(size, others)
        written = [as_written(size, other) for other in others]
        function = pixels_function(size, others)
        for kept, here, there in zip(
            pixels(kept_in_order(function), size), written, theirs, strict=True
        ):
            assert np.array_equal(kept, here)
            by_formula += not np.array_equal(kept, there)
        if size in (2, 10, 30):
            free = zip(pixels(function, size), written, strict=True)
            reordered += sum(not np.array_equal(one, here) for one, here in free)
    assert by_formula <= 27
    assert reordered > 10, "without fences LLVM takes other pixels, else nothing is tested"


@pytest.mark.parametrize(("size", "other"), [(2, 7), (10, 15), (30, 45)])
def test_resize_by_rule_is_onnx_runtimes(size: int, other: int, target: dict[str, Any]) -> None:
    pixels = np.arange(size, dtype=np.float32).reshape(1, 1, size, 1)
    mod = lowered([pixels.shape], resized(other))
    found = by_rule(mod, [pixels], target).ravel()
    assert np.array_equal(found, onnx_runtime_pixels(size, range(other, other + 1))[0])


def const(value: float) -> Any:
    return relax.const(value, "float32")


def at(x: Any) -> Any:
    """Return what jumps where a whole number is not met exactly, or met."""
    return op.subtract(op.multiply(op.add(x, const(0.5)), const(2 / 3)), const(0.5))


JUMPS: dict[str, Callable[[Any], Any]] = {
    "floor": lambda x: op.floor(op.subtract(at(x), const(0.5))),
    "ceil": lambda x: op.ceil(op.subtract(at(x), const(0.5))),
    "round": lambda x: op.round(op.add(at(x), const(-0.5))),
    "trunc": lambda x: op.trunc(op.subtract(at(x), const(0.5))),
    "cast": lambda x: op.astype(op.subtract(at(x), const(0.5)), "int32"),
    "remainder": lambda x: op.floor_mod(op.subtract(at(x), const(0.5)), const(1.0)),
    "comparison": lambda x: op.greater(op.subtract(at(x), const(0.5)), const(9.0)),
    "choice": lambda x: op.where(
        op.less(op.subtract(at(x), const(0.5)), const(9.0)), const(1.0), const(2.0)
    ),
}


@pytest.mark.parametrize("name", JUMPS)
def test_data_that_jumps_is_what_tvm_computes_alone(name: str, target: dict[str, Any]) -> None:
    values = np.arange(-60, 60, dtype=np.float32).reshape(8, 15)
    mod = lowered([values.shape], JUMPS[name])
    found, expected = by_rule(mod, [values], target), run(mod, [values], target)
    assert found.dtype == expected.dtype
    # What is left of a division is a difference, whose last bit is noise; its jumps are of 1.
    assert np.allclose(found, expected, rtol=0, atol=1e-5 if name == "remainder" else 0)
    assert fences(rules.schedule_rest(mod, target)) > 0


def test_what_another_function_makes_whole_is_fenced_where_it_is_computed() -> None:
    """Each operator is a function of its own here: a sum below floor is another function's output."""
    target = {"kind": "llvm", "mcpu": "x86-64-v3"}
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 15), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            sums = builder.emit(op.add(op.multiply(x, const(2.0)), const(0.5)))
            other = builder.emit(op.add(x, const(3.0)))
            output = builder.emit_output(relax.Tuple([op.floor(sums), other]))
        builder.emit_func_output(output)
    mod = relax.transform.LegalizeOps()(builder.get())
    fenced = rules.schedule_rest(mod, target)
    texts = {
        str(name.name_hint): fences(one)
        for name, one in fenced.functions.items()
        if isinstance(one, tirx.PrimFunc)
    }
    assert texts == {"multiply": 1, "add": 1, "tir_floor": 0, "add1": 0}


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    "body",
    [
        lambda x: op.nn.softmax(x),
        lambda x: op.nn.gelu(op.add(x, const(1.0))),
        lambda x: op.nn.leakyrelu(op.add(op.multiply(x, const(2.0)), const(1.0))),
        lambda x: op.clip(op.add(x, const(1.0)), -1, 1),
        lambda x: op.sum(op.multiply(x, x), axis=[1]),
        lambda x: op.argmax(x, axis=1),
    ],
)
def test_what_does_not_jump_is_left_to_llvm(body: Callable[[Any], Any], mcpu: str) -> None:
    """Rows of 15 are shorter than a vector of AVX-512, those of 37 are not: a rule writes their softmax otherwise."""
    target = {"kind": "llvm", "mcpu": mcpu, "num-cores": 1}
    for size in (15, 37):
        assert fences(rules.schedule_rest(lowered([(8, size)], body), target)) == 0


def test_only_the_exponentials_own_jumps_are_left_to_llvm() -> None:
    """The same comparison and the same whole number outside of an exponential are data."""
    lanes = [tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), 8)]
    source, output = (tirx.decl_buffer((8,), "float32", name) for name in ("source", "output"))
    x = tirx.BufferLoad(source, lanes)
    one, two = (tirx.const(number, "float32x8") for number in (1.0, 2.0))
    value = vector_math.exp_at_most_one(x - one, 2)
    comparison = tirx.Select(value.condition, one, two)
    whole = tirx.floor(x * two + one)

    def written(expression: Any) -> Any:
        return tirx.PrimFunc([source, output], tirx.BufferStore(output, expression, lanes))

    for expression, count in ((value, 0), (comparison, 1), (whole, 2)):
        kept = kept_in_order(written(expression))
        assert fences(tvm.IRModule({"main": kept})) == count


def test_a_sum_that_is_rounded_is_still_reordered(target: dict[str, Any]) -> None:
    """Only what is done to the sum afterwards has an order to keep."""
    body = lambda x: op.floor(op.multiply(op.sum(x, axis=[1]), const(0.1)))  # noqa: E731
    mod = rules.schedule_rest(lowered([(8, 640)], body), target)
    functions = [one for one in mod.functions.values() if isinstance(one, tirx.PrimFunc)]
    granted = rules.leave(mod, target)
    texts = []
    for one in functions:
        alone = tvm.IRModule({"main": one.with_attr("global_symbol", "main")})
        built = tvm.compile(alone, target=tvm.target.Target(granted))
        texts.append(built.mod.inspect_source("ll"))
    assert fences(mod) == 1
    assert any("fadd reassoc" in one for one in texts)
    values = np.random.default_rng(0).standard_normal((8, 640)).astype(np.float32)
    assert np.array_equal(run(mod, [values], granted), run(mod, [values], target))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_other_types_are_fenced_and_compiled(kind: str, target: dict[str, Any]) -> None:
    vector_math.register_vector_math()
    values = np.arange(-60, 60, dtype=np.float32).reshape(8, 15)

    def body(x: Any) -> Any:
        half = relax.const(0.5, kind)
        return op.astype(op.floor(op.add(op.multiply(op.astype(x, kind), half), half)), "float32")

    mod = lowered([values.shape], body)
    expected = np.floor(values / 2 + 0.5)
    assert np.array_equal(by_rule(mod, [values], target), expected)


def test_comparisons_of_what_is_no_number_stay(target: dict[str, Any]) -> None:
    values = np.array([[1.0, np.nan, 3.0, np.nan] * 4] * 4, np.float32)
    for body, expected in (
        (lambda x: op.less(x, const(2.0)), [True, False, False, False]),
        (lambda x: op.greater_equal(x, op.multiply(x, const(0.5))), [True, False, True, False]),
        (lambda x: op.where(op.greater(x, const(2.0)), const(7.0), const(8.0)), [8, 8, 7, 8]),
    ):
        mod = rules.schedule_rest(lowered([values.shape], body), target)
        granted = rules.leave(mod, target)
        assert "fast-math-nnan" not in granted
        assert np.array_equal(run(mod, [values], granted)[0], expected * 4)
