"""A model with a correction beside it, which a few labels of other hardware teach (`tencost adapt`).

    score = trust * base / spread + trees(columns)

`base` is the raw score of the model that is corrected, which stays as it is; `spread` is the standard deviation of its
scores within tasks, so that the sum does not depend on the model's scale. The trees are boosted from there on pairs of
labelled programs of one task: what is learnt is what the base has wrong, an offset of a task does not count (TenSet's
``plus_mix_task``). They read the columns and base / spread. Few labels cannot tell hundreds of columns apart, so the
trees may be given one part of a joined feature set (`part`).

Files: `corrected.json` (the spread), `correction.ubj` (the trees), every file of the base with the prefix ``base-``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import orjson

from tencost.config import ModelConfig, Pool
from tencost.config.checking import within
from tencost.config.parts import FAMILIES
from tencost.errors import ConfigError
from tencost.features.rows.ragged import FloatArray, IntArray, Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.summary import summarize_programs, summary_names
from tencost.models.programs.families.blend import part_rows, part_spec
from tencost.models.programs.ranker import (
    Family,
    LogMetric,
    Ranker,
    RowRanker,
    Samples,
    Scores,
    check_width,
    load_part,
    make_ranker,
    read_divisors,
    save_part,
)
from tencost.models.programs.ranker.labels import featurized
from tencost.models.programs.ranker.losses import RankingLoss
from tencost.models.trees.booster import (
    least_leaf,
    load_booster,
    predict_rows,
    ranking_parameters,
    row_gradient,
)

_PREFIX = "base-"
_STATE, _TREES = "corrected.json", "correction.ubj"


@dataclass(kw_only=True)
class CorrectedConfig(ModelConfig):
    """A model that stays as it is, and trees that correct it."""

    base: Any = field(default_factory=dict)
    """Settings of the family that is corrected."""
    part: str = ""
    """The one-row part of a joined feature set that the trees read; empty: all columns."""
    trust: float = 0.3
    """How many logits of a pair's order one spread of the base is worth before anything is learnt."""
    num_rounds: int = 200
    """Boosting rounds."""
    max_depth: int = 3
    """Depth of a tree."""
    eta: float = 0.05
    """Learning rate."""
    min_child_weight: float = 1.0
    """Least sum of hessians in a leaf; less where there are so few labels that no tree could split."""
    subsample: float = 0.8
    """Share of rows drawn per tree."""
    colsample: float = 0.3
    """Share of columns drawn per tree."""
    reg_lambda: float = 5.0
    """L2 penalty of leaf weights."""
    label_power: float = 0.5
    """Exponent of the label difference that weighs a pair."""
    max_bin: int = 64
    """Histogram bins a column."""
    num_threads: int = 1
    """Threads while training; scores are served on one."""

    def __post_init__(self) -> None:
        within("model", self, trust="[0, inf)", num_rounds="[1, inf)", max_depth="[1, inf)")
        within("model", self, eta="(0, 1]", min_child_weight="[0, inf)", reg_lambda="[0, inf)")
        within("model", self, subsample="(0, 1]", colsample="(0, 1]", label_power="[0, inf)")
        within("model", self, max_bin="[2, inf)", num_threads="[1, inf)")
        base_config(self.base)


class CorrectedRanker(RowRanker):
    """A base and its correction; see the module's text."""

    family: ClassVar[str] = "corrected"

    def __init__(self, config: CorrectedConfig, spec: FeatureSpec) -> None:
        self._config = config
        part = part_spec(spec, [config.part]) if config.part else None
        self._positions: IntArray | None = None if part is None else spec.positions(part.columns)
        self._spec = spec if part is None else part
        self.base: Ranker = make_ranker(base_config(config.base), spec)
        self.spread = 1.0
        self._booster: Any = None

    def fit(self, train: Samples, valid: Samples, *, seed: int, log: LogMetric) -> None:
        """Train the base on the samples, too; `correct` is for a base that is there."""
        self.base.fit(train, valid, seed=seed, log=log)
        train = featurized(train)
        self.correct(
            self.base, spread_within(self.base.predict(train.features), train.group), train, seed
        )

    def correct(self, base: Ranker, spread: float, labels: Samples, seed: int) -> None:
        """Learn what a base has wrong.

        Args:
            base: the model; not changed.
            spread: of its scores within tasks, see :func:`spread_within`.
            labels: labelled programs, each with rows; a task with one program teaches nothing.
            seed: of the sampling of rows and columns.
        """
        import xgboost

        self.base, self.spread = base, spread
        config = self._config
        scaled = base.predict(labels.features) / spread
        loss = RankingLoss(
            "pairwise", labels.label, labels.group, power=config.label_power, seed=seed
        )
        matrix = xgboost.DMatrix(
            self._rows(labels.features, scaled),
            base_margin=config.trust * scaled,
            nthread=config.num_threads,
        )
        _, hessian = loss(config.trust * scaled)
        least = least_leaf(config.min_child_weight, hessian)
        booster = xgboost.Booster(ranking_parameters(config, seed, least), [matrix])
        gradient = row_gradient(loss, np.arange(len(scaled)), len(scaled))
        for step in range(config.num_rounds):
            booster.update(matrix, step, gradient)
        self._booster = booster

    def _score(self, features: Ragged) -> Scores:
        scaled = self.base.predict(features) / self.spread
        trees = predict_rows(self._booster, self._rows(features, scaled))
        return self._config.trust * scaled + trees

    def save(self, folder: Path) -> None:
        save_part(self.base, folder, _PREFIX)
        self._booster.save_model(str(folder / _TREES))
        (folder / _STATE).write_bytes(orjson.dumps({"divisors": [self.spread]}))

    def load(self, folder: Path) -> None:
        load_part(self.base, folder, _PREFIX)
        (self.spread,) = read_divisors(folder / _STATE, 1)
        self._booster = load_booster(folder / _TREES)
        width = len(summary_names(self._spec)) + 1
        check_width(folder / _TREES, self._spec, self._booster.num_features(), width)

    def _rows(self, features: Ragged, scaled: Scores) -> FloatArray:
        seen = features if self._positions is None else part_rows(features, self._positions)
        columns = summarize_programs(seen, self._spec)
        return np.concatenate([columns, scaled.astype(np.float32)[:, None]], axis=1)


def base_config(values: Mapping[str, Any]) -> ModelConfig:
    """Return a family's settings from plain values, as bundles have them.

    Raises:
        ConfigError: no such family, or settings that are not its own.
    """
    schema = FAMILIES.load(values.get("family"), "model.base.family").config
    try:
        config: ModelConfig = schema(**{**values, "pool": Pool(values.get("pool", "own"))})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model.base: {error}") from error
    return config


def spread_within(scores: Scores, group: IntArray) -> float:
    """Return the standard deviation of scores around the means of their tasks; 1 where they do not differ.

    Args:
        scores: float64 [N].
        group: int64 [N], the task of each, dense from 0.
    """
    count = np.maximum(np.bincount(group), 1)
    centred = scores - (np.bincount(group, weights=scores) / count)[group]
    deviation = float(np.sqrt(np.mean(centred**2))) if len(scores) else 0.0
    return deviation if deviation > 1e-12 else 1.0


FAMILY = Family(
    config=CorrectedConfig,
    ranker=CorrectedRanker,
    for_tests=CorrectedConfig(
        family="corrected", base={"family": "xgb", "num_rounds": 40}, num_rounds=40
    ),
)
