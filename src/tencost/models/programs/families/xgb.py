"""Gradient-boosted trees behind the Ranker protocol.

Two views of a program: `program` gives the trees one summary row (:mod:`tencost.features.rows.summary`),
`stores` gives them every buffer store and sums their predictions, the packed sum of TenSet and TVM.
The objective's gradient is taken on program scores within groups and, for the packed sum, broadcast
to the program's rows.

Files: `model_<k>.ubj` (XGBoost UBJSON) and `xgb.json` with the number of boosters and each one's
divisor: boosters are averaged after division by the standard deviation of their scores on the
training split.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import orjson

from tencost.config import ModelConfig
from tencost.config.checking import one_of, within
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.summary import summarize_programs, summary_names
from tencost.models.programs.ranker import (
    Family,
    LogMetric,
    RowRanker,
    Samples,
    Scores,
    check_width,
    member_log,
    read_divisors,
)
from tencost.models.programs.ranker.labels import featurized
from tencost.models.programs.ranker.losses import RankingLoss, RankingMetrics
from tencost.models.trees.booster import (
    Packed,
    gain_shares,
    least_leaf,
    load_booster,
    packed_sum,
    predict_rows,
    ranking_parameters,
    row_gradient,
)
from tencost.models.trees.leaf_values import leaf_changes, leaf_spreads, leaves_of, with_changes

_WATCH_EVERY = 10
"""Rounds between two looks at the validation split."""


@dataclass(kw_only=True)
class XgbConfig(ModelConfig):
    """Gradient-boosted trees over a summary of the program, or over its stores with a packed sum."""

    view: str = "program"
    """program: one row of trees' input a program; stores: one a buffer store, predictions summed (TenSet, TVM)."""
    objective: str = "pairwise"
    """pairwise, lambdarank, listwise or regression."""
    label_power: float = 0.5
    """pairwise and lambdarank: exponent of the label difference that weighs a pair."""
    temperature: float = 0.25
    """listwise: temperature of the labels' softmax."""
    num_rounds: int = 300
    """Boosting rounds at most."""
    early_stopping_rounds: int = 0
    """Stop when the validation split has not improved for so many rounds; 0 never stops."""
    max_depth: int = 6
    """Depth of a tree."""
    eta: float = 0.06
    """Learning rate."""
    gamma: float = 0.0
    """Least loss reduction that justifies a split."""
    min_child_weight: float = 1.0
    """Least sum of hessians in a leaf; less where few labels are learnt on top of a model."""
    subsample: float = 0.7
    """Share of rows drawn per tree."""
    colsample: float = 0.4
    """Share of columns drawn per tree."""
    reg_lambda: float = 1.0
    """L2 penalty of leaf weights."""
    max_bin: int = 128
    """Histogram bins a column."""
    num_models: int = 1
    """Boosters averaged in one model, each from its own seed."""
    num_threads: int = 1
    """Threads while training; scores are served on one."""

    def __post_init__(self) -> None:
        one_of("model.view", self.view, ("program", "stores"))
        one_of(
            "model.objective", self.objective, ("pairwise", "lambdarank", "listwise", "regression")
        )
        within("model", self, label_power="[0, inf)", temperature="(0, inf)", max_bin="[2, inf)")
        within("model", self, num_rounds="[1, inf)", early_stopping_rounds="[0, inf)")
        within("model", self, max_depth="[1, inf)", eta="(0, 1]", gamma="[0, inf)")
        within("model", self, min_child_weight="[0, inf)", reg_lambda="[0, inf)")
        within("model", self, subsample="(0, 1]", colsample="(0, 1]")
        within("model", self, num_models="[1, inf)", num_threads="[1, inf)")


