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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tencost.records.counters.cells import DecimalVotes, text_lines
from tencost.records.counters.launches import Launch, Note, Reject
from tencost.records.counters.metrics import canonical_unit, current_name
from tencost.records.reading.opening import TruncatedError
from tencost.records.reading.protocol import About

GRID, BLOCK = "launch__grid_size", "launch__block_size"
VALUE, RULE = "Metric Value", "Rule Name"
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
_ROW = re.compile(r'"\d+"[,;\t]"')
_SEPARATORS = re.compile(r"[.,'\u2019\s]")
_WHOLE_UNITS = frozenset(
    ("ns", "byte", "inst", "sector", "request", "block", "thread", "register", "warp", "cycle")
)
"""Canonical units of quantities that a GPU counts one by one."""
_WHOLE_ROLLUPS = (".sum", ".max", ".min")


class Table(ABC):
    """A table of a file: its columns, and its rows as launches.

    Args:
        file: as messages name it.
        names: of the columns.
        decimal_comma: whether the decimal mark is a comma.
    """

    def __init__(self, file: str, names: Sequence[str], decimal_comma: bool) -> None:
        self.file = file
        self.names = list(names)
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


def is_launch_number(cell: str) -> bool:
    """Say whether a cell is a launch's number, in any number style."""
    return _SEPARATORS.sub("", cell).isdigit()


class _Layout(NamedTuple):
    """A table's header: columns, separator of its cells, whether they are quoted, cells of the shortest row."""

    names: list[str]
    separator: str
    quoted: bool
    least_cells: int


def read_tables(
    path: Path,
    about: About,
    table_type: Callable[[str, list[str], bool], Table],
    lines: Callable[[Path], Iterator[tuple[int, str]]] = text_lines,
) -> Iterator[Launch | Reject | Note]:
    """Read every table of a file.

    Args:
        path: the file.
        about: says how launches and messages name the file, and its decimal mark where its reader knows that.
        table_type: its tables.
        lines: yields the file's (number, line), and raises TruncatedError where it is damaged.

    Raises:
        RecordError: the file cannot be opened.
    """
    file, decimal_comma = about.file, about.decimal_comma
    if decimal_comma is None:
        votes = _decimal_votes(lines(path))
        decimal_comma = votes.decimal_comma()
        if decimal_comma is None:
            assert votes.doubtful is not None
            yield Reject(file, votes.doubtful[0], votes.reason())
            return
    table: Table | None = None
    number, failure = 0, Note("")
    try:
        for number, line, row in _rows(lines(path)):
            if isinstance(row, _Layout):
                if table is not None:
                    yield from table.end()
                table = table_type(file, row.names, decimal_comma)
            elif _PERMISSION in line and failure.text != _PERMISSION_ADVICE:
                failure = Note(_PERMISSION_ADVICE, file, number)
            elif line.startswith(_ERROR):
                failure = failure if failure.text else Note(line[:300], file, number)
            elif table is not None and isinstance(row, str):
                yield from table.damaged(number, line, row)
            elif table is not None and row is not None:
                yield from table.read_row(number, row)
    except TruncatedError as error:
        yield Reject(file, number + 1, str(error))
    if table is not None:
        yield from table.end()
    if failure.text:
        yield failure


def _rows(
    lines: Iterable[tuple[int, str]],
) -> Iterator[tuple[int, str, _Layout | list[str] | str | None]]:
    """Yield (number, line, its content): a table's header, a row's cells, why a row is none, or None."""
    layout: _Layout | None = None
    for number, line in lines:
        header = _parse_header(line)
        if header is not None:
            names, separator = header
            # ncu fills the columns of rules, the last ones, in rows of rules only.
            least = names.index(RULE) if VALUE in names and RULE in names else len(names)
            layout = _Layout(names, separator, line.lstrip().startswith('"'), least)
            yield number, line, layout
        elif layout is None or line.startswith("=="):
            yield number, line, None
        else:
            yield number, line, _split_row(line, layout)


def _decimal_votes(lines: Iterable[tuple[int, str]]) -> DecimalVotes:
    """Count how all cells of metrics in a file can be read."""
    votes = DecimalVotes()
    places: dict[str, int] = {}
    metrics: list[tuple[str, int, bool]] = []
    """Of a table with a column per metric: name, place, and whether the metric is a whole number."""
    with suppress(TruncatedError):  # the reader of the rows reports it
        for number, _, row in _rows(lines):
            if isinstance(row, _Layout):
                places = {name: place for place, name in reversed([*enumerate(row.names)])}
                titles = {} if VALUE in places else places
                metrics = [
                    (name, place, False) for name, place in titles.items() if name not in IDENTITY
                ]
            elif isinstance(row, list) and VALUE in places:
                cells = {name: row[place].strip() for name, place in places.items()}
                label, unit = cells.get("Metric Name", ""), cells.get("Metric Unit", "")
                whole = _is_whole(label, unit, cells.get("Section Name", ""))
                if label != DEVICE_NAME:
                    votes.add_row(number, [(label, cells[VALUE], whole)])
            elif isinstance(row, list) and not row[places["ID"]] + row[places["Kernel Name"]]:
                metrics = [
                    (name, place, _is_whole(name, row[place].strip(), ""))
                    for name, place, _ in metrics
                ]
            elif isinstance(row, list):
                cells_of_row = [(name, row[place].strip(), whole) for name, place, whole in metrics]
                votes.add_row(number, cells_of_row)
    return votes


def _is_whole(name: str, unit: str, section: str) -> bool:
    """Say whether a metric in its unit is a whole number: what is counted one by one, and nanoseconds."""
    metric = current_name(name, section, unit)
    word, factor = canonical_unit(unit)
    counted = factor == 1 and word.split("/")[0] in _WHOLE_UNITS and "second" not in word
    return counted and (metric.startswith("launch__") or metric.endswith(_WHOLE_ROLLUPS))


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


def _split_row(line: str, layout: _Layout) -> list[str] | str | None:
    """Return the cells of a table's row; or why a row is none; None where the line is no part of the table.

    A program may have printed something before a row, in its line.
    """
    width, separator = len(layout.names), layout.separator
    behind = _ROW.search(line, 1)
    if layout.quoted and not line.startswith('"'):
        if behind is None:
            damaged = line.count(separator) >= width - 1
            return f"expected a row in quotes, found {line[:40]!r}" if damaged else None
        line, behind = line[behind.start() :], None
    elif not layout.quoted and not re.match(rf"\d|{re.escape(separator)}", line):
        return None
    row = _split(line, separator)
    if not _fits(row, layout) and behind is not None:
        later = _split(line[behind.start() :], separator)
        row = later if _fits(later, layout) else row
    if row is None:
        return f"expected {width} cells in quotes, found {line[-40:]!r} at the end"
    if not _fits(row, layout):
        return f"expected {width} cells, found {len(row)}"
    return row + [""] * (width - len(row))


def _fits(row: list[str] | None, layout: _Layout) -> bool:
    return row is not None and layout.least_cells <= len(row) <= len(layout.names)
