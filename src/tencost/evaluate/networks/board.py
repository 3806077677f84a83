"""The leaderboard of a device: one row a model, its metrics on graphs like those it learnt from and on others.

graph_leaderboard.json, version 1: see `evaluate.leaderboard`. metrics.json, for `dvc metrics`:
``{device: {model: {part: {metric: {"mean": x, "ci95": y}}}}}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tencost.evaluate.interval import Interval, seed_interval
from tencost.evaluate.leaderboard import TEST, Board, Row
from tencost.models.networks.bundle.latency_metrics import METRICS, GraphScore, average

OTHER = "test_ood"
PARTS = {TEST: "in distribution", OTHER: "families never learnt"}
"""Part of the split -> what it is for people."""


@dataclass(frozen=True, kw_only=True)
class GraphRow(Row):
    """One model on one device."""

    parts: dict[str, dict[str, Interval]] = field(default_factory=dict)
    """Part -> metric -> mean over seeds, with its interval, of the mean over families."""
    families: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Part -> family of graphs -> metric -> mean over seeds."""
    valid_mape: tuple[float, ...] = ()
    """MAPE on the validation part by seed: decides the winner."""

    @property
    def slices(self) -> dict[str, dict[str, Interval]]:
        return self.parts


@dataclass(frozen=True, kw_only=True)
class GraphBoard(Board[GraphRow]):
    """The comparison of all models of a device."""

    FILE: ClassVar = "graph_leaderboard.json"
    FORMAT_VERSION: ClassVar = 1
    NOUN: ClassVar = "leaderboard of graphs"
    COMMAND: ClassVar = "tencost graphs evaluate"

    rows: tuple[GraphRow, ...]
    """By rising MAPE on the test part."""
    counts: dict[str, dict[str, int]]
    """Part -> family of graphs -> graphs with a latency."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that have graphs with a latency."""
        return tuple(part for part in PARTS if self.counts.get(part))

    def winner(self) -> GraphRow | None:
        """Return the model to register, no reference: the lowest mean MAPE on the validation part; None if none is."""
        return min(
            (row for row in self.candidates if row.valid_mape),
            key=lambda row: (seed_interval(row.valid_mape).mean, row.model),
            default=None,
        )


def graph_row_fields(seeds: Sequence[Mapping[str, Mapping[str, GraphScore]]]) -> dict[str, Any]:
    """Return the fields `parts` and `families` of a row.

    Args:
        seeds: for each seed: part -> family of graphs -> score.
    """
    parts: dict[str, dict[str, Interval]] = {}
    families: dict[str, dict[str, dict[str, float]]] = {}
    for part, scores in seeds[0].items():
        if not scores:
            continue
        parts[part] = _intervals([average(list(seed[part].values())) for seed in seeds])
        families[part] = {}
        for family in scores:
            intervals = _intervals([seed[part][family] for seed in seeds])
            families[part][family] = {name: interval.mean for name, interval in intervals.items()}
    return {"parts": parts, "families": families}


def _intervals(scores: Sequence[GraphScore]) -> dict[str, Interval]:
    return {name: seed_interval([getattr(score, name) for score in scores]) for name in METRICS}
