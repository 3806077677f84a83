"""Segment-sum MLP over store rows (TenSet), with what is the same on every row beside the sum.

Trained with torch (:mod:`tencost.models.programs.neural.mlp_training`), served with NumPy
(:mod:`tencost.models.programs.neural.layers`). Files: see :mod:`tencost.models.programs.neural.network_ranker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from tencost.models.neural.settings import NeuralConfig
from tencost.models.neural.weights import Weights, layer_shapes
from tencost.models.programs.neural.layers import Array, dot, layer
from tencost.models.programs.neural.network_ranker import InTorch, NetworkInputs, NetworkRanker
from tencost.models.programs.ranker import Family


@dataclass(kw_only=True)
class MlpConfig(NeuralConfig):
    """Segment-sum MLP over store rows (TenSet), with the program's summary beside them."""


class MlpRanker(NetworkRanker):
    """Rows -> two layers -> sum per program; constants -> two layers; both -> head -> score."""

    family: ClassVar[str] = "mlp"

    def _in_torch(self) -> InTorch:
        from tencost.models.programs.neural.mlp_training import SegmentSumNetwork, collated_sums

        return partial(SegmentSumNetwork, config=self._config), collated_sums

    def _shapes(self, rows: int, beside: int, most: int) -> dict[str, tuple[int, ...]]:
        del most
        hidden = self._config.hidden
        shapes = {
            **layer_shapes("rows1", rows, hidden),
            **layer_shapes("rows2", hidden, hidden),
            **layer_shapes("head1", hidden * (2 if beside else 1), hidden),
            **layer_shapes("head2", hidden, 1),
        }
        if beside:
            shapes |= layer_shapes("beside1", beside, hidden)
            shapes |= layer_shapes("beside2", hidden, hidden)
        return shapes

    def _forward(self, weights: Weights, inputs: NetworkInputs) -> Array:
        rows = inputs.rows
        encoded = layer(weights, "rows2", layer(weights, "rows1", rows.values))
        total = np.add.reduceat(encoded, rows.offsets[:-1], axis=0)
        if inputs.beside is not None:
            beside = layer(weights, "beside2", layer(weights, "beside1", inputs.beside))
            total = np.concatenate([total, beside], axis=1)
        hidden = layer(weights, "head1", total)
        return dot(hidden, weights["head2.weight"][:, 0], weights["head2.bias"])


FAMILY = Family(
    config=MlpConfig,
    ranker=MlpRanker,
    for_tests=MlpConfig(family="mlp", hidden=16, epochs=25, beside="summary", num_models=2),
)
