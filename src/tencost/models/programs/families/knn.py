"""Nearest neighbours: the mean label of the training programs whose tile structure is most alike.

The simplest model that can read a program: a family that does not beat it has learnt no more than which programs were
fast before. It reads one row a program: the columns that are the same on all of a program's rows (the tiles of
per_store_tiles, and what relates them to the hardware), or where a kind has none the summary that trees read. Columns
are standardized on the training split; the distance is Euclidean.

Files: `knn.safetensors` with `rows` float32 [P, C] (standardized), `label` float32 [P], `mean` and `scale` float32 [C].
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from tencost.config import ModelConfig
from tencost.config.checking import within
from tencost.errors import FeatureError
from tencost.features.rows.kind import kind_of
from tencost.features.rows.ragged import FloatArray, IntArray, Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.summary import (
    constants,
    num_constant_columns,
    summarize_programs,
    summary_names,
)
from tencost.models.neural.weights import Weights, check_weights, read_weights, write_weights
from tencost.models.programs.ranker import (
    Family,
    LogMetric,
    RowRanker,
    Samples,
    Scores,
    check_width,
)
from tencost.models.programs.ranker.labels import featurized
from tencost.models.programs.ranker.losses import RankingMetrics

_FILE = "knn.safetensors"
_BLOCK = 1 << 22
"""Distances that are worked on at a time: 32 MiB."""


@dataclass(kw_only=True)
class KnnConfig(ModelConfig):
    """Mean label of the nearest training programs."""

    neighbours: int = 10
    """Training programs whose labels are averaged."""

    def __post_init__(self) -> None:
        within("model", self, neighbours="[1, inf)")


def _program_rows(features: Ragged, spec: FeatureSpec) -> FloatArray:
    """Return what is read of programs that have rows: float32 [N, C]."""
    whole = kind_of(spec).one_row or not num_constant_columns(spec)
    rows = summarize_programs(features, spec) if whole else constants(features, spec)
    wrong = int(np.count_nonzero(~np.isfinite(rows).all(axis=1)))
    if wrong:
        raise FeatureError(
            f"expected finite numbers in the rows of {len(rows)} programs ({spec.name}), found {wrong} programs with "
            "others, which are near nothing. Make the features again: dvc repro"
        )
    return rows


class KnnRanker(RowRanker):
    """Scores in [0, 1]: the mean label of the nearest training programs, higher is faster."""

    family: ClassVar[str] = "knn"

    def __init__(self, config: KnnConfig, spec: FeatureSpec) -> None:
        self._config = config
        self._spec = spec
        self._tensors: Weights = {}

    def fit(self, train: Samples, valid: Samples, *, seed: int, log: LogMetric) -> None:
        del seed
        train, valid = featurized(train), featurized(valid)
        rows = _program_rows(train.features, self._spec)
        mean, scale = rows.mean(axis=0), rows.std(axis=0)
        scale = np.where(scale > 0, scale, 1.0).astype(np.float32)
        self._tensors = {
            "rows": ((rows - mean) / scale).astype(np.float32),
            "label": train.label.astype(np.float32),
            "mean": mean.astype(np.float32),
            "scale": scale,
        }
        metrics = RankingMetrics(valid.label, valid.group)(self.predict(valid.features))
        for metric, value in metrics.items():
            log(f"train/valid_{metric}", value, 0)

    def _score(self, features: Ragged) -> Scores:
        rows = _program_rows(features, self._spec)
        rows = (rows - self._tensors["mean"]) / self._tensors["scale"]
        label = self._tensors["label"]
        count = min(self._config.neighbours, len(label))
        scores = np.empty(len(rows))
        step = max(1, _BLOCK // len(label))
        for start in range(0, len(rows), step):
            near = _nearest(rows[start : start + step], self._tensors["rows"], count)
            scores[start : start + step] = label[near].mean(axis=1, dtype=np.float64)
        return scores

    def save(self, folder: Path) -> None:
        write_weights(folder / _FILE, self._tensors)

    def load(self, folder: Path) -> None:
        path = folder / _FILE
        tensors, columns = read_weights(path), self._num_columns()
        programs, width = np.shape(tensors.get("rows", np.zeros((1, columns))))
        check_width(path, self._spec, width, columns)
        shapes = {"rows": (programs, columns), "label": (programs,)}
        check_weights(path, tensors, {**shapes, "mean": (columns,), "scale": (columns,)})
        self._tensors = tensors

    def _num_columns(self) -> int:
        if kind_of(self._spec).one_row or not num_constant_columns(self._spec):
            return len(summary_names(self._spec))
        return num_constant_columns(self._spec)


def _nearest(rows: FloatArray, others: FloatArray, count: int) -> IntArray:
    """Return the places of the nearest others of each row, in no order: int64 [N, count]; of equally near the first.

    By one matrix product: trees of space look at nearly all others where there are tens of columns. Distances are
    rounded to single precision, so that equal others are equally near, however the product was summed up.
    """
    rows, others = rows.astype(np.float64), others.astype(np.float64)
    squares = np.einsum("nc,nc->n", rows, rows)[:, None] + np.einsum("pc,pc->p", others, others)
    distances = np.maximum(squares - 2.0 * (rows @ others.T), 0.0).astype(np.float32)
    # The bits of numbers of one sign are in the numbers' order.
    keys = (distances.view(np.int32).astype(np.int64) << 32) | np.arange(len(others))
    return np.argpartition(keys, count - 1, axis=1)[:, :count]


FAMILY = Family(config=KnnConfig, ranker=KnnRanker, for_tests=KnnConfig(family="knn"), learns=False)
