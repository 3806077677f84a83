"""Measurements of one program: all of them, and the one row that reads and look-ups return.

A record_id names a program on a hardware for a target; measuring it again makes no other record. The row's
`measurements` holds each measurement, earliest first, those without a time stamp before all others; null for a single
measurement, which is in the row's own columns. Where some succeeded, the row has status ok and their times one after
the other in `run_secs`, so that its latency is the median over all runs of all of them: a session on a busy host moves
it little, where the latest session or the fastest would follow that host's noise. Its other columns are those of the
earliest measurement that succeeded. Where none did, the latest failure is the row's.

A measurement in quarantine counts only if all of a record's are; then the record is in quarantine.

Two measurements are the same where status, times and time stamp are, wherever they were read; logs that came through
a format without time stamps are known by their times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from tencost.store.record import elapsed_ms
from tencost.store.schema import MEASUREMENT, SCHEMA
from tencost.store.status import Status

Row = dict[str, Any]
KEY = ("hardware", "record_id")
TOLD = ("status", "run_secs", "timestamp", "measurements")
"""Columns that tell which measurements a row is of."""


def measurements(row: Row) -> list[Row]:
    """Return the measurements of a row of the schema, as MEASUREMENT has them."""
    if row["measurements"]:
        reason = row["quarantine"]
        return [
            measurement | {"quarantine": measurement["quarantine"] or reason}
            for measurement in row["measurements"]
        ]
    place = row["source"] or dict.fromkeys(_PLACE)
    return [{name: place[name] if name in _PLACE else row[name] for name in _MEMBERS}]


_MEMBERS = tuple(field.name for field in MEASUREMENT)
_PLACE = ("dataset", "file", "line")


def _same(measurement: Row, other: Row) -> bool:
    """Say whether two measurements of a program are one that was read twice."""
    if measurement["timestamp"] is None or other["timestamp"] is None:
        # A failure without a time of day tells nothing that another failure does not.
        return bool((measurement["run_secs"] or None) == (other["run_secs"] or None))
    return all(measurement[name] == other[name] for name in ("timestamp", "status", "run_secs"))


def merged(rows: Sequence[Row]) -> Row:
    """Merge rows that have one record_id into one row; rows of the store come first."""
    stored = distinct = measurements(rows[0])
    for row in rows[1:]:
        distinct = distinct + [
            measurement
            for measurement in measurements(row)
            if not any(_same(measurement, other) for other in distinct)
        ]
    return rows[0] if len(distinct) == len(stored) else central(rows, distinct)


def central(rows: Sequence[Row], history: Iterable[Row]) -> Row:
    """Return the row that sums up measurements; `rows` have the columns that are not of a measurement."""
    ordered = sorted(history, key=_when)
    sound = [measurement for measurement in ordered if measurement["quarantine"] is None] or ordered
    good = [measurement for measurement in sound if measurement["status"] == Status.ok.value]
    representative = good[0] if good else sound[-1]
    origins = (
        row
        for row in rows
        if any(_same(measurement, representative) for measurement in measurements(row))
    )
    base = next(origins, rows[0])
    times = [value for measurement in good for value in measurement["run_secs"]]
    return base | {
        "timestamp": representative["timestamp"],
        "status": representative["status"],
        "error": representative["error"],
        "wall_s": representative["wall_s"],
        "run_secs": times or None,
        **elapsed_ms(times),
        "source": {name: representative[name] for name in _PLACE},
        "quarantine": representative["quarantine"],
        "measurements": ordered if len(ordered) > 1 else None,
    }


def released(row: Row) -> Row:
    """Return a row with none of its measurements in quarantine."""
    if not row["measurements"]:
        return row | {"quarantine": None}
    return central(
        [row], [measurement | {"quarantine": None} for measurement in row["measurements"]]
    )


def one_of_each(table: pa.Table) -> pa.Table:
    """Return a table of the schema with one row for each record, where its first was."""
    several = pl.DataFrame(table.select(KEY)).is_duplicated()
    if not several.any():
        return table
    numbered = pl.DataFrame(table).with_row_index()
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in numbered.filter(several).iter_rows(named=True):
        groups.setdefault(tuple(row[name] for name in KEY), []).append(row)
    numbers = pl.Series("index", [rows[0]["index"] for rows in groups.values()], pl.UInt32)
    replacing = frame_of(map(merged, groups.values())).insert_column(0, numbers)
    whole = pl.concat([numbered.filter(~several), replacing]).sort("index").drop("index")
    return whole.to_arrow().cast(SCHEMA)


def rows_of(frame: pl.DataFrame) -> list[Row]:
    """Return the rows of a frame of the schema as Python's own values."""
    return frame.to_arrow().cast(SCHEMA).to_pylist()


def frame_of(rows: Iterable[Row]) -> pl.DataFrame:
    """Return rows as a frame of the schema; other members of a row are left out."""
    return pl.DataFrame(pa.Table.from_pylist(list(rows), schema=SCHEMA))


def key_in(keys: pl.DataFrame) -> pl.Expr:
    """Return the condition that a row's record is one of `keys`, with the columns of KEY."""
    # The hardware counts: logs of RFC 4304 keep their ids, so that two may have the same.
    key = pl.concat_str(KEY, separator="\0")
    return key.is_in(keys.select(key).to_series().implode())


def measurement_count(table: pa.Table) -> int:
    """Return how many measurements the rows of a table are of."""
    lengths = pa.compute.list_value_length(table.column("measurements"))
    return int(pa.compute.sum(pa.compute.fill_null(lengths, 1)).as_py() or 0)


def among(rows: pl.DataFrame, stored: pl.DataFrame) -> pl.Series:
    """Say of each row whether `stored` has all its measurements; null where it lacks the record.

    Both have the columns of KEY and TOLD; `stored` has a record once.
    """
    pairs = rows.join(stored, on=KEY, how="left", suffix="_stored", maintain_order="left")
    # The usual case, thousands in a log that is imported again: both of one measurement, and it is the same.
    single = pl.all_horizontal(pl.col("measurements", "measurements_stored").is_null())
    equal = [pl.col(name).eq_missing(pl.col(f"{name}_stored")) for name in TOLD[:3]]
    same = pl.when(pl.col("status_stored").is_not_null()).then(pl.all_horizontal(single, *equal))
    states = pairs.select(same).to_series()
    compared = states.to_list()
    for row in pairs.with_row_index().filter(~states).iter_rows(named=True):
        there = row["measurements_stored"] or [{name: row[f"{name}_stored"] for name in TOLD[:3]}]
        compared[row["index"]] = all(
            any(_same(measurement, other) for other in there)
            for measurement in row["measurements"] or [row]
        )
    return pl.Series(compared, dtype=pl.Boolean)


def _when(measurement: Row) -> tuple[Any, ...]:
    place = (
        *tuple(measurement[name] or "" for name in ("dataset", "file")),
        measurement["line"] or 0,
    )
    return (measurement["timestamp"] is not None, measurement["timestamp"] or 0.0, *place)
