"""Casts round, and wrap around, where a network says so: no compiler takes two of them for none."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import tencost
from tencost.errors import MeasureError

pytestmark = pytest.mark.tvm
_FLOATS = ("float32", "float64", "float16", "bfloat16")
_WHOLE = ("int8", "uint8", "int16", "int32", "int64", "bool")
_THROUGH = (*_FLOATS, *_WHOLE)
_TYPES = {name: getattr(TensorProto, name.upper()) for name in (*_WHOLE, "float16", "bfloat16")}
_TYPES |= {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}
_NUMBERS = [
    *(300.7, 1.001, -2.717, 3.1415927, 1e-8, 70000.0, -70000.0, 1e30, -1e30, 0.1, 127.5, 128.7),
    *(-129.2, 255.9, 256.3, 1.00390625, 1.01171875, 2049.0, 2051.0, 65519.0, 16777217.0, -0.0),
    *(float("inf"), float("-inf"), 6e-8, 1e-40, 3.3895314e38),
]
"""Between two numbers of a narrower type, in the middle (the even one counts), beyond its range, too small for it."""
_INTEGERS = [
    *(0, 1, -1, 127, 128, -128, -129, 255, 256, 257, 32767, 32768, -32769, 65535, 65536, 2049),
    *(2**24 + 1, 2**31 - 1, -(2**31), 2**31, 2**40 + 3, 2**53 + 1, -(2**63)),
]


def values(kind: str) -> torch.Tensor:
    if kind == "float32":
        return torch.tensor(_NUMBERS, dtype=torch.float64).to(torch.float32)
    return torch.tensor(_INTEGERS)


def casts(kind: str) -> list[tuple[str, ...]]:
    """Return the types that numbers of a type go through, and come back from, one after the other or two."""
    others = [name for name in _THROUGH if name != kind]
    twice = [("bfloat16", "float16"), ("float16", "bfloat16"), ("bfloat16", "int8")]
    return [*((name,) for name in others), *twice]


class Casts(nn.Module):
    """Every chain of casts of one tensor; beside other operators, of which a compiler makes one loop."""

    def __init__(self, kind: str, *, is_fused: bool) -> None:
        super().__init__()
        self.kind, self.is_fused = kind, is_fused

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        outputs = []
        for chain in casts(self.kind):
            y = x + 0 if self.is_fused else x
            for name in (*chain, self.kind):
                y = y.to(getattr(torch, name))
            outputs.append(y * 1 if self.is_fused else y)
        return outputs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def check(kind: str, found: Any, expected: Any) -> None:
    wrong = {
        " ".join(chain): (mine, right)
        for chain, mine, right in zip(casts(kind), found, expected, strict=True)
        if not np.array_equal(np.asarray(mine), np.asarray(right), equal_nan=kind == "float32")
    }
    assert not wrong


@pytest.mark.parametrize(("kind", "is_fused"), [*product(("float32", "int64"), (False, True))])
def test_casts_of_a_module(kind: str, is_fused: bool) -> None:
    module, x = Casts(kind, is_fused=is_fused).eval(), values(kind)
    check(kind, tencost.compile(module, (x,))(x), module(x))


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_a_cast_whose_rounding_tvm_leaves_out_is_refused(kind: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=getattr(TensorProto, kind)),
        helper.make_node("Cast", ["narrow"], ["y"], to=TensorProto.FLOAT),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "narrow", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 21)]
    onnx.save(
        helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "narrow.onnx"
    )
    with pytest.raises(MeasureError, match=r"operator Cast .*a cast to float8.*rounding"):
        tencost.compile(tmp_path / "narrow.onnx")


@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_casts_of_an_onnx_file(kind: str, tmp_path: Path) -> None:
    x = values(kind).numpy()
    nodes: list[onnx.NodeProto] = []
    outputs = []
    for index, chain in enumerate(casts(kind)):
        name = "x"
        for place, other in enumerate((*chain, kind)):
            made = f"y{index}_{place}"
            nodes.append(helper.make_node("Cast", [name], [made], to=_TYPES[other]))
            name = made
        outputs.append(helper.make_tensor_value_info(name, _TYPES[kind], x.shape))
    inputs = [helper.make_tensor_value_info("x", _TYPES[kind], x.shape)]
    graph = helper.make_graph(nodes, "casts", inputs, outputs)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "casts.onnx")
    check(
        kind, tencost.compile(tmp_path / "casts.onnx")(x), Casts(kind, is_fused=False)(values(kind))
    )
