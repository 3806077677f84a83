"""Ids outside a table end the call with an error, as in ONNX Runtime and PyTorch; nothing beyond a table is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tencost.config import NetworkConfig, NetworkInput
from tencost.errors import MeasureError
from tencost.networks.checked_ids import with_checked_ids
from tencost.networks.lowering import compilable, fuse
from tencost.networks.network import load_network
from tencost.networks.torch_modules import module_to_relax
from tencost.tune.deploy import compile_network

pytestmark = pytest.mark.tvm
TABLE = np.arange(24, dtype=np.float32).reshape(6, 4)
OUTSIDE = [6, -7, 2**40, -(2**63), 2**63 - 1]


def machine(executable: Any) -> Any:
    return relax.VirtualMachine(executable, tvm.cpu())["main"]


def called(function: Any, *arrays: Any) -> Any:
    output = function(*map(tvm.runtime.tensor, arrays))
    return (output if isinstance(output, tvm.runtime.Tensor) else output[0]).numpy()


def network(folder: Path, operator: Any, *, rank: int, updates: bool, kind: int) -> Any:
    """Return what runs an operator on x, ids [5, 1] or [5, 4] and updates."""
    shape = {1: (5,), 2: (5, 4), 3: (5, 1)}[rank]
    tensor = helper.make_tensor_value_info
    inputs = [tensor("x", TensorProto.FLOAT, (6, 4)), tensor("ids", kind, shape)]
    inputs += [tensor("u", TensorProto.FLOAT, (5, 4))] * updates
    rows = 6 if updates else 5
    graph = helper.make_graph(
        [operator], "ids", inputs, [tensor("y", TensorProto.FLOAT, (rows, 4))]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "mine.onnx")
    config = NetworkConfig(name="mine", source="onnx", path="mine.onnx")
    return load_network(config, folder, is_deployed=True), shape, model


CASES = [
    ("Gather", 1, TensorProto.INT64), ("Gather", 1, TensorProto.INT32),
    ("GatherElements", 2, TensorProto.INT64), ("GatherElements", 2, TensorProto.INT32),
    ("GatherND", 3, TensorProto.INT64), ("ScatterND", 3, TensorProto.INT64),
    ("ScatterElements", 2, TensorProto.INT64), ("ScatterElements", 2, TensorProto.INT32),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "rank", "kind"), CASES)
def test_an_operator_refuses_ids_outside(
    operator: str, rank: int, kind: int, tmp_path: Path, target: dict[str, Any]
) -> None:
    updates = operator.startswith("Scatter")
    names = ["x", "ids", "u"][: 3 if updates else 2]
    node = helper.make_node(operator, names, ["y"])
    found, shape, model = network(tmp_path, node, rank=rank, updates=updates, kind=kind)
    run = machine(compile_network(found, target, None, by_rule=True))
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    others = [-np.ones((5, 4), np.float32)] if updates else []

    def ids(*values: int) -> Any:
        column = np.array(values, dtype).reshape(5, *[1] * (len(shape) - 1))
        return np.ascontiguousarray(np.broadcast_to(column, shape))

    reference = onnx.reference.ReferenceEvaluator(model)
    for valid in (ids(0, 1, 5, -1, 3), ids(-6, 2, -5, -4, 5)):
        if updates and np.unique(valid % 6).size < 5:
            continue
        feeds = dict(zip(names, [TABLE, valid % 6, *others], strict=True))
        expected = reference.run(None, feeds)[0]
        np.testing.assert_array_equal(called(run, TABLE, valid, *others), expected)
        for outside in OUTSIDE:
            if np.iinfo(dtype).min <= outside <= np.iinfo(dtype).max:
                with pytest.raises(
                    IndexError, match=r"^input ids of .*: expected ids from -6 to 5"
                ):
                    called(run, TABLE, ids(0, 1, 2, 3, outside), *others)
        np.testing.assert_array_equal(called(run, TABLE, valid, *others), expected)


def test_drawn_ids_outside_a_table_name_their_range(tmp_path: Path) -> None:
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "row.ids"], ["y"])],
        "one_row",
        [tensor("row.ids", TensorProto.INT64, (3,))],
        [tensor("y", TensorProto.FLOAT, (3, 4))],
        [numpy_helper.from_array(TABLE[:1], "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "mine.onnx")
    config = NetworkConfig(name="mine", source="onnx", path="mine.onnx")
    with pytest.raises(MeasureError, match=r"row.ids from 0 to 1; .*inputs.row_ids.high=<number>"):
        load_network(config, tmp_path)
    config = replace(config, inputs={"row_ids": NetworkInput(shape=[3], high=1)})
    assert load_network(config, tmp_path).inputs["row.ids"].max() == 0


def test_each_coordinate_has_its_own_size(tmp_path: Path, target: dict[str, Any]) -> None:
    tensor = helper.make_tensor_value_info
    table = numpy_helper.from_array(TABLE, "table")
    graph = helper.make_graph(
        [helper.make_node("GatherND", ["table", "ids"], ["y"])],
        "coordinates",
        [tensor("ids", TensorProto.INT64, (3, 2))],
        [tensor("y", TensorProto.FLOAT, (3,))],
        [table],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "mine.onnx")
    config = NetworkConfig(name="mine", source="onnx", path="mine.onnx")
    found = load_network(config, tmp_path, is_deployed=True)
    run = machine(compile_network(found, target, None, by_rule=True))
    ids = np.array([[5, 3], [-6, -4], [0, 0]])
    np.testing.assert_array_equal(called(run, ids), TABLE[ids[:, 0], ids[:, 1]])
    with pytest.raises(IndexError, match="expected ids from -6 to 5, -4 to 3, found"):
        called(run, np.array([[0, 0], [0, 4], [0, 0]]))


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_are_of_images_that_there_are(
    mode: str, tmp_path: Path, target: dict[str, Any]
) -> None:
    """RoiAlign read foreign memory, and ended the process."""
    tensor = helper.make_tensor_value_info
    node = helper.make_node("RoiAlign", ["x", "r", "ids"], ["y"], mode=mode, sampling_ratio=1)
    graph = helper.make_graph(
        [node], "regions",
        [
            tensor("x", TensorProto.FLOAT, (2, 3, 4, 4)), tensor("r", TensorProto.FLOAT, (2, 4)),
            tensor("ids", TensorProto.INT64, (2,)),
        ],
        [tensor("y", TensorProto.FLOAT, (2, 3, 1, 1))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "mine.onnx")
    config = NetworkConfig(name="mine", source="onnx", path="mine.onnx")
    found = load_network(config, tmp_path, is_deployed=True)
    run = machine(compile_network(found, target, None, by_rule=True))
    x = np.full((2, 3, 4, 4), [[[[5]]], [[[7]]]], np.float32)
    regions = np.array([[1, 1, 2, 2]] * 2, np.float32)
    expected = x[[1, 0], :, :1, :1]
    np.testing.assert_array_equal(called(run, x, regions, np.array([1, 0])), expected)
    for outside in (2, -1, *OUTSIDE):
        with pytest.raises(IndexError, match=r"^input ids of .*: expected ids from 0 to 1, found"):
            called(run, x, regions, np.array([0, outside]))


class Looked(torch.nn.Module):
    """Looks ids up in a table."""

    def __init__(self, look: Any) -> None:
        super().__init__()
        self.look, self.table = look, torch.nn.Parameter(torch.from_numpy(TABLE.copy()))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.look(self.table, ids)


LOOKS = {
    "embedding": lambda table, ids: torch.nn.functional.embedding(ids, table),
    "index": lambda table, ids: table[ids],
    "two indices": lambda table, ids: table[ids, ids - ids],
    "index_select": lambda table, ids: table.index_select(0, ids.reshape(-1)),
    "gather": lambda table, ids: table.gather(0, ids),
    "scatter": lambda table, ids: table.scatter(0, ids, 7.0 * torch.ones(2, 3)),
    "index_put": lambda table, ids: table.index_put(
        (ids.reshape(-1), 0 * ids.reshape(-1)), torch.ones(6)
    ),
    "computed": lambda table, ids: table[ids + 1],
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_module_of_torch_refuses_ids_outside(name: str, target: dict[str, Any]) -> None:
    module, ids = Looked(LOOKS[name]).eval(), torch.tensor([[0, 1, 2], [3, 4, 3]])
    mod, params = module_to_relax("mine", module, (ids,))
    mod = relax.transform.BindParams(
        "main", dict(zip(mod["main"].params[1:], params, strict=True))
    )(mod)
    run = machine(
        tvm.compile(compilable(fuse(with_checked_ids(mod, ["ids"]))), tvm.target.Target(target))
    )
    expected = module(ids).detach().numpy()
    np.testing.assert_array_equal(called(run, ids.numpy()), expected)
    owner = "computed ids" if name == "computed" else "input ids"
    for outside in (6, -8, 2**40):
        with pytest.raises(IndexError, match=f"^{owner} of .*found an id outside"):
            called(run, np.array([[0, 1, 2], [3, 4, outside]]))
    np.testing.assert_array_equal(called(run, ids.numpy()), expected)


def test_where_shapes_and_constants_say_where_to_look_nothing_is_checked() -> None:
    def look(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return table[torch.tensor([1, 2])] + ids.sum()

    mod, _ = module_to_relax("mine", Looked(look).eval(), (torch.tensor([[1]]),))
    assert "checked_ids" not in str(with_checked_ids(mod, ["a"]))
