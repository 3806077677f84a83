"""The record schema's own tables: Parquet, and CSV with lists and structs as JSON text.

    Parquet    the columns of schema.SCHEMA, in any order; Zstandard when written
    CSV        header line of column names, in any order; then a line a record, RFC 4180 quoting
    cell       text in quotes, "" for an empty text; nothing at all for null; numbers in quotes or not
    networks   [{"network":"resnet50","weight":1}]
    run_secs   [0.00096,0.00098]
    source     {"dataset":"roller","file":"a.json","line":1}

Example lines (shortened)::

    record_id,program_id,...,run_secs,status,error,source,wall_s,foreign,quarantine
    "0f3a","77b1",...,"[0.00096]","ok",,"{""dataset"":""d"",""file"":""f"",""line"":1}",,,

Tables of schema version 1 are read: the columns that version 2 added are null. A missing column of version 1, or one
that no version has, is an error that names it. A row whose values break the schema's rules is a reject: no value where
there must be one, an unknown status, times without status ok or ok without times, times that are not positive and
finite, numbers that are not finite, JSON columns that are not JSON. Rows keep their `source`, hardware and
ids; in a file, a reject's line is where its row begins (Parquet: the row, from 1).

The files of a record store (a Delta Lake table) are no such tables: read the store with records.store.

Not to be relied on: programs that do not tell ``""`` from nothing (Python's csv) lose the difference between an
empty text and null.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from tencost.errors import RecordError
from tencost.records.formats.table.checks import NESTED, check_names, checked
from tencost.records.reading.opening import LONGEST_LINE, TruncatedError, first_line, lines
from tencost.records.reading.parquet import (
    MAGIC,
    is_parquet,
    open_parquet,
    parquet_names,
    parquet_tables,
)
from tencost.records.reading.protocol import BATCH_ROWS, About, Batch, LogFormat, Reject
from tencost.store.schema import SCHEMA
from tencost.writing import whole_file

MARKS = frozenset({"record_id", "program_id", "workload_id", "status"})
"""A table with these columns claims the record schema, right or wrong in the others."""
BATCH_BYTES = 1 << 25
"""Bytes of CSV that are converted at a time, if batch_rows rows are not reached before."""
_CELL = rb'(?:"(?:[^"]++|"")*+"|[^",\r\n]*+)'
"""Arrow itself takes a quote inside a cell for a part of it, and where a row of other cells ends it cannot say."""
_BOM = b"\xef\xbb\xbf"
_AS_TEXT = pacsv.ConvertOptions(
    column_types=dict.fromkeys(SCHEMA.names, pa.string()),
    strings_can_be_null=True,
    quoted_strings_can_be_null=False,
    null_values=[""],
)

Line = tuple[int, bytes]
"""A line and its number from 1."""

_EXAMPLE_CELLS = {
    **dict.fromkeys(("program_id", "workload_id", "task_name", "workload", "engine"), "matmul"),
    "hardware": "xeon",
    "schema_version": "3",
    "program_format": "none",
    "target": '"{""kind"":""llvm""}"',
    "program": '""',
}
_EXAMPLE_MEASUREMENTS = (
    {"record_id": "0f3a", "status": "ok", "run_secs": '"[0.00096,0.00098]"'},
    {"record_id": "77b1", "status": "build_error"},
    {"record_id": "91c2", "status": "ok", "run_secs": '"[0.0013]"'},
)
_EXAMPLE = [dict(zip(SCHEMA.names, SCHEMA.names, strict=True))]
_EXAMPLE += [_EXAMPLE_CELLS | measurement for measurement in _EXAMPLE_MEASUREMENTS]


class TencostTableFormat(LogFormat):
    """Tables of the record schema, of any version, as Parquet or CSV."""

    example = MappingProxyType(
        {
            "table.csv": "".join(
                ",".join(cells.get(name, "") for name in SCHEMA.names) + "\n" for cells in _EXAMPLE
            )
        }
    )

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Say whether a file has the record schema's columns: in its Parquet schema or its CSV header."""
        if head.startswith(MAGIC):
            # Only a Delta table knows whether a file of its counts, and the file's hardware.
            in_delta = any(
                (folder / "_delta_log").is_dir() for folder in path.absolute().parents[:2]
            )
            return not in_delta and parquet_names(path) >= MARKS
        header = first_line(head.removeprefix(_BOM))
        return b"record_id" in header and set(_names(header)) >= MARKS

    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yield the table's rows, with the source and hardware that they have, and rejects.

        Raises:
            RecordError: the file cannot be opened, a column is missing, unknown or of another type.
        """
        tables = _read_parquet if is_parquet(path) else _read_csv
        for places, table, reasons in tables(path, batch_rows):
            records, faults = checked(table, str(path))
            reasons |= {places[row]: fault for row, fault in faults.items()}
            rejects = (Reject(about.file, place, reasons[place]) for place in sorted(reasons))
            yield Batch(records, tuple(rejects))


FORMAT = TencostTableFormat()


def write_file(table: Any, path: Path) -> int:
    """Write a table of schema.SCHEMA (pyarrow or polars) as .parquet or .csv; return the number of rows.

    Raises:
        RecordError: other columns, or another suffix.
    """
    if path.suffix not in (".parquet", ".csv"):
        raise RecordError(
            f"expected a file that ends in .parquet or .csv, found {path}. Name it so."
        )
    arrow: pa.Table = table if isinstance(table, pa.Table) else table.to_arrow()
    check_names(arrow.column_names, "the table to write")
    columns = {
        field.name: arrow[field.name].cast(field.type)
        if field.name in arrow.column_names
        else pa.nulls(arrow.num_rows, field.type)
        for field in SCHEMA
    }
    if path.suffix == ".parquet":
        with whole_file(path) as scratch:
            pq.write_table(pa.table(columns, schema=SCHEMA), scratch, compression="zstd")
        return int(arrow.num_rows)
    for name in NESTED:
        cells = columns[name].to_pylist()
        texts = [None if cell is None else orjson.dumps(cell).decode() for cell in cells]
        columns[name] = pa.array(texts, pa.string())
    with whole_file(path) as scratch:
        pacsv.write_csv(pa.table(columns), scratch)
    return int(arrow.num_rows)


_Part = tuple[Sequence[int], pa.Table, dict[int, str]]
"""Lines of rows, the rows, and what is wrong with other lines."""


def _read_parquet(path: Path, batch_rows: int) -> Iterator[_Part]:
    rows = 0
    try:
        with open_parquet(path) as file:
            check_names(file.schema_arrow.names, str(path))
            for numbers, table, reasons in parquet_tables(file, batch_rows):
                yield numbers, table, reasons
                rows += len(numbers) + len(reasons)
    except TruncatedError as error:
        yield (), SCHEMA.empty_table(), {rows + 1 if rows else 0: str(error)}


def _read_csv(path: Path, batch_rows: int) -> Iterator[_Part]:
    groups = _groups(
        (number, line.removeprefix(_BOM) if number == 1 else line) for number, line in lines(path)
    )
    try:
        names = _names(b"".join(line for _, line in next(groups, [])))
    except TruncatedError as error:
        yield (), SCHEMA.empty_table(), {1: str(error)}
        return
    check_names(names, str(path))
    places: list[int] = []
    texts: list[bytes] = []
    reasons: dict[int, str] = {}
    size = 0
    for number, text, reason in _rows(groups, len(names)):
        if reason:
            reasons[number] = reason
        else:
            places.append(number)
            texts.append(text)
            size += len(text)
        if len(places) + len(reasons) >= batch_rows or size >= BATCH_BYTES:
            yield places, _table(texts, names), reasons
            places, texts, reasons, size = [], [], {}, 0
    if places or reasons:
        yield places, _table(texts, names), reasons


def _rows(groups: Iterator[list[Line]], cells: int) -> Iterator[tuple[int, bytes, str]]:
    """Yield (line, text, "") for each row of so many cells, and (line, b"", reason) for what is none.

    A group of many lines that is no row may be one with a quote too many, which took the following lines for its
    cell: its first line is given up and the others are read by themselves.
    """
    row = re.compile(b"(?:%b,){%d}%b\\r?\\n" % (_CELL, cells - 1, _CELL))
    number = 0
    try:
        for whole in groups:
            waiting = [whole]
            while waiting:
                (first, _), *others = group = waiting.pop()
                text = b"".join(line for _, line in group).removesuffix(b"\n") + b"\n"
                if row.fullmatch(text) and text.decode(errors="ignore").encode() == text:
                    yield first, text, ""
                else:
                    yield first, b"", f"not a row of {cells} cells of UTF-8 text"
                    waiting += [*_groups(iter(others))][::-1]
            number = whole[-1][0]
    except TruncatedError as error:
        yield number + 1, b"", str(error)


def _groups(numbered: Iterator[Line]) -> Iterator[list[Line]]:
    """Yield the lines of a record together: up to where its quotes are even. Blank lines are left out."""
    group: list[Line] = []
    odd = False
    size = 0
    for number, line in numbered:
        if not group and not line.strip():
            continue
        group.append((number, line))
        odd ^= bool(line.count(b'"') & 1)
        size += len(line)
        if not odd or size > LONGEST_LINE:
            yield group
            group, odd, size = [], False, 0
    if group:
        yield group


def _table(rows: list[bytes], names: list[str]) -> pa.Table:
    """Return rows of CSV as a table of texts."""
    if not rows:
        return SCHEMA.empty_table()
    content = b"".join(rows)
    reading = pacsv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=names)
    parsing = pacsv.ParseOptions(newlines_in_values=True)
    return pacsv.read_csv(io.BytesIO(content), reading, parsing, _AS_TEXT)


def _names(header: bytes) -> list[str]:
    text = header.decode("utf-8", errors="replace").strip()
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []
