"""Parquet files as logs come: also in gzip or Zstandard, damaged, or with text that is none."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tencost.records.reading.opening import TruncatedError, most_bytes, open_log, read_head

MAGIC = b"PAR1"
_COPIED_BYTES = 1 << 20


def is_parquet(path: Path) -> bool:
    """Say whether a file, decompressed, begins as Parquet does.

    Raises:
        RecordError: it cannot be opened.
    """
    return read_head(path).startswith(MAGIC)


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
                _copy(file, copy, most_bytes(path))
            opened = pq.ParquetFile(file if plain else copy)
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            raise TruncatedError(f"not a Parquet file, or a damaged one: {error}") from error
        yield opened


def _copy(file: BinaryIO, copy: IO[bytes], most: int) -> None:
    while chunk := file.read(_COPIED_BYTES):
        copy.write(chunk)
        if copy.tell() > most:
            raise TruncatedError(
                f"more than {most} bytes in the compressed file: no table is like that"
            )
    copy.seek(0)


def parquet_tables(
    file: pq.ParquetFile, batch_rows: int
) -> Iterator[tuple[Sequence[int], pa.Table, dict[int, str]]]:
    """Yield (numbers of rows from 1, table of those rows, reason of each row number that holds damaged data).

    Raises:
        TruncatedError: the file is damaged, what was yielded before is good.
    """
    rows = 0
    parts = file.iter_batches(batch_rows)
    while True:
        try:
            part = next(parts, None)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise TruncatedError(f"damaged after row {rows}: {error}") from error
        if part is None:
            return
        table = pa.Table.from_batches([part])
        numbers: Sequence[int] = range(rows + 1, rows + 1 + table.num_rows)
        rows += table.num_rows
        reasons = {numbers[row]: reason for row, reason in _damaged_rows(table).items()}
        if reasons:
            table = table.filter(pa.array([number not in reasons for number in numbers]))
            numbers = [number for number in numbers if number not in reasons]
        yield numbers, table, reasons


def _damaged_rows(table: pa.Table) -> dict[int, str]:
    """Return the rows that hold damaged data, such as text that is not UTF-8."""
    try:
        table.validate(full=True)
    except pa.ArrowException as error:
        if table.num_rows == 1:
            return {0: " ".join(str(error).split())[:120]}
        rows = (_damaged_rows(table.slice(row, 1)) for row in range(table.num_rows))
        return {row: reasons[0] for row, reasons in enumerate(rows) if reasons}
    return {}
