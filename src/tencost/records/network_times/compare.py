"""`tencost records compare`: whole networks' times side by side, by engine, version, host, day, hardware or cores.

Runs are never mixed across hardware, numbers of cores, hosts or engines: where runs are not compared by one of these
columns, each of its values is a group of rows with its own baseline. Versions and days are mixed unless they are
compared by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from tencost.errors import RecordError
from tencost.records.network_times.ratios import middle, ratio
from tencost.records.network_times.runs import Run, frame

COLUMNS = ("engine", "version", "host", "day", "hardware", "cores")
"""Columns that runs can be compared by."""
DEFAULT_BY = ("engine", "version")
BASELINE = "pytorch"
"""The engine that others are compared with where none is named."""
_GROUP_COLUMNS = ("hardware", "cores", "host", "engine")
"""Columns that separate groups where runs are not compared by them."""

Key = tuple[Any, ...]


def compare(
    runs: Sequence[Run], by: Sequence[str] = DEFAULT_BY, baseline: str | None = None
) -> pl.DataFrame:
    """Return a row for each value of the columns `by` of each network, in groups that have all else in common.

    Args:
        runs: what was timed.
        by: columns, some of COLUMNS.
        baseline: what the others' medians are divided by: a value of one of the columns, or values of all with a
            slash between them, "tvm/0.27.0". Where several rows of a group are meant, the one that was timed last.
            None: pytorch, if engines are compared and it is there; else what was timed first.

    Returns:
        Columns network, those that set groups apart, those of `by`; median_s, q1_s and q3_s, each run with the same
        weight; ratio to the baseline's median, ratio_low and ratio_high, its 95 % bootstrap interval (see
        network_ratios), null for the baseline itself; runs, n (latencies), failed (runs without any).

    Raises:
        RecordError: a column that is none, or a baseline that no run is of.
    """
    unknown = [name for name in by if name not in COLUMNS]
    if unknown or not by:
        raise RecordError(
            f"expected columns of {', '.join(COLUMNS)} to compare by, found {', '.join(unknown) or 'none'}"
        )
    group_columns = [name for name in _GROUP_COLUMNS if name not in by]
    groups: dict[Key, dict[Key, list[Run]]] = {}
    for run in runs:
        group = groups.setdefault((run.network, *_values(run, group_columns)), {})
        group.setdefault(_values(run, by), []).append(run)
    if baseline is not None and not any(
        _matches(key, baseline) for sides in groups.values() for key in sides
    ):
        labels = sorted({_label(key) for sides in groups.values() for key in sides})
        raise RecordError(
            f"expected a baseline of {', '.join(labels)}, found {baseline!r}"
            + (" or a part of one" if len(by) > 1 else "")
        )
    rows: list[Mapping[str, Any]] = []
    for key in sorted(groups, key=_sortable):
        sides = groups[key]
        common = dict(zip(("network", *group_columns), key, strict=True))
        base = _baseline(sides, by, baseline)
        group_rows = [_row(common, by, value, sides[value], sides, base) for value in sides]
        order = _days if "day" in by else _fastest
        rows += sorted(group_rows, key=lambda row: order(row, by))
    text = dict.fromkeys(("network", *group_columns, *by), pl.String) | (
        {"cores": pl.Int64} if "cores" in (*group_columns, *by) else {}
    )
    numbers = dict.fromkeys(
        ("median_s", "q1_s", "q3_s", "ratio", "ratio_low", "ratio_high"), pl.Float64
    )
    return frame(rows, {**text, **numbers, "runs": pl.Int64, "n": pl.Int64, "failed": pl.Int64})


def _row(
    common: Mapping[str, Any],
    by: Sequence[str],
    value: Key,
    runs: Sequence[Run],
    sides: Mapping[Key, Sequence[Run]],
    base: Key | None,
) -> dict[str, Any]:
    good = [run.seconds for run in runs if not run.failed]
    row = {**common, **dict(zip(by, value, strict=True))}
    row |= {"runs": len(good), "n": sum(map(len, good)), "failed": len(runs) - len(good)}
    row |= dict.fromkeys(("median_s", "q1_s", "q3_s", "ratio", "ratio_low", "ratio_high"))
    if good:
        row |= asdict(middle(good))
    if good and base is not None:
        row["ratio"] = 1.0
        if value != base:
            beside = [run.seconds for run in sides[base] if not run.failed]
            other = ratio(good, beside, alike="engine" not in by and "host" not in by)
            row |= {"ratio": other.value, "ratio_low": other.low, "ratio_high": other.high}
    return row


def _baseline(
    sides: Mapping[Key, Sequence[Run]], by: Sequence[str], baseline: str | None
) -> Key | None:
    """Return the side that others are compared with; None: the group has no such side."""
    timed = [key for key, runs in sides.items() if not all(run.failed for run in runs)]
    if baseline is None:
        place = by.index("engine") if "engine" in by else None
        candidates = [key for key in timed if place is not None and key[place] == BASELINE]
        return _last(candidates, sides) or min(
            timed, key=lambda key: _first(sides[key]), default=None
        )
    return _last([key for key in timed if _matches(key, baseline)], sides)


def _last(keys: Sequence[Key], sides: Mapping[Key, Sequence[Run]]) -> Key | None:
    return max(keys, key=lambda key: max(run.timestamp or 0.0 for run in sides[key]), default=None)


def _first(runs: Sequence[Run]) -> float:
    return min(run.timestamp or 0.0 for run in runs)


def _matches(key: Key, baseline: str) -> bool:
    return baseline in (_label(key), *map(str, key))


def _days(row: Mapping[str, Any], by: Sequence[str]) -> Key:
    """Return the sort key of a row: the other columns, then the day."""
    return _sortable([row[name] for name in (*(name for name in by if name != "day"), "day")])


def _fastest(row: Mapping[str, Any], _by: Sequence[str]) -> Key:
    return (row["median_s"] is None, row["median_s"] or 0.0)


def _label(key: Key) -> str:
    return "/".join(map(str, key))


def _values(run: Run, names: Sequence[str]) -> Key:
    return tuple(getattr(run, name) for name in names)


def _sortable(key: Sequence[Any]) -> tuple[str, ...]:
    return tuple(f"{value:09}" if isinstance(value, int) else value for value in key)
