"""From a model and labels to an adapted model: left as it is, corrected, trained on, or trained anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tencost.config import AdaptMode, ModelConfig
from tencost.errors import TrainError
from tencost.evaluate.interval import Interval, seed_interval
from tencost.features.rows.kind import kind_of
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.bundle import BundleInfo
from tencost.models.programs.families.blend import BlendConfig, BlendRanker
from tencost.models.programs.families.corrected import CorrectedConfig, CorrectedRanker, base_config
from tencost.models.programs.families.xgb import XgbConfig
from tencost.models.programs.ranker import Ranker, Samples, Scores, Tunable, make_ranker
from tencost.models.programs.ranker.labels import featurized
from tencost.models.programs.ranker.losses import RankingLoss, RankingMetrics

MANY = 1000
"""From so many labels on, the correction is a model of its own, and reads all columns; trees get new leaf values from
fewer."""
SEVERAL = 300
"""From so many labels on, trees whose leaves have new values get further trees, which split on what is new."""
TRUSTED = 0.7
"""Share of the weight that labels give the model's own score: what it has wrong comes first."""
TUNED_ROUNDS = 100
"""Further trees a booster."""
FOLDS = 5
"""Of labelled tasks, where there are so many."""
LEAST_TASKS = 3
"""Labelled tasks with programs to compare without which nobody can say whether the labels helped."""
DECIDES = "pairwise"
"""The metric of tasks left out that an adapted model has to be better in, by half of its 95 % interval: the whole one
shows hardly any of the gains of a hundred labels, and corrections are held back already."""
FIRST_CHOICE = "top1"
"""The metric that it must not be worse in: programs may be ordered better and the first choice be slower."""
_SCRATCH_LEAF = 1e-3
"""Least sum of hessians in a leaf where a model is learnt from a few labels only: less than one program of ten adds."""
_WEIGHTS = np.geomspace(0.05, 6.0, 25)
_LARGE: dict[str, Any] = {
    "num_rounds": 300,
    "max_depth": 6,
    "eta": 0.06,
    "reg_lambda": 1.0,
    "subsample": 0.7,
    "colsample": 0.4,
}
_MODEST: dict[str, Any] = {
    "num_rounds": 200,
    "max_depth": 3,
    "eta": 0.05,
    "reg_lambda": 5.0,
    "subsample": 0.8,
    "colsample": 0.3,
}


@dataclass(frozen=True)
class SourceModel:
    """The model that is adapted.

    Attributes:
        ranker: scores programs.
        info: what its bundle says.
        spread: of its scores within tasks of the new hardware's programs.
    """

    ranker: Ranker
    info: BundleInfo
    spread: float

    @property
    def spec(self) -> FeatureSpec:
        return self.info.feature_spec


class HeldOutMetric(NamedTuple):
    """A metric on labelled tasks that the adaptation did not see: means over tasks.

    Attributes:
        before: of the model as it was.
        after: of the adapted model.
        gain: after minus before, task by task: its mean and 95 % interval over the tasks.
    """

    before: float
    after: float
    gain: Interval


@dataclass(frozen=True)
class Adapted:
    """A model for the new hardware: its family's settings and the model itself."""

    config: ModelConfig
    ranker: Ranker


