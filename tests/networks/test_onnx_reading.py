"""ONNX files that ONNX Runtime runs though ONNX's checker refuses them, those without weights, and those of no size."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tencost.config import NetworkConfig
from tencost.errors import ConfigError
from tencost.networks.onnx_graph import MAX_NODES, read_model
from tencost.networks.source import network_to_onnx

node = helper.make_node
FLOAT, SHAPE = TensorProto.FLOAT, [2, 3]
Change = Callable[[Any], object]


def value(name: str, shape: Any = SHAPE) -> Any:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def make_model(nodes: list[Any], constants: dict[str, Any] | None = None, **settings: Any) -> Any:
    """Return a model from x to y, both of SHAPE unless `shapes` says otherwise."""
    shapes = settings.pop("shapes", (SHAPE, SHAPE))
    tensors = [
        numpy_helper.from_array(np.asarray(each), name) for name, each in (constants or {}).items()
    ]
    graph = helper.make_graph(
        nodes, "graph", [value("x", shapes[0])], [value("y", shapes[1])], tensors
    )
    opsets = settings.pop("opset_imports", [helper.make_opsetid("", 17)])
    return helper.make_model(graph, **{"opset_imports": opsets, "ir_version": 8, **settings})


def write(folder: Path, model: Any) -> Path:
    path = folder / "mine.onnx"
    path.write_bytes(model.SerializeToString())  # onnx.save would check nothing either
    return path


def branch(name: str, *nodes: Any) -> Any:
    return helper.make_graph(list(nodes), name, [], [value("o")])


def chosen(then: Any) -> list[Any]:
    otherwise = branch("otherwise", node("Identity", ["x"], ["o"]))
    return [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Cast", ["sum"], ["condition"], to=TensorProto.BOOL),
        node("If", ["condition"], ["y"], then_branch=then, else_branch=otherwise),
    ]


ONES = np.ones(SHAPE, np.float32)
UNUSUAL: dict[str, Any] = {
    "nodes before those that they read": make_model([node("Relu", ["a"], ["y"]), node("Abs", ["x"], ["a"])]),
    "a branch that reads a later node": make_model(
        [*chosen(branch("then", node("Relu", ["a"], ["o"]))), node("Abs", ["x"], ["a"])]
    ),
    "ONNX's domain by its name": make_model([node("Abs", ["x"], ["y"], domain="ai.onnx")]),
    "a domain that is not imported": make_model([node("Gelu", ["x"], ["y"], domain="com.microsoft")]),
    "initializers that are no inputs in an old file": make_model(
        [node("Add", ["x", "c"], ["y"])], {"c": ONES}, ir_version=3
    ),
}  # fmt: skip


def without_name(model: Any) -> None:
    model.graph.ClearField("name")


def twice(model: Any) -> None:
    model.graph.initializer.append(numpy_helper.from_array(2 * ONES, "c"))


def without_input_shape(model: Any) -> None:
    model.graph.input[0].type.tensor_type.ClearField("shape")


CHANGES: dict[str, Change] = {
    "a graph without a name": without_name,
    "an initializer twice": twice,
    "an input without a shape": without_input_shape,
}
for words, change in CHANGES.items():
    UNUSUAL[words] = make_model([node("Add", ["x", "c"], ["y"])], {"c": ONES})
    change(UNUSUAL[words])


@pytest.mark.parametrize("words", UNUSUAL)
def test_what_onnx_runtime_runs_is_read_as_it_means_it(words: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    path = write(tmp_path, UNUSUAL[words])
    x = np.arange(-3, 3, dtype=np.float32).reshape(SHAPE)

    def outputs(source: Any) -> Any:
        session = runtime.InferenceSession(source, providers=["CPUExecutionProvider"])
        return session.run(None, {"x": x})[0]

    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(str(path))
    model = read_model(path)
    assert np.array_equal(outputs(path), outputs(model.SerializeToString()))
    if words != "an input without a shape":
        onnx.checker.check_model(model)


def test_nodes_of_branches_are_sorted_too(tmp_path: Path) -> None:
    then = branch("then", node("Relu", ["q"], ["o"]), node("Abs", ["x"], ["q"]))
    model = read_model(write(tmp_path, make_model(chosen(then))))
    onnx.checker.check_model(model)


def test_nodes_in_a_cycle_are_refused(tmp_path: Path) -> None:
    nodes = [node("Add", ["x", "b"], ["a"]), node("Abs", ["a"], ["b"]), node("Relu", ["a"], ["y"])]
    with pytest.raises(ConfigError, match="topologically sorted"):
        read_model(write(tmp_path, make_model(nodes)))


@pytest.mark.tvm
@pytest.mark.parametrize("keeps_types", [True, False])
def test_float16_of_onnx_runtimes_converter(
    keeps_types: bool, tmp_path: Path, unoptimized: dict[str, Any]
) -> None:
    """It appends the casts of inputs behind the nodes that read them."""
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    from tencost.networks.network import load_network
    from tencost.tune.deploy import compare_outputs, compile_network
    from tencost.tune.hosts import Deployed

    rng = np.random.default_rng(0)
    weight = rng.standard_normal((3, 3)).astype(np.float32)
    nodes = [node("MatMul", ["x", "w"], ["wide"]), node("Relu", ["wide"], ["y"])]
    model = float16.convert_float_to_float16(
        make_model(nodes, {"w": weight}), keep_io_types=keeps_types
    )
    write(tmp_path, model)
    config = NetworkConfig(name="mine", source="onnx", path="mine.onnx")
    network = load_network(config, tmp_path)
    assert network.computed_by == "ONNX Runtime"
    found = Deployed(compile_network(network, unoptimized, None), network).outputs()
    assert not any(each.differs for each in compare_outputs(network, found).values())


def external(folder: Path, name: str = "mine.data") -> Path:
    """Write a model whose weight lies in a file of its own."""
    weight = np.ones((64, 32), np.float32)
    model = make_model(
        [node("MatMul", ["x", "w"], ["y"])], {"w": weight}, shapes=([2, 64], [2, 32])
    )
    path = folder / "mine.onnx"
    onnx.save(model, path, save_as_external_data=True, location=name, size_threshold=0)
    return path


def emptied(folder: Path) -> Path:
    path = external(folder)
    model = onnx.load(path)
    model.graph.initializer[0].ClearField("raw_data")
    return write(folder, model)


def beside_nothing(folder: Path) -> Path:
    path = external(folder)
    (folder / "mine.data").unlink()
    return path


@pytest.mark.parametrize("make", [emptied, beside_nothing])
def test_structure_needs_no_weights(make: Callable[[Path], Path], tmp_path: Path) -> None:
    from tencost.networks.graph.canonical import canonical_network
    from tencost.register.latency.api import graphs_of

    path = make(tmp_path)
    config = NetworkConfig(name="mine", source="onnx", path=str(path))
    with pytest.raises(ConfigError, match="expected a whole ONNX model in"):
        network_to_onnx(config)
    graph = canonical_network(network_to_onnx(config, weights=False), name="mine").graphs
    (tmp_path / "whole").mkdir()
    whole = network_to_onnx(
        NetworkConfig(name="mine", source="onnx", path=str(external(tmp_path / "whole")))
    )
    expected = canonical_network(whole, name="mine").graphs
    assert np.array_equal(graph.operator, expected.operator)
    assert np.array_equal(graph.columns, expected.columns)
    assert np.array_equal(graphs_of(path).operator, expected.operator)


def test_weights_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    path = external(tmp_path / "inner")
    (tmp_path / "inner" / "mine.data").rename(tmp_path / "mine.data")
    model = onnx.load(path, load_external_data=False)
    for item in model.graph.initializer[0].external_data:
        if item.key == "location":
            item.value = "../mine.data"
    write(tmp_path / "inner", model)
    with pytest.raises(ConfigError, match="points outside the directory"):
        read_model(path)


BIG = 10**10
SUM = [node("ReduceSum", ["h"], ["s"], keepdims=0), node("Add", ["x", "s"], ["y"])]
TOO_LARGE: dict[str, tuple[Any, dict[str, Any]]] = {
    "OneHot": (
        node("OneHot", ["i", "d", "v"], ["h"]),
        {"i": [1], "d": BIG, "v": np.array([0, 1], np.float32)},
    ),
    "ConstantOfShape": (node("ConstantOfShape", ["d"], ["h"]), {"d": [BIG]}),
    "Expand": (node("Expand", ["c", "d"], ["h"]), {"c": np.ones(1, np.float32), "d": [BIG]}),
    "Expand of the input": (node("Expand", ["x", "d"], ["h"]), {"d": [BIG, 2, 3]}),
    "Tile": (node("Tile", ["c", "d"], ["h"]), {"c": np.ones(1, np.float32), "d": [BIG]}),
    "Range": (
        node("Range", ["a", "b", "c"], ["h"]),
        {"a": np.float32(0), "b": np.float32(BIG), "c": np.float32(1)},
    ),
    "Pad": (node("Pad", ["c", "d"], ["h"]), {"c": np.ones(1, np.float32), "d": [0, BIG]}),
    "HannWindow": (node("HannWindow", ["d"], ["h"]), {"d": BIG}),
    "MatMul": (
        node("MatMul", ["c", "d"], ["h"]),
        {"c": np.ones((10**5, 1), np.float32), "d": np.ones((1, 10**5), np.float32)},
    ),
}
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from pathlib import Path
from tencost.config import NetworkConfig
from tencost.errors import ConfigError
from tencost.networks.graph.canonical import canonical_network
from tencost.networks.source import network_to_onnx, read_network
for path in sys.argv[1:]:
    config = NetworkConfig(name="mine", source="onnx", path=path)
    for read in (read_network, lambda each: canonical_network(network_to_onnx(each), name="mine")):
        try:
            read(config)
        except ConfigError as error:
            print(Path(path).stem, error)
"""


