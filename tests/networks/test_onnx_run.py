"""Expected outputs of integer products: ONNX's, whatever instructions the CPU has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tencost.config import NetworkConfig
from tencost.networks.onnx_run import run_model

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)
KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8, np.int32: TensorProto.INT32}


def saturating(folder: Path, op_type: str, *, zero_point: bool, constant: bool) -> tuple[Path, Any]:
    """Write a product whose pairs exceed 16 bits: data near 255 and weights near -128 and 127."""
    is_conv = "Conv" in op_type
    shape, sizes = ([2, 16, 9, 9], (8, 16, 3, 3)) if is_conv else ([4, 64], (64, 32))
    constants: dict[str, Any] = {
        "weights": RNG.choice([-128, -120, 120, 127], sizes).astype(np.int8),
        "data_zero": np.uint8(3),
        "zero": np.int8(2 if zero_point else 0),
    }
    tail = ["zero"] if zero_point else []
    weights = "weights" if constant else "read"
    if op_type.endswith("Integer"):
        names = ["x", weights, "data_zero", *tail]
        kind: Any = np.int32
    else:
        scales = {"first": 0.01, "second": 0.02, "third": 2.0}
        constants |= {name: np.float32(value) for name, value in scales.items()}
        constants["output_zero"] = np.uint8(128)
        names = ["x", "first", "data_zero", weights, "second", "zero", "third", "output_zero"]
        kind = np.uint8
    nodes = [helper.make_node("Identity", ["weights"], ["read"])] * (not constant)
    nodes.append(helper.make_node(op_type, names, ["y"]))
    ends = [
        [helper.make_tensor_value_info(name, KINDS[dtype], dims)]
        for name, dtype, dims in (("x", np.uint8, shape), ("y", kind, ["n"] * len(shape)))
    ]
    tensors = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "saturating", *ends, tensors)
    path = folder / "saturating.onnx"
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path, RNG.integers(200, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("zero_point", [True, False])
@pytest.mark.parametrize(
    "op_type", ["MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"]
)
def test_integer_products_are_those_of_the_reference(
    op_type: str,
    zero_point: bool,
    constant: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, x = saturating(tmp_path, op_type, zero_point=zero_point, constant=constant)
    ran: list[Any] = []
    session = onnxruntime.InferenceSession

    def recorded(model: Any, *args: Any, **settings: Any) -> Any:
        ran.append(onnx.load_from_string(model))
        return session(model, *args, **settings)

    monkeypatch.setattr(onnxruntime, "InferenceSession", recorded)
    (output,), computed_by = run_model(NetworkConfig(name="saturating"), path, {"x": x})
    assert computed_by == "ONNX Runtime"
    (expected,) = ReferenceEvaluator(str(path)).run(None, {"x": x})
    largest = int(np.max(np.abs(output.astype(np.int64) - expected)))
    assert largest <= (0 if op_type.endswith("Integer") else 1), "half a step is rounded by float64"
    # No CPU saturates products of uint8 and uint8.
    (model,) = ran
    (product,) = (node for node in model.graph.node if node.op_type == op_type)
    place = 1 if op_type.endswith("Integer") else 3
    (maker,) = (node for node in model.graph.node if product.input[place] in node.output)
    assert maker.op_type == "Cast"
    assert maker.attribute[0].i == TensorProto.UINT8


def test_weights_are_changed_where_that_is_asked_for(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)]
        for name, dims in (("x", [1, 3]), ("y", [1, 2]))
    ]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", *ends, [weights]
    )
    path = tmp_path / "plain.onnx"
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    inputs = {"x": np.ones((1, 3), np.float32)}
    config = NetworkConfig(name="plain")
    assert run_model(config, path, inputs)[0][0].tolist() == [[3, 3]]
    assert run_model(config, path, inputs, lambda array: 2 * array)[0][0].tolist() == [[6, 6]]
