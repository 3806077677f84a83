"""Nsight Compute's tables as CSV, whatever their rows hold: found among all that a program printed, read row by row.

A table is read a line at a time and each line by itself, so that a lost quote costs its line and no more; a line break
within a cell costs that line, too. Fields are separated by commas, semicolons or tabs. Before, between and behind the
rows may be what the program printed, and ``==PROF==`` lines; a file may hold several tables, one after the other.
"""

from __future__ import annotations

import csv
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from tencost.records.counters.cells import text_lines
from tencost.records.counters.launches import Launch, Note, Reject
from tencost.records.reading.opening import TruncatedError

GRID, BLOCK = "launch__grid_size", "launch__block_size"
DEVICE_NAME = "device__attribute_display_name"
IDENTITY = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC", "Device Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value",
    "Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup", "Demangled Name",
    DEVICE_NAME,
)  # fmt: skip
"""Columns that are no metrics; those of NVTX have names that differ."""
_ERROR = "==ERROR=="
_PERMISSION = "ERR_NVGPUCTRPERM"
_PERMISSION_ADVICE = (
    "the profiler was not allowed to read the GPU's counters (ERR_NVGPUCTRPERM): load the driver with the option "
    "NVreg_RestrictProfilingToAdminUsers=0, or run ncu as root"
)
_HEADER_BYTES = 1 << 23
"""Where a table's header is looked for: a program may have printed much before."""
_DECIMAL_ROWS = 200
"""Lines behind a header that show how a file with semicolons writes decimals."""
_ROW = re.compile(r'"\d+"[,;\t]"')
_DECIMAL_COMMA = re.compile(r"[+-]?\d{1,3}(\.\d{3})+,\d+|[+-]?\d+,(\d{1,2}|\d{4,})")


class Table(ABC):
    """A table of a file: its columns, and its rows as launches.

    Args:
        file: as messages name it.
        names: of the columns.
        decimal_comma: whether numbers are written 1.234,5.

    Attributes:
        least_cells: cells of the shortest row; those that it lacks at its end are empty.
    """

    def __init__(self, file: str, names: Sequence[str], decimal_comma: bool) -> None:
        self.file = file
        self.names = list(names)
        self.least_cells = len(self.names)
        self.decimal_comma = decimal_comma
        self._places = {
            name: place for place, name in reversed([*enumerate(names)]) if name in IDENTITY
        }
        self.marks = [
            place for place, name in enumerate(names) if "Domain:" in name or "nvtx" in name.lower()
        ]

    @abstractmethod
    def read_row(self, line: int, cells: Sequence[str]) -> Iterator[Launch | Reject | Note]:
        """Take a row of the table."""

    @abstractmethod
    def end(self) -> Iterator[Launch | Reject | Note]:
        """Yield what remains once the table has ended."""

    def damaged(self, line: int, _text: str, reason: str) -> Iterator[Reject]:
        """Yield the reject of a line that is no row."""
        yield self.reject(line, reason)

    def reject(self, line: int, reason: str) -> Reject:
        """Return the reject of a line of this file."""
        return Reject(self.file, line, reason)

    def identity(self, cells: Sequence[str]) -> dict[str, str]:
        """Return what a row says of the launch beside its metrics."""
        return {name: cells[place].strip() for name, place in self._places.items()}

    def marks_of(self, cells: Sequence[str]) -> str:
        """Return the ranges of NVTX around a launch."""
        return " ".join(filter(None, (cells[place].strip() for place in self.marks)))


def device_of(identity: Mapping[str, str]) -> str:
    """Return a launch's device, by name or by compute capability; "" where neither is known."""
    name = next(filter(None, map(identity.get, (DEVICE_NAME, "Device Name", "Device"))), "")
    capability = identity.get("CC", "").replace(".", "")
    return name if name and not name.isdigit() else f"sm_{capability}" if capability else ""


def extents(identity: Mapping[str, str]) -> tuple[str, dict[str, float]]:
    """Return grid and block as one text, and how many blocks and threads a block those are, where they are there."""
    grid, block = identity.get("Grid Size", ""), identity.get("Block Size", "")
    sizes = {}
    for metric, text in ((GRID, grid), (BLOCK, block)):
        numbers = re.findall(r"\d+", text)
        if 1 <= len(numbers) <= 3:
            sizes[metric] = float(math.prod(map(int, numbers)))
    return f"{grid} x {block}" if grid or block else "", sizes


