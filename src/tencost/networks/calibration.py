"""Random weights whose activations are of order one in every layer, so that what a network computes says something.

Freshly made networks do not have such weights: batch norms without statistics let a deep network fade to 1e-27, a
layer scale of 1e-6 hides its block, biases of zero hide that they are added at all. An output like that agrees with
whatever a compiler makes of the network. One pass over random inputs sets this right, layer by layer as they run, after
Mishkin and Matas, "All you need is a good init": scales of norms and whatever was made constant are drawn, what a
matrix or a convolution returns is scaled to a standard deviation of one, and a batch norm gets the statistics of what
it is given. Only weights change, no shape and no operator: tasks stay what they are.
"""

from __future__ import annotations

from typing import Any

_SPREAD = 0.2
"""Standard deviation of parameters that are drawn, around 0 (biases) or 1 (scales)."""
_SHIFT = 1.0
"""Mean of a batch norm's biases: a rectifier then cuts a sixth of what it is given. Where it cuts half, rounding errors
grow from layer to layer."""
_LEAST_SHARE = 0.1
"""A channel's variance counts as this share of its layer's at least: one that happens to be still is not blown up."""


def calibrate(network: Any, inputs: dict[str, Any], seed: int) -> None:
    """Set the weights of a network in evaluation mode, in place; the same seed and inputs give the same weights.

    Args:
        network: torch module.
        inputs: tensors by argument name, several samples, so that a channel of one pixel has statistics, too.
        seed: of the parameters that are drawn.
    """
    import torch

    biases: dict[Any, Any] = {}
    """Of modules that did not run yet: they are zero until then, so that what is scaled is the matrix alone."""
    scaled: set[int] = set()

    def normalize(module: Any, args: tuple[Any, ...]) -> None:
        axes = [axis for axis in range(args[0].ndim) if axis != 1]
        mean, variance = args[0].mean(axes), args[0].var(axes, unbiased=False)
        module.running_mean.copy_(mean)
        module.running_var.copy_(variance.clamp(min=_LEAST_SHARE * float(variance.mean())))

    def scale(module: Any, args: tuple[Any, ...], output: Any) -> Any:
        del args
        if id(module.weight) not in scaled and isinstance(output, torch.Tensor):
            scaled.add(id(module.weight))
            deviation = float(output.std())
            if deviation > 0:
                module.weight.div_(deviation)
                output = output / deviation
        bias = biases.pop(module, None)
        if bias is None:
            return output
        module.bias.copy_(bias)
        is_conv = isinstance(module, torch.nn.modules.conv._ConvNd)
        return output + (bias.view(-1, *[1] * (output.ndim - 2)) if is_conv else bias)

    handles = []
    with torch.no_grad():
        _draw(network, torch.Generator().manual_seed(seed))
        for module in network.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                handles.append(module.register_forward_pre_hook(normalize))
            elif getattr(getattr(module, "weight", None), "ndim", 0) >= 2:
                handles.append(module.register_forward_hook(scale))
                if getattr(module, "bias", None) is not None:
                    biases[module] = module.bias.clone()
                    module.bias.zero_()
        try:
            network(**inputs)
        finally:
            for handle in handles:
                handle.remove()
            for module, bias in biases.items():
                module.bias.copy_(bias)


def _draw(network: Any, generator: Any) -> None:
    """Draw the scales of norms, and parameters that are one number throughout: biases, layer scales, tokens."""
    import torch

    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            first = float(parameter.flatten()[0])
            is_scale = name == "weight" and parameter.ndim == 1
            if is_scale or bool((parameter == first).all()):
                is_shift = name == "bias" and isinstance(
                    module, torch.nn.modules.batchnorm._BatchNorm
                )
                mean = _SHIFT if is_shift else float(is_scale or first != 0)
                parameter.normal_(mean, _SPREAD, generator=generator)
