"""The reference: TVM 0.27's MLPModel recipe, retrained on our split and features.

As ``tvm.s_tir.meta_schedule.cost_model.MLPModel``: rows of 172 columns through two layers of 256, a
sum per program, two residual layers, one score; LambdaRank over random batches of 128 programs that
mix tasks; Adam (7e-4, weight decay 1e-6), learning rate times 0.8 every tenth of 50 epochs, gradient
norm at most 0.5.

What differs:
- TVM divides each column by its maximum in whatever it is given, when training and again when
  predicting, so that a program's score depends on its neighbours. Here the maxima of the training
  split are used for both: a score must be the same alone or in a batch.
- TVM holds out a random fifth of the workloads that it was given; here that is the validation split,
  so the reference learns from the whole training split.
- TVM keeps the epoch with the least loss on what it holds out. That loss grows with confidence: on the sample it is
  least after the first epoch, long before the network ranks best. Here the epoch that ranks the validation split best
  is kept, as for our own families; the reference is the stronger for it.
- A failed program has label 0 where TVM has the fastest latency / 1e10.

Files: `network_0.safetensors`, with the maxima as `scale`. Served with NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tencost.config import ModelConfig
from tencost.config.checking import one_of, within
from tencost.errors import BundleError
from tencost.features.kinds import per_store
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.neural.settings import ACCELERATORS
from tencost.models.neural.weights import (
    Weights,
    check_weights,
    layer_shapes,
    read_weights,
    write_weights,
)
from tencost.models.programs.neural.layers import dot, layer
from tencost.models.programs.neural.network_ranker import served
from tencost.models.programs.ranker import Family, LogMetric, RowRanker, Samples
from tencost.models.programs.ranker.labels import featurized


@dataclass(kw_only=True)
class TvmMlpConfig(ModelConfig):
    """TVM's own MLPModel recipe, retrained on the same split: the reference."""

    epochs: int = 50
    """Passes over the training split (TVM's default)."""
    batch_size: int = 128
    """Programs a batch, tasks mixed, as TVM does it."""
    num_threads: int = 1
    """Threads while training."""
    accelerator: str = "cpu"
    """Lightning's accelerator while training: cpu, gpu, cuda, mps or auto. Ranking always runs on the CPU."""

    def __post_init__(self) -> None:
        within("model", self, epochs="[1, inf)", batch_size="[1, inf)", num_threads="[1, inf)")
        one_of("model.accelerator", self.accelerator, ACCELERATORS)


class TvmMlpRanker(RowRanker):
    """TVM's MLPModel; see the module's text."""

    family: ClassVar[str] = "tvm_mlp"

    def __init__(self, config: TvmMlpConfig, spec: FeatureSpec) -> None:
        self._spec = spec
        self._columns = spec.positions(per_store.COLUMNS)
        self._config = config
        self._weights: Weights = {}

    def fit(self, train: Samples, valid: Samples, *, seed: int, log: LogMetric) -> None:
        from tencost.models.programs.neural.tvm_mlp_training import fit_tvm_mlp

        train, valid = featurized(train), featurized(valid)
        rows, valid_rows = self._rows(train.features), self._rows(valid.features)
        scale = rows.values.max(axis=0)
        scale = np.where(scale == 0, np.float32(1.0), scale).astype(np.float32)
        weights = fit_tvm_mlp(
            self._config,
            train,
            valid,
            _scaled(rows, scale),
            _scaled(valid_rows, scale),
            seed=seed,
            log=log,
        )
        self._weights = {**served(weights), "scale": scale}

    def _score(self, features: Ragged) -> npt.NDArray[np.float32]:
        return score_stores(self._weights, _scaled(self._rows(features), self._weights["scale"]))

    def save(self, folder: Path) -> None:
        write_weights(folder / "network_0.safetensors", self._weights)

    def load(self, folder: Path) -> None:
        columns = len(self._spec.columns if self._columns is None else self._columns)
        path = folder / "network_0.safetensors"
        self._weights = read_weights(path)
        hidden = self._weights.get("encoder1.bias", np.zeros(0, np.float32)).size
        shapes = {
            **layer_shapes("encoder1", columns, hidden),
            **layer_shapes("encoder2", hidden, hidden),
            **layer_shapes("layer0", hidden, hidden),
            **layer_shapes("layer1", hidden, hidden),
            **layer_shapes("decoder", hidden, 1),
            "scale": (columns,),
        }
        check_weights(path, self._weights, shapes)
        if not self._weights["scale"].all():
            raise BundleError(f"{path}: expected a scale other than 0 for every column, found 0")

    def _rows(self, features: Ragged) -> Ragged:
        if self._columns is None:
            return features
        return Ragged(np.ascontiguousarray(features.values[:, self._columns]), features.offsets)


def score_stores(weights: Weights, rows: Ragged) -> npt.NDArray[np.float32]:
    """Score programs, each with at least one row: float32 [N]."""
    encoded = layer(weights, "encoder2", layer(weights, "encoder1", rows.values))
    total = np.add.reduceat(encoded, rows.offsets[:-1], axis=0)
    total = layer(weights, "layer0", total) + total
    total = layer(weights, "layer1", total) + total
    return dot(total, weights["decoder.weight"][:, 0], weights["decoder.bias"])


def _scaled(features: Ragged, scale: npt.NDArray[np.float32]) -> Ragged:
    return Ragged(features.values / scale, features.offsets)


FAMILY = Family(
    config=TvmMlpConfig,
    ranker=TvmMlpRanker,
    for_tests=TvmMlpConfig(family="tvm_mlp", epochs=12, batch_size=32),
    features="per_store",
)
