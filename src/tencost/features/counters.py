"""Hardware counters as columns of a model's input.

What normalises a column is fitted on the rows that a model learns from, and is kept with the model as JSON; rows that
are tested move nothing. tvm_oraa normalises over the whole file, tests included, and leaves out a metric that the file
lacks without a word, which changes the width.

Legend: P programs, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tencost.config.profiles import (
    CounterConfig,
    CounterKind,
    FittedOn,
    Preprocessing,
    ProfileFeaturesConfig,
)
from tencost.errors import ProfileError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.summary import summarize_programs, summary_names
from tencost.records.counters.counter_groups import group_columns, tells_time
from tencost.records.counters.table import Profiles

DEVICE_PREFIX = "device__attribute_"

Floats = NDArray[np.float64]
Bounds = tuple[tuple[float, float], ...]
"""Least and largest value of each column; (0, 1) of one that needs none."""


@dataclass(frozen=True)
class FittedCounters:
    """A set of columns with what was fitted.

    Attributes:
        name: of the set.
        columns: in order.
        fitted_on: which rows the bounds come from.
        bounds: of all rows that were fitted under "", or of each workload under its name.
    """

    name: str
    columns: tuple[CounterConfig, ...]
    fitted_on: FittedOn
    bounds: Mapping[str, Bounds]

    @property
    def names(self) -> tuple[str, ...]:
        """Name the columns, distinct."""
        return tuple(_column_name(column) for column in self.columns)

    @property
    def leaky(self) -> tuple[str, ...]:
        """Name the columns that tell the run time."""
        columns = zip(self.names, self.columns, strict=True)
        return tuple(name for name, column in columns if any(map(tells_time, _metrics(column))))

    def transform(self, profiles: Profiles) -> Floats:
        """Return the columns of programs, float64 [P, C]; NaN where a counter was not measured.

        Raises:
            ProfileError: a metric is missing, or nothing was fitted for a workload.
        """
        raw = _raw(self.name, self.columns, profiles)
        if self.fitted_on is FittedOn.training:
            return _normalized(raw, self.columns, self.bounds[""])
        out = np.empty_like(raw)
        for workload in np.unique(profiles.workload).tolist():
            if workload not in self.bounds:
                raise ProfileError(
                    f"expected programs of one of the workloads that {self.name} was fitted on "
                    f"({_some(sorted(self.bounds))}), found one of {workload}: profile some of its programs and fit "
                    "on them, too, or take profile_features.fitted_on=training"
                )
            rows = profiles.workload == workload
            out[rows] = _normalized(raw[rows], self.columns, self.bounds[workload])
        return out


def fit_counters(config: ProfileFeaturesConfig, training: Profiles) -> FittedCounters:
    """Fit a set of columns on the rows that a model learns from.

    Args:
        config: of the set.
        training: the training part; with `fitted_on` workload the training part of every workload that will be asked
            about.

    Raises:
        ProfileError: no rows, a metric is missing, or one tells the run time in a set that is not called leaky.
    """
    if not len(training):
        raise ProfileError(f"expected profiles to fit the columns of {config.name} on, found none")
    columns = columns_of(config, training.metrics)
    raw = _raw(config.name, columns, training)
    if config.fitted_on is FittedOn.training:
        return FittedCounters(config.name, columns, config.fitted_on, {"": _bounds(raw, columns)})
    workloads = np.unique(training.workload).tolist()
    bounds = {name: _bounds(raw[training.workload == name], columns) for name in workloads}
    return FittedCounters(config.name, columns, config.fitted_on, bounds)


def columns_of(config: ProfileFeaturesConfig, metrics: Sequence[str]) -> tuple[CounterConfig, ...]:
    """Return the columns of a set.

    Args:
        config: of the set.
        metrics: what the profiles have; only sets that name no metric themselves look at it.

    Raises:
        ProfileError: no column at all, a column twice, or one tells the run time in a set that is not called leaky.
    """
    if config.kind is CounterKind.device:
        chosen = [name for name in metrics if name.startswith(DEVICE_PREFIX)]
        columns = tuple(CounterConfig(metric=name, how=config.how) for name in chosen)
    elif config.kind is CounterKind.ncu_raw:
        chosen = [name for name in metrics if config.leaky or not tells_time(name)]
        every = (CounterConfig(metric=name, how=config.how) for name in chosen)
        columns = tuple(config.columns or every)
    else:
        upstream = config.kind is CounterKind.ncu_upstream
        columns = group_columns(config.groups, upstream=upstream)
    names = [_column_name(column) for column in columns]
    if not names:
        raise ProfileError(
            f"expected columns of the set {config.name}, found none: no group is in, or none of the profiles' "
            f"{len(metrics)} metrics is one of it ({_some(list(metrics))})"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ProfileError(
            f"expected each column of {config.name} once, found {', '.join(twice)} more often"
        )
    leaky = [metric for column in columns for metric in _metrics(column) if tells_time(metric)]
    if leaky and not config.leaky:
        raise ProfileError(
            f"expected metrics in {config.name} that do not tell the run time, found {', '.join(leaky)}. Leave them "
            "out, or say profile_features.leaky=true for a comparison"
        )
    return columns


@dataclass(frozen=True)
class Joined:
    """Programs' features with the columns of their counters beside.

    Attributes:
        values: float32 [N, C], programs that have both.
        columns: names, the features' first.
        rows: int64 [N], their positions among the programs given.
        missing: ids of programs without counters, in the order given.
        without_features: ids of programs that have counters and no rows of features.
        unknown: ids of profiles that are none of the programs given, in the table's order.
    """

    values: NDArray[np.float32]
    columns: tuple[str, ...]
    rows: NDArray[np.int64]
    missing: tuple[str, ...]
    without_features: tuple[str, ...]
    unknown: tuple[str, ...]

    def summary(self) -> str:
        """Say in a sentence what joined and what did not, the first five ids of each kind."""
        parts = [f"{len(self.rows)} programs have features and counters"]
        for noun, ids in (
            ("without counters", self.missing),
            ("with counters and without features", self.without_features),
            ("profiles of other programs", self.unknown),
        ):
            if ids:
                parts.append(f"{len(ids)} {noun} ({_some(ids)})")
        return "; ".join(parts)


def append_counters(
    features: Ragged,
    spec: FeatureSpec,
    record_ids: Sequence[str],
    profiles: Profiles,
    fitted: FittedCounters,
) -> Joined:
    """Put the columns of counters beside programs' features, by id, as `per_store` and `ncu` together.

    Rows of a program are summed up to one as trees read them (:mod:`tencost.features.rows.summary`).

    Args:
        features: rows of N programs.
        spec: what their columns are.
        record_ids: their ids, distinct.
        profiles: counters by program_id, which is a record's id, in any order.
        fitted: the columns of counters.

    Raises:
        ProfileError: no program has both, an id has more than one profile, or a metric is missing.
    """
    place = {name: row for row, name in enumerate(profiles.program_id.tolist())}
    if len(place) != len(profiles):
        raise ProfileError(
            f"expected one profile an id, found {len(profiles)} profiles of {len(place)} ids: choose one device's"
        )
    has_rows = features.lengths > 0
    has_profile = np.asarray([name in place for name in record_ids], bool)
    chosen_rows = np.flatnonzero(has_profile & has_rows).astype(np.int64)
    requested = set(record_ids)
    unknown = tuple(name for name in place if name not in requested)
    missing, bare = (
        tuple(record_ids[row] for row in np.flatnonzero(lacking).tolist())
        for lacking in (~has_profile, has_profile & ~has_rows)
    )
    if not len(chosen_rows):
        raise ProfileError(
            f"expected profiles of the {len(record_ids)} programs, found {len(profiles)} of which none joins: the "
            f"programs are {_some(record_ids)}, the profiles {_some(list(place))}"
        )
    profile_rows = [place[record_ids[row]] for row in chosen_rows.tolist()]
    chosen = profiles.take(np.asarray(profile_rows, np.int64))
    values = np.concatenate(
        [
            summarize_programs(features.take(chosen_rows), spec),
            fitted.transform(chosen).astype(np.float32),
        ],
        axis=1,
    )
    columns = (*summary_names(spec), *fitted.names)
    return Joined(values, columns, chosen_rows, missing, bare, unknown)


def _column_name(column: CounterConfig) -> str:
    if column.how is Preprocessing.minimize:
        return f"min({', '.join(_metrics(column))})"
    if column.how is Preprocessing.normalize_to:
        return f"{column.metric} / {column.by}"
    return column.metric if column.how is not Preprocessing.log else f"log2({column.metric})"


def _metrics(column: CounterConfig) -> Iterator[str]:
    """Yield the metrics that a column is made of."""
    yield column.metric
    yield from column.others
    if column.by and _number(column.by) is None:
        yield column.by


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _raw(name: str, columns: Sequence[CounterConfig], profiles: Profiles) -> Floats:
    """Return the columns before anything is fitted, float64 [P, C].

    Raises:
        ProfileError: metrics are missing, all of them named.
    """
    needed = dict.fromkeys(metric for column in columns for metric in _metrics(column))
    missing = [metric for metric in needed if metric not in profiles.metrics]
    if missing:
        raise ProfileError(
            f"expected the {len(needed)} metrics of the set {name}, found profiles without {len(missing)} of them: "
            f"{', '.join(missing)}. Profile with all sections (ncu --set full), leave out their group, or list the "
            "columns with profile_features=ncu_raw"
        )
    return np.stack([_column(column, profiles) for column in columns], axis=1)


def _column(column: CounterConfig, profiles: Profiles) -> Floats:
    values = profiles.column(column.metric)
    if column.how is Preprocessing.log:
        return np.asarray(np.sign(values) * np.log2(1.0 + np.abs(values)))
    if column.how is Preprocessing.minimize:
        return np.min([profiles.column(metric) for metric in _metrics(column)], axis=0)
    if column.how is Preprocessing.normalize_to:
        number = _number(column.by)
        by = profiles.column(column.by) if number is None else np.full(len(values), number)
        out = np.full(len(values), np.nan)
        np.divide(values, by, out=out, where=by != 0)
        return np.where((by == 0) & (values == 0), 0.0, out)
    return values


def _bounds(raw: Floats, columns: Sequence[CounterConfig]) -> Bounds:
    """Fit least and largest values; NaN counts for nothing, and a column without any number is constant."""
    bounds = []
    for values, column in zip(raw.T, columns, strict=True):
        finite = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
        fitted = column.how is Preprocessing.self_normalize
        bounds.append((float(finite.min()), float(finite.max())) if fitted else (0.0, 1.0))
    return tuple(bounds)


def _normalized(raw: Floats, columns: Sequence[CounterConfig], bounds: Bounds) -> Floats:
    out = raw.copy()
    for index, (column, (low, high)) in enumerate(zip(columns, bounds, strict=True)):
        if column.how is Preprocessing.self_normalize:
            out[:, index] = (raw[:, index] - low) / (high - low) if high > low else 0.0
    return out


def _some(names: Sequence[str]) -> str:
    """Tell the first five of many names."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"
