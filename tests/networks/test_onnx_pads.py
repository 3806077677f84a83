"""Paddings as PyTorch's tracing exporter writes them: their sizes are sliced out of a ConstantOfShape."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

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
