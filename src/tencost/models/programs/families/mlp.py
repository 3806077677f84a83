"""Segment-sum MLP over store rows (TenSet), with what is the same on every row beside the sum.

Trained with torch (:mod:`tencost.models.programs.neural.mlp_training`), served with NumPy
(:mod:`tencost.models.programs.neural.layers`). Files: see :mod:`tencost.models.programs.neural.network_ranker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tencost.models.neural.settings import NeuralConfig
from tencost.models.neural.weights import Weights, layer_shapes
from tencost.models.programs.neural.layers import Array, dense, dot
from tencost.models.programs.neural.network_ranker import NetworkInputs, NetworkRanker
from tencost.models.programs.ranker import Family, LogMetric, Samples


@dataclass(kw_only=True)
class MlpConfig(NeuralConfig):
    """Segment-sum MLP over store rows (TenSet), with the program's summary beside them."""


class MlpRanker(NetworkRanker):
    """Rows -> two layers -> sum per program; constants -> two layers; both -> head -> score."""

    family: ClassVar[str] = "mlp"

    def _train(
        self,
        train: Samples,
        valid: Samples,
        inputs: NetworkInputs,
        valid_inputs: NetworkInputs,
        *,
        seed: int,
        log: LogMetric,
    ) -> Weights:
        from tencost.models.programs.neural.mlp_training import fit_mlp

        return fit_mlp(self._config, train, valid, inputs, valid_inputs, seed=seed, log=log)

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
        encoded = _layer(weights, "rows2", _layer(weights, "rows1", rows.values))
        total = np.add.reduceat(encoded, rows.offsets[:-1], axis=0)
        if inputs.beside is not None:
            beside = _layer(weights, "beside2", _layer(weights, "beside1", inputs.beside))
            total = np.concatenate([total, beside], axis=1)
        hidden = _layer(weights, "head1", total)
        return dot(hidden, weights["head2.weight"][:, 0], weights["head2.bias"])


def _layer(weights: Weights, name: str, inputs: Array) -> Array:
    return dense(inputs, weights[f"{name}.weight"], weights[f"{name}.bias"], relu=True)


FAMILY = Family(
    config=MlpConfig,
    ranker=MlpRanker,
    for_tests=MlpConfig(family="mlp", hidden=16, epochs=25, beside="summary", num_models=2),
)
