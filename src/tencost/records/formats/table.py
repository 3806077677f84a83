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
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from tencost.errors import RecordError
from tencost.records.formats.opening import (
    LONGEST_LINE,
    TruncatedError,
    first_line,
    lines,
    open_log,
    read_head,
)
from tencost.records.formats.protocol import BATCH_ROWS, About, Batch, Reject
from tencost.records.formats.tablerows import NESTED, check_names, checked
from tencost.store.schema import SCHEMA

MARKS = frozenset({"record_id", "program_id", "workload_id", "status"})
"""A table with these columns claims the record schema, right or wrong in the others."""
BATCH_BYTES = 1 << 25
"""Bytes of CSV that are converted at a time, if batch_rows rows are not reached before."""
_STRICT = re.compile(rb'(?:(?:"(?:[^"]++|"")*+"|[^",\r\n]*+)(?:,|\r?\n))*+')
"""Lines of cells; Arrow itself takes a quote inside a cell for a part of it."""
_MAGIC = b"PAR1"
_BOM = b"\xef\xbb\xbf"

Line = tuple[int, bytes]
"""A line and its number from 1."""


class TencostTableFormat:
    """Tables of the record schema, of version 1 or 2, as Parquet or CSV."""

    name = "tencost"

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Say whether a file has the record schema's columns: in its Parquet schema or its CSV header."""
        if head.startswith(_MAGIC):
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


def is_parquet(path: Path) -> bool:
    """Say whether a file, decompressed, begins as Parquet does.

    Raises:
        RecordError: it cannot be opened.
    """
    return read_head(path).startswith(_MAGIC)


def parquet_names(path: Path) -> frozenset[str]:
    """Return the names of a Parquet file's columns; none of a file that cannot be read as Parquet.

    Raises:
        RecordError: it cannot be opened.
    """
    try:
        with open_parquet(path) as file:
            return frozenset(file.schema_arrow.names)
    except TruncatedError:
        return frozenset()


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file, also one in gzip or Zstandard (through a temporary file).

    Raises:
        RecordError: it cannot be opened.
        TruncatedError: it is no Parquet file, or a damaged one.
    """
    with open_log(path) as file, tempfile.TemporaryFile() as copy:
        try:
            plain = isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO)
            if not plain:
                shutil.copyfileobj(file, copy)
                copy.seek(0)
            opened = pq.ParquetFile(file if plain else copy)
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            raise TruncatedError(f"not a Parquet file, or a damaged one: {error}") from error
        yield opened


def parquet_tables(
    file: pq.ParquetFile, batch_rows: int
) -> Iterator[tuple[Sequence[int], pa.Table, dict[int, str]]]:
    """Yield (numbers of rows from 1, table of those rows, reason of each row number that holds damaged data).

    Raises:
        TruncatedError: the file is damaged, what was yielded before is good.
    """
    done = 0
    parts = file.iter_batches(batch_rows)
    while True:
        try:
            part = next(parts, None)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise TruncatedError(f"damaged after row {done}: {error}") from error
        if part is None:
            return
        table = pa.Table.from_batches([part])
        numbers = range(done + 1, done + 1 + table.num_rows)
        done += table.num_rows
        damaged = _damaged(table)
        if damaged:
            keep = [row not in damaged for row in range(table.num_rows)]
            reasons = {numbers[row]: reason for row, reason in damaged.items()}
            good = [number for number, kept in zip(numbers, keep, strict=True) if kept]
            yield good, table.filter(pa.array(keep)), reasons
        else:
            yield numbers, table, {}


def _damaged(table: pa.Table) -> dict[int, str]:
    """Return the rows that hold damaged data, such as text that is not UTF-8."""
    try:
        table.validate(full=True)
    except pa.ArrowException:
        found = {}
        for row in range(table.num_rows):
            try:
                table.slice(row, 1).validate(full=True)
            except pa.ArrowException as error:
                found[row] = " ".join(str(error).split())[:120]
        return found
    return {}


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
    rejects: list[Reject] = []
    header = next(groups, [])
    names = _names(b"".join(line for _, line in header))
    check_names(names, str(path))
    ended = False
    while not ended:
        part: list[list[Line]] = []
        size = 0
        try:
            while len(part) < batch_rows and size < BATCH_BYTES:
                group = next(groups, None)
                if group is None:
                    ended = True
                    break
                part.append(group)
                size += sum(len(line) for _, line in group)
        except TruncatedError as error:
            ended = True
            line = part[-1][-1][0] + 1 if part else 1
            rejects.append(Reject(about.file, line, str(error)))
        yield from _parsed_batches(part, names, about, str(path))
        if rejects:
            yield Batch(SCHEMA.empty_table(), tuple(rejects))


def _parsed_batches(
    groups: list[list[Line]], names: list[str], about: About, where: str
) -> Iterator[Batch]:
    """Yield the records of some groups of lines as few batches."""
    places: list[int] = []
    tables: list[pa.Table] = []
    rejects: list[Reject] = []
    for found in _parsed(groups, names):
        if isinstance(found, _Unread):
            rejects.append(Reject(about.file, found.line, found.reason))
        else:
            places += found.lines
            tables.append(found.cells)
    if tables:
        batch = _batch(pa.concat_tables(tables), places, about, where)
        rejects += batch.rejects
        yield Batch(batch.records, _by_line(rejects))
    elif rejects:
        yield Batch(SCHEMA.empty_table(), tuple(rejects))


@dataclass(frozen=True)
class _Unread:
    line: int
    reason: str


@dataclass(frozen=True)
class _Cells:
    """A table of text cells and the line that each row begins at."""

    lines: list[int]
    cells: pa.Table


def _parsed(groups: list[list[Line]], names: list[str]) -> Iterator[_Cells | _Unread]:
    """Parse groups of lines, each of them a record; halve them around those that are none.

    A group of many lines that is no record may be one with a quote too many, which took the following lines for its
    cell: its first line is given up and the others are read by themselves.
    """
    waiting = [groups] if groups else []
    while waiting:
        part = waiting.pop()
        found = _cells(part, names)
        if isinstance(found, pa.Table):
            yield _Cells([group[0][0] for group in part], found)
        elif len(part) > 1:
            half = len(part) // 2
            waiting += [part[half:], part[:half]]
        else:
            (number, _), *rest = part[0]
            yield _Unread(number, f"not a record of {len(names)} cells: {found}")
            if rest:
                waiting.append(list(_groups(iter(rest))))


def _cells(groups: list[list[Line]], names: list[str]) -> pa.Table | str:
    """Return the cells of lines as a table of text, a row a group; why not, where they are no such rows."""
    data = b"".join(
        line if line.endswith(b"\n") else line + b"\n" for group in groups for _, line in group
    )
    if not _STRICT.fullmatch(data):
        return "a quote inside a cell, or a cell without its end"
    try:
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
    except pa.ArrowException as error:
        return " ".join(str(error).split())[:120]
    if table.num_rows != len(groups):
        return f"found {table.num_rows} records"
    return table


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
