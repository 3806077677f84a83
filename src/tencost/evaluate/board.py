"""The leaderboard as data: one row a model, the random floor and the oracle beside them.

leaderboard.json, version 2: an object with the fields of Board; figures are rounded to 6 digits, a
figure that is not defined is null. models.json, all models: ``{model: {metric: {"mean": x,
"ci95": half width}}}``; ci95 is absent with a single seed, a metric that is not defined is absent.
metrics.json, for `dvc metrics`: ``{"model": its name, metric: x}``, the headline metrics of the winner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tencost.errors import ConfigError
from tencost.evaluate.choosing import Choice
from tencost.evaluate.interval import Difference, Interval, seed_interval
from tencost.evaluate.lost_time import TaskLoss
from tencost.evaluate.metrics import Coverage
from tencost.evaluate.scoring import HEADLINE, METRIC_NAMES, SeedScore, over_tasks
from tencost.evaluate.truth import LeftOut, Truth

FORMAT_VERSION = 2
_LEFT_OUT = ("predict_ms", "run_id")
"""Fields of rows written before MLflow alone had them."""
FLOOR, ORACLE = "random_floor", "oracle"
REFERENCES = ("random", "tvm_xgb", "tvm_mlp")
"""Families that a registered model has to beat."""
LOWER_IS_BETTER = frozenset({"rmse", "trials_1pct", "trials_5pct", "trials_10pct"})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model (a family on a feature set), the floor or the oracle."""

    model: str
    """Folder name: <model>-<features>, or FLOOR or ORACLE."""
    family: str = ""
    """Model family; empty for floor and oracle."""
    features: str = ""
    """Feature set."""
    reference: bool = False
    """Compared with, never registered."""
    seeds: tuple[int, ...] = ()
    """Seeds it was trained with."""
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
    folder: str = ""
    """Where its bundles lie, relative to the project's root."""

    @property
    def is_model(self) -> bool:
        """Whether it is neither floor nor oracle."""
        return bool(self.family)

    def mean(self, metric: str) -> float:
        """Mean over seeds; NaN if not defined."""
        return self.metrics[metric].mean if metric in self.metrics else math.nan


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A model minus another one, with paired bootstrap intervals over networks and tasks."""

    model: str
    opponent: str
    differences: dict[str, Difference]


@dataclass(frozen=True, kw_only=True)
class Board:
    """The comparison of all models of a hardware on one part of one split."""

    dataset: str
    hardware: str
    split: str
    split_hash: str
    part: str
    networks: tuple[str, ...]
    coverage: dict[str, Coverage]
    rows: tuple[Row, ...]
    """Models by falling geo1, then the floor and the oracle."""
    gains: tuple[Gain, ...] = ()
    """The winner against every other candidate, then against every reference."""
    losses: tuple[TaskLoss, ...] = ()
    """Where the winner loses its time, largest first; empty in leaderboards written before it was told."""
    left_out: tuple[LeftOut, ...] = ()
    """Tasks that are listed and not summed: no figure counts them."""

    @property
    def models(self) -> tuple[Row, ...]:
        """The rows that are models."""
        return tuple(row for row in self.rows if row.is_model)

    @property
    def candidates(self) -> tuple[Row, ...]:
        """The models that may be registered: no references."""
        return tuple(row for row in self.models if not row.reference)

    def best(self, metric: str) -> float:
        """Best mean of a metric over the models; NaN if it is defined for none."""
        values = [row.mean(metric) for row in self.models if not math.isnan(row.mean(metric))]
        if not values:
            return math.nan
        return min(values) if metric in LOWER_IS_BETTER else max(values)


def winner(board: Board) -> Row | None:
    """Return the model to register, no reference: the best composite over networks left out, see `choosing`.

    One that was tried on fewer folds than others, as a slow one is, does not win: its composite is of fewer networks
    and scatters more. Where a candidate was not tried on any (`folds=0`, or a training side of one network),
    `by_validation` decides. None if there are only references.
    """
    candidates = board.candidates
    tried = {row.model: row.choice for row in candidates if row.choice is not None}
    if not candidates or len(tried) < len(candidates):
        return by_validation(board)
    most = max(len(choice.folds) for choice in tried.values())
    able = [row for row in candidates if len(tried[row.model].folds) == most]
    return max(able, key=lambda row: (tried[row.model].composite, row.model))


def by_validation(board: Board) -> Row | None:
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


def regret(board: Board, chosen: Row) -> dict[str, float]:
    """Return headline metric -> figure of the best candidate on the evaluated part - that of the chosen one, from 0."""
    found = {}
    for metric in HEADLINE:
        values = [row.mean(metric) for row in board.candidates]
        known = [value for value in values if not math.isnan(value)]
        found[metric] = max(known) - chosen.mean(metric) if known else math.nan
    return found


def summarize(truth: Truth, seeds: Sequence[SeedScore]) -> dict[str, Any]:
    """Return the fields `metrics`, `tasks` and `networks` of a row."""
    networks = tuple(seeds[0].networks)
    return {
        "metrics": {
            name: seed_interval([getattr(seed.overall, name) for seed in seeds])
            for name in METRIC_NAMES
        },
        "tasks": over_tasks(truth, seeds),
        "networks": {
            network: {
                name: seed_interval([getattr(seed.networks[network], name) for seed in seeds]).mean
                for name in METRIC_NAMES
            }
            for network in networks
        },
    }


def metrics_dict(board: Board) -> dict[str, dict[str, dict[str, float]]]:
    """Return the content of models.json."""
    content: dict[str, dict[str, dict[str, float]]] = {}
    for row in sorted(board.rows, key=lambda row: row.model):
        figures = {}
        for name, interval in row.metrics.items():
            if math.isnan(interval.mean):
                continue
            figures[name] = {"mean": round(interval.mean, 6)}
            if not math.isnan(interval.half_width):
                figures[name]["ci95"] = round(interval.half_width, 6)
        content[row.model] = figures
    return content


def headline(board: Board) -> dict[str, str | float]:
    """Return the content of metrics.json: the winner, or where nothing may win the first model, and its HEADLINE."""
    row = winner(board) or next(iter(board.models), None)
    if row is None:
        return {}
    figures = {name: round(row.mean(name), 6) for name in HEADLINE}
    return {"model": row.model} | {
        name: value for name, value in figures.items() if not math.isnan(value)
    }


def save(board: Board, path: Path) -> None:
    """Write leaderboard.json."""
    values = rounded({"format_version": FORMAT_VERSION, **asdict(board)})
    path.write_bytes(orjson.dumps(values, option=orjson.OPT_INDENT_2) + b"\n")


def load(path: Path) -> Board:
    """Read leaderboard.json.

    Raises:
        ConfigError: missing, or of another version.
    """
    if not path.is_file():
        raise ConfigError(
            f"expected a leaderboard in {path}, found none. Make it: tencost evaluate"
        )
    values = orjson.loads(path.read_bytes())
    version = values.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"{path}: expected format_version {FORMAT_VERSION}, found {version!r}. "
            "Make it again: tencost evaluate"
        )
    rows = tuple(
        Row(
            **{
                **{name: value for name, value in row.items() if name not in _LEFT_OUT},
                "seeds": tuple(row["seeds"]),
                "metrics": {
                    name: Interval(**_numbers(item)) for name, item in row["metrics"].items()
                },
                "tasks": {
                    name: Difference(**_numbers(item))
                    for name, item in row.get("tasks", {}).items()
                },
                "networks": {name: _numbers(item) for name, item in row["networks"].items()},
                "choice": _choice(row.get("choice")),
                "valid_pairwise": tuple(_numbers(dict(enumerate(row["valid_pairwise"]))).values()),
            }
        )
        for row in values["rows"]
    )
    gains = tuple(
        Gain(
            model=item["model"],
            opponent=item["opponent"],
            differences={
                name: Difference(**_numbers(value)) for name, value in item["differences"].items()
            },
        )
        for item in values["gains"]
    )
    coverage = {name: Coverage(**_numbers(item)) for name, item in values["coverage"].items()}
    return Board(
        **{
            **values,
            "rows": rows,
            "gains": gains,
            "coverage": coverage,
            "networks": tuple(values["networks"]),
            "losses": tuple(TaskLoss(**_numbers(item)) for item in values.get("losses", ())),
            "left_out": tuple(LeftOut(**_numbers(item)) for item in values.get("left_out", ())),
        }
    )


def rounded(value: Any) -> Any:
    """Round every float to 6 digits; orjson writes NaN as null."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


def _choice(values: dict[str, Any] | None) -> Choice | None:
    if values is None:
        return None
    folds = {name: _numbers(item) for name, item in values["folds"].items()}
    return Choice(composite=values["composite"], folds=folds)


def _numbers(values: dict[Any, Any]) -> dict[Any, Any]:
    return {key: math.nan if value is None else value for key, value in values.items()}