def adapt(source: SourceModel, mode: AdaptMode, labels: Samples, seed: int) -> Adapted:
    """Make the model of the new hardware.

    Args:
        source: the model to start from.
        mode: what becomes of it; without a task that has two labels that differ, every mode but scratch leaves it as it
            is.
        labels: labelled programs of the new hardware.
        seed: of what is random.

    Raises:
        TrainError: scratch without labels, or fine_tune of a family that cannot go on learning.
    """
    config = base_config(source.info.model_config)
    teaches = _differ_within(labels.label, labels.group)
    if not np.isfinite(labels.label).all():
        raise TrainError("expected labels that are numbers, found NaN or infinity")
    if mode is AdaptMode.fine_tune and not _has_trees(source.ranker):
        raise TrainError(
            f"adapt.mode=fine_tune: expected a model of trees, or a blend with some, found one of the family "
            f"{source.info.family}, which cannot go on learning. Use adapt=residual"
        )
    if mode is AdaptMode.scratch:
        if not teaches:
            raise TrainError(
                "adapt.mode=scratch: expected labels to learn from, found no task with two of them. Ask for more: "
                "labels=100"
            )
        config = _splitting(config)
        ranker = make_ranker(config, source.spec)
        train, valid = _halves(labels)
        ranker.fit(train, valid, seed=seed, log=lambda *_: None)
        return Adapted(config, ranker)
    if mode is AdaptMode.zero_shot or not teaches:
        return Adapted(config, source.ranker)
    if mode is AdaptMode.fine_tune:
        assert isinstance(source.ranker, Tunable)
        return Adapted(config, source.ranker.tuned(labels, rounds=TUNED_ROUNDS, seed=seed))
    labels = featurized(labels)
    revalued = _revalued(source.ranker, labels, seed) if len(labels) < MANY else None
    if revalued is not None:
        return Adapted(config, revalued)
    settings = correction(source, labels)
    corrected = CorrectedRanker(settings, source.spec)
    corrected.correct(source.ranker, source.spread, labels, seed)
    return Adapted(settings, corrected)


def _has_trees(ranker: Ranker) -> bool:
    """Say whether a model goes on learning; a blend does where a member does."""
    if isinstance(ranker, BlendRanker):
        return any(isinstance(member.ranker, Tunable) for member in ranker.members)
    return isinstance(ranker, Tunable)


def _revalued(ranker: Ranker, labels: Samples, seed: int) -> Ranker | None:
    """Return trees whose leaves have new values; None without trees, or with none that tell the programs apart."""
    if not _has_trees(ranker) or not _differ_within(ranker.predict(labels.features), labels.group):
        return None
    assert isinstance(ranker, Tunable)
    with np.errstate(invalid="ignore"):  # trees of one leaf each
        adapted = ranker.revalued(labels)
    if not np.isfinite(adapted.predict(labels.features)).all():
        return None
    if len(labels) >= SEVERAL:
        assert isinstance(adapted, Tunable)
        return adapted.tuned(labels, rounds=TUNED_ROUNDS, seed=seed)
    return adapted


def _differ_within(values: npt.NDArray[np.floating], group: npt.NDArray[np.int64]) -> bool:
    """Say whether two values of a task differ: only programs of one task are compared."""
    order = np.argsort(group, kind="stable")
    group, values = group[order], values[order]
    return bool(((group[1:] == group[:-1]) & (values[1:] != values[:-1])).any())


def _splitting(config: ModelConfig) -> ModelConfig:
    """Return settings whose trees, those of a blend's members too, split where there are a few labels only.

    A ranking loss divides by the length of a list: with the settings for a whole dataset all trees would be one leaf.
    """
    if isinstance(config, XgbConfig):
        return replace(config, min_child_weight=_SCRATCH_LEAF)
    if isinstance(config, BlendConfig):
        members = [
            {**member, "min_child_weight": _SCRATCH_LEAF} if member["family"] == "xgb" else member
            for member in config.members
        ]
        return replace(config, members=members)
    return config


def correction(source: SourceModel, labels: Samples) -> CorrectedConfig:
    """Return the settings of a correction that so many labels can teach."""
    many = len(labels) >= MANY
    parts = [name for name, part in kind_of(source.spec).parts.items() if part.one_row]
    scaled = source.ranker.predict(labels.features) / source.spread
    weight = TRUSTED * score_weight(scaled, labels)
    settings = _LARGE if many else _MODEST
    return CorrectedConfig(
        family="corrected",
        reads=[source.spec.name],
        base=dict(source.info.model_config),
        part=parts[0] if parts and not many else "",
        trust=round(weight, 4),
        **settings,
    )


def score_weight(scaled: Scores, labels: Samples) -> float:
    """Return how many logits of a pair's order one spread of the scores is worth: the likeliest of a grid.

    Args:
        scaled: float64 [N], scores over their spread.
        labels: of the same programs.
    """
    loss = RankingLoss("pairwise", labels.label, labels.group, power=0.5)
    slopes = [abs(float(loss(weight * scaled)[0] @ scaled)) for weight in _WEIGHTS]
    # Convex in the weight: least where its slope is nothing.
    return float(_WEIGHTS[int(np.argmin(slopes))])