def header_names(path: Path) -> list[str] | None:
    """Return the columns of the first table of a file; None where its first megabytes have none.

    Raises:
        TruncatedError: the file is damaged before a table.
    """
    searched = 0
    for _, line in text_lines(path):
        header = _parse_header(line)
        if header is not None:
            return header[0]
        searched += len(line) + 1
        if searched > _HEADER_BYTES:
            break
    return None


def read_tables(
    path: Path,
    file: str,
    table_type: Callable[[str, list[str], bool], Table],
    lines: Callable[[Path], Iterator[tuple[int, str]]] = text_lines,
) -> Iterator[Launch | Reject | Note]:
    """Read every table of a file.

    Args:
        path: the file.
        file: as launches and messages name it.
        table_type: its tables.
        lines: yields the file's (number, line), and raises TruncatedError where it is damaged.

    Raises:
        RecordError: the file cannot be opened.
    """
    table: Table | None = None
    separator, number, quoted, failure = ",", 0, False, Note("")
    try:
        for number, line in lines(path):
            header = _parse_header(line)
            if header is not None:
                if table is not None:
                    yield from table.end()
                names, separator = header
                quoted = line.lstrip().startswith('"')
                commas = separator == ";" and _decimals_have_commas(path, number, separator)
                table = table_type(file, names, commas)
            elif _PERMISSION in line and failure.text != _PERMISSION_ADVICE:
                failure = Note(_PERMISSION_ADVICE, file, number)
            elif line.startswith(_ERROR):
                failure = failure if failure.text else Note(line[:300], file, number)
            elif table is not None and not line.startswith("=="):
                cells = _split_row(line, separator, quoted, table)
                if isinstance(cells, str):
                    yield from table.damaged(number, line, cells)
                elif cells is not None:
                    yield from table.read_row(number, cells)
    except TruncatedError as error:
        yield Reject(file, number + 1, str(error))
    if table is not None:
        yield from table.end()
    if failure.text:
        yield failure


def _parse_header(line: str) -> tuple[list[str], str] | None:
    """Return the names of a table's columns and its separator, where a line is a table's header; else None."""
    if "Kernel Name" not in line:
        return None
    for separator in (",", ";", "\t"):
        names = [cell.strip() for cell in _split(line, separator) or ()]
        if "ID" in names and "Kernel Name" in names:
            return names, separator
    return None


def _split(line: str, separator: str) -> list[str] | None:
    """Return the cells of a line; None where its quotes do not fit."""
    try:
        return next(csv.reader([line], delimiter=separator, strict=True), None)
    except csv.Error:
        return None


def _split_row(line: str, separator: str, quoted: bool, table: Table) -> list[str] | str | None:
    """Return the cells of a table's row; or why a row is none; None where the line is no part of the table.

    A program may have printed something before a row, in its line.

    Args:
        line: the line.
        separator: the table's.
        quoted: whether the table's header has quotes; its rows have them, too, then.
        table: says how many cells a row has.
    """
    width = len(table.names)
    behind = _ROW.search(line, 1)
    if quoted and not line.startswith('"'):
        if behind is None:
            damaged = line.count(separator) >= width - 1
            return f"expected a row in quotes, found {line[:40]!r}" if damaged else None
        line, behind = line[behind.start() :], None
    elif not quoted and not re.match(rf"\d|{re.escape(separator)}", line):
        return None
    row = _split(line, separator)
    if not _fits(row, table) and behind is not None:
        later = _split(line[behind.start() :], separator)
        row = later if _fits(later, table) else row
    if row is None:
        return f"expected {width} cells in quotes, found {line[-40:]!r} at the end"
    if not _fits(row, table):
        return f"expected {width} cells, found {len(row)}"
    return row + [""] * (width - len(row))


def _fits(row: list[str] | None, table: Table) -> bool:
    return row is not None and table.least_cells <= len(row) <= len(table.names)


def _decimals_have_commas(path: Path, header: int, separator: str) -> bool:
    """Say whether numbers behind a header are written 1.234,5."""
    try:
        return any(
            _DECIMAL_COMMA.fullmatch(cell.strip())
            for _, line in islice(text_lines(path), header, header + _DECIMAL_ROWS)
            for cell in _split(line, separator) or ()
        )
    except TruncatedError:
        return False  # the reader of the rows reports it
