"""Loops of ONNX graphs are written out and compute what ONNX Runtime computes, or are refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tencost.config import NetworkConfig
from tencost.errors import MeasureError
from tencost.networks.network import load_network
from tencost.tune.deploy import compile_network, output_agreement
from tencost.tune.hosts import Deployed

pytestmark = pytest.mark.tvm
RNG = np.random.default_rng(0)
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, shape: tuple[int | str, ...], kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def ranked(name: str, rank: int) -> Any:
    return value(name, tuple(f"{name}_{axis}" for axis in range(rank)))


def tensor(name: str, array: Any) -> Any:
    return numpy_helper.from_array(np.asarray(array), name)


def loop_body(condition: str = "still") -> Any:
    """Return a body: state = tanh(state @ w) + outer * iteration, which is collected."""
    nodes = [
        helper.make_node("Identity", ["again"], ["still"]),
        helper.make_node("Less", ["iteration", "three"], ["early"]),
        helper.make_node("MatMul", ["state", "w"], ["product"]),
        helper.make_node("Tanh", ["product"], ["tanh"]),
        helper.make_node("Cast", ["iteration"], ["number"], to=FLOAT),
        helper.make_node("Mul", ["outer", "number"], ["scaled"]),
        helper.make_node("Add", ["tanh", "scaled"], ["next"]),
    ]
    return helper.make_graph(
        nodes, "body",
        [value("iteration", (), INT64), value("again", (), BOOL), value("state", (2, 4))],
        [value(condition, (), BOOL), value("next", (2, 4)), value("next", (2, 4))],
        [tensor("w", RNG.standard_normal((4, 4)).astype(np.float32)), tensor("three", np.array(3))],
    )  # fmt: skip


def save(
    path: Path, nodes: list[Any], outputs: list[Any], tensors: list[Any], *inputs: Any
) -> None:
    graph = helper.make_graph(nodes, "loops", [value("x", (2, 4)), *inputs], outputs, tensors)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def check(path: Path, target: dict[str, Any]) -> list[str]:
    """Compile a file, compare all outputs and return the operators that it was imported as."""
    config = NetworkConfig(name="mine", source="onnx", path=path.name)
    network = load_network(config, path.parent)
    assert network.computed_by == "ONNX Runtime"
    outputs = Deployed(compile_network(network, target, None, by_rule=True), network).outputs()
    for output, expected in zip(outputs, network.expected, strict=True):
        assert output_agreement(output, expected).max_rel < 1e-5
    return [task.name for task in network.tasks(target)]


@pytest.mark.parametrize(("starts", "count"), [(True, 4), (None, 1)])
def test_a_loop(starts: bool | None, count: int, tmp_path: Path, target: dict[str, Any]) -> None:
    """Its body reads a tensor from outside, and both its state and what it collects are outputs."""
    nodes = [
        helper.make_node("Abs", ["x"], ["outer"]),
        helper.make_node(
            "Loop",
            ["count", "" if starts is None else "starts", "x"],
            ["last", "all"],
            body=loop_body(),
        ),
        helper.make_node("Neg", ["last"], ["y"]),
    ]
    tensors = [tensor("count", np.array(count))]
    tensors += [] if starts is None else [tensor("starts", np.array(starts))]
    save(tmp_path / "loop.onnx", nodes, [ranked("y", 2), ranked("all", 3)], tensors)
    check(tmp_path / "loop.onnx", target)


def test_a_loop_in_a_loop(tmp_path: Path, target: dict[str, Any]) -> None:
    """The inner one runs as often as the outer one's iteration says."""
    outer = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["going"]),
            helper.make_node("Add", ["turn", "one"], ["times"]),
            helper.make_node("Loop", ["times", "", "sum"], ["last", "every"], body=loop_body()),
            helper.make_node("ReduceSum", ["every"], ["total"], keepdims=0),
        ],
        "outer",
        [value("turn", (), INT64), value("go", (), BOOL), value("sum", (2, 4))],
        [value("going", (), BOOL), value("last", (2, 4)), value("total", ())],
        [tensor("one", np.array(1))],
    )
    nodes = [
        helper.make_node("Abs", ["x"], ["outer"]),
        helper.make_node("Loop", ["count", "", "x"], ["y", "totals"], body=outer),
    ]
    save(
        tmp_path / "loops.onnx", nodes, [ranked("y", 2), ranked("totals", 1)],
        [tensor("count", np.array(3))],
    )  # fmt: skip
    check(tmp_path / "loops.onnx", target)


def test_a_scan_along_other_axes_and_backwards(tmp_path: Path, target: dict[str, Any]) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "left"], ["sum"]),
            helper.make_node("Identity", ["sum"], ["copy"]),  # else ONNX Runtime loses the state
            helper.make_node("Mul", ["sum", "right"], ["product"]),
        ],
        "body",
        [value("state", (2,)), value("left", (2,)), value("right", (2,))],
        [value("sum", (2,)), value("copy", (2,)), value("product", (2,))],
    )
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        helper.make_node("ReduceMax", ["x"], ["first"], axes=[1], keepdims=0),
        helper.make_node(
            "Scan", ["first", "x", "turned"], ["last", "sums", "products"], body=body,
            num_scan_inputs=2, scan_input_axes=[1, 0], scan_input_directions=[0, 1],
            scan_output_axes=[-1, 0], scan_output_directions=[0, 1],
        ),
    ]  # fmt: skip
    outputs = [ranked("last", 1), ranked("sums", 2), ranked("products", 2)]
    save(tmp_path / "scan.onnx", nodes, outputs, [])
    check(tmp_path / "scan.onnx", target)


def test_a_recurrent_layer_in_a_loop(tmp_path: Path, target: dict[str, Any]) -> None:
    weights = [
        tensor(name, RNG.uniform(-1, 1, (1, 12, 4)).astype(np.float32)) for name in ("W", "R")
    ]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["going"]),
            helper.make_node("Unsqueeze", ["state", "axis"], ["steps"]),
            helper.make_node("GRU", ["steps", "W", "R"], ["", "hidden"], hidden_size=4),
            helper.make_node("Squeeze", ["hidden", "axis"], ["next"]),
        ],
        "body",
        [value("turn", (), INT64), value("go", (), BOOL), value("state", (2, 4))],
        [value("going", (), BOOL), value("next", (2, 4))],
        [tensor("axis", np.array([0]))],
    )
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)]
    save(tmp_path / "gru.onnx", nodes, [ranked("y", 2)], [tensor("count", np.array(3)), *weights])
    check(tmp_path / "gru.onnx", target)


@pytest.mark.parametrize(
    ("count", "condition", "message"),
    [
        (None, "still", "Loop whose number of iterations is no constant"),
        (4, "early", "Loop that ends where a condition says so, which is no constant"),
        (
            5000,
            "still",
            "Loop of 5000 iterations of 6 nodes, where loops are written out as at most",
        ),
        (0, "still", "Loop without iterations, whose output all is empty"),
    ],
)
def test_other_loops_are_refused(
    count: int | None, condition: str, message: str, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["outer"]),
        helper.make_node("Loop", ["count", "", "x"], ["y", "all"], body=loop_body(condition)),
    ]
    tensors = [] if count is None else [tensor("count", np.array(count))]
    inputs = [value("count", (), INT64)] if count is None else []
    save(tmp_path / "loop.onnx", nodes, [ranked("y", 2), ranked("all", 3)], tensors, *inputs)
    with pytest.raises(MeasureError, match=message):
        load_network(NetworkConfig(name="mine", source="onnx", path="loop.onnx"), tmp_path)
