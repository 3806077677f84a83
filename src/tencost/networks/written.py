"""Networks that transformers lacks: a decoder's step with past keys, a U-Net, a detector, a recommender, speech.

Each is a class and a configuration, as transformers has them: ``architecture: UNet``, ``config_class: UNetConfig``.
What they are for is their layers: of each kind one network, small, with no more layers than have different shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class DecoderStepConfig:
    """Sizes of a Llama-like decoder block with grouped keys."""

    vocab_size: int = 32000
    hidden_size: int = 768
    intermediate_size: int = 2048
    num_attention_heads: int = 12
    num_key_value_heads: int = 4


class DecoderStep(nn.Module):
    """One block of a decoder that makes the next token, after those whose keys and values it is given.

    Touvron et al., LLaMA (arXiv 2302.13971); grouped keys: Ainslie et al. (arXiv 2305.13245).
    """

    turns: Tensor

    def __init__(self, config: DecoderStepConfig) -> None:
        super().__init__()
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.width = config.hidden_size // self.heads
        size, narrow = config.hidden_size, self.groups * self.width
        self.embedding = nn.Embedding(config.vocab_size, size)
        self.query, self.output = (nn.Linear(size, size, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(size, narrow, bias=False) for _ in range(2))
        self.gate, self.up = (
            nn.Linear(size, config.intermediate_size, bias=False) for _ in range(2)
        )
        self.down = nn.Linear(config.intermediate_size, size, bias=False)
        self.before, self.between, self.after = (RootMeanSquare(size) for _ in range(3))
        half = self.width // 2
        self.register_buffer("turns", 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half))

    def forward(
        self, input_ids: Tensor, past_keys: Tensor, past_values: Tensor
    ) -> dict[str, Tensor]:
        """Return last_hidden_state [B, 1, H], and the keys and values with the new ones, [B, groups, past + 1, width].

        Args:
            input_ids: the last token, int64 [B, 1].
            past_keys: float32 [B, groups, past, width].
            past_values: as the keys.
        """
        hidden = self.embedding(input_ids)
        normed, past = self.before(hidden), past_keys.shape[2]
        query = self._turned(self._split(self.query(normed), self.heads), past)
        key = self._turned(self._split(self.key(normed), self.groups), past)
        keys = torch.cat([past_keys, key], dim=2)
        values = torch.cat([past_values, self._split(self.value(normed), self.groups)], dim=2)
        batch, each = query.shape[0], self.heads // self.groups
        grouped = query.reshape(batch, self.groups, each, self.width)
        weights = torch.softmax(grouped @ keys.transpose(2, 3) / self.width**0.5, dim=-1)
        mixed = (weights @ values).reshape(batch, 1, self.heads * self.width)
        hidden = hidden + self.output(mixed)
        normed = self.between(hidden)
        hidden = hidden + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))
        return {"last_hidden_state": self.after(hidden), "keys": keys, "values": values}

    def _split(self, values: Tensor, heads: int) -> Tensor:
        return values.reshape(values.shape[0], 1, heads, self.width).transpose(1, 2)

    def _turned(self, values: Tensor, place: int) -> Tensor:
        """Return keys or queries turned by their place: rotary embedding."""
        half = self.width // 2
        angles = self.turns * place
        first, second = values[..., :half], values[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class RootMeanSquare(nn.Module):
    """Division by the root of the mean square, and a scale."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, values: Tensor) -> Tensor:
        """Return values, scaled along the last axis."""
        mean = values.pow(2).mean(-1, keepdim=True)
        return self.weight * values * torch.rsqrt(mean + 1e-6)


@dataclass
class UNetConfig:
    """Channels of each level of a U-Net, from the finest."""

    channels: list[int] = field(default_factory=lambda: [32, 64, 128, 256])
    num_labels: int = 8


