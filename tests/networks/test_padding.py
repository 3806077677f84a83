"""What is proved of padding, against ONNX Runtime: calls padded with zeros compute what the calls themselves do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from tencost.config import NetworkConfig
from tencost.networks.padding import padding_objection
from tencost.networks.source import Imported, read_network
from tencost.networks.sources.onnx import to_relax

pytestmark = pytest.mark.tvm
Array = np.ndarray[Any, Any]
LARGE = 8
"""The length that is compiled; others are padded to it."""
WIDTH = 4
RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32),
    "taps": RNG.normal(size=(WIDTH, WIDTH, 3)).astype(np.float32),
    "table": RNG.normal(size=(32, WIDTH)).astype(np.float32),
    "gain": np.ones(WIDTH, np.float32),
    "one": np.float32(1.0),
    "two": np.float32(2.0),
    "zero": np.float32(0.0),
    "tiny": np.float32(1e-6),
    "scale": np.float32(0.5),
    "far": np.float32(-1e9),
    "near": np.float32(-5.0),
    "least": np.finfo(np.float32).min,
    "infinite": np.float32(-np.inf),
    "axis1": np.array([1]),
    "axis2": np.array([2]),
    "from_first": np.array([0]),
    "from_last": np.array([-1]),
    "to_begin": np.array([np.iinfo(np.int64).min]),
    "to_end": np.array([np.iinfo(np.int64).max]),
    "to_third": np.array([3]),
    "backwards": np.array([-1]),
    "heads": np.array([0, 0, 2, 2]),
    "joined": np.array([0, 0, 4]),
    "rows": np.array([-1, 4]),
    "repeats": np.array([1, 2, 1]),
}
Step = tuple[str, list[str], dict[str, Any]]
"""An operator, its inputs ("" for the step before) and attributes."""


def model(steps: Sequence[Step], *, ids: bool = False) -> onnx.ModelProto:
    """Return a chain of operators on x [1, T, 4] and a mask [1, T], or on ids [1, T]."""
    nodes, before = [], "x"
    for number, (operator, inputs, attributes) in enumerate(steps):
        names = [name or before for name in inputs]
        before = "y" if number == len(steps) - 1 else f"h{number}"
        if "=" in operator:  # a step that others name
            before, _, operator = operator.partition("=")
        nodes.append(helper.make_node(operator, names, [before], **attributes))
    used = {name for node in nodes for name in node.input}
    tensor = helper.make_tensor_value_info
    declared = {
        "x": tensor("x", TensorProto.INT64, [1, "T"])
        if ids
        else tensor("x", TensorProto.FLOAT, [1, "T", WIDTH]),
        "mask": tensor("mask", TensorProto.FLOAT, [1, "T"]),
    }
    graph = helper.make_graph(
        nodes,
        "net",
        [declared[name] for name in declared if name in used],
        [tensor("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.asarray(WEIGHTS[name]), name)
            for name in WEIGHTS
            if name in used
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    del made.graph.output[0].type.tensor_type.shape.dim[:]
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def arrays(proto: onnx.ModelProto, size: int, seed: int = 0) -> dict[str, Array]:
    """Draw inputs that are far from zero, in front of a mask that leaves one position at least."""
    rng = np.random.default_rng(seed)
    drawn: dict[str, Array] = {}
    for item in proto.graph.input:
        if item.type.tensor_type.elem_type == TensorProto.INT64:
            drawn[item.name] = rng.integers(1, 32, (1, size))
        elif item.name == "mask":
            mask = rng.integers(0, 2, (1, size)).astype(np.float32)
            mask[0, rng.integers(size)] = 1.0
            drawn[item.name] = mask
        else:
            sign = rng.choice([-1.0, 1.0])  # all negative: a zero behind is the largest
            drawn[item.name] = (sign * rng.uniform(0.1, 9.0, (1, size, WIDTH))).astype(np.float32)
    return drawn


def imported(proto: onnx.ModelProto, size: int) -> Imported:
    inputs = arrays(proto, size)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    config = NetworkConfig(name="net", source="onnx", path="net.onnx")
    return Imported(*to_relax(config, copy, inputs), inputs, [], ["y"])


def objection(proto: onnx.ModelProto) -> str:
    large = imported(proto, LARGE)
    reasons = [
        padding_objection(imported(proto, size), large, (size, LARGE)) for size in (2, LARGE - 1)
    ]
    return next(filter(None, reasons), "")


def differs(proto: onnx.ModelProto) -> bool:
    """Whether a padded call of any size computes something else, of several draws."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    for size in range(1, LARGE):
        for seed in range(12):
            inputs = arrays(proto, size, seed)
            padded = {
                name: np.pad(array, [(0, 0), (0, LARGE - size)] + [(0, 0)] * (array.ndim - 2))
                for name, array in inputs.items()
            }
            expected, found = session.run(None, inputs)[0], session.run(None, padded)[0]
            if expected.ndim != found.ndim:
                return True
            front = found[tuple(map(slice, expected.shape))]
            if front.shape != expected.shape or not np.allclose(
                front, expected, 1e-4, 1e-4, equal_nan=True
            ):
                return True
    return False


