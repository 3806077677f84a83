"""The reference: TVM 0.27's XGBModel recipe, retrained on our split and features.

As ``tvm.s_tir.meta_schedule.cost_model.XGBModel``: 164 columns a store (no workload flags), trees of
depth 10, gamma 0.001, min_child_weight 0, eta 0.2, up to 10,000 rounds; squared error of the packed
sum, each row's gradient and hessian multiplied with its label; training stops when the error on the
training data itself (`tr-p-rmse`, rounded to 6 digits as XGBoost prints it) has not fallen for 50
rounds, and no round is taken back. The validation split is only watched.

What differs: a failed program has label 0 where TVM has the fastest latency / 1e10, and there is no
random warm-up before 100 samples.

Files: `model_0.ubj`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tencost.config import ModelConfig
from tencost.config.checking import within
from tencost.features.kinds.per_store import PER_STORE_COLUMNS
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
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
from tencost.models.trees.booster import gain_shares, load_booster, packed_sum, predict_rows

_BASE_SEED = 43
"""The seed of TVM's XGBConfig."""
_WATCH_EVERY = 10


@dataclass(kw_only=True)
class TvmXgbConfig(ModelConfig):
    """TVM's own XGBModel recipe, retrained on the same split: the reference."""

    num_rounds: int = 10000
    """Boosting rounds at most (TVM's default)."""
    early_stopping_rounds: int = 50
    """Rounds without a better error on the training data, as TVM does it."""
    num_threads: int = 1
    """Threads while training."""

    def __post_init__(self) -> None:
        within("model", self, num_rounds="[1, inf)", early_stopping_rounds="[1, inf)")
        within("model", self, num_threads="[1, inf)")


class TvmXgbRanker(RowRanker):
    """TVM's XGBModel; see the module's text."""

    family: ClassVar[str] = "tvm_xgb"

    def __init__(self, config: TvmXgbConfig, spec: FeatureSpec) -> None:
        self._config = config
        self._spec = spec
        self._columns = spec.positions(PER_STORE_COLUMNS)
        self._booster: Any = None

    def fit(self, train: Samples, valid: Samples, *, seed: int, log: LogMetric) -> None:
        import xgboost

        train, valid = featurized(train), featurized(valid)
        rows, segment = self._rows(train.features), train.features.segment_ids
        target = train.label[segment]
        matrix = xgboost.DMatrix(rows, label=target, weight=target)
        valid_rows = xgboost.DMatrix(self._rows(valid.features))
        valid_segment = valid.features.segment_ids
        watch = RankingMetrics(valid.label, valid.group)

        def objective(predictions: npt.NDArray[np.float32], _: Any) -> tuple[Any, Any]:
            scores = packed_sum(predictions, segment, len(train))[segment]
            return (scores - target) * target, np.ones_like(scores) * target

        booster = xgboost.Booster(
            {
                "max_depth": 10,
                "gamma": 0.001,
                "min_child_weight": 0,
                "eta": 0.2,
                "seed": _BASE_SEED + seed,
                "nthread": self._config.num_threads,
                "tree_method": "auto",
            },
            [matrix, valid_rows],
        )
        best, best_round = np.inf, 0
        for step in range(self._config.num_rounds):
            booster.update(matrix, step, objective)
            scores = packed_sum(booster.predict(matrix), segment, len(train))[segment]
            error = round(float(np.sqrt(np.mean(np.square(scores - target)))), 6)
            if (step + 1) % _WATCH_EVERY == 0:
                guess = packed_sum(booster.predict(valid_rows), valid_segment, len(valid))
                log("train/p_rmse", error, step + 1)
                for name, value in watch(guess).items():
                    log(f"train/valid_{name}", value, step + 1)
            if error < best:
                best, best_round = error, step
            elif step - best_round >= self._config.early_stopping_rounds:
                break
        self._booster = booster

    def _score(self, features: Ragged) -> Scores:
        predictions = predict_rows(self._booster, self._rows(features))
        return packed_sum(predictions, features.segment_ids, len(features))

    def save(self, folder: Path) -> None:
        self._booster.save_model(str(folder / "model_0.ubj"))

    def load(self, folder: Path) -> None:
        path = folder / "model_0.ubj"
        self._booster = load_booster(path)
        read = len(self._spec.columns if self._columns is None else self._columns)
        check_width(path, self._spec, self._booster.num_features(), read)

    def importance(self) -> dict[str, float]:
        return gain_shares([self._booster], list(self._spec.columns))

    def _rows(self, features: Ragged) -> npt.NDArray[np.float32]:
        if self._columns is None:
            return features.values
        return np.ascontiguousarray(features.values[:, self._columns])


FAMILY = Family(
    config=TvmXgbConfig,
    ranker=TvmXgbRanker,
    for_tests=TvmXgbConfig(family="tvm_xgb", num_rounds=40),
    features="per_store",
)
