from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper
from sample_networks import block, conv_net, save_onnx, save_pt2

from tencost.config import NetworkConfig, NetworkInput
from tencost.errors import ConfigError, MeasureError
from tencost.networks.network import Network, load_network
from tencost.tune.deploy import compile_network, output_agreement
from tencost.tune.hosts import Deployed

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """conv.onnx (folded by the exporter), conv_plain.onnx (as written), block.onnx; all with dynamic shapes."""
    folder = tmp_path_factory.mktemp("onnx")
    save_onnx(folder / "conv.onnx", *conv_net())
    save_onnx(folder / "conv_plain.onnx", *conv_net(), optimize=False)
    save_onnx(folder / "block.onnx", *block())
    save_pt2(folder / "conv.pt2", *conv_net())
    return folder


def config(path: str, **values: Any) -> NetworkConfig:
    return NetworkConfig(**{"name": "mine", "source": "onnx", "path": path, **values})


def check_outputs(network: Network, target: dict[str, Any]) -> None:
    deployed = Deployed(compile_network(network, target, None), network)
    for found, expected in zip(deployed.outputs(), network.expected, strict=True):
        assert output_agreement(found, expected).accepted
    assert deployed.seconds() > 0


@pytest.mark.parametrize("file", ["conv.onnx", "conv_plain.onnx"])
def test_a_convolutional_network(file: str, files: Path, target: dict[str, Any]) -> None:
    network = load_network(config(file, batch=2, inputs={"x": shape(2, 3, 12, 16)}), files)
    assert network.name == "mine-b2"
    assert network.expected[0].shape == (2, 10)
    names = [task.name for task in network.tasks(target)]
    convolutions = [name for name in names if "conv2d" in name]
    assert len(convolutions) == 2
    assert all(name.startswith("fused_conv2d") for name in convolutions), "bias and norm ride along"
    assert not [name for name in names if "norm" in name or "sqrt" in name or "divide" in name[:12]]
    assert sum("matmul" in name for name in names) == 1
    check_outputs(network, target)


def test_a_transformer_layer(files: Path, target: dict[str, Any]) -> None:
    ids = NetworkInput(shape=[3, 6], dtype="int64", high=50)
    network = load_network(config("block.onnx", inputs={"ids": ids}), files)
    assert {name: array.shape for name, array in network.inputs.items()} == {
        "ids": (3, 6),
        "mask": (3, 6),
    }
    assert network.inputs["ids"].max() > 2
    assert network.inputs["mask"].tolist() == [[1, 1, 1, 1, 1, 0]] * 3
    assert [array.shape for array in network.expected] == [(3, 6, 16), (3, 16)]
    names = [task.name for task in network.tasks(target)]
    assert sum("matmul" in name for name in names) >= 5
    assert not [name for name in names if "shape_of" in name], "shapes are folded"
    check_outputs(network, target)


def test_another_batch_and_size_are_other_variants(files: Path) -> None:
    network = load_network(config("block.onnx", batch=2, size=5, name=""), files)
    assert network.name == "block-b2-s5"
    assert network.expected[0].shape == (2, 5, 16)


def test_outputs_are_chosen_by_name(files: Path) -> None:
    names = [item.name for item in onnx.load(files / "block.onnx").graph.output]
    values = {"size": 4}
    assert load_network(config("block.onnx", **values), files).output == 0
    assert load_network(config("block.onnx", output=names[1], **values), files).output == 1
    with pytest.raises(ConfigError, match=f"one of {names[0]}, {names[1]}; found 'logits'"):
        load_network(config("block.onnx", output="logits", **values), files)


def test_a_layer_is_the_same_workload_as_from_pytorch(files: Path, target: dict[str, Any]) -> None:
    inputs = {"x": shape(1, 3, 16, 16)}
    found = load_network(config("conv_plain.onnx", inputs=inputs), files)
    exported = NetworkConfig(
        name="mine", source="torch_export", path="conv.pt2", inputs=inputs, trusted=True
    )
    expected = load_network(exported, files)
    assert convolutions(found, target) == convolutions(expected, target)


def convolutions(network: Network, target: dict[str, Any]) -> set[int]:
    tasks = [task for task in network.tasks(target) if "conv2d" in task.name]
    assert len(tasks) == 2
    return {tvm_ffi.structural_hash(task.mod) for task in tasks}


def test_without_onnxruntime_the_reference_computes_the_outputs(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"inputs": {"x": shape(1, 3, 8, 16)}}
    fast = load_network(config("conv.onnx", **values), files)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    slow = load_network(config("conv.onnx", **values), files)
    assert output_agreement(slow.expected[0], fast.expected[0]).accepted