@pytest.mark.tvm
@pytest.mark.slow
def test_tensors_beyond_all_bounds_are_refused_before_they_are_computed(tmp_path: Path) -> None:
    """In a process that may not have their memory."""
    for number, (name, (first, constants)) in enumerate(TOO_LARGE.items()):
        constants = {key: np.asarray(each) for key, each in constants.items()}
        model = make_model([first, *SUM], constants)
        (tmp_path / f"{number}.onnx").write_bytes(model.SerializeToString())
        # The size follows from what is computed of constants.
        if name in ("OneHot", "ConstantOfShape"):
            constants["d"], constants["k"] = np.asarray(constants["d"]) // 10**5, np.array(10**5)
            computed = node("Mul", ["d", "k"], ["product"])
            again = node(
                first.op_type, [{"d": "product"}.get(each, each) for each in first.input], ["h"]
            )
            model = make_model([computed, again, *SUM], constants)
            (tmp_path / f"{number}b.onnx").write_bytes(model.SerializeToString())
    large = make_model([node("ReduceSum", ["x"], ["y"], keepdims=0)], shapes=([BIG], []))
    (tmp_path / "input.onnx").write_bytes(large.SerializeToString())
    paths = sorted(map(str, tmp_path.glob("*.onnx")))
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * len(paths)
    assert all("expected tensors of at most 8.6 GB, found" in line for line in lines)
    assert resource.getrlimit(resource.RLIMIT_AS)[0] in (-1, resource.RLIM_INFINITY)