def judge_held_out(
    source: SourceModel, mode: AdaptMode, labels: Samples, seed: int
) -> dict[str, HeldOutMetric]:
    """Judge an adaptation by labelled tasks that it did not see: a fifth of them at a time, learning from the others.

    Returns:
        metric -> its values. Empty where fewer than LEAST_TASKS tasks have programs to compare, or a fold leaves
        nothing to learn from.
    """
    tasks = int(labels.group.max()) + 1 if len(labels) else 0
    if tasks < LEAST_TASKS or mode is AdaptMode.zero_shot:
        return {}
    fold = np.random.default_rng(seed).permutation(tasks) % min(FOLDS, tasks)
    raw = np.full(len(labels), -np.inf)
    for index in range(min(FOLDS, tasks)):
        out = fold[labels.group] == index
        if not _of_two(labels, ~out):
            return {}
        model = adapt(source, mode, some_samples(labels, ~out), seed).ranker
        raw[out] = model.predict(labels.features.take(np.flatnonzero(out)))
    before, after = (
        _by_task(labels, scores) for scores in (source.ranker.predict(labels.features), raw)
    )
    if len(before) < LEAST_TASKS:
        return {}
    figures = {}
    for name in (DECIDES, FIRST_CHOICE):
        old, new = (np.array([task[name] for task in tasks]) for tasks in (before, after))
        gain = seed_interval((new - old).tolist())
        figures[name] = HeldOutMetric(float(old.mean()), float(new.mean()), gain)
    return figures


def gains(figures: dict[str, HeldOutMetric]) -> bool:
    """Say whether an adapted model is better on tasks that were left out, and its first choices are no slower there.

    Args:
        figures: of :func:`judge_held_out`; empty ones show nothing.
    """
    if DECIDES not in figures:
        return False
    gain = figures[DECIDES].gain
    return gain.mean > gain.half_width / 2 and figures[FIRST_CHOICE].gain.mean >= 0.0


def _by_task(labels: Samples, scores: Scores) -> list[dict[str, float]]:
    """Return the metrics of each task whose labels differ."""
    metrics = []
    for task in range(int(labels.group.max()) + 1):
        of_task = labels.group == task
        label = labels.label[of_task]
        if len(np.unique(label)) > 1:
            group = np.zeros(len(label), np.int64)
            metrics.append(RankingMetrics(label, group)(scores[of_task]))
    return metrics


def committee(
    source: SourceModel, labels: Samples, features: Ragged, seed: int, members: int = 5
) -> list[Scores]:
    """Return what corrections say that were learnt from tasks drawn with replacement, float64 [N] each."""
    generator = np.random.default_rng(seed)
    tasks = int(labels.group.max()) + 1 if len(labels) else 0
    opinions: list[Scores] = []
    for member in range(members if tasks > 1 else 0):
        drawn = np.isin(labels.group, np.unique(generator.integers(tasks, size=tasks)))
        if not _of_two(labels, drawn):
            continue
        model = adapt(source, AdaptMode.residual, some_samples(labels, drawn), seed + member)
        opinions.append(model.ranker.predict(features))
    return opinions or [source.ranker.predict(features) / source.spread]


def _of_two(labels: Samples, chosen: npt.NDArray[np.bool_]) -> bool:
    return bool(chosen.any()) and bool(np.bincount(labels.group[chosen]).max() > 1)


def some_samples(labels: Samples, chosen: npt.NDArray[np.bool_]) -> Samples:
    """Return the samples that a mask, bool [N], chooses, with dense groups."""
    part = labels.take(np.flatnonzero(chosen))
    _, dense = np.unique(part.group, return_inverse=True)
    return replace(part, group=dense.astype(np.int64))


def _halves(labels: Samples) -> tuple[Samples, Samples]:
    """Return what is learnt from and what is watched: every fifth task, or everything twice where there are few."""
    watched = labels.group % FOLDS == FOLDS - 1
    if not (_of_two(labels, watched) and _of_two(labels, ~watched)):
        return labels, labels
    return some_samples(labels, ~watched), some_samples(labels, watched)