def test_weights_in_a_file_beside_it(files: Path, tmp_path: Path, target: dict[str, Any]) -> None:
    model = onnx.load(files / "conv.onnx")
    onnx.save_model(
        model,
        tmp_path / "conv.onnx",
        save_as_external_data=True,
        location="conv.weights",
        size_threshold=100,
    )
    settings = config("conv.onnx", size=16)
    settings.inputs["x"] = shape(1, 3, 16, 16)
    check_outputs(load_network(settings, tmp_path), target)
    (tmp_path / "conv.weights").unlink()
    with pytest.raises(ConfigError, match=r"whole ONNX model .* copy it with all its files"):
        load_network(settings, tmp_path)


def test_an_output_without_a_shape(files: Path, tmp_path: Path, target: dict[str, Any]) -> None:
    model = onnx.load(files / "conv.onnx")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "plain.onnx")
    model.graph.output[0].ClearField("type")
    onnx.save(model, tmp_path / "bare.onnx")
    for file in ("plain.onnx", "bare.onnx"):
        values = {"batch": 2, "inputs": {"x": shape(2, 3, 12, 16)}}
        check_outputs(load_network(config(file, **values), tmp_path), target)
    reshape = helper.make_node("Reshape", ["x", "sizes"], ["y"])
    ends = (
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4]),
            helper.make_tensor_value_info("sizes", TensorProto.INT64, ["rank"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    graph = helper.make_graph([reshape], "reshaped", *ends)
    onnx.save(helper.make_model(graph), tmp_path / "rank.onnx")
    with pytest.raises(
        ConfigError, match=r"expected outputs that have a shape, .* found none of y"
    ):
        load_network(config("rank.onnx"), tmp_path)


def test_constants_branches_and_old_files(tmp_path: Path, target: dict[str, Any]) -> None:
    """Weights among the inputs (as IR 3 wants it), Constant nodes of every kind, an If, a weight nobody uses."""
    one, two = (tensor(f"w{index}", (4, 4), index) for index in range(2))
    graphs = [
        helper.make_graph(
            [helper.make_node("Mul", ["y", f"k{index}"], [f"z{index}"])],
            f"branch{index}",
            [],
            [value(f"z{index}", (2, 4))],
            [numpy_helper.from_array(np.array([1.0, 2, 3, index], np.float32), f"k{index}")],
        )
        for index in range(2)
    ]
    nodes = [
        helper.make_node("Constant", [], ["scale"], value_float=0.5),
        helper.make_node("Constant", [], ["rows"], value_floats=[1.0, 2.0, 3.0, 4.0]),
        helper.make_node("Constant", [], ["axes"], value_ints=[0]),
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("MatMul", ["in.put", "w0"], ["a"]),
        helper.make_node("Mul", ["a", "scale"], ["b"]),
        helper.make_node("Add", ["b", "rows"], ["y"]),
        helper.make_node("ReduceSum", ["y", "axes"], ["s"], keepdims=0),
        helper.make_node("Gather", ["s", "zero"], ["first"], axis=0),
        helper.make_node("Greater", ["first", "scale"], ["large"]),
        helper.make_node("If", ["large"], ["out"], then_branch=graphs[0], else_branch=graphs[1]),
    ]
    inputs = [value("in.put", ("n", 4)), value("w0", (4, 4)), value("w1", (4, 4))]
    path = write(tmp_path, nodes, inputs, [value("out", (2, 4))], [one, two], ir_version=4)
    network = load_network(config(path.name, batch=2), tmp_path)
    assert list(network.inputs) == ["in.put"]
    assert [tuple(weight.shape) for weight in network.params] == [(4, 4), (4,)]
    check_outputs(network, target)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ir_version"),
        (b"not a network at all", "expected a whole ONNX model in .*mine.onnx"),
        (None, "expected a whole ONNX model in .*mine.onnx, found something else: Error parsing"),
    ],
)
def test_a_damaged_file_is_named(
    content: bytes | None, message: str, files: Path, tmp_path: Path
) -> None:
    whole = (files / "conv.onnx").read_bytes()
    (tmp_path / "mine.onnx").write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(ConfigError, match=message):
        load_network(config("mine.onnx"), tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", r"expected a .onnx file, found none. Give one: network=onnx network.path=<file>.onnx"),
        ("none.onnx", r"expected a .onnx file at .*none.onnx, found nothing"),
        ("folder.onnx", "found a folder"),
        ("conv.pt2", "expected a .onnx file, found .*conv.pt2. Read it with network=torch_export"),
        ("conv.h5", r"found .*conv.h5. Save the network with torch.onnx.export"),
    ],
)
def test_a_wrong_path_is_named(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ConfigError, match=message):
        load_network(config(path), tmp_path)


