"""What is folded of files of PyTorch's tracing exporter: sizes of paddings, tables computed of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from tencost.networks.onnx_graph import fold
from tencost.networks.torch_modules import module_to_onnx


class Padded(torch.nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        size = image.shape[-1]
        return torch.nn.functional.pad(image, (0, size % 2, 0, size % 2 + 1))


@pytest.mark.tvm
def test_their_sizes_are_constants_after_folding(tmp_path: Path) -> None:
    file = tmp_path / "padded.onnx"
    onnx.save(module_to_onnx("padded", Padded().eval(), (torch.ones(1, 3, 7, 7),)), file)
    model = onnx.load(file)
    assert "ConstantOfShape" in {node.op_type for node in model.graph.node}
    fold(model)
    (pad,) = [node for node in model.graph.node if node.op_type == "Pad"]
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {node.output[0] for node in model.graph.node if node.op_type == "Constant"}
    assert pad.input[1] in constants


class Biased(torch.nn.Module):
    """A bias that a small network computes of a table, as Swin v2 computes those of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.rand(225, 2))
        self.register_buffer("places", torch.randint(0, 225, (64 * 64,)))
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, 512), torch.nn.ReLU(), torch.nn.Linear(512, 6)
        )

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        bias = self.layers(self.table)[self.places].view(64, 64, 6).permute(2, 0, 1)
        return scores + 16 * torch.sigmoid(bias)


@pytest.mark.tvm
def test_what_follows_from_weights_alone_is_a_constant(tmp_path: Path) -> None:
    network, scores = Biased().eval(), torch.rand(6, 64, 64)
    file = tmp_path / "biased.onnx"
    onnx.save(module_to_onnx("biased", network, (scores,)), file)
    model = onnx.load(file)
    fold(model)
    assert [node.op_type for node in model.graph.node if node.op_type != "Constant"] == ["Add"]
    (found,) = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: scores.numpy()})
    assert np.allclose(found, network(scores).detach().numpy(), rtol=1e-5)


def test_an_export_that_is_tried_in_two_ways_prints_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """PyTorch's tracer refuses this one, and would print the whole graph."""

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(24, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.attention(x, x, x)[0]

    model = module_to_onnx("heads", Heads().eval(), (torch.ones(2, 5, 24),))
    assert len(model.graph.node) > 5
    assert capfd.readouterr() == ("", "")
