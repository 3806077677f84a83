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

MARKS = frozenset({"record_id", "program_id", "workload_id", "status"})
"""A table with these columns claims the record schema, right or wrong in the others."""
BATCH_BYTES = 1 << 25
"""Bytes of CSV that are converted at a time, if batch_rows rows are not reached before."""
_CELL = rb'(?:"(?:[^"]++|"")*+"|[^",\r\n]*+)'
"""Arrow itself takes a quote inside a cell for a part of it, and where a row of other cells ends it cannot say."""
_BOM = b"\xef\xbb\xbf"

Line = tuple[int, bytes]
"""A line and its number from 1."""


def _example(record_id: str, status: str, run_secs: str) -> str:
    cells = dict.fromkeys(
        ("program_id", "workload_id", "task_name", "workload", "engine"), "matmul"
    )
    cells |= {
        "record_id": record_id,
        "hardware": "xeon",
        "schema_version": "3",
        "program_format": "none",
    }
    cells |= {
        "target": '"{""kind"":""llvm""}"',
        "program": '""',
        "status": status,
        "run_secs": run_secs,
    }
    return ",".join(cells.get(name, "") for name in SCHEMA.names)


_EXAMPLE_LINES = (
    ",".join(SCHEMA.names),
    _example("0f3a", "ok", '"[0.00096,0.00098]"'),
    _example("77b1", "build_error", ""),
    _example("91c2", "ok", '"[0.0013]"'),
)


class TencostTableFormat(LogFormat):
    """Tables of the record schema, of any version, as Parquet or CSV."""

    example = MappingProxyType({"table.csv": "\n".join([*_EXAMPLE_LINES, ""])})

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Say whether a file has the record schema's columns: in its Parquet schema or its CSV header."""
        if head.startswith(MAGIC):
            return not _in_delta_table(path) and parquet_names(path) >= MARKS
        header = first_line(head.removeprefix(_BOM))
        return b"record_id" in header and set(_names(header)) >= MARKS

    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yield the table's rows, with the source and hardware that they have, and rejects.

        Raises:
            RecordError: the file cannot be opened, a column is missing, unknown or of another type.
        """
        if is_parquet(path):
            return _read_parquet(path, about, batch_rows)
        return _read_csv(path, about, batch_rows)


FORMAT = TencostTableFormat()


def _in_delta_table(path: Path) -> bool:
    """Say whether a file belongs to a Delta table: whether it counts, and its hardware, only the table knows."""
    return any((folder / "_delta_log").is_dir() for folder in path.absolute().parents[:2])


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
    made = pa.table([_of_schema(arrow, field) for field in SCHEMA], schema=SCHEMA)
    if path.suffix == ".parquet":
        pq.write_table(made, path, compression="zstd")
    else:
        pacsv.write_csv(_flat(made), path)
    return int(made.num_rows)


def _read_parquet(path: Path, about: About, batch_rows: int) -> Iterator[Batch]:
    done = 0
    try:
        with open_parquet(path) as file:
            check_names(file.schema_arrow.names, str(path))
            for numbers, table, reasons in parquet_tables(file, batch_rows):
                batch = _batch(table, numbers, about, str(path))
                damaged = [Reject(about.file, row, reason) for row, reason in reasons.items()]
                yield Batch(batch.records, _by_line([*batch.rejects, *damaged]))
                done += table.num_rows + len(reasons)
    except TruncatedError as error:
        line = done + 1 if done else 0
        yield Batch(SCHEMA.empty_table(), (Reject(about.file, line, str(error)),))


def _by_line(rejects: list[Reject]) -> tuple[Reject, ...]:
    return tuple(sorted(rejects, key=lambda item: item.line))


def _batch(table: pa.Table, places: Sequence[int], about: About, where: str) -> Batch:
    good, reasons = checked(table, where)
    rejects = [Reject(about.file, places[row], reasons[row]) for row in sorted(reasons)]
    return Batch(good, tuple(rejects))


def _read_csv(path: Path, about: About, batch_rows: int) -> Iterator[Batch]:
    groups = _groups(_unmarked(lines(path)))
    try:
        names = _names(b"".join(line for _, line in next(groups, [])))
    except TruncatedError as error:
        yield Batch(SCHEMA.empty_table(), (Reject(about.file, 1, str(error)),))
        return
    check_names(names, str(path))
    places: list[int] = []
    texts: list[bytes] = []
    rejects: list[Reject] = []
    size = 0
    for number, text, reason in _rows(groups, len(names)):
        if reason:
            rejects.append(Reject(about.file, number, reason))
        else:
            places.append(number)
            texts.append(text)
            size += len(text)
        if len(places) + len(rejects) >= batch_rows or size >= BATCH_BYTES:
            yield _csv_batch(places, texts, names, about, rejects)
            places, texts, rejects, size = [], [], [], 0
    if places or rejects:
        yield _csv_batch(places, texts, names, about, rejects)


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
                group = waiting.pop()
                text = b"".join(line for _, line in group)
                text += b"" if text.endswith(b"\n") else b"\n"
                if row.fullmatch(text) and _is_utf8(text):
                    yield group[0][0], text, ""
                    continue
                yield group[0][0], b"", f"not a row of {cells} cells of UTF-8 text"
                waiting += [*_groups(iter(group[1:]))][::-1]
            number = whole[-1][0]
    except TruncatedError as error:
        yield number + 1, b"", str(error)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _csv_batch(
    places: list[int], texts: list[bytes], names: list[str], about: About, rejects: list[Reject]
) -> Batch:
    if not texts:
        return Batch(SCHEMA.empty_table(), tuple(rejects))
    data = b"".join(texts)
    table = pacsv.read_csv(
        io.BytesIO(data),
        pacsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
        pacsv.ParseOptions(newlines_in_values=True),
        pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )
    batch = _batch(table, places, about, about.file)
    return Batch(batch.records, _by_line([*rejects, *batch.rejects]))


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


def _unmarked(numbered: Iterator[Line]) -> Iterator[Line]:
    for number, line in numbered:
        yield number, line.removeprefix(_BOM) if number == 1 else line


def _names(header: bytes) -> list[str]:
    text = header.decode("utf-8", errors="replace").strip()
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _of_schema(table: pa.Table, field: pa.Field) -> pa.Array:
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    values = table[field.name].combine_chunks()
    if values.type == field.type:
        return values
    return (
        pa.array(values.to_pylist(), field.type)
        if field.name in NESTED
        else values.cast(field.type)
    )


def _flat(table: pa.Table) -> pa.Table:
    """Return a table with JSON text instead of lists and structs."""
    for name in NESTED:
        texts = [
            None if value is None else orjson.dumps(value).decode()
            for value in table[name].to_pylist()
        ]
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array(texts, pa.string()))
    return table
