"""One column of the features as the score: what a model is worth beyond its single most telling number.

The sign is learnt: whether more of the column is faster, by the pairs of the training split that it orders. The default
column is `rel_vector_padding`, the share of the vector registers' lanes that a program leaves empty.

Files: `column.json` with ``{"column": name, "sign": 1 or -1}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import orjson

from tencost.config import ModelConfig
from tencost.errors import BundleError, ConfigError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.ranker import Family, LogMetric, RowRanker, Samples, Scores
from tencost.models.programs.ranker.labels import featurized
from tencost.models.programs.ranker.losses import RankingMetrics

_FILE = "column.json"


@dataclass(kw_only=True)
class ColumnConfig(ModelConfig):
    """The value of one column, or its negative."""

    column: str = "rel_vector_padding"
    """Name of the column; of a program with many rows the first row's value counts."""


class ColumnRanker(RowRanker):
    """Scores in the column's own unit, negated where less of it is faster."""

    family: ClassVar[str] = "column"

    def __init__(self, config: ColumnConfig, spec: FeatureSpec) -> None:
        if config.column not in spec.columns:
            raise ConfigError(
                f"model.column must be a column of the feature set {spec.name}, found {config.column!r}. Columns: "
                f"{', '.join(spec.columns[:5])}, ... ({len(spec.columns)})"
            )
        self._config = config
        self._place = spec.columns.index(config.column)
        self._sign = 1

    def fit(self, train: Samples, valid: Samples, *, seed: int, log: LogMetric) -> None:
        del seed
        train, valid = featurized(train), featurized(valid)
        value = self._values(train.features)
        balance = 0.0
        for group in np.unique(train.group):
            rows = np.flatnonzero(train.group == group)
            label = train.label[rows].astype(np.float64)
            # Sum over pairs of sign(value difference) * label difference.
            order = np.sign(value[rows][:, None] - value[rows][None, :])
            balance += float((order * (label[:, None] - label[None, :])).sum()) / len(rows) ** 2
        self._sign = -1 if balance < 0 else 1
        metrics = RankingMetrics(valid.label, valid.group)(self.predict(valid.features))
        for metric, figure in metrics.items():
            log(f"train/valid_{metric}", figure, 0)

    def _score(self, features: Ragged) -> Scores:
        return self._sign * self._values(features)

    def save(self, folder: Path) -> None:
        content = {"column": self._config.column, "sign": self._sign}
        (folder / _FILE).write_bytes(orjson.dumps(content))

    def load(self, folder: Path) -> None:
        path = folder / _FILE
        try:
            settings = orjson.loads(path.read_bytes())
            column, sign = settings["column"], settings["sign"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BundleError(
                f'{path}: expected {{"column": name, "sign": 1 or -1}}, found something else ({error}). Train it again.'
            ) from error
        if column != self._config.column or sign not in (1, -1):
            raise BundleError(
                f"{path}: expected the column {self._config.column} with sign 1 or -1, found {column!r} with {sign!r}. "
                "Train the model again."
            )
        self._sign = int(sign)

    def _values(self, features: Ragged) -> Scores:
        first = features.values[features.offsets[:-1], self._place]
        return np.asarray(first, dtype=np.float64)


FAMILY = Family(
    config=ColumnConfig,
    ranker=ColumnRanker,
    for_tests=ColumnConfig(family="column", column="speed"),
    learns=False,
)
