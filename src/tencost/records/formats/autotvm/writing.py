"""Rows of the record schema that were read from AutoTVM logs, as lines again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from tencost.errors import RecordError
from tencost.records.formats.autotvm.lines import (
    NAME,
    Line,
    Task,
    config_of,
    format_line,
)
from tencost.records.reading.protocol import BATCH_ROWS, BadLineError, shorten


def from_row(row: Mapping[str, Any]) -> Line:
    """Return the line that a row of the store was read from.

    Args:
        row: the columns foreign, program, run_secs, wall_s and timestamp, at least.

    Raises:
        RecordError: the row is of another format.
    """
    try:
        foreign, program = json.loads(row["foreign"]), json.loads(row["program"])
        if foreign["format"] != NAME:
            raise BadLineError(f"expected the format autotvm, found {foreign['format']}")
        return Line(
            task=Task(*foreign["input"]),
            config=config_of(program, ("index", "code_hash", "entity")),
            costs=tuple(float(cost) for cost in foreign.get("costs", row["run_secs"])),
            error_no=foreign["error_no"],
            all_cost_s=row["wall_s"],
            timestamp=row["timestamp"],
            version="0.1" if foreign["version"] == 0.1 else "0.2",
            tvm_version=foreign.get("tvm_version"),
            extra=foreign.get("extra", {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"expected a record of an AutoTVM log, found program {shorten(row.get('program'))} and foreign "
            f"{shorten(row.get('foreign'))} ({type(error).__name__}: {error}). Export it in its own format."
        ) from error


def write_lines(table: pa.Table | pl.DataFrame) -> Iterator[str]:
    """Yield the log lines of records, in the rows' order, without ends of line; values are as they were read.

    Raises:
        RecordError: a record is of another format.
    """
    rows = table.to_arrow() if isinstance(table, pl.DataFrame) else table
    needed = rows.select(["foreign", "program", "run_secs", "wall_s", "timestamp"])
    for batch in needed.to_batches(max_chunksize=BATCH_ROWS):
        for row in batch.to_pylist():
            yield format_line(from_row(row))