PROJECT: list[Step] = [("MatMul", ["", "w"], {}), ("Add", ["", "gain"], {})]
SCORES: list[Step] = [
    ("q=MatMul", ["x", "w"], {}),
    ("Transpose", ["x"], {"perm": [0, 2, 1]}),
    ("scores=MatMul", ["q", ""], {}),
]
"""[1, T, T]"""


def mask_steps(number: str) -> list[Step]:
    """Return the steps that add (1 - mask) times a number to the scores."""
    return [
        ("Sub", ["one", "mask"], {}),
        ("Unsqueeze", ["", "axis1"], {}),
        ("Mul", ["", number], {}),
        ("Add", ["scores", ""], {}),
    ]


def where_steps(number: str) -> list[Step]:
    """Return the steps that put a number in place of the scores that a mask hides."""
    return [
        ("Unsqueeze", ["mask", "axis1"], {}),
        ("Equal", ["", "zero"], {}),
        ("Where", ["", number, "scores"], {}),
    ]


ATTEND: list[Step] = [("Softmax", [""], {"axis": 2}), ("MatMul", ["", "x"], {})]
SHOWN: Step = ("shown=Unsqueeze", ["mask", "axis2"], {})
POOLED: list[Step] = [
    SHOWN,
    ("Mul", ["x", "shown"], {}),
    ("sum=ReduceSum", ["", "axis1"], {"keepdims": 0}),
    ("ReduceSum", ["shown", "axis1"], {"keepdims": 0}),
    ("Max", ["", "tiny"], {}),
    ("Div", ["sum", ""], {}),
]
SWAP: Step = ("Transpose", [""], {"perm": [0, 2, 1]})
HEADS: Step = ("Transpose", [""], {"perm": [0, 2, 1, 3]})
CAUSAL: list[Step] = [SWAP, ("Conv", ["", "taps"], {"pads": [2, 0]}), SWAP]
SAME: list[Step] = [SWAP, ("Conv", ["", "taps"], {"pads": [1, 1]}), SWAP]
REVERSED: Step = ("Slice", ["", "from_last", "to_begin", "axis1", "backwards"], {})
LAYER_NORM: list[Step] = [
    ("mean=ReduceMean", ["x", "axis2"], {}),
    ("centred=Sub", ["x", "mean"], {}),
    ("Pow", ["", "two"], {}),
    ("ReduceMean", ["", "axis2"], {}),
    ("Add", ["", "tiny"], {}),
    ("Sqrt", [""], {}),
    ("Div", ["centred", ""], {}),
]

