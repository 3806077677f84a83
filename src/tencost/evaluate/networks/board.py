"""The leaderboard of a device as data: one row a model, its metrics on graphs like those it learnt from and on others.

graph_leaderboard.json, version 1: an object with the fields of Board; figures are rounded to 6 digits, one that is not
defined is null. metrics.json, for `dvc metrics`: ``{device: {model: {part: {metric: {"mean": x, "ci95": y}}}}}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tencost.errors import ConfigError
from tencost.evaluate.board import rounded
from tencost.evaluate.interval import Interval, seed_interval
from tencost.models.networks.latency_metrics import LOWER_IS_BETTER, METRICS, GraphScore, average

FILE = "graph_leaderboard.json"
FORMAT_VERSION = 1
TEST, OTHER = "test", "test_ood"
PARTS = {TEST: "in distribution", OTHER: "families never learnt"}
"""Part of the split -> what it is for people."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model on one device."""

    model: str
    """Name of its configuration: the folder of its bundles."""
    family: str
    """Model family."""
    reference: bool = False
    """Compared with, never registered."""
    seeds: tuple[int, ...] = ()
    """Seeds it was trained with."""
    parts: dict[str, dict[str, Interval]] = field(default_factory=dict)
    """Part -> metric -> mean over seeds, with its interval, of the mean over families."""
    families: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """Part -> family of graphs -> metric -> mean over seeds."""
    valid_mape: tuple[float, ...] = ()
    """MAPE on the validation part by seed: decides the winner."""
    folder: str = ""
    """Where its bundles lie, relative to the project's root."""

    def mean(self, part: str, metric: str) -> float:
        """Mean over seeds; NaN if not defined."""
        interval = self.parts.get(part, {}).get(metric)
        return math.nan if interval is None else interval.mean


@dataclass(frozen=True, kw_only=True)
class Board:
    """The comparison of all models of a device."""

    dataset: str
    hardware: str
    split: str
    split_hash: str
    counts: dict[str, dict[str, int]]
    """Part -> family of graphs -> graphs with a latency."""
    rows: tuple[Row, ...]
    """By rising MAPE on the test part."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that have graphs with a latency."""
        return tuple(part for part in PARTS if self.counts.get(part))

    def best(self, part: str, metric: str) -> float:
        """Best mean of a metric over the models; NaN if it is defined for none."""
        values = [
            row.mean(part, metric) for row in self.rows if not math.isnan(row.mean(part, metric))
        ]
        if not values:
            return math.nan
        return min(values) if metric in LOWER_IS_BETTER else max(values)


def winner(board: Board) -> Row | None:
    """Return the model to register: lowest mean MAPE on the validation part, no reference; None if there is none."""
    candidates = [row for row in board.rows if not row.reference and row.valid_mape]
    return min(
        candidates, key=lambda row: (seed_interval(row.valid_mape).mean, row.model), default=None
    )


def summarize(seeds: Sequence[Mapping[str, Mapping[str, GraphScore]]]) -> dict[str, Any]:
    """Return the fields `parts` and `families` of a row.

    Args:
        seeds: for each seed: part -> family of graphs -> score.
    """
    parts: dict[str, dict[str, Interval]] = {}
    families: dict[str, dict[str, dict[str, float]]] = {}
    for part in seeds[0]:
        if not seeds[0][part]:
            continue
        averages = [average(list(seed[part].values())) for seed in seeds]
        parts[part] = {
            name: seed_interval([getattr(one, name) for one in averages]) for name in METRICS
        }
        families[part] = {
            family: {
                name: seed_interval([getattr(seed[part][family], name) for seed in seeds]).mean
                for name in METRICS
            }
            for family in seeds[0][part]
        }
    return {"parts": parts, "families": families}


def metrics_dict(board: Board) -> dict[str, Any]:
    """Return what `dvc metrics` shows of a device."""
    content: dict[str, Any] = {}
    for row in sorted(board.rows, key=lambda row: row.model):
        for part, figures in row.parts.items():
            known = {name: one for name, one in figures.items() if not math.isnan(one.mean)}
            content.setdefault(row.model, {})[part] = {
                name: {"mean": round(one.mean, 6)}
                | ({} if math.isnan(one.half_width) else {"ci95": round(one.half_width, 6)})
                for name, one in known.items()
            }
    return content


def save(board: Board, path: Path) -> None:
    """Write graph_leaderboard.json."""
    values = rounded({"format_version": FORMAT_VERSION, **asdict(board)})
    path.write_bytes(orjson.dumps(values, option=orjson.OPT_INDENT_2) + b"\n")


def load(path: Path) -> Board:
    """Read graph_leaderboard.json.

    Raises:
        ConfigError: missing, of another version, or not what `save` writes.
    """
    if not path.is_file():
        raise ConfigError(
            f"expected a leaderboard in {path}, found none. Make it: tencost graphs evaluate"
        )
    try:
        values = orjson.loads(path.read_bytes())
        version = values.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"{path}: expected format_version {FORMAT_VERSION}, found {version!r}. "
                "Make it again: tencost graphs evaluate"
            )
        return Board(**{**values, "rows": tuple(_row(row) for row in values["rows"])})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path}: not a leaderboard of graphs ({error}). Make it again: tencost graphs evaluate"
        ) from error


def _row(values: dict[str, Any]) -> Row:
    return Row(
        **{
            **values,
            "seeds": tuple(values["seeds"]),
            "valid_mape": tuple(_number(value) for value in values["valid_mape"]),
            "parts": {
                part: {
                    name: Interval(
                        _number(one["mean"]), _number(one["half_width"]), one["num_seeds"]
                    )
                    for name, one in figures.items()
                }
                for part, figures in values["parts"].items()
            },
            "families": {
                part: {
                    family: {name: _number(value) for name, value in figures.items()}
                    for family, figures in families.items()
                }
                for part, families in values["families"].items()
            },
        }
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
