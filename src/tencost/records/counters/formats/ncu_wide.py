"""Nsight Compute's raw page as a table: ``ncu --page raw --csv``, or the same saved by a spreadsheet as ``.xlsx``.

::

    "ID","Process ID","Process Name","Host Name","Kernel Name",...,"dram__bytes_read.sum","gpu__time_duration.sum"
    "","","","","",...,"Kbyte","usecond"                                              the units
    "0","4711","python","127.0.0.1","fused_dense_kernel",...,"1,234.56","12.7"        a row a launch

Every column that does not say what was launched is a metric, 475 and more of them. The row of units may be missing:
then values are in base units (``--print-units base``). A column with a range of NVTX ("thread Domain:Push/Pop_Range:
...") may name the program. Text (a cache configuration) is no metric. Before, between and behind the rows may be what
the program printed, and ``==PROF==`` lines; a file may hold several tables, one after the other.

Source: Nsight Compute CLI, options --page raw, --csv, --print-units, --nvtx.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import numpy as np
from numpy.typing import NDArray

from tencost.errors import MissingDependencyError
from tencost.records.counters import cells
from tencost.records.counters.launches import RESERVED, Columns, Launch, Note, ProfileFormat, Reject
from tencost.records.counters.metrics import SCALED, today, unit_of
from tencost.records.reading.opening import LEAST_LIMIT_BYTES, MOST_RATIO, TruncatedError

_ZIP = b"PK\x03\x04"
_NAME = "device__attribute_display_name"
_GRID, _BLOCK = "launch__grid_size", "launch__block_size"
_HEADER_ROWS = 200
"""Rows of a sheet in which its header is looked for."""
_MOST_ROWS = 1 << 20
"""Rows that a sheet can have; a damaged number of a row may be any."""
_SNIFFED = 50
"""Rows that tell how a file with semicolons writes decimals."""


def recognises(path: Path) -> bool:
    """Say whether there is a table with a column a metric."""
    with path.open("rb") as file:
        if file.read(4) == _ZIP:
            return path.suffix.lower() in (".xlsx", ".xlsm")
    try:
        names = cells.find_header(path)
    except TruncatedError:
        return False
    return names is not None and "Metric Name" not in names


def read(path: Path) -> Iterator[Launch | Reject | Note]:
    """Read every launch.

    Raises:
        RecordError: the file cannot be opened.
        MissingDependencyError: a sheet, and openpyxl is not installed.
    """
    with path.open("rb") as file:
        sheet = file.read(4) == _ZIP
    yield from _sheet(path) if sheet else _lines(path)


def _lines(path: Path) -> Iterator[Launch | Reject | Note]:
    table: _Table | None = None
    names: list[str] = []
    separator, number, quoted, denied = ",", 0, False, False
    try:
        for number, line in cells.text_lines(path):
            found = cells.header(line)
            if found is not None:
                if table is not None:
                    yield from table.odd()
                names, separator = found
                quoted = line.lstrip().startswith('"')
                table = _Table(str(path), names, separator == ";" and _has_commas(path, separator))
            elif line.startswith("==") or table is None:
                denied = denied or cells.PERMISSION in line
            else:
                row = cells.table_row(line, separator, quoted, len(names))
                if isinstance(row, str):
                    yield from table.damaged(number, line, row)
                elif row is not None:
                    yield from table.add(number, row)
    except TruncatedError as error:
        yield Reject(str(path), number + 1, str(error))
    if table is not None:
        yield from table.odd()
    if denied:
        yield Note(cells.PERMISSION_TOLD)


def _has_commas(path: Path, separator: str) -> bool:
    rows = []
    try:
        for _, line in cells.text_lines(path):
            rows.append(cells.split(line, separator) or [])
            if len(rows) > _SNIFFED:
                break
    except TruncatedError:
        pass  # told where the file is read
    return cells.decimals_have_commas(rows)


def _sheet(path: Path) -> Iterator[Launch | Reject | Note]:
    try:
        import openpyxl
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{path} needs openpyxl, which is not installed: pip install 'tencost[pipeline]'"
        ) from error
    number = 0
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > max(LEAST_LIMIT_BYTES, MOST_RATIO * path.stat().st_size):
            yield Reject(str(path), 0, f"expected a sheet, found {size} bytes in it: not read")
            return
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        try:
            found = False
            for sheet in book.worksheets:
                table: _Table | None = None
                sheet.reset_dimensions()  # a sheet may be larger than it says
                for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
                    if number > _MOST_ROWS:
                        yield Reject(str(path), number, f"expected {_MOST_ROWS} rows at most")
                        break
                    if table is not None:
                        if any(cell is not None for cell in row):
                            yield from table.add(number, table.padded(row))
                        continue
                    names = ["" if cell is None else str(cell).strip() for cell in row]
                    if "ID" in names and "Kernel Name" in names:
                        table, found = _Table(str(path), names, False), True
                    elif number >= _HEADER_ROWS:
                        break
                if table is not None:
                    yield from table.odd()
            if not found:
                yield Reject(
                    str(path), 0, "expected columns ID and Kernel Name in a sheet, found none"
                )
        finally:
            book.close()
    except (
        zipfile.BadZipFile, zlib.error, ParseError, OSError, EOFError, KeyError, ValueError, TypeError, IndexError,
        AttributeError, NotImplementedError, RuntimeError, AssertionError,
    ) as error:  # fmt: skip
        # What openpyxl meets in a damaged file is not one error of its own.
        reason = (
            f"expected a whole .xlsx file, found a damaged one ({type(error).__name__}: {error})"
        )
        yield Reject(str(path), number, reason[:300])


class _Table:
    """The columns of a table, and its rows as launches."""

    def __init__(self, file: str, names: Sequence[str], decimal_comma: bool) -> None:
        self._file = file
        self._names = list(names)
        self._decimal_comma = decimal_comma
        self._at = {name: place for place, name in reversed(list(enumerate(names)))}
        self._marks = [place for place, name in enumerate(names) if cells.is_mark(name)]
        self._columns: Columns | None = None
        self._unusable = False
        self._rows = 0
        self._metrics: list[tuple[int, float, bool]] = []
        """Column, factor, whether it has a unit: text in it is damage then."""
        self._again: list[tuple[int, int]] = []
        """(a second column of the very same name, position of the metric in `_metrics`)."""
        self._differ: dict[str, int] = {}
        self._factors = np.zeros(0)
        self._quick: list[int] = []
        """Metrics that never held text."""
        self._told = np.zeros(0, dtype=np.bool_)
        """Which metrics had a number so far."""
        self._texts: dict[int, tuple[int, int]] = {}
        """Metric without a unit that held text -> (first line, how often)."""

    def add(self, line: int, row: Sequence[Any]) -> Iterator[Launch | Reject | Note]:
        self._rows += 1
        if self._unusable:
            yield self._reject(line, "expected the units above it, found them damaged")
            return
        if len(row) != len(self._names):
            yield from self.damaged(
                line, "", f"expected {len(self._names)} cells, found {len(row)}"
            )
            return
        if self._columns is None:
            if not _text(row, self._at["ID"]) and not _text(row, self._at["Kernel Name"]):
                self._rows -= 1
                yield from self._set_columns(line, row)
                return
            yield from self._set_columns(line, None)
            yield Note(
                f"{self._file} has no row of units: values are taken to be in base units (ns, byte, hertz, %)"
            )
        yield self._launch(line, row)

    def padded(self, row: Sequence[Any]) -> Sequence[Any]:
        """Return a sheet's row in the header's length: empty cells at its end may be missing, or too many."""
        width = len(self._names)
        empty = all(cell is None for cell in row[width:])
        return [*row[:width], *([None] * (width - len(row)))] if empty else row

    def damaged(self, line: int, text: str, reason: str) -> Iterator[Reject]:
        """Yield the reject of a row that is none; without its units a table cannot be read."""
        self._rows += 1
        if self._columns is None and not text.lstrip('"')[:1].isdigit():
            self._unusable = True
            reason += " in the row of units, without which no value of this table can be read"
        yield self._reject(line, reason)

    def _reject(self, line: int, reason: str) -> Reject:
        return Reject(self._file, line, reason)

    def _set_columns(self, line: int, units: Sequence[Any] | None) -> Iterator[Reject | Note]:
        names: list[str] = []
        canonical: list[str] = []
        twice = []
        for place, name in enumerate(self._names):
            if not name or name in cells.IDENTITY or name == _NAME or place in self._marks:
                continue
            if name in RESERVED:
                yield Note(f"{self._file}: a column {name} is no metric; left out")
                continue
            unit = "" if units is None else _text(units, place)
            metric = today(name, unit=unit)
            usable = unit_of(metric, unit)
            if usable is None:
                yield self._reject(
                    line, f"expected another unit for {name}, found {unit!r}; it is left out"
                )
                continue
            entry = (place, usable[1] * SCALED.get(name, 1.0), bool(unit))
            if metric not in names:
                names.append(metric)
                canonical.append(usable[0])
                self._metrics.append(entry)
                continue
            at = names.index(metric)
            twice.append(name)
            # Today's name is the better source of the two, whichever comes first.
            if name == metric and self._names[self._metrics[at][0]] != metric:
                self._metrics[at], canonical[at] = entry, usable[0]
            elif self._names[self._metrics[at][0]] == name:
                self._again.append((place, at))
        for metric in (_GRID, _BLOCK):
            if metric not in names:
                names.append(metric)
                canonical.append("")
        if twice:
            yield Note(f"{self._file} has {_some(twice)} twice; each counts once")
        self._columns = Columns(tuple(names), tuple(canonical))
        self._factors = np.array([factor for _, factor, _ in self._metrics])
        self._told = np.zeros(len(self._metrics), dtype=np.bool_)
        self._quick = list(range(len(self._metrics)))

    def _launch(self, line: int, row: Sequence[Any]) -> Launch | Reject:
        assert self._columns is not None
        kernel = _text(row, self._at["Kernel Name"])
        if not kernel or not _is_whole(row[self._at["ID"]]):
            found = f"{_text(row, self._at['ID'])!r:.40} and {kernel!r:.40}"
            return self._reject(line, f"expected a launch's number and its kernel, found {found}")
        values = np.full(len(self._columns.names), np.nan)
        reason = self._read(line, row, values)
        if reason:
            return self._reject(line, reason)
        for place, at in self._again:
            self._compare(row[place], place, float(values[at]) / self._metrics[at][1])
        grid, block = (_text(row, self._at.get(name)) for name in ("Grid Size", "Block Size"))
        shape, blocks, threads = cells.shape(grid, block)
        for metric, told in ((_GRID, blocks), (_BLOCK, threads)):
            at = self._columns.names.index(metric)
            if math.isnan(values[at]):
                values[at] = told
        marks = " ".join(filter(None, (_text(row, place) for place in self._marks)))
        return Launch(
            self._file, line, kernel, shape, self._device(row), marks, self._columns, values
        )

    def _read(self, line: int, row: Sequence[Any], values: NDArray[np.float64]) -> str:
        """Put a row's metrics into `values`; return why the row is none, or ""."""
        count = len(self._metrics)
        slow: Iterable[int] = range(count)
        if not self._decimal_comma:
            quick = cells.numbers([row[self._metrics[at][0]] for at in self._quick])
            if quick is not None:
                values[self._quick] = quick * self._factors[self._quick]
                slow = self._texts
        found = {}
        for at in slow:
            place, factor, has_unit = self._metrics[at]
            try:
                values[at] = cells.number(row[place], self._decimal_comma) * factor
            except ValueError:
                if has_unit:
                    return (
                        f"expected a number, found {str(row[place])[:40]!r} as {self._names[place]}"
                    )
                first, times = self._texts.get(at, (line, 0))
                found[at] = (first, times + 1)
        if found.keys() - self._texts.keys():
            self._quick = [at for at in self._quick if at not in found]
        self._texts.update(found)
        self._told |= ~np.isnan(values[:count])
        return ""

    def _compare(self, cell: Any, place: int, kept: float) -> None:
        try:
            other = cells.number(cell, self._decimal_comma)
        except ValueError:
            return
        name = self._names[place]
        if not (math.isnan(other) or math.isnan(kept) or math.isclose(other, kept, rel_tol=1e-6)):
            self._differ[name] = self._differ.get(name, 0) + 1

    def _device(self, row: Sequence[Any]) -> str:
        name = _text(row, self._at.get(_NAME)) or _text(row, self._at.get("Device Name"))
        device, capability = _text(row, self._at.get("Device")), _text(row, self._at.get("CC"))
        if name or (device and not device.isdigit()):
            return name or device
        return f"sm_{capability.replace('.', '')}" if capability else ""

    def odd(self) -> Iterator[Note | Reject]:
        """Yield what is odd about the columns, once the table has ended."""
        if not self._rows:
            yield self._reject(0, "expected rows behind the header, found none")
        named = {at: self._names[self._metrics[at][0]] for at in self._texts}
        texts = [name for at, name in named.items() if not self._told[at]]
        if texts:
            yield Note(f"{self._file}: text and no numbers, left out: {_some(texts)}")
        for at, (line, count) in self._texts.items():
            if self._told[at]:
                reason = (
                    f"expected numbers as {named[at]}, found text in {count} rows from here on; "
                )
                yield self._reject(line, reason + "the launches are kept without it")
        for name, count in self._differ.items():
            yield Note(
                f"{self._file}: the two columns {name} differ in {count} rows; the first counts"
            )


def _text(row: Sequence[Any], place: int | None) -> str:
    cell = None if place is None else row[place]
    return "" if cell is None else str(cell).strip()


def _is_whole(cell: Any) -> bool:
    if isinstance(cell, float):
        return cell.is_integer()
    return isinstance(cell, int) or str(cell).strip().replace(",", "").isdigit()


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


FORMAT = ProfileFormat(
    name="ncu_wide",
    layout="Nsight Compute's raw page as CSV or .xlsx (ncu --page raw --csv)",
    recognises=recognises,
    read=read,
)
