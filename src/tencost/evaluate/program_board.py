"""The leaderboard of models of programs: one row a model, the random floor and the oracle beside them.

leaderboard.json, version 2: see `evaluate.leaderboard`. models.json, all models: ``{model: {metric: {"mean": x,
"ci95": half width}}}``. metrics.json, for `dvc metrics`: ``{"model": its name, metric: x}``, the headline metrics of
the winner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tencost.evaluate.choosing import Choice
from tencost.evaluate.interval import Difference, Interval, seed_interval
from tencost.evaluate.leaderboard import TEST, Board, Row
from tencost.evaluate.lost_time import TaskLoss
from tencost.evaluate.metrics import Coverage
from tencost.evaluate.scoring import HEADLINE, METRIC_NAMES, Metrics, SeedScore, over_tasks
from tencost.evaluate.truth import Truth, UnscoredTask

FLOOR, RULE, ORACLE = "random_floor", "by_rule", "oracle"
_NAMES = {FLOOR: "random floor", RULE: "by rule", ORACLE: "oracle"}
REFERENCES = ("random", "tvm_xgb", "tvm_mlp")
"""Families that a registered model has to beat."""


@dataclass(frozen=True, kw_only=True)
class ProgramRow(Row):
    """One model (a family on a feature set, its folder <model>-<features>), the floor, the rules or the oracle."""

    REMOVED_FIELDS: ClassVar = ("predict_ms", "run_id")
    """Fields of rows written before MLflow alone had them."""

    features: str = ""
    """Feature set."""
    metrics: dict[str, Interval] = field(default_factory=dict)
    """Metric -> mean over seeds with its 95 % interval, all networks."""
    tasks: dict[str, Difference] = field(default_factory=dict)
    """Headline metric -> mean over seeds, its 95 % interval over networks and tasks; empty in older leaderboards."""
    networks: dict[str, dict[str, float]] = field(default_factory=dict)
    """Network -> metric -> mean over seeds."""
    valid_pairwise: tuple[float, ...] = ()
    """Pairwise accuracy on the validation part by seed; may be empty."""
    choice: Choice | None = None
    """How it did on networks left out of the training side: decides the winner; None where it was not tried."""

    @property
    def slices(self) -> dict[str, dict[str, Interval]]:
        return {TEST: self.metrics}

    @property
    def labels(self) -> tuple[str, ...]:
        if not self.is_model:
            return _NAMES[self.model], self.features
        name = self.model.removesuffix(f"-{self.features}")
        return f"{name} (ref)" if self.reference else name, self.features

    def over_tasks(self, metric: str) -> str:
        interval = self.tasks.get(metric)
        if interval is None or not self.is_model or math.isnan(interval.low):
            return ""
        return f"[{interval.low:.3f}, {interval.high:.3f}]"


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A model minus another one, with paired bootstrap intervals over networks and tasks."""

    model: str
    opponent: str
    differences: dict[str, Difference]


@dataclass(frozen=True, kw_only=True)
class ProgramBoard(Board[ProgramRow]):
    """The comparison of all models of a hardware on one part of one split."""

    FILE: ClassVar = "leaderboard.json"
    FORMAT_VERSION: ClassVar = 2
    NOUN: ClassVar = "leaderboard"
    COMMAND: ClassVar = "tencost evaluate"
    LABELS: ClassVar = ("model", "features")

    rows: tuple[ProgramRow, ...]
    """Models by falling geo1, then the floor, the rules where they were timed, and the oracle."""
    part: str
    networks: tuple[str, ...]
    coverage: dict[str, Coverage]
    gains: tuple[Gain, ...] = ()
    """The winner against every other candidate, then against every reference."""
    losses: tuple[TaskLoss, ...] = ()
    """Where the winner loses its time, largest first; empty in leaderboards written before it was told."""
    left_out: tuple[UnscoredTask, ...] = ()
    """Tasks that are listed and not summed: no figure counts them."""

    def winner(self) -> ProgramRow | None:
        """Return the model to register, no reference: the best composite over networks left out, see `choosing`.

        One that was tried on fewer folds than others, as a slow one is, does not win: its composite is of fewer
        networks and scatters more. Where a candidate was not tried on any (`folds=0`, or a training side of one
        network), `by_validation` decides. None if there are only references.
        """
        candidates = self.candidates
        tried = {row.model: row.choice for row in candidates if row.choice is not None}
        if not candidates or len(tried) < len(candidates):
            return by_validation(self)
        most = max(len(choice.folds) for choice in tried.values())
        eligible = [row for row in candidates if len(tried[row.model].folds) == most]
        return max(eligible, key=lambda row: (tried[row.model].composite, row.model))


def by_validation(board: ProgramBoard) -> ProgramRow | None:
    """Return the candidate with the best mean pairwise accuracy on the validation part.

    Where a split has no validation part, the test part decides, and the figures of the winner are
    then optimistic. None if there are only references.
    """
    candidates = board.candidates
    if not candidates:
        return None
    if all(row.valid_pairwise for row in candidates):
        return max(candidates, key=lambda row: (seed_interval(row.valid_pairwise).mean, row.model))
    return max(candidates, key=lambda row: (row.mean("pairwise"), row.model))


def regret(board: ProgramBoard, chosen: ProgramRow) -> dict[str, float]:
    """Return headline metric -> figure of the best candidate on the evaluated part - that of the chosen one, from 0."""
    figures = {}
    for metric in HEADLINE:
        means = [row.mean(metric) for row in board.candidates]
        defined = [mean for mean in means if not math.isnan(mean)]
        figures[metric] = max(defined) - chosen.mean(metric) if defined else math.nan
    return figures


def program_row_fields(truth: Truth, seeds: Sequence[SeedScore]) -> dict[str, Any]:
    """Return the fields `metrics`, `tasks` and `networks` of a row."""

    def intervals(figures: Sequence[Metrics]) -> dict[str, Interval]:
        return {
            name: seed_interval([getattr(seed, name) for seed in figures])
            for name in METRIC_NAMES
            if name != "pick_rule" or not np.isnan(truth.rule_s).all()
        }

    by_network = {
        network: intervals([seed.networks[network] for seed in seeds])
        for network in seeds[0].networks
    }
    return {
        "metrics": intervals([seed.overall for seed in seeds]),
        "tasks": over_tasks(truth, seeds),
        "networks": {
            network: {name: interval.mean for name, interval in figures.items()}
            for network, figures in by_network.items()
        },
    }


def headline(board: ProgramBoard) -> dict[str, str | float]:
    """Return the content of metrics.json: the winner, or where nothing may win the first model, and its HEADLINE."""
    row = board.winner() or next(iter(board.models), None)
    if row is None:
        return {}
    means = {name: round(row.mean(name), 6) for name in HEADLINE}
    return {"model": row.model} | {
        name: mean for name, mean in means.items() if not math.isnan(mean)
    }
