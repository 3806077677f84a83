"""The networks of conf/network: what they compute says something, TVM compiles them, and they agree with PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tencost.config import NetworkConfig
from tencost.config.composition import compose
from tencost.networks.network import Network, load_network
from tencost.networks.sources.transformers import torch_network
from tencost.tune.deploy import compare_outputs, compile_network, meaningless, output_agreement
from tencost.tune.hosts import Deployed

CONF = Path(__file__).parents[2] / "conf" / "network"
NAMES = sorted(
    path.stem for path in CONF.glob("*.yaml") if path.stem not in ("onnx", "torch_export", "saved")
)
SMALL = {
    "whisper_tiny": ["network.size=64", "network.config.max_source_positions=32"],
    "deit_tiny": ["network.size=48"],
    "vit_s": ["network.size=48"],
    "swin_tiny": ["network.size=224"],
    "dlrm": ["network.batch=8"],
}
CAUSAL = ("gpt2", "llama")
"""Their masks compare truth values with each other, which TVM's code generator takes for floating-point numbers."""
every_network = pytest.mark.parametrize("name", NAMES)


def small(name: str, *overrides: str) -> NetworkConfig:
    """A definition with an input of 64 pixels or 16 tokens, where it allows."""
    config, _ = compose([f"network={name}", *overrides])
    if not overrides:
        size = 64 if "pixel_values" in config.network.inputs else 16
        return small(name, *SMALL.get(name, [f"network.size={size}"]))
    return config.network


def test_there_are_twenty_four() -> None:
    assert len(NAMES) == 24


@every_network
def test_every_layer_is_of_order_one(name: str) -> None:
    """Else an output that agrees proves nothing: without statistics, efficientnet_b0 computed zeros."""
    config = small(name)
    network = torch_network(config)
    rng = np.random.default_rng(1)
    inputs = {
        key: torch.from_numpy(rng.standard_normal(item.shape, np.float32))
        if item.dtype == "float32"
        else torch.from_numpy(rng.integers(0, item.high, item.shape))
        for key, item in config.inputs.items()
    }
    deviations: dict[str, float] = {}

    def note(module: Any, where: str, output: Any) -> None:
        if isinstance(output, torch.Tensor) and list(module.parameters(recurse=False)):
            deviations[where] = float(output.std())

    for where, module in network.named_modules():
        module.register_forward_hook(lambda module, _, out, where=where: note(module, where, out))
    with torch.no_grad():
        outputs = network(**inputs)
    assert len(deviations) > 5
    off = {where: value for where, value in deviations.items() if not 0.1 < value < 10}
    assert not off
    for tensor in outputs.values():
        assert 0.1 < float(tensor.std()) < 10


def check_against_pytorch(network: Network, target: dict[str, Any]) -> None:
    outputs = Deployed(compile_network(network, target, None), network).outputs()
    assert not meaningless(network)
    for name, agreement in compare_outputs(network, outputs).items():
        assert agreement.accepted, (name, agreement)
    for found, expected in zip(outputs, network.expected, strict=True):
        assert output_agreement(found, expected).accepted


@pytest.mark.tvm
@pytest.mark.parametrize(
    "name",
    [name if name in CAUSAL else pytest.param(name, marks=pytest.mark.slow) for name in NAMES],
)
def test_it_compiles_and_agrees_with_pytorch(name: str, target: dict[str, Any]) -> None:
    check_against_pytorch(load_network(small(name)), target)