def test_an_unsettled_dimension_names_the_option(files: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"dimension 2 \(.*\) of input x is dynamic.*network.inputs.x.shape=\[1,3,",
    ):
        load_network(config("conv.onnx"), files)


Build = Callable[[Path], Path]


def unknown_operator(folder: Path) -> Path:
    nodes = [helper.make_node("Det", ["x"], ["y"])]
    nodes.append(helper.make_node("StringNormalizer", ["y"], ["z"]))
    return write(folder, nodes, [value("x", (3, 3))], [value("z", ())], [], check=False)


def foreign_operator(folder: Path) -> Path:
    node = helper.make_node("Relu", ["x"], ["y"], domain="my.company")
    return write(folder, [node], [value("x", (2, 3))], [value("y", (2, 3))], [])


def refused_operator(folder: Path) -> Path:
    node = helper.make_node("BitShift", ["x", "x"], ["y"], direction="LEFT")
    kind = TensorProto.UINT8
    inputs = [helper.make_tensor_value_info("x", kind, (2, 3))]
    bad = helper.make_node("Reshape", ["y", "x"], ["z"])
    outputs = [helper.make_tensor_value_info("z", kind, (2, 3))]
    return write(folder, [node, bad], inputs, outputs, [], check=False)


def data_dependent(folder: Path) -> Path:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    output = helper.make_tensor_value_info("y", TensorProto.INT64, (2, None))
    return write(folder, nodes, [value("x", (2, 3))], [output], [])


def sequence_output(folder: Path) -> Path:
    nodes = [helper.make_node("SequenceConstruct", ["x"], ["y"])]
    output = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, (2, 3))
    return write(folder, nodes, [value("x", (2, 3))], [output], [])


def sequence_input(folder: Path) -> Path:
    nodes = [helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)]
    item = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, (2, 3))
    return write(folder, nodes, [item], [value("y", (2, 3))], [], check=False)


def no_input(folder: Path) -> Path:
    nodes = [helper.make_node("Relu", ["w"], ["y"])]
    return write(folder, nodes, [], [value("y", (2, 3))], [tensor("w", (2, 3), 0)])


def no_output(folder: Path) -> Path:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    return write(folder, nodes, [value("x", (2, 3))], [], [], check=False)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (unknown_operator, "no operator StringNormalizer (mine.onnx). Export"),
        (foreign_operator, "no operator my.company.Relu (mine.onnx)"),
        (refused_operator, "cannot import operator Reshape of mine.onnx: "),
        (data_dependent, "expected outputs of fixed shape, found "),
        (sequence_output, "expected tensors as outputs, found y of sequence_type"),
        (sequence_input, "expected tensors as inputs, found x of sequence_type"),
        (no_input, "expected a graph with inputs, found none"),
        (no_output, "expected a graph with outputs, found none"),
    ],
)
def test_a_network_that_cannot_be_imported_says_why(
    build: Build, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = build(tmp_path)
    with pytest.raises(MeasureError, match=re.escape(message)):
        load_network(config(path.name), tmp_path)
    assert not capsys.readouterr().out, "TVM's frontend prints; a command's output is its own"


def test_the_next_import_after_a_failed_one_works(
    files: Path, tmp_path: Path, target: dict[str, Any]
) -> None:
    with pytest.raises(MeasureError):
        load_network(config(refused_operator(tmp_path).name), tmp_path)
    check_outputs(load_network(config("block.onnx", size=4), files), target)


def shape(*sizes: int) -> NetworkInput:
    return NetworkInput(shape=list(sizes))


def value(name: str, sizes: Any) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)


def tensor(name: str, sizes: tuple[int, ...], seed: int) -> Any:
    array = np.random.default_rng(seed).standard_normal(sizes, dtype=np.float32)
    return numpy_helper.from_array(array, name)


def write(
    folder: Path,
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    weights: list[Any],
    *,
    ir_version: int = 10,
    check: bool = True,
) -> Path:
    graph = helper.make_graph(nodes, "mine", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my.company", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    if check:
        onnx.checker.check_model(model)
    onnx.save(model, folder / "mine.onnx")
    return folder / "mine.onnx"
