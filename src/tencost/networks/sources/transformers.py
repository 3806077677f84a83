"""Networks of transformers or written by hand: a model class, a configuration, random weights that are calibrated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tencost.config import NetworkConfig, NetworkInput
from tencost.errors import ConfigError
from tencost.networks.calibration import calibrate
from tencost.networks.inputs import Array, draw_array
from tencost.networks.source import Imported, NetworkSource, require_module
from tencost.networks.torch_modules import (
    module_to_onnx,
    module_to_relax,
    positional_module,
    run_module,
    tensors_of,
)

_SAMPLES = 8
"""Inputs that the weights are calibrated on."""


def _read(config: NetworkConfig, path: Path | None = None) -> Imported:
    """Build a network with random weights, run it, and import it.

    Raises:
        ConfigError: transformers has no such class, or refuses the configuration or the inputs.
        MeasureError: the network cannot be exported or imported.
    """
    del path
    model, names, inputs = _positional(config, calibrated=True)
    import torch

    tensors = tensors_of(inputs)
    with _running(config), torch.no_grad():
        expected = [array.numpy() for array in model(*tensors)]
    mod, params = module_to_relax(config.name, model, tensors, list(inputs))
    again = partial(run_module, model)
    return Imported(mod, params, inputs, expected, names, again=again)


def _to_onnx(config: NetworkConfig, path: Path | None = None) -> Any:
    """Build a network with random weights and export it.

    Raises:
        ConfigError: as `_read`.
        MeasureError: PyTorch cannot export the network.
    """
    del path
    model, tensors = positional_network(config)
    return module_to_onnx(config.name, model, tensors)


def positional_network(
    config: NetworkConfig, *, calibrated: bool = True
) -> tuple[Any, tuple[Any, ...]]:
    """Return (the network as a module that takes tensors and returns a tuple of tensors, its inputs).

    Args:
        config: its definition.
        calibrated: as in `torch_network`.

    Raises:
        ConfigError: as `_read`.
    """
    model, _, inputs = _positional(config, calibrated=calibrated)
    return model, tensors_of(inputs)


def _positional(
    config: NetworkConfig, *, calibrated: bool
) -> tuple[Any, list[str], dict[str, Array]]:
    """Return (module with positional inputs, names of its outputs once it ran, its inputs)."""
    _check(config)
    require_module("torch", "transformers")
    import torch

    inputs = _inputs(config)

    def call(network: Any, tensors: tuple[Any, ...]) -> dict[str, Any]:
        outputs = network(**dict(zip(inputs, tensors, strict=True)))
        return {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}

    model, names = positional_module(torch_network(config, calibrated=calibrated), call)
    return model.eval(), names, inputs


def _check(config: NetworkConfig) -> None:
    for option, example in (("architecture", "BertModel"), ("config_class", "BertConfig")):
        if not getattr(config, option):
            raise ConfigError(
                f"network {config.name!r}: source transformers expected network.{option}, for example {example}; "
                "found none"
            )
    if not config.inputs:
        raise ConfigError(
            f"network {config.name!r} has no inputs; add network.inputs with a shape each"
        )


def torch_network(config: NetworkConfig, *, calibrated: bool = True) -> Any:
    """Return the network as a PyTorch module in evaluation mode, its weights drawn and calibrated.

    Args:
        config: its definition.
        calibrated: whether its weights are calibrated; what only times a network can do without.

    Raises:
        ConfigError: transformers has no such class, or refuses the configuration or the inputs.
    """
    import torch
    import transformers

    from tencost.networks import image_networks, written

    classes = []
    for name in (config.architecture, config.config_class):
        modules = [
            module for module in (written, image_networks, transformers) if hasattr(module, name)
        ]
        if not modules:
            raise ConfigError(
                f"network {config.name!r}: transformers {transformers.__version__} has no {name}"
            )
        classes.append(getattr(modules[0], name))
    architecture, settings_class = classes
    try:
        settings = settings_class(**config.config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            network = architecture(settings).eval()
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"network {config.name!r}: {config.config_class} refuses its configuration: {error}"
        ) from error
    if calibrated:
        with _running(config):
            calibrate(network, _samples(config), config.seed)
    return network


@contextmanager
def _running(config: NetworkConfig) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"network {config.name!r} does not run on its configured inputs: {error}"
        ) from error


def _inputs(config: NetworkConfig) -> dict[str, Array]:
    rng = np.random.default_rng(config.seed)
    arrays: dict[str, Array] = {}
    for name, item in config.inputs.items():
        where = f"network.inputs.{name}.dtype"
        if item.dtype not in ("float32", "int64"):
            raise ConfigError(f"{where} must be float32 or int64, found {item.dtype!r}")
        arrays[name] = draw_array(rng, tuple(item.shape), item.dtype, item.high, where)
    return arrays


def _samples(config: NetworkConfig) -> dict[str, Any]:
    """Return other inputs than the network's own, as many whatever its batch is, so that its weights are the same."""
    import torch

    rng = np.random.default_rng((config.seed, _SAMPLES))
    samples = {}
    for name, item in config.inputs.items():
        shape = (_SAMPLES, *item.shape[1:])
        samples[name] = torch.from_numpy(draw_array(rng, shape, item.dtype, item.high, name))
    return samples


def _example(folder: Path) -> NetworkConfig:
    """Return BERT with one small layer."""
    del folder
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "vocab_size": 50}
    return NetworkConfig(
        name="tiny",
        architecture="BertModel",
        config_class="BertConfig",
        config={**sizes, "attn_implementation": "eager"},
        inputs={"input_ids": NetworkInput(shape=[1, 8], dtype="int64", high=50)},
    )


SOURCE = NetworkSource(read=_read, example=_example, to_onnx=_to_onnx)
