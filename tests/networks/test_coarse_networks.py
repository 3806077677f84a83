"""Whole networks of less than 32 bits: quantized by onnxruntime.quantization, of float16, of bfloat16."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from sample_networks import block, conv_net, save_onnx

from tencost.config import NetworkConfig, NetworkInput
from tencost.errors import TuneError
from tencost.networks.network import Network, load_network
from tencost.tune.deploy import compare_outputs, compile_network
from tencost.tune.hosts import Deployed
from tencost.tune.library_export import cpp_runner

pytestmark = pytest.mark.tvm
quantization = pytest.importorskip("onnxruntime.quantization")
INPUTS = {
    "conv": {"x": NetworkInput(shape=[2, 3, 12, 16])},
    "block": {"ids": NetworkInput(shape=[3, 6], dtype="int64", high=50)},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("floats")
    save_onnx(folder / "conv.onnx", *conv_net(), optimize=False)
    save_onnx(folder / "block.onnx", *block())
    for path in folder.glob("*.onnx"):
        model = onnx.load(path)
        del model.graph.value_info[:]  # quantize_dynamic turns weights and keeps their shapes
        onnx.save(model, path)
    return folder


class Samples(quantization.CalibrationDataReader):  # type: ignore[name-defined]
    """Four batches of inputs, by which the scales are chosen."""

    def __init__(self, name: str) -> None:
        rng = np.random.default_rng(1)
        batches: list[dict[str, Any]] = []
        for _ in range(4):
            if name == "conv":
                batches.append({"x": rng.standard_normal((1, 3, 12, 16), np.float32)})
            else:
                ids = rng.integers(0, 50, (3, 6))
                batches.append({"ids": ids, "mask": np.ones((3, 6), np.int64)})
        self._batches: Iterator[dict[str, Any]] = iter(batches)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._batches, None)


def outputs_of(network: Network, target: dict[str, Any]) -> list[Any]:
    return Deployed(compile_network(network, target, None), network).outputs()


@pytest.mark.parametrize(
    ("name", "form", "per_channel"),
    [
        ("conv", "QDQ", False), ("conv", "QOperator", True), ("conv", "dynamic", False),
        ("block", "QDQ", True), ("block", "QOperator", False), ("block", "dynamic", True),
    ],
)  # fmt: skip
def test_a_quantized_network(
    name: str, form: str, per_channel: bool, files: Path, tmp_path: Path, unoptimized: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It is what ONNX Runtime computes; only with all of its optimizations that is off by two quanta."""
    monkeypatch.setattr(logging.getLogger(), "level", logging.ERROR)  # advice to quantize otherwise
    source, path = files / f"{name}.onnx", tmp_path / f"{name}.onnx"
    if form == "dynamic":
        kinds = [*quantization.registry.IntegerOpsRegistry]
        if name == "conv":
            kinds = ["MatMul", "Conv"]
        quantization.quantize_dynamic(
            source, path, op_types_to_quantize=kinds, per_channel=per_channel
        )
    else:
        layout = getattr(quantization.QuantFormat, form)
        signed = quantization.QuantType.QInt8 if per_channel and form == "QDQ" else None
        kind = {"activation_type": signed} if signed else {}
        quantization.quantize_static(
            source, path, Samples(name), quant_format=layout, per_channel=per_channel, **kind
        )
    operators = {node.op_type for node in onnx.load(path).graph.node}
    first = {"QDQ": "DequantizeLinear", "dynamic": "DynamicQuantizeLinear"}.get(form, "QLinear")
    assert any(operator.startswith(first) for operator in operators)
    config = NetworkConfig(name=name, source="onnx", path=path.name, inputs=INPUTS[name])
    network = load_network(config, tmp_path)
    assert {each.tolerance for each in network.precisions} == {2**-5}
    outputs = outputs_of(network, unoptimized)
    for output, agreement in compare_outputs(network, outputs).items():
        assert agreement.accepted, output
        assert agreement.max_rel < 1e-4, "a quantum would be 100 times as much"


HALVES = {"float16": (np.float16, 2**-7), "bfloat16": (ml_dtypes.bfloat16, 2**-4)}