class XgbRanker(RowRanker):
    """Boosters that are averaged; see the module's text."""

    family: ClassVar[str] = "xgb"

    def __init__(self, config: XgbConfig, spec: FeatureSpec) -> None:
        self._config = config
        self._spec = spec
        self._boosters: list[Any] = []
        self._divisors: list[float] = []

    def fit(self, train: Samples, valid: Samples, *, seed: int, log: LogMetric) -> None:
        train, valid = featurized(train), featurized(valid)
        rows, segment = self._rows(train.features)
        valid_rows, valid_segment = self._rows(valid.features)
        watch = RankingMetrics(valid.label, valid.group)
        self._boosters, self._divisors = [], []
        for member in range(self._config.num_models):
            member_seed = seed * 1000 + member
            loss = RankingLoss(
                self._config.objective,
                train.label,
                train.group,
                power=self._config.label_power,
                temperature=self._config.temperature,
                seed=member_seed,
            )
            booster = _boost(
                self._parameters(member_seed, self._config.min_child_weight),
                (rows, segment, len(train)),
                (valid_rows, valid_segment, len(valid)),
                loss,
                watch,
                rounds=self._config.num_rounds,
                patience=self._config.early_stopping_rounds,
                log=member_log(log, member),
            )
            self._boosters.append(booster)
            scores = packed_sum(predict_rows(booster, rows), segment, len(train))
            self._divisors.append(max(float(scores.std()), 1e-12))

    def tuned(self, labels: Samples, *, rounds: int, seed: int) -> XgbRanker:
        """Return a copy that went on learning from other samples: so many more trees a booster."""
        import xgboost

        labels = featurized(labels)
        rows, segment = self._rows(labels.features)
        config = self._config
        matrix = xgboost.DMatrix(rows, nthread=config.num_threads)
        loss = RankingLoss(
            config.objective, labels.label, labels.group, power=config.label_power,
            temperature=config.temperature, seed=seed,
        )  # fmt: skip
        gradient = row_gradient(loss, segment, len(labels))
        copied = XgbRanker(config, self._spec)
        copied._divisors = list(self._divisors)
        for member, booster in enumerate(self._boosters):
            more = booster.copy()
            _, hessian = loss(packed_sum(predict_rows(more, rows), segment, len(labels)))
            least = least_leaf(self._config.min_child_weight, hessian[segment])
            more.set_param(self._parameters(seed * 1000 + member, least))
            for _ in range(rounds):
                more.update(matrix, more.num_boosted_rounds(), gradient)
            copied._boosters.append(more)
        return copied

    def revalued(
        self, labels: Samples, scores: Scores | None = None, scale: float = 1.0
    ) -> XgbRanker:
        labels = featurized(labels)
        rows, segment = self._rows(labels.features)
        leaves = [leaves_of(booster, rows) for booster in self._boosters]
        changes = leaf_changes(
            np.concatenate(leaves, axis=1),
            segment,
            np.concatenate([leaf_spreads(booster) for booster in self._boosters]),
            self.predict(labels.features) if scores is None else scores,
            labels.label,
            labels.group,
        )
        copied = XgbRanker(self._config, self._spec)
        copied._divisors = list(self._divisors)
        for booster, divisor, trees in zip(self._boosters, self._divisors, leaves, strict=True):
            own, changes = changes[: trees.shape[1]], changes[trees.shape[1] :]
            margin = scale * divisor * len(self._boosters)
            copied._boosters.append(with_changes(booster, [margin * change for change in own]))
        return copied

    def _score(self, features: Ragged) -> Scores:
        rows, segment = self._rows(features)
        total = np.zeros(len(features))
        for booster, divisor in zip(self._boosters, self._divisors, strict=True):
            total += packed_sum(predict_rows(booster, rows), segment, len(features)) / divisor
        return total / len(self._boosters)

    def save(self, folder: Path) -> None:
        for index, booster in enumerate(self._boosters):
            booster.save_model(str(folder / f"model_{index}.ubj"))
        (folder / "xgb.json").write_bytes(orjson.dumps({"divisors": self._divisors}))

    def load(self, folder: Path) -> None:
        self._divisors = read_divisors(folder / "xgb.json", self._config.num_models)
        paths = [folder / f"model_{index}.ubj" for index in range(len(self._divisors))]
        self._boosters = [load_booster(path) for path in paths]
        for path, booster in zip(paths, self._boosters, strict=True):
            check_width(path, self._spec, booster.num_features(), len(self._names()))

    def importance(self) -> dict[str, float]:
        return gain_shares(self._boosters, self._names())

    def _names(self) -> list[str]:
        """Names of the columns that the trees read."""
        if self._config.view == "program":
            return summary_names(self._spec)
        return list(self._spec.columns)

    def _rows(self, features: Ragged) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        if self._config.view == "program":
            return summarize_programs(features, self._spec), np.arange(len(features))
        return features.values, features.segment_ids

    def _parameters(self, seed: int, min_child_weight: float) -> dict[str, Any]:
        parameters = ranking_parameters(self._config, seed, min_child_weight)
        return {**parameters, "gamma": self._config.gamma}


def _boost(
    parameters: dict[str, Any],
    train: Packed,
    valid: Packed,
    loss: RankingLoss,
    watch: RankingMetrics,
    *,
    rounds: int,
    patience: int,
    log: LogMetric,
) -> Any:
    """Boost; with patience, keep the rounds up to the best look at the validation split."""
    import xgboost

    rows, segment, size = train
    valid_rows, valid_segment, valid_size = valid
    matrix = xgboost.DMatrix(rows, nthread=parameters["nthread"])
    valid_matrix = xgboost.DMatrix(valid_rows, nthread=parameters["nthread"])
    booster = xgboost.Booster(parameters, [matrix, valid_matrix])
    best, best_rounds = -np.inf, rounds
    gradient = row_gradient(loss, segment, size)
    for step in range(rounds):
        booster.update(matrix, step, gradient)
        if (step + 1) % _WATCH_EVERY and step + 1 != rounds:
            continue
        metrics = watch(
            packed_sum(booster.predict(valid_matrix, output_margin=True), valid_segment, valid_size)
        )
        for name, value in metrics.items():
            log(f"train/valid_{name}", value, step + 1)
        if metrics and metrics["choice"] > best:
            best, best_rounds = metrics["choice"], step + 1
        elif patience and metrics and step + 1 - best_rounds >= patience:
            break
    return booster[:best_rounds] if patience and np.isfinite(best) else booster


FAMILY = Family(
    config=XgbConfig,
    ranker=XgbRanker,
    for_tests=XgbConfig(family="xgb", num_rounds=40, num_models=2),
)
