"""Variants of networks to measure: definitions of conf/network with other widths, depths and sizes, and own builders.

The list is the same wherever it is made: every choice is drawn with a seed out of the family's name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tencost.config import Config, NetworkConfig
from tencost.config.checking import instantiate
from tencost.errors import ConfigError
from tencost.networks.source import require_module
from tencost.networks.variants.builders import BUILDERS

Compose = Callable[[list[str]], tuple[Config, Path]]
"""tencost.config.composition.compose: overrides -> (configuration, the project's root)."""


@dataclass(frozen=True)
class Variant:
    """A network to measure.

    Attributes:
        name: the variant's own.
        family: what it is a variant of.
        definition: {"network": NetworkConfig as plain values}, or {"builder", "channels", "blocks", "kernel", "size"}.
    """

    name: str
    family: str
    definition: dict[str, Any]

    def to_onnx(self) -> Any:
        """Build it with random weights: onnx.ModelProto.

        Raises:
            ConfigError: the definition is not one of a network.
            MeasureError: PyTorch cannot export it.
        """
        require_module("torch")
        import torch

        from tencost.networks.torch_modules import module_to_onnx

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if "network" in self.definition:
                module, tensors = _defined(
                    instantiate(NetworkConfig, self.definition["network"], "network.")
                )
            else:
                module, tensors = _built(self.definition)
        draw_batch_norms(module)
        return module_to_onnx(self.name, module, tensors)


@dataclass(frozen=True)
class _Scale:
    """Which settings of a configuration class are widths and depths, and what widths must be multiples of."""

    widths: tuple[str, ...] = ()
    depths: tuple[str, ...] = ()
    multiple: int = 8
    factors: tuple[str, ...] = ()
    """Settings that are multipliers of all widths themselves."""
    depth_factors: tuple[str, ...] = ()


_SCALES = {
    "ResNetConfig": _Scale(("embedding_size", "hidden_sizes"), ("depths",)),
    "RegNetConfig": _Scale(("embedding_size", "hidden_sizes"), ("depths",)),
    "ConvNextConfig": _Scale(("hidden_sizes",), ("depths",)),
    "PoolFormerConfig": _Scale(("hidden_sizes",), ("depths",)),
    "MobileNetV1Config": _Scale(factors=("depth_multiplier",)),
    "MobileNetV2Config": _Scale(factors=("depth_multiplier",)),
    "EfficientNetConfig": _Scale(
        factors=("width_coefficient",), depth_factors=("depth_coefficient",)
    ),
    "ViTConfig": _Scale(("hidden_size", "intermediate_size"), ("num_hidden_layers",), 64),
    "DeiTConfig": _Scale(("hidden_size", "intermediate_size"), ("num_hidden_layers",), 64),
    "BertConfig": _Scale(("hidden_size", "intermediate_size"), ("num_hidden_layers",), 64),
    "DistilBertConfig": _Scale(("dim", "hidden_dim"), ("n_layers",), 64),
}
"""By configuration class; others have no variants but of their size."""
_HEADS = {"num_attention_heads": "hidden_size", "n_heads": "dim"}
"""Number of heads -> the width that they divide; a head has 64 channels."""

_POOLFORMER = {"hidden_sizes": [64, 128, 320, 512], "depths": [2, 2, 6, 2]}
_IMAGE_SIZES = (96, 128, 160, 192, 224)
_TOKENS = (16, 32, 64, 128, 192)
_DEFINED = {
    "resnet_18": (30, _IMAGE_SIZES),
    "resnet_50": (30, _IMAGE_SIZES[:4]),
    "mobilenet_v1": (30, _IMAGE_SIZES),
    "mobilenet_v2": (30, _IMAGE_SIZES),
    "efficientnet_b0": (30, _IMAGE_SIZES),
    "regnet_y": (30, _IMAGE_SIZES),
    "convnext_tiny": (30, _IMAGE_SIZES[:3]),
    "poolformer_s12": (20, _IMAGE_SIZES[:3]),
    "vit_s": (30, _IMAGE_SIZES),
    "deit_tiny": (20, _IMAGE_SIZES),
    "bert_tiny": (30, _TOKENS),
    "distilbert": (20, _TOKENS[:4]),
}
"""Definition of conf/network -> (number of variants, sizes)."""
_BUILT: dict[str, tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "vgg": (30, (24, 48, 96, 192, 192), (1, 1, 2, 2, 2), (3, 5)),
    "squeezenet": (30, (128, 256, 384), (2, 2, 4), (3, 5)),
    "densenet": (25, (16, 16, 16, 16), (3, 6, 8, 6), (3, 5)),
    "googlenet": (25, (128, 256, 512), (1, 2, 3), (3, 5)),
    "mobilenet_v3": (40, (16, 24, 40, 96), (1, 2, 3, 4), (3, 5, 7)),
    "shufflenet_v2": (30, (116, 232, 464), (4, 6, 4), (3, 5)),
}
"""Builder -> (number of variants, channels, blocks, kernels)."""


def standard_variants(compose: Compose) -> list[Variant]:
    """Return the variants that are measured where nothing else is asked for, families in turn.

    An interrupted measurement then has some of every family.

    Args:
        compose: reads the definitions of conf/network.
    """
    families = [
        defined_variants(compose([f"network={name}"])[0].network, count, sizes)
        for name, (count, sizes) in _DEFINED.items()
    ]
    families += [
        _built_variants(name, count, channels, blocks, kernels)
        for name, (count, channels, blocks, kernels) in _BUILT.items()
    ]
    longest = max(len(family) for family in families)
    return [family[turn] for turn in range(longest) for family in families if turn < len(family)]


def defined_variants(base: NetworkConfig, count: int, sizes: Sequence[int]) -> list[Variant]:
    """Return distinct variants of a transformers definition, itself first.

    Args:
        base: the definition.
        count: how many, at most: a definition may not have as many.
        sizes: image sizes or numbers of tokens.

    Raises:
        ConfigError: the network is not one of transformers.
    """
    if base.source != "transformers":
        raise ConfigError(
            f"network {base.name!r}: expected a transformers definition to make variants of, found network.source="
            f"{base.source}. Measure the file itself"
        )
    rng = np.random.default_rng(zlib.crc32(base.name.encode()))
    networks = {str(_plain(base)): base}
    for _ in range(20 * count):
        if len(networks) >= count:
            break
        width, depth = float(rng.uniform(0.3, 1.2)), float(rng.uniform(0.3, 1.3))
        network = scaled_definition(base, width, depth, int(rng.choice(sizes)), rng)
        networks.setdefault(str(_plain(network)), network)
    return [
        Variant(f"{base.name}-{place:03d}", base.name, {"network": _plain(network)})
        for place, network in enumerate(networks.values())
    ]


def _plain(network: NetworkConfig) -> dict[str, Any]:
    """Return a definition as plain values, without how TVM's graph of it is written: it is timed as ONNX."""
    values = asdict(network)
    written = ("graph", "pack_weights", "winograd")
    return {name: value for name, value in values.items() if name not in written}


def scaled_definition(
    base: NetworkConfig,
    width: float,
    depth: float,
    size: int,
    rng: np.random.Generator | None = None,
) -> NetworkConfig:
    """Return a transformers definition with other widths, depths and another size.

    Args:
        base: the definition.
        width: multiplier of the channels.
        depth: multiplier of the number of blocks.
        size: height and width of the image, or number of tokens.
        rng: varies every stage by up to a quarter; None for none.
    """
    scale = _SCALES.get(base.config_class, _Scale())
    settings = deepcopy(base.config)
    if base.config_class == "PoolFormerConfig":
        settings = {**_POOLFORMER, **settings}

    def times(value: Any, factor: float, multiple: int) -> Any:
        if isinstance(value, list):
            return [times(part, factor, multiple) for part in value]
        jitter = float(rng.uniform(0.75, 1.25)) if rng is not None else 1.0
        return max(multiple, round(value * factor * jitter / multiple) * multiple)

    for key in scale.widths:
        if key in settings:
            settings[key] = times(settings[key], width, scale.multiple)
    for key in scale.depths:
        if key in settings:
            settings[key] = times(settings[key], depth, 1)
    settings |= {key: round(max(0.25, width), 2) for key in scale.factors}
    settings |= {key: round(max(0.4, depth), 2) for key in scale.depth_factors}
    settings |= {heads: settings[of] // 64 for heads, of in _HEADS.items() if of in settings}
    if base.config_class == "EfficientNetConfig":
        # The last batch norm has this many channels, its convolution rounds 1280 times the width to them.
        settings["hidden_dim"] = int(1280 * settings["width_coefficient"] + 4) // 8 * 8
    if "image_size" in settings:
        settings["image_size"] = size
    inputs = {
        name: replace(item, shape=[size if side == base.size else side for side in item.shape])
        for name, item in base.inputs.items()
    }
    return replace(base, config=settings, size=size, inputs=inputs)


def _built_variants(
    name: str,
    count: int,
    channels: Sequence[int],
    blocks: Sequence[int],
    kernels: Sequence[int],
) -> list[Variant]:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    definitions: dict[str, dict[str, Any]] = {}
    while len(definitions) < count:
        width = rng.uniform(0.4, 1.4)
        definition = {
            "builder": name,
            "channels": [
                max(8, round(stage * width * rng.uniform(0.6, 1.4) / 4) * 4) for stage in channels
            ],
            "blocks": [max(1, round(stage * rng.uniform(0.5, 1.5))) for stage in blocks],
            "kernel": int(rng.choice(kernels)),
            "size": int(rng.choice(_IMAGE_SIZES)),
        }
        definitions.setdefault(str(definition), definition)
    return [
        Variant(f"{name}-{place:03d}", name, definition)
        for place, definition in enumerate(definitions.values())
    ]


def _defined(config: NetworkConfig) -> tuple[Any, tuple[Any, ...]]:
    from tencost.networks.sources.transformers import positional_network

    return positional_network(config, calibrated=False)


def _built(definition: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    import torch

    build = BUILDERS[definition["builder"]]
    module = build(definition["channels"], definition["blocks"], definition["kernel"])
    return module.eval(), (torch.randn(1, 3, definition["size"], definition["size"]),)


def draw_batch_norms(module: Any) -> None:
    """Give batch norms statistics: without any they would leave no bias behind when they are folded away."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
                assert part.running_mean is not None
                assert part.running_var is not None
                part.running_mean.normal_(0.0, 0.1, generator=generator)
                part.running_var.uniform_(0.5, 1.5, generator=generator)
                part.bias.normal_(0.0, 0.1, generator=generator)
