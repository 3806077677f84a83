"""Paddings as PyTorch's tracing exporter writes them: their sizes are sliced out of a ConstantOfShape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tencost.config import NetworkConfig
from tencost.networks.network import load_network
from tencost.networks.onnx_graph import fold
from tencost.networks.torch_modules import module_to_onnx
from tencost.tune.deploy import compile_network, output_agreement
from tencost.tune.hosts import Deployed


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


class PaddedBefore(torch.nn.Module):
    """Convolutions after paddings: of zeros, uneven, beside a padding of their own; of ones; of channels."""

    def __init__(self, sizes: tuple[int, ...], value: float) -> None:
        super().__init__()
        self.sizes, self.value = sizes, value
        torch.manual_seed(0)
        channels = 8 + sum(sizes[4:])
        self.conv = torch.nn.Conv2d(channels, 16, 3, 2, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        padded: torch.Tensor = self.conv(
            torch.nn.functional.pad(image, self.sizes, value=self.value)
        )
        return padded


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("sizes", "value", "is_joined"),
    [
        ((0, 1, 2, 3), 0.0, True),
        ((0, 1, 2, 3), 1.0, False),
        ((0, 1, 0, -1), 0.0, False),
        ((0, 0, 0, 0, 1, 1), 0.0, False),
    ],
)
def test_a_convolution_pads_what_a_padding_of_zeros_does(
    sizes: tuple[int, ...],
    value: float,
    is_joined: bool,
    tmp_path: Path,
    target: dict[str, Any],
) -> None:
    module, image = PaddedBefore(sizes, value).eval(), torch.randn(1, 8, 9, 10)
    onnx.save(module_to_onnx("padded", module, (image,)), tmp_path / "padded.onnx")
    config = NetworkConfig(name="padded", source="onnx", path=str(tmp_path / "padded.onnx"))
    network = load_network(config)
    names = [str(name.name_hint) for name in network.mod.functions]
    assert any("pad" in name for name in names) is not is_joined
    (output,) = Deployed(compile_network(network, target, None, by_rule=True), network).outputs()
    with torch.inference_mode():
        (drawn,) = network.inputs.values()
        expected = module(torch.from_numpy(np.array(drawn))).numpy()
    assert output_agreement(output, expected).accepted