class UNet(nn.Module):
    """Ronneberger et al., U-Net (arXiv 1505.04597): pools down, neighbours up, joined level by level."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        widths = config.channels
        sources = [3, *widths[:-1]]
        self.down = nn.ModuleList(
            nn.Sequential(normed(a, b), normed(b, b)) for a, b in zip(sources, widths, strict=True)
        )
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(normed(a, b) for a, b in pairs)
        self.joined = nn.ModuleList(nn.Sequential(normed(2 * b, b), normed(b, b)) for _, b in pairs)
        self.classifier = nn.Conv2d(widths[0], config.num_labels, 1)

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return logits [B, labels, H, W] of pixel_values [B, 3, H, W]; H and W multiples of the coarsest pixel."""
        levels: list[Tensor] = []
        values = pixel_values
        for level, block in enumerate(self.down):
            values = block(nn.functional.max_pool2d(values, 2) if level else values)
            levels.append(values)
        levels.pop()
        for up, joined in zip(self.up, self.joined, strict=True):
            values = nn.functional.interpolate(values, scale_factor=2.0, mode="nearest")
            values = joined(torch.cat([levels.pop(), up(values)], dim=1))
        return {"logits": self.classifier(values)}


@dataclass
class DetectorConfig:
    """Sizes of a detector: channels of the stages, of the pyramid, and what each place of it says."""

    channels: list[int] = field(default_factory=lambda: [32, 64, 128, 256])
    pyramid: int = 96
    towers: int = 1
    num_labels: int = 20
    num_anchors: int = 3


