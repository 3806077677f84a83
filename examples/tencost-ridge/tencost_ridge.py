"""Ridge regression within tasks: how the programs of a task differ in speed, from how their features differ.

A program is one row, the summary that trees read; amounts are logarithms in most feature sets. The mean row of each
task is subtracted from its rows, and the mean label from its labels: so the weights say which program of a task is
faster, not which task is fast. All tasks count the same, however many programs they have.

File: `ridge.json` with ``{"weights": {column: weight}}``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import orjson

from tencost.config import ModelConfig
from tencost.config.checking import within
from tencost.errors import BundleError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.summary import summarize_programs, summary_names
from tencost.models.programs.ranker import Family, LogMetric, Samples, Scores
from tencost.models.programs.ranker.labels import featurized
from tencost.models.programs.ranker.losses import RankingMetrics


@dataclass(kw_only=True)
class RidgeConfig(ModelConfig):
    """A weight for each column of the summary."""

    penalty: float = 0.03
    """Added to each standardized column's variance, which is 1: larger values mean smaller weights."""

    def __post_init__(self) -> None:
        within("model", self, penalty="(0, inf)")


class RidgeRanker:
    """Scores are expected labels above a task's mean, plus a constant: higher is faster."""

    family: ClassVar[str] = "ridge"

    def __init__(self, config: RidgeConfig, spec: FeatureSpec) -> None:
        self._penalty = config.penalty
        self._spec = spec
        self._columns = summary_names(spec)
        self._weights: npt.NDArray[np.floating] = np.zeros(len(self._columns))

    def fit(self, train: Samples, valid: Samples, *, seed: int, log: LogMetric) -> None:
        del seed  # nothing is drawn
        train, valid = featurized(train), featurized(valid)
        rows, label = self._rows(train.features), train.label.astype(np.float64)
        tasks = np.unique(train.group)
        for task in tasks:
            members = train.group == task
            share = 1.0 / np.sqrt(members.sum() * len(tasks))
            rows[members] = (rows[members] - rows[members].mean(axis=0)) * share
            label[members] = (label[members] - label[members].mean()) * share
        scale = np.sqrt((rows**2).sum(axis=0))
        inverse = np.where(scale > 1e-6, 1.0 / np.maximum(scale, 1e-6), 0.0)  # 0: varies in no task
        rows *= inverse
        variance = rows.T @ rows + self._penalty * np.eye(rows.shape[1])
        self._weights = np.linalg.solve(variance, rows.T @ label) * inverse
        metrics = RankingMetrics(valid.label, valid.group)(self.predict(valid.features))
        for name, value in metrics.items():
            log(f"train/valid_{name}", value, 0)

    def predict(self, features: Ragged) -> Scores:
        # Not `rows @ weights`: BLAS adds in another order in another batch, and rounds otherwise.
        return np.asarray((self._rows(features) * self._weights).sum(axis=1), dtype=np.float64)

    def save(self, folder: Path) -> None:
        weights = dict(zip(self._columns, self._weights.tolist(), strict=True))
        (folder / "ridge.json").write_bytes(orjson.dumps({"weights": weights}))

    def load(self, folder: Path) -> None:
        path = folder / "ridge.json"
        try:
            content = orjson.loads(path.read_bytes())["weights"].items()
            weights = {name: float(weight) for name, weight in content}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BundleError(f"{path}: expected weights, found something else: {error}") from error
        if list(weights) != self._columns or not np.isfinite(list(weights.values())).all():
            raise BundleError(
                f"{path}: expected a finite weight for each of the {len(self._columns)} columns of {self._spec.name}, "
                f"found {len(weights)} others. Train the model again."
            )
        self._weights = np.array(list(weights.values()))

    def importance(self) -> dict[str, float]:
        return {}

    def _rows(self, features: Ragged) -> npt.NDArray[np.float64]:
        return summarize_programs(features, self._spec).astype(np.float64)


FAMILY = Family(config=RidgeConfig, ranker=RidgeRanker, for_tests=RidgeConfig(family="ridge"))
