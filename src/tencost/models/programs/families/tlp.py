"""Attention over schedule primitives: no lowering, no feature extraction (TLP, ASPLOS'23).

What differs from TLP's published network: positions are learnt, layers are normalised before they
act, and the score reads the maximum over the steps beside their sum. Trained with torch
(:mod:`tencost.models.programs.neural.tlp_training`), served with NumPy (:mod:`tencost.models.programs.neural.layers`).

Files: see :mod:`tencost.models.programs.neural.network_ranker`.

Legend: B programs of one bucket, T steps, H hidden width, A heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from tencost.config.checking import within
from tencost.errors import ConfigError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.neural.settings import NeuralConfig
from tencost.models.neural.weights import Weights, layer_shapes
from tencost.models.programs.neural.layers import (
    MASKED,
    POOL_SCALE,
    Array,
    dot,
    layer,
    layer_norm,
    softmax,
)
from tencost.models.programs.neural.network_ranker import InTorch, NetworkInputs, NetworkRanker
from tencost.models.programs.ranker import Family

MAX_STEPS = 64
"""Steps of a program that are read where the feature set does not say how many it keeps."""

_BUCKET = 8
_CHUNK = 256
"""Programs that are scored at a time, which bounds the memory of attention."""


@dataclass(kw_only=True)
class TlpConfig(NeuralConfig):
    """Attention over schedule primitives (TLP)."""

    hidden: int = 64
    """Width of the steps' encoding; a multiple of heads."""
    beside: str = "summary"
    """What is read beside the attention over steps: constants, summary (first, sum, maximum of steps), nothing."""
    learning_rate: float = 1.5e-3
    """Largest step size of AdamW; one cycle up and down."""
    epochs: int = 25
    """Passes over the training split."""
    dropout: float = 0.1
    """Share of hidden units dropped while training."""
    layers: int = 1
    """Attention blocks."""
    heads: int = 4
    """Attention heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within("model", self, heads="[1, inf)", layers="[1, inf)")
        if isinstance(self.hidden, int) and self.hidden % self.heads:
            raise ConfigError(
                f"model.hidden must be a multiple of model.heads ({self.heads}), found {self.hidden}"
            )


class TlpRanker(NetworkRanker):
    """Steps -> two layers and a position -> attention -> sum and maximum -> head -> score."""

    family: ClassVar[str] = "tlp"
    untransposed: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(self, config: TlpConfig, spec: FeatureSpec) -> None:
        super().__init__(config, spec)
        self._tlp = config
        self._max_steps = int(spec.options.get("max_steps", MAX_STEPS))

    def _in_torch(self) -> InTorch:
        from tencost.models.programs.neural.tlp_training import AttentionNetwork, collated_steps

        network = partial(AttentionNetwork, max_steps=self._max_steps, config=self._tlp)
        return network, collated_steps

    def _shapes(self, rows: int, beside: int, most: int) -> dict[str, tuple[int, ...]]:
        hidden, wide = self._tlp.hidden, 2 * self._tlp.hidden
        shapes = {
            "position": (self._max_steps, hidden),
            **layer_shapes("encode1", rows, hidden),
            **layer_shapes("encode2", hidden, hidden),
            **layer_shapes("head1", wide * (2 if beside else 1), wide),
            **layer_shapes("head2", wide, 1),
        }
        if beside:
            shapes |= layer_shapes("beside1", beside, wide)
            shapes |= layer_shapes("beside2", wide, wide)
        for block in range(min(self._tlp.layers, most)):
            name = f"blocks.{block}"
            shapes |= {f"{name}.norm1.weight": (hidden,), f"{name}.norm1.bias": (hidden,)}
            shapes |= {f"{name}.norm2.weight": (hidden,), f"{name}.norm2.bias": (hidden,)}
            shapes |= layer_shapes(f"{name}.qkv", hidden, 3 * hidden)
            shapes |= layer_shapes(f"{name}.project", hidden, hidden)
            shapes |= layer_shapes(f"{name}.wide", hidden, 2 * hidden)
            shapes |= layer_shapes(f"{name}.narrow", 2 * hidden, hidden)
        return shapes

    def _forward(self, weights: Weights, inputs: NetworkInputs) -> Array:
        return score_sequences(weights, inputs, self._tlp)

    def inputs(self, features: Ragged) -> NetworkInputs:
        """Keep the first steps of each program."""
        inputs = super().inputs(features)
        rows = inputs.rows
        position = np.arange(len(rows.values)) - np.repeat(rows.offsets[:-1], rows.lengths)
        lengths = np.minimum(rows.lengths, self._max_steps)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return NetworkInputs(
            Ragged(rows.values[position < self._max_steps], offsets), inputs.beside
        )


def score_sequences(weights: Weights, inputs: NetworkInputs, config: TlpConfig) -> Array:
    """Score programs, each with at least one step: float32 [N].

    Programs are padded to a multiple of 8 steps, whatever stands beside them in the batch, so that
    the bits of a score depend on the program alone.
    """
    steps = inputs.rows
    out = np.empty(len(steps), np.float32)
    bucket = -(-steps.lengths // _BUCKET) * _BUCKET
    for length in np.unique(bucket).tolist():
        inside = np.flatnonzero(bucket == length)
        for start in range(0, len(inside), _CHUNK):
            chosen = inside[start : start + _CHUNK]
            beside = None if inputs.beside is None else inputs.beside[chosen]
            out[chosen] = _score(weights, steps.take(chosen), beside, length, config)
    return out


def _score(
    weights: Weights, steps: Ragged, beside: Array | None, length: int, config: TlpConfig
) -> Array:
    size, width = len(steps), config.hidden
    present = np.arange(length) < steps.lengths[:, None]
    absent = np.where(present, np.float32(0.0), np.float32(MASKED))
    encoded = layer(weights, "encode2", layer(weights, "encode1", steps.values), relu=False)
    hidden = np.zeros((size, length, width), np.float32)
    hidden[present] = encoded
    positions = weights["position"]
    hidden[present] += positions[np.nonzero(present)[1]]
    for block in range(config.layers):
        hidden = _attend(weights, f"blocks.{block}", hidden, absent, config.heads)
    total = np.where(present[:, :, None], hidden, np.float32(0.0)).sum(axis=1) / np.float32(
        POOL_SCALE
    )
    largest = (hidden + absent[:, :, None]).max(axis=1)
    pooled = np.concatenate([total, largest], axis=1)
    if beside is not None:
        encoded = layer(weights, "beside1", beside)
        encoded = layer(weights, "beside2", encoded)
        pooled = np.concatenate([pooled, encoded], axis=1)
    last = layer(weights, "head1", pooled)
    return dot(last, weights["head2.weight"][:, 0], weights["head2.bias"])


def _attend(
    weights: Weights,
    name: str,
    hidden: Array,
    absent: Array,
    heads: int,
) -> Array:
    """Apply one attention block: float32 [B, T, H] -> [B, T, H]."""
    size, length, width = hidden.shape
    flat = hidden.reshape(-1, width)
    normed = layer_norm(flat, weights[f"{name}.norm1.weight"], weights[f"{name}.norm1.bias"])
    split = layer(weights, f"{name}.qkv", normed, relu=False).reshape(
        size, length, 3, heads, width // heads
    )
    query, key, value = np.ascontiguousarray(split.transpose(2, 0, 3, 1, 4))
    affinity = np.matmul(query, np.ascontiguousarray(key.swapaxes(-1, -2)))
    affinity = affinity / np.float32((width // heads) ** 0.5) + absent[:, None, None, :]
    mixed = np.matmul(softmax(affinity), value).transpose(0, 2, 1, 3).reshape(-1, width)
    flat = flat + layer(weights, f"{name}.project", mixed, relu=False)
    normed = layer_norm(flat, weights[f"{name}.norm2.weight"], weights[f"{name}.norm2.bias"])
    wide = layer(weights, f"{name}.wide", normed)
    return (flat + layer(weights, f"{name}.narrow", wide, relu=False)).reshape(size, length, width)


FAMILY = Family(
    config=TlpConfig,
    ranker=TlpRanker,
    for_tests=TlpConfig(family="tlp", hidden=16, heads=2, epochs=25, learning_rate=5e-3),
    folds=1,
)