def test_functions_that_call_each_other_twice_are_counted_not_written_out(tmp_path: Path) -> None:
    def function(number: int) -> Any:
        callee = f"f{number + 1}"
        body = [node(callee, ["a"], ["b"], domain="f"), node(callee, ["b"], ["c"], domain="f")]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
        last = [node("Neg", ["a"], ["c"])]
        return helper.make_function(
            "f", f"f{number}", ["a"], ["c"], body if number < 30 else last, opsets
        )

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = [function(number) for number in range(31)]
    laughs = make_model(
        [node("f0", ["x"], ["y"], domain="f")], opset_imports=opsets, functions=functions
    )
    with pytest.raises(ConfigError, match=rf"at most {MAX_NODES} nodes, found 1.07e\+09 once"):
        read_model(write(tmp_path, laughs))
    few = make_model(
        [node("f25", ["x"], ["y"], domain="f")], opset_imports=opsets, functions=functions
    )
    assert len(read_model(write(tmp_path, few)).functions) == 31


def test_a_loop_of_constants_is_not_run_where_only_the_structure_is_read(tmp_path: Path) -> None:
    from tencost.networks.graph.canonical import canonical_network

    ends = [
        helper.make_tensor_value_info(*each, [])
        for each in (("i", TensorProto.INT64), ("c", TensorProto.BOOL))
    ]
    body = helper.make_graph(
        [node("Add", ["sum", "sum"], ["more"]), node("Identity", ["c"], ["goes_on"])], "body",
        [*ends, value("sum")], [helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []), value("more")],
    )  # fmt: skip
    constants = {"m": np.array(BIG), "t": np.array(True), "c0": ONES}
    nodes = [node("Loop", ["m", "t", "c0"], ["l"], body=body), node("Add", ["x", "l"], ["y"])]
    path = write(tmp_path, make_model(nodes, constants))
    config = NetworkConfig(name="mine", source="onnx", path=str(path))
    network = canonical_network(network_to_onnx(config), name="mine")
    assert len(network.graphs.operator) > 1
