"""TenSet's image and video networks that transformers lacks, and DCGAN's generator.

Each is a class and a configuration, as in `written.py`. All are chains of layers: what is not a plain chain is built
with :class:`Concatenated`, :class:`Residual` and :class:`Gated`. Dropout is left out, because it changes no inference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tencost.networks.written import normed


class Concatenated(nn.Module):
    """Branches that read the same tensor; their outputs are concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, values: Tensor) -> Tensor:
        """Return [B, sum of the branches' channels, ...] of values [B, channels, ...]."""
        return torch.cat([branch(values) for branch in self.branches], dim=1)


class Residual(nn.Module):
    """A body beside a shortcut, which is the input itself by default; their sum passes an activation."""

    def __init__(
        self,
        body: nn.Module,
        shortcut: nn.Module | None = None,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.body = body
        self.shortcut, self.activation = shortcut or nn.Identity(), activation or nn.Identity()

    def forward(self, values: Tensor) -> Tensor:
        """Return the sum, of the body's shape."""
        outputs: Tensor = self.activation(self.body(values) + self.shortcut(values))
        return outputs


class Gated(nn.Module):
    """Hu et al., Squeeze-and-Excitation (arXiv 1709.01507): channels are scaled by what their means make of a gate."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.ReLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, values: Tensor) -> Tensor:
        """Return values [B, channels, H, W], scaled."""
        scaled: Tensor = values * self.gate(values)
        return scaled


class ImageClassifier(nn.Module):
    """A chain of layers from pixels to logits."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return logits [B, labels] of pixel_values, float32 [B, 3, H, W] or [B, 3, D, H, W]."""
        return {"logits": self.layers(pixel_values)}


def _head(channels: int, num_labels: int, dims: int = 2) -> list[nn.Module]:
    """Return the mean over all places and a dense layer."""
    pool = nn.AdaptiveAvgPool2d(1) if dims == 2 else nn.AdaptiveAvgPool3d(1)
    return [pool, nn.Flatten(), nn.Linear(channels, num_labels)]


@dataclass
class VGGConfig:
    """Convolutions and channels of each stage, and the width of both hidden dense layers."""

    depths: list[int] = field(default_factory=lambda: [2, 2, 3, 3, 3])
    channels: list[int] = field(default_factory=lambda: [64, 128, 256, 512, 512])
    hidden_size: int = 4096
    num_labels: int = 1000


class VGG(ImageClassifier):
    """Simonyan and Zisserman, configuration D: VGG-16 (arXiv 1409.1556).

    The dense layers read 7 x 7 places; images that are not 224 x 224 are averaged to these.
    """

    def __init__(self, config: VGGConfig) -> None:
        layers: list[nn.Module] = []
        channels = 3
        for depth, width in zip(config.depths, config.channels, strict=True):
            for _ in range(depth):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        size, hidden = channels * 7 * 7, config.hidden_size
        dense = [nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
        logits = nn.Linear(hidden, config.num_labels)
        super().__init__(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *dense, logits)


@dataclass
class ResidualNetworkConfig:
    """Blocks of each stage, and what a block is.

    Attributes:
        depths: blocks of each stage.
        bottleneck: a block is three convolutions (1, 3, 1) instead of two (3, 3).
        groups: groups of a bottleneck's middle convolution.
        group_width: channels of a group in the first stage; it doubles from stage to stage.
        dims: 2 for images, 3 for videos, whose stem has a stride of 1 along time and no pool.
        num_labels: classes.
    """

    depths: list[int] = field(default_factory=lambda: [3, 4, 6, 3])
    bottleneck: bool = True
    groups: int = 1
    group_width: int = 64
    dims: int = 2
    num_labels: int = 1000


class ResidualNetwork(ImageClassifier):
    """He et al., ResNet (arXiv 1512.03385), with three successors.

    Wide ResNet: Zagoruyko and Komodakis (arXiv 1605.07146); ResNeXt: Xie et al. (arXiv 1611.05431); 3-D ResNet (R3D):
    Tran et al. (arXiv 1711.11248). The second convolution of a bottleneck has the stride.
    """

    def __init__(self, config: ResidualNetworkConfig) -> None:
        dims, channels = config.dims, 64
        if dims == 2:
            stem: list[nn.Module] = [normed(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
        else:
            stem = [normed(3, 64, (3, 7, 7), stride=(1, 2, 2))]
        blocks: list[nn.Module] = []
        for stage, depth in enumerate(config.depths):
            for place in range(depth):
                stride = 2 if stage and not place else 1
                blocks.append(self._block(config, channels, 64 * 2**stage, stride))
                channels = 64 * 2**stage * (4 if config.bottleneck else 1)
        super().__init__(*stem, *blocks, *_head(channels, config.num_labels, dims))

    @staticmethod
    def _block(config: ResidualNetworkConfig, channels: int, width: int, stride: int) -> Residual:
        point, cube = (1,) * config.dims, (3,) * config.dims
        out = width * 4 if config.bottleneck else width
        if config.bottleneck:
            inner = width // 64 * config.group_width * config.groups
            body = nn.Sequential(
                normed(channels, inner, point),
                normed(inner, inner, cube, stride=stride, groups=config.groups),
                normed(inner, out, point, activation=None),
            )
        else:
            body = nn.Sequential(
                normed(channels, out, cube, stride=stride), normed(out, out, cube, activation=None)
            )
        is_changed = stride != 1 or channels != out
        shortcut = normed(channels, out, point, stride=stride, activation=None)
        return Residual(body, shortcut if is_changed else None, nn.ReLU())


@dataclass
class DenseNetConfig:
    """Layers of each block, channels that a layer adds, channels of the stem."""

    depths: list[int] = field(default_factory=lambda: [6, 12, 24, 16])
    growth: int = 32
    stem: int = 64
    num_labels: int = 1000


class DenseNet(ImageClassifier):
    """Huang et al., DenseNet-BC (arXiv 1608.06993): every layer reads the outputs of all before it in its block."""

    def __init__(self, config: DenseNetConfig) -> None:
        channels, growth = config.stem, config.growth
        layers: list[nn.Module] = [normed(3, channels, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
        for stage, depth in enumerate(config.depths):
            if stage:
                layers += [*self._convolution(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
            for _ in range(depth):
                bottleneck = self._convolution(channels, 4 * growth, 1)
                added = [*bottleneck, *self._convolution(4 * growth, growth, 3)]
                layers.append(Concatenated(nn.Identity(), nn.Sequential(*added)))
                channels += growth
        last = [nn.BatchNorm2d(channels), nn.ReLU()]
        super().__init__(*layers, *last, *_head(channels, config.num_labels))

    @staticmethod
    def _convolution(channels: int, out: int, kernel: int) -> list[nn.Module]:
        """Return a batch norm, a rectifier and a convolution: the order is not that of `normed`."""
        convolution = nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False)
        return [nn.BatchNorm2d(channels), nn.ReLU(), convolution]


@dataclass
class InceptionConfig:
    """Number of classes."""

    num_labels: int = 1000


class Inception(ImageClassifier):
    """Szegedy et al., Inception v3 (arXiv 1512.00567), without the auxiliary classifier of training.

    The least image is 75 x 75.
    """

    def __init__(self, config: InceptionConfig) -> None:
        stem = [
            *self._chain(3, (32, 3, 2, 0), (32, 3, 1, 0), (64, 3)),
            nn.MaxPool2d(3, 2),
            *self._chain(64, (80, 1), (192, 3, 1, 0)),
            nn.MaxPool2d(3, 2),
        ]
        narrow = [
            self._block(
                c, [(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)], pooled=pooled
            )
            for c, pooled in ((192, 32), (256, 64), (288, 64))
        ]
        middle = [
            self._block(
                768,
                [(192, 1)],
                [(c, 1), (c, (1, 7)), (192, (7, 1))],
                [(c, 1), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))],
                pooled=192,
            )
            for c in (128, 160, 160, 192)
        ]
        halved = self._block(288, [(384, 3, 2, 0)], [(64, 1), (96, 3), (96, 3, 2, 0)])
        quartered = self._block(
            768,
            [(192, 1), (320, 3, 2, 0)],
            [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2, 0)],
        )
        wide = [self._forked(c) for c in (1280, 2048)]
        blocks = [*narrow, halved, *middle, quartered, *wide]
        super().__init__(*stem, *blocks, *_head(2048, config.num_labels))

    @staticmethod
    def _chain(channels: int, *steps: tuple[Any, ...]) -> nn.Sequential:
        """Return convolutions, each (channels, kernel[, stride, padding])."""
        sources = [channels, *(step[0] for step in steps)]
        return nn.Sequential(
            *(
                normed(a, out, kernel, **dict(zip(("stride", "padding"), rest, strict=False)))
                for a, (out, kernel, *rest) in zip(sources, steps, strict=False)
            )
        )

    @classmethod
    def _block(
        cls, channels: int, *branches: list[tuple[Any, ...]], pooled: int = 0
    ) -> Concatenated:
        """Return chains beside a pool: an average and a convolution to `pooled` channels, else a strided maximum."""
        pool: nn.Module = nn.MaxPool2d(3, 2)
        if pooled:
            pool = nn.Sequential(nn.AvgPool2d(3, 1, 1), normed(channels, pooled, 1))
        return Concatenated(*(cls._chain(channels, *branch) for branch in branches), pool)

    @classmethod
    def _forked(cls, channels: int) -> Concatenated:
        """Return the block of the coarsest places, two of whose branches end with two convolutions side by side."""

        def forked(*steps: tuple[int, int]) -> nn.Sequential:
            ends = [normed(384, 384, kernel) for kernel in ((1, 3), (3, 1))]
            return nn.Sequential(*cls._chain(channels, *steps), Concatenated(*ends))

        pool = nn.Sequential(nn.AvgPool2d(3, 1, 1), normed(channels, 192, 1))
        return Concatenated(
            normed(channels, 320, 1), forked((384, 1)), forked((448, 1), (384, 3)), pool
        )


@dataclass
class InvertedResidualsConfig:
    """Layers of a MobileNet V3 or MnasNet.

    Attributes:
        stem: channels of the first convolution.
        blocks: for each block its kernel, its channels inside, its channels outside, the channels of its gate (0 for
            none), its activation and its stride.
        last: channels of the last convolution.
        hidden_size: width of a dense layer before the logits, 0 for none.
        activation: relu or hardswish: of stem, last convolution and dense layer.
        num_labels: classes.
    """

    stem: int
    blocks: list[tuple[int, int, int, int, str, int]]
    last: int
    hidden_size: int = 0
    activation: str = "relu"
    num_labels: int = 1000


_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "hardswish": nn.Hardswish}


class InvertedResiduals(ImageClassifier):
    """Inverted residuals with a linear bottleneck (arXiv 1801.04381), as two searches have arranged them.

    Howard et al., MobileNet V3 (arXiv 1905.02244); Tan et al., MnasNet (arXiv 1807.11626).
    """

    def __init__(self, config: InvertedResidualsConfig) -> None:
        try:
            outer = _ACTIVATIONS[config.activation]
            inner = [_ACTIVATIONS[block[4]] for block in config.blocks]
        except KeyError as error:
            raise ValueError(
                f"an activation must be one of {', '.join(_ACTIVATIONS)}; found {error}"
            ) from error
        layers: list[nn.Module] = [normed(3, config.stem, stride=2, activation=outer)]
        channels = config.stem
        for (kernel, width, out, gate, _, stride), activation in zip(
            config.blocks, inner, strict=True
        ):
            body = [normed(channels, width, 1, activation=activation)] if width != channels else []
            options: dict[str, Any] = {"stride": stride, "groups": width, "activation": activation}
            body.append(normed(width, width, kernel, **options))
            narrowed = normed(width, out, 1, activation=None)
            chain = nn.Sequential(*body, *([Gated(width, gate)] if gate else []), narrowed)
            layers.append(Residual(chain) if stride == 1 and channels == out else chain)
            channels = out
        layers.append(normed(channels, config.last, 1, activation=outer))
        *pool, logits = _head(config.hidden_size or config.last, config.num_labels)
        if config.hidden_size:
            pool += [nn.Linear(config.last, config.hidden_size), outer()]
        super().__init__(*layers, *pool, logits)


@dataclass
class GeneratorConfig:
    """Sizes of a generator: image height and width, a multiple of 16; channels before the image; width of a code."""

    size: int = 64
    channels: int = 128
    code_size: int = 100


class Generator(nn.Module):
    """The generator of Radford et al., DCGAN (arXiv 1511.06434): a code becomes an image in four doublings."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        if config.size < 16 or config.size % 16:
            raise ValueError(f"size must be a multiple of 16; found {config.size}")
        places, widths = config.size // 16, [config.channels * 2**power for power in (3, 2, 1, 0)]
        layers: list[nn.Module] = [
            nn.Linear(config.code_size, widths[0] * places**2, bias=False),
            nn.Unflatten(1, (widths[0], places, places)),
        ]
        for a, b in pairwise([*widths, 3]):
            enlarged = nn.ConvTranspose2d(a, b, 4, stride=2, padding=1, bias=False)
            layers += [nn.BatchNorm2d(a), nn.ReLU(), enlarged]
        self.layers = nn.Sequential(*layers, nn.Tanh())

    def forward(self, codes: Tensor) -> dict[str, Tensor]:
        """Return images [B, 3, size, size], in (-1, 1), of codes, float32 [B, code_size]."""
        return {"images": self.layers(codes)}