def small_cnn(dtype: Any) -> tuple[list[Any], dict[str, Any], list[int]]:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c0", "scale", "b0", "b0", "ones"], ["n0"]),
        node("Relu", ["n0"], ["r0"]),
        node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p0", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["c1"], ["s1"]),
        node("Mul", ["c1", "s1"], ["m1"]),
        node("GlobalAveragePool", ["m1"], ["a1"]),
        node("Flatten", ["a1"], ["f1"]),
        node("Gemm", ["f1", "w2"], ["y"]),
    ]
    sizes = {"w0": (8, 3, 3, 3), "b0": (8,), "scale": (8,), "w1": (16, 8, 3, 3), "w2": (16, 10)}
    return nodes, drawn(sizes, dtype) | {"ones": np.ones(8, dtype)}, [1, 3, 16, 16]


def attention(dtype: Any) -> tuple[list[Any], dict[str, Any], list[int]]:
    node = helper.make_node
    nodes = [node("LayerNormalization", ["x", "scale", "shift"], ["norm"])]
    for name in "qkv":
        nodes += [
            node("MatMul", ["norm", f"w{name}"], [f"{name}0"]),
            node("Reshape", [f"{name}0", "heads"], [f"{name}1"]),
            node(
                "Transpose",
                [f"{name}1"],
                [name],
                perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3],
            ),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["products"]),
        node("Mul", ["products", "factor"], ["scores"]),
        node("Softmax", ["scores"], ["weights"]),
        node("MatMul", ["weights", "v"], ["mixed"]),
        node("Transpose", ["mixed"], ["rows"], perm=[0, 2, 1, 3]),
        node("Reshape", ["rows", "whole"], ["joined"]),
        node("MatMul", ["joined", "wo"], ["out"]),
        node("Add", ["out", "x"], ["sum"]),
        node("Gelu", ["sum"], ["y"]),
    ]
    sizes: dict[str, tuple[int, ...]] = {f"w{name}": (32, 32) for name in "qkvo"}
    sizes |= {"scale": (32,), "shift": (32,)}
    constants = {"heads": np.array([1, 10, 4, 8]), "whole": np.array([1, 10, 32])}
    constants["factor"] = np.asarray(8**-0.5, dtype)
    return nodes, drawn(sizes, dtype) | constants, [1, 10, 32]


def drawn(sizes: dict[str, tuple[int, ...]], dtype: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        name: (rng.standard_normal(size) / np.sqrt(np.prod(size[1:]) * 2)).astype(dtype)
        for name, size in sizes.items()
    }


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("build", [small_cnn, attention])
def test_a_network_of_half_precision(
    build: Any, kind: str, tmp_path: Path, target: dict[str, Any]
) -> None:
    """It agrees within eight units in the last place of its type, relative to the largest value."""
    networks = []
    for dtype in (np.float32, HALVES[kind][0]):
        nodes, constants, shape = build(dtype)
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        ends = [
            helper.make_tensor_value_info(name, element, sizes)
            for name, sizes in (("x", shape), ("y", [1, 10] if build is small_cnn else shape))
        ]
        graph = helper.make_graph(nodes, "half", ends[:1], ends[1:], tensors)
        opsets = [helper.make_opsetid("", 22)]
        path = tmp_path / f"{np.dtype(dtype).name}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
        config = NetworkConfig(name="half", source="onnx", path=path.name)
        networks.append(load_network(config, tmp_path))
    single, half = networks
    if kind == "bfloat16":  # which NumPy and C++ lack
        with pytest.raises(TuneError, match="Export the network with a Cast from and to float32"):
            cpp_runner("half", [*half.inputs.values()])
    tolerances = [network.precisions[0].tolerance for network in networks]
    assert tolerances == [1e-4, HALVES[kind][1]]
    assert half.expected[0].dtype == half.inputs["x"].dtype == HALVES[kind][0]
    outputs = outputs_of(half, target)
    assert compare_outputs(half, outputs)["y"].accepted
    # The same network in float32 says that both are right, not only equal.
    exact = single.expected[0]
    assert (
        np.abs(outputs[0].astype(np.float64) - exact).max() < HALVES[kind][1] * np.abs(exact).max()
    )