class Detector(nn.Module):
    """A one-stage detector: strided convolutions, a feature pyramid (arXiv 1612.03144), heads shared by its levels.

    The heads are RetinaNet's (arXiv 1708.02002).
    """

    def __init__(self, config: DetectorConfig) -> None:
        super().__init__()
        widths, size = config.channels, config.pyramid
        self.stem = normed(3, widths[0], stride=2)
        pairs = list(pairwise(widths))
        self.stages = nn.ModuleList(
            nn.Sequential(normed(a, b, stride=2), normed(b, b)) for a, b in pairs
        )
        self.lateral = nn.ModuleList(nn.Conv2d(b, size, 1) for _, b in pairs)
        self.smooth = nn.ModuleList(nn.Conv2d(size, size, 3, padding=1) for _ in pairs)
        towers = [
            nn.Sequential(*(normed(size, size) for _ in range(config.towers))) for _ in range(2)
        ]
        self.towers = nn.ModuleList(towers)
        outputs = (config.num_anchors * config.num_labels, config.num_anchors * 4)
        self.heads = nn.ModuleList(nn.Conv2d(size, count, 3, padding=1) for count in outputs)

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return logits and boxes, [B, places of all levels, anchors * labels or anchors * 4]."""
        values, levels = self.stem(pixel_values), []
        for stage, lateral in zip(self.stages, self.lateral, strict=True):
            values = stage(values)
            levels.append(lateral(values))
        for fine in range(len(levels) - 2, -1, -1):
            coarse = nn.functional.interpolate(levels[fine + 1], scale_factor=2.0, mode="nearest")
            levels[fine] = levels[fine] + coarse
        outputs: list[list[Tensor]] = [[], []]
        for smooth, level in zip(self.smooth, levels, strict=True):
            values = smooth(level)
            for output, tower, head in zip(outputs, self.towers, self.heads, strict=True):
                output.append(head(tower(values)).flatten(2).transpose(1, 2))
        logits, boxes = (torch.cat(output, dim=1) for output in outputs)
        return {"logits": logits, "boxes": boxes}


@dataclass
class RecommenderConfig:
    """Sizes of a recommender: numbers it is given, categories, the layers of both perceptrons."""

    num_dense: int = 13
    num_categories: int = 26
    vocab_size: int = 1000
    width: int = 32
    bottom: list[int] = field(default_factory=lambda: [512, 256])
    top: list[int] = field(default_factory=lambda: [512, 256])


class Recommender(nn.Module):
    """Naumov et al., DLRM (arXiv 1906.00091): embeddings and a perceptron, their products, another perceptron."""

    first: Tensor

    def __init__(self, config: RecommenderConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.num_categories * config.vocab_size, config.width)
        first = torch.arange(config.num_categories) * config.vocab_size
        self.register_buffer("first", first)
        self.bottom = perceptron([config.num_dense, *config.bottom, config.width])
        vectors = config.num_categories + 1
        self.top = perceptron([config.width + vectors * vectors, *config.top, 1])

    def forward(self, dense: Tensor, categories: Tensor) -> dict[str, Tensor]:
        """Return logits [B, 1].

        Args:
            dense: float32 [B, numbers].
            categories: int64 [B, categories], each below the vocabulary's size.
        """
        numbers = self.bottom(dense)
        vectors = torch.cat([numbers.unsqueeze(1), self.embedding(categories + self.first)], dim=1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1) / vectors.shape[-1] ** 0.5
        return {"logits": self.top(torch.cat([numbers, products], dim=1))}


@dataclass
class SpeechEncoderConfig:
    """Sizes of a Conformer encoder."""

    num_mel_bins: int = 80
    subsampling: int = 64
    hidden_size: int = 144
    num_attention_heads: int = 4
    kernel: int = 31


class SpeechEncoder(nn.Module):
    """One block of Gulati et al., Conformer (arXiv 2005.08100), after two strided convolutions.

    Half a perceptron, attention, a convolution over time, half a perceptron.
    """

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        size, channels = config.hidden_size, config.subsampling
        self.heads, self.width = config.num_attention_heads, size // config.num_attention_heads
        self.first, self.second = (
            normed(1, channels, stride=2),
            normed(channels, channels, stride=2),
        )
        self.project = nn.Linear(channels * (config.num_mel_bins // 4), size)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(5))
        self.wide = nn.ModuleList(nn.Linear(size, 4 * size) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Linear(4 * size, size) for _ in range(2))
        self.attention, self.mixed = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.gated, self.joined = nn.Linear(size, 2 * size), nn.Linear(size, size)
        self.over_time = nn.Conv1d(
            size, size, config.kernel, padding=config.kernel // 2, groups=size
        )

    def forward(self, input_features: Tensor) -> dict[str, Tensor]:
        """Return last_hidden_state [B, T / 4, H] of input_features [B, mel bins, T]."""
        values = self.second(self.first(input_features.transpose(1, 2).unsqueeze(1)))
        hidden = self.project(values.transpose(1, 2).flatten(2))
        hidden = hidden + 0.5 * self._perceptron(self.norms[0](hidden), 0)
        hidden = hidden + self._attended(self.norms[1](hidden))
        first, second = self.gated(self.norms[2](hidden)).chunk(2, dim=-1)
        gated = (first * torch.sigmoid(second)).transpose(1, 2)
        mixed = nn.functional.silu(self.over_time(gated)).transpose(1, 2)
        hidden = hidden + self.joined(mixed)
        hidden = hidden + 0.5 * self._perceptron(self.norms[3](hidden), 1)
        return {"last_hidden_state": self.norms[4](hidden)}

    def _perceptron(self, values: Tensor, place: int) -> Tensor:
        narrowed: Tensor = self.narrow[place](nn.functional.silu(self.wide[place](values)))
        return narrowed

    def _attended(self, values: Tensor) -> Tensor:
        batch, length, size = values.shape
        split = self.attention(values).reshape(batch, length, 3, self.heads, self.width)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(query @ key.transpose(2, 3) / self.width**0.5, dim=-1)
        mixed: Tensor = self.mixed((weights @ value).transpose(1, 2).reshape(batch, length, size))
        return mixed


def normed(
    channels: int,
    out: int,
    kernel: int | tuple[int, ...] = 3,
    *,
    stride: int | tuple[int, ...] = 1,
    padding: int | None = None,
    groups: int = 1,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Return a convolution, a batch norm and an activation, a rectifier by default; of volumes for a kernel of three.

    By default the input is padded so that a stride of 1 keeps its size.
    """
    kernels: Any = (kernel, kernel) if isinstance(kernel, int) else kernel
    paddings = tuple(size // 2 if padding is None else padding for size in kernels)
    convolution, norm = (
        (nn.Conv3d, nn.BatchNorm3d) if len(kernels) == 3 else (nn.Conv2d, nn.BatchNorm2d)
    )
    options: dict[str, Any] = {"stride": stride, "padding": paddings, "groups": groups}
    layers = [convolution(channels, out, kernels, bias=False, **options), norm(out)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


def perceptron(sizes: list[int]) -> nn.Sequential:
    """Return layers of these sizes with rectifiers between them."""
    layers: list[nn.Module] = []
    for number, (a, b) in enumerate(pairwise(sizes)):
        layers += [nn.ReLU()] if number else []
        layers.append(nn.Linear(a, b))
    return nn.Sequential(*layers)