SOUND: dict[str, list[Step]] = {
    "a product": PROJECT,
    "heads": [*PROJECT, ("Reshape", ["", "heads"], {}), HEADS],
    "heads and back": [("Reshape", ["", "heads"], {}), HEADS, HEADS, ("Reshape", ["", "joined"], {})],
    "rows": [("Reshape", ["", "rows"], {}), ("MatMul", ["", "w"], {})],
    "the first tokens": [*PROJECT, ("Slice", ["", "from_first", "axis2", "axis1"], {})],
    "softmax of each token": [("Softmax", [""], {"axis": 2})],
    "a layer norm in parts": LAYER_NORM,
    "a sum of zeros": [("ReduceSum", ["", "axis1"], {})],
    "the largest above zero": [("Relu", [""], {}), ("ReduceMax", ["", "axis1"], {})],
    "a masked mean": POOLED,
    "attention, additive": [*SCORES, *mask_steps("far"), *ATTEND],
    "attention, least number": [*SCORES, *where_steps("least"), *ATTEND],
    "attention, infinity": [*SCORES, *where_steps("infinite"), *ATTEND],
    "two attentions": [
        *SCORES, *mask_steps("far"), *ATTEND, ("z=Add", ["", "gain"], {}), *mask_steps("far"),
        ("Softmax", [""], {"axis": 2}), ("MatMul", ["", "z"], {}),
    ],
    "a masked maximum": [
        SHOWN, ("Sub", ["one", ""], {}), ("Mul", ["", "far"], {}), ("Add", ["x", ""], {}),
        ("ReduceMax", ["", "axis1"], {}),
    ],
    "causal convolutions": [*CAUSAL, ("Relu", [""], {}), *CAUSAL],
    "one convolution": SAME,
    "a running sum": [*PROJECT, ("CumSum", ["", "axis1"], {})],
}  # fmt: skip
BROKEN: dict[str, tuple[str, list[Step]]] = {
    "the largest": ("max", [("MatMul", ["", "w"], {}), ("ReduceMax", ["", "axis1"], {"keepdims": 0})]),
    "the least": ("min", [("ReduceMin", ["", "axis1"], {})]),
    "a mean": ("mean", [("ReduceMean", ["", "axis1"], {})]),
    "a sum after a bias": ("sum", [*PROJECT, ("ReduceSum", ["", "axis1"], {})]),
    "softmax without a mask": ("softmax", [("Softmax", [""], {"axis": 1})]),
    "scores that nothing hides": ("softmax", [*SCORES, *ATTEND]),
    "scores that little hides": ("softmax", [*SCORES, *mask_steps("near"), *ATTEND]),
    "all scores far below": ("softmax", [*SCORES, ("Add", ["", "far"], {}), *ATTEND]),
    "two convolutions": ("conv1d", [*SAME, ("Add", ["", "gain"], {}), *SAME]),
    "the last token": ("strided_slice", [*PROJECT, ("Slice", ["", "from_last", "to_end", "axis1"], {})]),
    "tokens in reverse": ("", [REVERSED]),
    "others behind": ("concat", [("Concat", ["", "x"], {"axis": 1})]),
    "a norm over tokens": ("", [SWAP, ("InstanceNormalization", ["", "gain", "gain"], {})]),
    "repeated tokens": ("", [("Tile", ["", "repeats"], {})]),
    "a size in a number": (
        "", [("Shape", [""], {"start": 1, "end": 2}), ("Cast", [""], {"to": 1}), ("Mul", ["x", ""], {})]
    ),
}  # fmt: skip
"""Part of the operator's name, and a network that padding breaks."""


@pytest.mark.parametrize("name", SOUND)
def test_padding_that_is_proved_changes_nothing(name: str) -> None:
    proto = model(SOUND[name])
    assert not differs(proto), "the example itself is wrong"
    assert objection(proto) == ""


@pytest.mark.parametrize("name", BROKEN)
def test_padding_that_changes_a_result_is_refused_by_name(name: str) -> None:
    operator, steps = BROKEN[name]
    proto = model(steps)
    assert differs(proto), "the example itself is wrong"
    reason = objection(proto)
    assert reason
    assert operator in reason


