"""Convolution networks in PyTorch, built from a few numbers: what the transformers definitions do not have.

Each takes the channels of its stages and how often a stage's block is repeated. They are for measuring: their weights
are random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Builder = Callable[[Sequence[int], Sequence[int], int], Any]
"""Channels of the stages, blocks of the stages, kernel -> torch module for images [1, 3, size, size]."""


def vgg(channels: Sequence[int], blocks: Sequence[int], kernel: int) -> Any:
    """Return plain convolutions, a pooling behind each stage, two dense layers."""
    from torch import nn

    layers: list[Any] = []
    width = 3
    for out, count in zip(channels, blocks, strict=True):
        for _ in range(count):
            layers.append(_conv(width, out, kernel, activation=nn.ReLU()))
            width = out
        layers.append(nn.MaxPool2d(2, 2))
    dense = [nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1000)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *dense)


def squeezenet(channels: Sequence[int], blocks: Sequence[int], kernel: int) -> Any:
    """Return fire modules: squeeze to a quarter, expand with a small and a large kernel."""
    from torch import nn

    layers: list[Any] = [nn.Conv2d(3, channels[0], 7, 2, 3), nn.ReLU()]
    width = channels[0]
    for out, count in zip(channels, blocks, strict=True):
        layers.append(nn.MaxPool2d(3, 2, 1))
        for _ in range(count):
            squeeze = nn.Sequential(nn.Conv2d(width, max(8, out // 4), 1), nn.ReLU())
            expand = [
                nn.Sequential(nn.Conv2d(max(8, out // 4), out // 2, size, 1, size // 2), nn.ReLU())
                for size in (1, kernel)
            ]
            layers.append(nn.Sequential(squeeze, _branches(expand)))
            width = 2 * (out // 2)
    head = [nn.Conv2d(width, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head)


def densenet(channels: Sequence[int], blocks: Sequence[int], kernel: int) -> Any:
    """Return dense blocks; a channel number is a stage's growth."""
    from torch import nn

    width = 2 * channels[0]
    layers: list[Any] = [_conv(3, width, 7, stride=2, activation=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
    for growth, count in zip(channels, blocks, strict=True):
        for _ in range(count):
            inside = nn.Sequential(
                nn.BatchNorm2d(width),
                nn.ReLU(),
                _conv(width, 4 * growth, 1, activation=nn.ReLU()),
                nn.Conv2d(4 * growth, growth, kernel, 1, kernel // 2, bias=False),
            )
            layers.append(_branches([nn.Identity(), inside]))
            width += growth
        halved = nn.Conv2d(width, width // 2, 1, bias=False)
        layers.append(nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), halved, nn.AvgPool2d(2, 2)))
        width //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


def googlenet(channels: Sequence[int], blocks: Sequence[int], kernel: int) -> Any:
    """Return inception modules of four branches."""
    from torch import nn

    def conv(source: int, out: int, size: int) -> Any:
        return _conv(source, out, size, activation=nn.ReLU())

    width = channels[0]
    layers: list[Any] = [_conv(3, width, 7, stride=2, activation=nn.ReLU())]
    for out, count in zip(channels, blocks, strict=True):
        layers.append(nn.MaxPool2d(3, 2, 1))
        quarter = max(8, out // 4)
        for _ in range(count):
            branches = [
                conv(width, quarter, 1),
                nn.Sequential(conv(width, quarter // 2, 1), conv(quarter // 2, 2 * quarter, 3)),
                nn.Sequential(
                    conv(width, quarter // 4, 1), conv(quarter // 4, quarter // 2, kernel)
                ),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(width, quarter // 2, 1)),
            ]
            layers.append(_branches(branches))
            width = quarter + 2 * quarter + 2 * (quarter // 2)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


def mobilenet_v3(channels: Sequence[int], blocks: Sequence[int], kernel: int) -> Any:
    """Return inverted residuals with hard swish, every second stage with squeeze and excitation."""
    from torch import nn

    layers: list[Any] = [_conv(3, channels[0], 3, stride=2, activation=nn.Hardswish())]
    width = channels[0]
    for stage, (out, count) in enumerate(zip(channels, blocks, strict=True)):
        for block in range(count):
            inner, stride = 4 * width, 2 if block == 0 else 1
            activation = nn.Hardswish if stage >= len(channels) // 2 else nn.ReLU
            body = [
                _conv(width, inner, 1, activation=activation()),
                _conv(inner, inner, kernel, stride=stride, groups=inner, activation=activation()),
                *([_squeeze_excite(inner)] if stage % 2 else []),
                _conv(inner, out, 1),
            ]
            inside = nn.Sequential(*body)
            layers.append(_residual(inside) if stride == 1 and width == out else inside)
            width = out
    last = _conv(width, 6 * width, 1, activation=nn.Hardswish())
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6 * width, 1000)]
    return nn.Sequential(*layers, last, *pooled)


def shufflenet_v2(channels: Sequence[int], blocks: Sequence[int], kernel: int) -> Any:
    """Return split, convolved and shuffled halves."""
    from torch import nn

    width = 24
    layers: list[Any] = [_conv(3, width, 3, stride=2, activation=nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
    for out, count in zip(channels, blocks, strict=True):
        half = out // 2

        def deep(source: int, width: int, stride: int) -> Any:
            return nn.Sequential(
                _conv(source, width, 1, activation=nn.ReLU()),
                _conv(width, width, kernel, stride=stride, groups=width),
                _conv(width, width, 1, activation=nn.ReLU()),
            )

        shallow = nn.Sequential(
            _conv(width, width, kernel, stride=2, groups=width),
            _conv(width, half, 1, activation=nn.ReLU()),
        )
        layers += [_branches([shallow, deep(width, half, 2)]), _shuffle()]
        for _ in range(count - 1):
            layers += [_halves(deep(half, half, 1)), _shuffle()]
        width = 2 * half
    last = _conv(width, 2 * width, 1, activation=nn.ReLU())
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 1000)]
    return nn.Sequential(*layers, last, *pooled)


BUILDERS: dict[str, Builder] = {
    "vgg": vgg,
    "squeezenet": squeezenet,
    "densenet": densenet,
    "googlenet": googlenet,
    "mobilenet_v3": mobilenet_v3,
    "shufflenet_v2": shufflenet_v2,
}


def _conv(
    source: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1, activation: Any = None
) -> Any:
    """Return a convolution that keeps the size (divided by the stride), a batch norm and an activation."""
    from torch import nn

    conv = nn.Conv2d(source, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(
        conv, nn.BatchNorm2d(out), *([activation] if activation is not None else [])
    )


def _branches(branches: Sequence[Any]) -> Any:
    """Return a module that joins the channels of what its branches make of the same input."""
    return _module(
        "Branches", branches, lambda parts, x: _torch().cat([part(x) for part in parts], 1)
    )


def _residual(inside: Any) -> Any:
    return _module("Residual", [inside], lambda parts, x: x + parts[0](x))


def _halves(inside: Any) -> Any:
    """Return a module that changes the second half of the channels and keeps the first."""

    def forward(parts: Any, x: Any) -> Any:
        first, second = x.chunk(2, 1)
        return _torch().cat([first, parts[0](second)], 1)

    return _module("Halves", [inside], forward)


def _shuffle() -> Any:
    def forward(parts: Any, x: Any) -> Any:
        del parts
        batch, channels, height, width = x.shape
        halves = x.view(batch, 2, channels // 2, height, width)
        return halves.transpose(1, 2).reshape(batch, channels, height, width)

    return _module("Shuffle", [], forward)


def _squeeze_excite(channels: int) -> Any:
    from torch import nn

    squeezed = max(8, channels // 4)
    gate = nn.Sequential(
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(channels, squeezed, 1),
        nn.ReLU(),
        nn.Conv2d(squeezed, channels, 1),
        nn.Hardsigmoid(),
    )
    return _module("SqueezeExcite", [gate], lambda parts, x: x * parts[0](x))


def _module(name: str, parts: Sequence[Any], forward: Callable[[Any, Any], Any]) -> Any:
    """Return a module of some parts; torch is imported only where a network is built."""
    torch = _torch()

    def init(self: Any) -> None:
        torch.nn.Module.__init__(self)
        self.parts = torch.nn.ModuleList(parts)

    def call(self: Any, x: Any) -> Any:
        return forward(self.parts, x)

    return type(name, (torch.nn.Module,), {"__init__": init, "forward": call})()


def _torch() -> Any:
    import torch

    return torch
