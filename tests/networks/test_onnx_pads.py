"""A convolution takes over the zeros that a Pad puts around its image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tencost.config import NetworkConfig
from tencost.networks.network import load_network
from tencost.networks.torch_modules import module_to_onnx
from tencost.tune.deploy import compile_network, output_agreement
from tencost.tune.hosts import Deployed


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