PARTS: list[list[Step]] = [
    PROJECT, LAYER_NORM, CAUSAL, SAME,
    [("Relu", [""], {})],
    [("Tanh", [""], {})],
    [("Neg", [""], {})],
    [("Mul", ["", "scale"], {})],
    [("Sub", ["", "gain"], {})],
    [("Softmax", [""], {"axis": 2})],
    [("Softmax", [""], {"axis": 1})],
    [SHOWN, ("Mul", ["x", "shown"], {})],
    [SHOWN, ("Sub", ["shown", "one"], {}), ("Sub", ["x", ""], {})],
    [("CumSum", ["", "axis1"], {})],
    [("ReduceMax", ["", "axis1"], {"keepdims": 1}), ("Add", ["", "x"], {})],
    [("ReduceSum", ["", "axis1"], {"keepdims": 1}), ("Add", ["", "x"], {})],
    [("ReduceMean", ["", "axis2"], {"keepdims": 1}), ("Sub", ["x", ""], {})],
    [("Reshape", ["", "heads"], {}), HEADS, ("Softmax", [""], {"axis": 3}), HEADS, ("Reshape", ["", "joined"], {})],
    [REVERSED],
    [*SCORES, *mask_steps("far"), *ATTEND],
]  # fmt: skip
"""Each of x and the mask to a tensor of the shape of x."""


def random_model(seed: int) -> onnx.ModelProto:
    """Return three to five parts one after the other, each of what the one before it computes."""
    chance = random.Random(seed)
    steps: list[Step] = []
    before = "x"
    for number in range(chance.randint(3, 5)):
        part = chance.choice(PARTS)
        inner = {name for name, mark, _ in (step[0].partition("=") for step in part) if mark}
        names = {"x": before} | {name: f"{name}{number}" for name in inner}
        for place, (operator, inputs, attributes) in enumerate(part):
            name, mark, kind = operator.rpartition("=")
            read = [before if not each and not place else names.get(each, each) for each in inputs]
            steps.append((f"{names.get(name, '')}{mark}{kind}", read, attributes))
        before = f"part{number}"
        steps.append((f"{before}=Identity", [""], {}))
    return model([*steps, ("y=Identity", [before], {})])


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[pytest.mark.slow] if seed >= 12 else []) for seed in range(60)],
)
def test_what_is_proved_of_random_networks_holds(seed: int) -> None:
    proto = random_model(seed)
    if differs(proto):
        assert objection(proto)


def test_random_networks_are_not_all_refused() -> None:
    protos = map(random_model, range(24))
    assert sum(not objection(proto) for proto in protos if not differs(proto)) >= 3


def test_ids_are_looked_up_token_by_token() -> None:
    proto = model([("Gather", ["table", "x"], {}), *PROJECT], ids=True)
    assert not differs(proto)
    assert objection(proto) == ""


class Encoder(nn.Module):
    """A small encoder whose attention a mask [B, T] of 0 and 1 limits, with PyTorch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(32, 8), nn.Embedding(64, 8)
        self.project, self.norm, self.mix = nn.Linear(8, 24), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        count = ids.shape[1]
        h = self.table(ids) + self.places(torch.arange(count))
        for _ in range(2):
            parts = self.project(self.norm(h)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            query, key, value = parts.unbind(0)
            seen = mask[:, None, None, :].bool()
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
            h = h + self.mix(mixed.transpose(1, 2).flatten(2))
        return h


@pytest.mark.parametrize("axis", [0, 1], ids=["batch", "length"])
def test_a_masked_encoder_of_torch_export_can_be_padded(axis: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = torch.randint(0, 32, (2, 6)), torch.ones(2, 6, dtype=torch.int64)
    dimension = {axis: torch.export.Dim("n", min=2, max=64)}
    program = torch.export.export(Encoder().eval(), inputs, dynamic_shapes=(dimension, dimension))
    torch.export.save(program, tmp_path / "net.pt2")

    def read(size: int) -> Imported:
        batch, length = (size, 0) if axis == 0 else (2, size)
        config = NetworkConfig(
            name="net",
            source="torch_export",
            path="net.pt2",
            trusted=True,
            batch=batch,
            size=length,
        )
        return read_network(config, tmp_path)

    assert padding_objection(read(3), read(8), (3, 8)) == ""
