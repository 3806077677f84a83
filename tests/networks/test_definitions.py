"""The networks of conf/network: what they compute says something, TVM compiles them, and they agree with PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tencost.config import NetworkConfig
from tencost.config.composition import choice_values, compose
from tencost.errors import ConfigError
from tencost.networks.network import load_network
from tencost.networks.sources import transformers
from tencost.networks.sources.transformers import torch_network
from tencost.tune.deploy import compare_outputs, compile_network, meaningless
from tencost.tune.hosts import Deployed

CONF = Path(__file__).parents[2] / "conf" / "network"
NAMES = sorted(
    path.stem for path in CONF.glob("*.yaml") if path.stem not in ("onnx", "torch_export", "saved")
)
SMALL = {
    "whisper_tiny": ["size=64", "config.max_source_positions=32"],
    "deit_tiny": ["size=48"],
    "vit_s": ["size=48"],
    "swin_tiny": [
        "size=64", "config.window_size=2", "config.depths=[2,1]", "config.num_heads=[3,6]",
    ],
    "dlrm": ["batch=8"],
    "inception_v3": ["size=75"],
    "vgg_16": [
        "size=32", "config.hidden_size=64", "config.depths=[2,1]", "config.channels=[64,128]",
    ],
    "densenet_121": ["size=32", "config.depths=[1,2]"],
    "efficientnet_b0": [
        "size=64", "config.num_block_repeats=[1,2,1]", "config.kernel_sizes=[3,3,5]", "config.strides=[1,2,2]",
        "config.in_channels=[32,16,24]", "config.out_channels=[16,24,40]", "config.expand_ratios=[1,6,6]",
    ],
    "convnext_tiny": ["size=64", "config.depths=[1,1,1,1]"],
    "poolformer_s12": ["size=64", "config.depths=[1,1,1,1]"],
    "regnet_y": ["size=64", "config.depths=[1,2]", "config.hidden_sizes=[48,104]"],
    "segformer_b0": ["size=64", "config.depths=[1,1,1,1]"],
    "resnet_18": ["size=64", "config.depths=[2,1]", "config.hidden_sizes=[64,128]"],
    "resnet_50": ["size=64", "config.depths=[2,1]", "config.hidden_sizes=[256,512]"],
    "wide_resnet_50": ["size=64", "config.depths=[2,1]"],
    "resnext_50": ["size=64", "config.depths=[2,1]"],
    "resnet3d_18": ["size=16", "config.depths=[2,1]"],
    "mnasnet": [
        "size=64",
        "config.blocks=[[3,32,16,0,relu,1],[3,48,24,0,relu,2],[3,72,24,0,relu,1],[5,72,40,0,relu,2]]",
    ],
    "mobilenet_v3": [
        "size=64",
        "config.blocks=[[3,16,16,0,relu,1],[3,64,24,0,relu,2],[5,72,40,24,relu,2],"
        "[3,240,80,0,hardswish,2],[3,480,112,120,hardswish,1],[5,672,112,168,hardswish,1]]",
    ],
}  # fmt: skip
"""The least sizes, stages and depths at which every kind of layer occurs: further blocks of a stage repeat the last
one, and further stages have more channels. Swin's windows of 2 divide 64 pixels as those of 7 divide 224. Exporting
from PyTorch takes most of a test's time, and it grows with the layers."""
CAUSAL = ("gpt2", "llama")
"""Their masks compare truth values with each other, which TVM's code generator takes for floating-point numbers."""


def small(name: str) -> NetworkConfig:
    """A definition with an input of 64 pixels or 16 places, where it allows."""
    inputs = choice_values("network", name)["inputs"].values()
    is_image = [len(array["shape"]) for array in inputs] == [4]
    words = SMALL.get(name, [f"size={64 if is_image else 16}"])
    return compose([f"network={name}", *(f"network.{word}" for word in words)])[0].network


@dataclass(frozen=True)
class Definition:
    """A small variant of a definition and its PyTorch module, which is calibrated once for all tests of it."""

    config: NetworkConfig
    module: Any


@pytest.fixture(scope="module")
def definition(request: pytest.FixtureRequest) -> Definition:
    config = small(request.param)
    return Definition(config, torch_network(config))


def each(*marked: Any) -> pytest.MarkDecorator:
    """Run a test with every network, all tests of a network in succession."""
    return pytest.mark.parametrize("definition", marked or NAMES, indirect=True, scope="module")


def test_there_are_thirty_three() -> None:
    assert len(NAMES) == 33


@each()
def test_every_layer_is_of_order_one(definition: Definition) -> None:
    """Else an output that agrees proves nothing: without statistics, efficientnet_b0 computed zeros."""
    rng = np.random.default_rng(1)
    inputs = {
        key: torch.from_numpy(rng.standard_normal(item.shape, np.float32))
        if item.dtype == "float32"
        else torch.from_numpy(rng.integers(0, item.high, item.shape))
        for key, item in definition.config.inputs.items()
    }
    deviations: dict[str, float] = {}

    def note(module: Any, where: str, output: Any) -> None:
        if isinstance(output, torch.Tensor) and list(module.parameters(recurse=False)):
            deviations[where] = float(output.std())

    handles = [
        module.register_forward_hook(lambda module, _, out, where=where: note(module, where, out))
        for where, module in definition.module.named_modules()
    ]
    with torch.no_grad():
        outputs = definition.module(**inputs)
    for handle in handles:
        handle.remove()
    assert len(deviations) > 5
    off = {where: value for where, value in deviations.items() if not 0.1 < value < 10}
    assert not off
    for tensor in outputs.values():
        assert 0.1 < float(tensor.std()) < 10


@pytest.mark.tvm
@each(*(name if name in CAUSAL else pytest.param(name, marks=pytest.mark.slow) for name in NAMES))
def test_it_compiles_and_agrees_with_pytorch(
    definition: Definition, unoptimized: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers, "torch_network", lambda *_, **__: definition.module)
    network = load_network(definition.config)
    compiled = compile_network(network, unoptimized, None)
    outputs = Deployed(compiled, network).outputs()
    assert not meaningless(network)
    for name, agreement in compare_outputs(network, outputs).items():
        assert agreement.accepted, (name, agreement)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("vgg_16", 138_357_544),
        ("wide_resnet_50", 68_883_240),
        ("resnext_50", 25_028_904),
        ("densenet_121", 7_978_856),
        ("inception_v3", 23_834_568),
        ("mobilenet_v3", 5_483_032),
        ("mnasnet", 4_383_312),
        ("resnet3d_18", 33_371_472),
        ("dcgan", 3_576_704),
    ],
)
def test_a_network_has_as_many_parameters_as_published(name: str, count: int) -> None:
    """The counts of torchvision's models; that of PyTorch's DCGAN example, whose generator has 64 channels."""
    half = ["network.config.channels=64"] if name == "dcgan" else []
    with torch.device("meta"):
        network = torch_network(compose([f"network={name}", *half])[0].network, calibrated=False)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["network=dcgan", "network.size=40"], "size must be a multiple of 16; found 40"),
        (
            ["network=mnasnet", "network.config.activation=gelu"],
            "activation must be one of relu, hardswish; found 'gelu'",
        ),
        (["network=inception_v3", "network.size=64"], "does not run on its configured inputs"),
    ],
)
def test_a_definition_that_does_not_fit_is_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        torch_network(compose(words)[0].network)
