"""A leaderboard as data: one row a model, for models of programs and of whole networks alike.

A subject has its own classes, with its columns: :mod:`tencost.evaluate.program_board`,
:mod:`tencost.evaluate.networks.board`. On disk a leaderboard is a JSON object with the fields of its class and
``format_version``; figures are rounded to 6 digits, one that is not defined is null.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args, get_origin, get_type_hints

import orjson

from tencost.errors import ConfigError
from tencost.evaluate.interval import Interval

TEST = "test"
"""The part of a split that every leaderboard is of."""
LOWER_IS_BETTER = frozenset(
    {"rmse", "mape", "rmspe", "pick_rule", "trials_1pct", "trials_5pct", "trials_10pct"}
)


@dataclass(frozen=True, kw_only=True)
class Row(ABC):
    """One model."""

    model: str
    """Folder name of its bundles."""
    family: str = ""
    """Model family; empty for what is not a model, as an oracle."""
    reference: bool = False
    """Compared with, never registered."""
    seeds: tuple[int, ...] = ()
    """Seeds it was trained with."""
    folder: str = ""
    """Where its bundles lie, relative to the project's root."""

    @property
    @abstractmethod
    def slices(self) -> dict[str, dict[str, Interval]]:
        """Part of the split -> metric -> mean over seeds with its 95 % interval."""

    @property
    def is_model(self) -> bool:
        """Whether it is a trained model."""
        return bool(self.family)

    @property
    def labels(self) -> tuple[str, ...]:
        """What its model is called in a table, a text for each of `Board.LABELS`; references are marked."""
        return (f"{self.model} (ref)" if self.reference else self.model,)

    def interval(self, metric: str, part: str = TEST) -> Interval | None:
        """Return a figure with its interval over seeds; None where the part or the metric is not there."""
        return self.slices.get(part, {}).get(metric)

    def mean(self, metric: str, part: str = TEST) -> float:
        """Return the mean over seeds; NaN if not defined."""
        interval = self.interval(metric, part)
        return math.nan if interval is None else interval.mean

    def over_tasks(self, metric: str) -> str:
        """Return a figure's second interval as text, `[0.512, 0.781]`; empty where there is none."""
        del metric
        return ""


R = TypeVar("R", bound=Row)


@dataclass(frozen=True, kw_only=True)
class Board(ABC, Generic[R]):
    """The comparison of all models of a hardware on one split."""

    FILE: ClassVar[str]
    """Name of its file in the folder of the report."""
    FORMAT_VERSION: ClassVar[int]
    NOUN: ClassVar[str]
    """What the file is called in a message."""
    COMMAND: ClassVar[str]
    """The command that writes it."""
    LABELS: ClassVar[tuple[str, ...]] = ("model",)
    """Headings of the columns that say which model a row is of."""

    dataset: str
    hardware: str
    split: str
    split_hash: str
    rows: tuple[R, ...]

    @property
    def models(self) -> tuple[R, ...]:
        """The rows that are models."""
        return tuple(row for row in self.rows if row.is_model)

    @property
    def candidates(self) -> tuple[R, ...]:
        """The models that may be registered: no references."""
        return tuple(row for row in self.models if not row.reference)

    @abstractmethod
    def winner(self) -> R | None:
        """Return the model to register; None if there are only references."""

    def best(self, metric: str, part: str = TEST) -> float:
        """Return the best mean of a metric over the models; NaN if it is defined for none."""
        means = [row.mean(metric, part) for row in self.models]
        defined = [mean for mean in means if not math.isnan(mean)]
        if not defined:
            return math.nan
        return min(defined) if metric in LOWER_IS_BETTER else max(defined)

    def metrics(self) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
        """Return model -> part -> metric -> {"mean": x, "ci95": half width}, models by name.

        ci95 is absent with a single seed, a metric that is not defined is absent.
        """
        return {
            row.model: {part: _means(figures) for part, figures in row.slices.items()}
            for row in sorted(self.rows, key=lambda row: row.model)
        }

    def save(self, path: Path) -> None:
        """Write the file."""
        values = _rounded({"format_version": self.FORMAT_VERSION, **asdict(self)})
        path.write_bytes(orjson.dumps(values, option=orjson.OPT_INDENT_2) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ConfigError: missing, of another version, or not what `save` writes.
        """
        if not path.is_file():
            raise ConfigError(
                f"expected a leaderboard in {path}, found none. Make it: {cls.COMMAND}"
            )
        try:
            values = orjson.loads(path.read_bytes())
            version = values.pop("format_version", None)
            if version == cls.FORMAT_VERSION:
                board: Self = from_json(cls, values)
                return board
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{path}: not a {cls.NOUN} ({error}). Make it again: {cls.COMMAND}"
            ) from error
        raise ConfigError(
            f"{path}: expected format_version {cls.FORMAT_VERSION}, found {version!r}. "
            f"Make it again: {cls.COMMAND}"
        )


def from_json(kind: Any, json: Any) -> Any:
    """Return an instance of a type from the JSON values that `dataclasses.asdict` and orjson make of it.

    Args:
        kind: a dataclass, or float (null is NaN), str, int, bool, tuple[X, ...], dict[str, X] or X | None of such
            types. A dataclass may list, in a class variable REMOVED_FIELDS, fields that only older files have.
        json: what orjson reads.

    Raises:
        TypeError, KeyError, AttributeError: the JSON does not have that form: a field is missing or unknown.
    """
    arguments = get_args(kind)
    if NoneType in arguments:
        return None if json is None else from_json(arguments[0], json)
    if get_origin(kind) is tuple:
        return tuple(from_json(arguments[0], element) for element in json)
    if get_origin(kind) is dict:
        return {key: from_json(arguments[1], element) for key, element in json.items()}
    if is_dataclass(kind) and isinstance(kind, type):
        types, removed = _field_types(kind), getattr(kind, "REMOVED_FIELDS", ())
        fields = {name: field for name, field in json.items() if name not in removed}
        return kind(**{name: from_json(types[name], field) for name, field in fields.items()})
    return math.nan if kind is float and json is None else json


def _rounded(json: Any) -> Any:
    """Round every float to 6 digits; orjson writes NaN as null."""
    if isinstance(json, dict):
        return {key: _rounded(element) for key, element in json.items()}
    if isinstance(json, list | tuple):
        return [_rounded(element) for element in json]
    return round(json, 6) if isinstance(json, float) else json


@cache
def _field_types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _means(intervals: dict[str, Interval]) -> dict[str, dict[str, float]]:
    means = {}
    for metric, interval in intervals.items():
        if math.isnan(interval.mean):
            continue
        means[metric] = {"mean": round(interval.mean, 6)}
        if not math.isnan(interval.half_width):
            means[metric]["ci95"] = round(interval.half_width, 6)
    return means
