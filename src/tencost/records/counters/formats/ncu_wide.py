"""Nsight Compute's raw page as a table: ``ncu --page raw --csv``, or the same saved by a spreadsheet as ``.xlsx``.

::

    "ID","Process ID","Process Name","Host Name","Kernel Name",...,"dram__bytes_read.sum","gpu__time_duration.sum"
    "","","","","",...,"Kbyte","usecond"                                              the units
    "0","4711","python","127.0.0.1","fused_dense_kernel",...,"1,234.56","12.7"        a row a launch

Every column that does not say what was launched is a metric, 475 and more of them. The row of units may be missing:
then values are in base units (``--print-units base``). A column with a range of NVTX ("thread Domain:Push/Pop_Range:
...") may name the program. Text (a cache configuration) is no metric.

Source: Nsight Compute CLI, options --page raw, --csv, --print-units, --nvtx.
"""

from __future__ import annotations

import csv
import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import numpy as np
from numpy.typing import NDArray

from tencost.errors import MissingDependencyError
from tencost.records.counters.cells import number, numbers, text_lines
from tencost.records.counters.formats import _ncu
from tencost.records.counters.launches import RESERVED, Columns, Launch, Note, ProfileFormat, Reject
from tencost.records.counters.metrics import Metric, parse_metric
from tencost.records.reading.opening import TruncatedError, most_bytes, read_head
from tencost.records.reading.protocol import About, first_names

_ZIP = b"PK\x03\x04"
_MOST_ROWS = 1 << 20
"""Rows that a sheet can have; a damaged number of a row may be any."""


@dataclass(eq=False)
class _Column:
    """A column of a metric; `copies`: further columns of the very same name, which should hold the same."""

    place: int
    title: str
    metric: Metric
    has_unit: bool
    copies: Sequence[int] = ()
    text_line: int = 0
    texts: int = 0
    differences: int = 0


class NcuWideFormat(ProfileFormat):
    """Reads Nsight Compute's raw page."""

    layout = "Nsight Compute's raw page as CSV or .xlsx (ncu --page raw --csv)"

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Say whether there is a table with a column a metric."""
        if head.startswith(_ZIP):
            return path.suffix.lower() in (".xlsx", ".xlsm")
        try:
            names = _ncu.header_names(path)
        except TruncatedError:
            return False
        return names is not None and "Metric Name" not in names

    def read(self, path: Path, about: About) -> Iterator[Launch | Reject | Note]:
        """Yield every launch.

        Raises:
            RecordError: the file cannot be opened.
            MissingDependencyError: a sheet, and openpyxl is not installed.
        """
        lines = _sheet_lines if read_head(path).startswith(_ZIP) else text_lines
        return _ncu.read_tables(path, about, _WideTable, lines)


FORMAT = NcuWideFormat()


def _sheet_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the rows of every sheet of a book as lines of CSV, with their numbers.

    Raises:
        TruncatedError: the book is damaged; what was yielded before is good.
    """
    try:
        import openpyxl
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{path} needs openpyxl, which is not installed: pip install 'tencost[pipeline]'"
        ) from error
    try:
        for number, row in _sheet_rows(path, openpyxl.load_workbook):
            line = io.StringIO()
            csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="").writerow(row)
            yield number, line.getvalue()
    except TruncatedError:
        raise
    except (
        zipfile.BadZipFile, zlib.error, ParseError, OSError, EOFError, KeyError, ValueError, TypeError, IndexError,
        AttributeError, NotImplementedError, RuntimeError, AssertionError,
    ) as error:  # fmt: skip
        # openpyxl has no error of its own for a damaged file.
        reason = (
            f"expected a whole .xlsx file, found a damaged one ({type(error).__name__}: {error})"
        )
        raise TruncatedError(reason[:300]) from error


def _sheet_rows(path: Path, load: Callable[..., Any]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of every sheet; those of a sheet have one length, that of its header."""
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > most_bytes(path):
        raise TruncatedError(f"expected a sheet, found {size} bytes in it: not read")
    with closing(load(path, read_only=True, data_only=True)) as book:
        for sheet in book.worksheets:
            sheet.reset_dimensions()  # a sheet may be larger than it says
            width = 0
            for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
                if number > _MOST_ROWS:
                    raise TruncatedError(f"expected {_MOST_ROWS} rows at most")
                cells = [_sheet_cell(cell) for cell in row]
                width = max(width, *(at for at, cell in enumerate(cells, 1) if cell), 0)
                if any(cells):
                    yield number, (cells + [""] * width)[:width]


def _sheet_cell(cell: object) -> str:
    """Return a sheet's cell as text; a number with a fraction has four decimals or more, which are no thousands."""
    text = "" if cell is None else str(cell)
    return f"{text}000" if isinstance(cell, float) and "." in text and "e" not in text else text


class _WideTable(_ncu.Table):
    """The columns of a table, and its rows as launches."""

    def __init__(self, file: str, names: Sequence[str], decimal_comma: bool) -> None:
        super().__init__(file, names, decimal_comma)
        self._metrics: list[_Column] = []
        self._columns: Columns | None = None
        self._numeric: list[int] = []
        """Metrics that never held text."""
        self._measured = np.zeros(0, dtype=np.bool_)
        """Metrics that had a number so far."""
        self._factors = np.zeros(0)
        self._repeated: list[int] = []
        self._units_damaged = False
        self._rows = 0

    def read_row(self, line: int, cells: Sequence[str]) -> Iterator[Launch | Reject | Note]:
        if len(cells) != len(self.names) and not self._units_damaged:
            reason = f"expected {len(self.names)} cells, found {len(cells)}"
            yield from self.damaged(line, "", reason)
            return
        self._rows += 1
        if self._units_damaged:
            yield self.reject(line, "expected the units above it, found them damaged")
            return
        identity = self.identity(cells)
        if self._columns is None:
            if not identity["ID"] and not identity["Kernel Name"]:
                self._rows -= 1
                yield from self._set_columns(line, cells)
                return
            yield from self._set_columns(line, None)
            reason = "no row of units: values are taken to be in base units (ns, byte, hertz, %)"
            yield Note(reason, self.file)
        yield self._launch(line, cells, identity)

    def damaged(self, line: int, text: str, reason: str) -> Iterator[Reject]:
        """Yield the reject of a line that is no row; without its units a table cannot be read."""
        self._rows += 1
        if self._columns is None and not text.lstrip('"')[:1].isdigit():
            self._units_damaged = True
            reason += " in the row of units, without which no value of this table can be read"
        yield self.reject(line, reason)

    def _set_columns(self, line: int, units: Sequence[str] | None) -> Iterator[Reject | Note]:
        by_metric: dict[str, list[_Column]] = {}
        repeated = []
        for place, title in enumerate(self.names):
            if not title or title in _ncu.IDENTITY or place in self.marks:
                continue
            if title in RESERVED:
                yield Note(f"a column {title} is no metric; left out", self.file)
                continue
            unit = "" if units is None else units[place].strip()
            metric = parse_metric(title, unit)
            if metric is None:
                reason = f"expected another unit for {title}, found {unit!r}; it is left out"
                yield self.reject(line, reason)
                continue
            if metric.name in by_metric:
                repeated.append(title)
            column = _Column(place, title, metric, bool(unit))
            by_metric.setdefault(metric.name, []).append(column)
        for name, columns in by_metric.items():
            # Today's name is the better source of the two, whichever comes first.
            chosen = next((column for column in columns if column.title == name), columns[0])
            same_title = [column.place for column in columns if column.title == chosen.title]
            chosen.copies = same_title[1:]
            self._metrics.append(chosen)
        if repeated:
            yield Note(f"{first_names(repeated)} twice; each counts once", self.file)
        units_of = {column.metric.name: column.metric.unit for column in self._metrics}
        for name in (_ncu.GRID, _ncu.BLOCK):
            units_of.setdefault(name, "")
        self._columns = Columns(tuple(units_of), tuple(units_of.values()))
        self._numeric = list(range(len(self._metrics)))
        self._measured = np.zeros(len(self._metrics), dtype=np.bool_)
        self._factors = np.array([column.metric.factor for column in self._metrics])
        self._repeated = [at for at, column in enumerate(self._metrics) if column.copies]

    def _launch(self, line: int, cells: Sequence[str], identity: dict[str, str]) -> Launch | Reject:
        assert self._columns is not None
        launch, kernel = identity["ID"], identity["Kernel Name"]
        if not kernel or not _ncu.is_launch_number(launch):
            read = f"{launch!r:.40} and {kernel!r:.40}"
            return self.reject(line, f"expected a launch's number and its kernel, found {read}")
        values = np.full(len(self._columns.names), np.nan)
        if reason := self._read_metrics(line, cells, values):
            return self.reject(line, reason)
        shape, sizes = _ncu.extents(identity)
        for metric, size in sizes.items():
            at = self._columns.names.index(metric)
            if math.isnan(values[at]):
                values[at] = size
        device, marks = _ncu.device_of(identity), self.marks_of(cells)
        return Launch(self.file, line, kernel, shape, device, marks, self._columns, values)

    def _read_metrics(self, line: int, cells: Sequence[str], values: NDArray[np.float64]) -> str:
        """Put a row's metrics into `values`; return why the row is none, or ""."""
        metrics, textual = self._metrics, []
        remaining: Iterable[int] = range(len(metrics))
        if not self.decimal_comma:
            numeric = numbers([cells[metrics[at].place] for at in self._numeric])
            if numeric is not None:
                values[self._numeric] = numeric
                remaining = (at for at, column in enumerate(metrics) if column.texts)
        for at in remaining:
            column = metrics[at]
            try:
                values[at] = number(cells[column.place], self.decimal_comma)
            except ValueError:
                if column.has_unit:
                    return (
                        f"expected a number, found {cells[column.place][:40]!r} as {column.title}"
                    )
                textual.append(column)
        for column in textual:
            column.text_line = column.text_line or line
            column.texts += 1
        if textual:
            self._numeric = [at for at, column in enumerate(metrics) if not column.texts]
        for at in self._repeated:
            metrics[at].differences += self._differ(metrics[at], cells, float(values[at]))
        self._measured |= ~np.isnan(values[: len(metrics)])
        values[: len(metrics)] *= self._factors
        return ""

    def _differ(self, column: _Column, cells: Sequence[str], first: float) -> int:
        """Return how many copies of a column hold another number."""
        count = 0
        for place in column.copies:
            with suppress(ValueError):
                copy = number(cells[place], self.decimal_comma)
                both = not (math.isnan(copy) or math.isnan(first))
                count += both and not math.isclose(copy, first, rel_tol=1e-6)
        return count

    def end(self) -> Iterator[Note | Reject]:
        if not self._rows:
            yield self.reject(0, "expected rows behind the header, found none")
        textual = [at for at, column in enumerate(self._metrics) if column.texts]
        textual.sort(key=lambda at: self._metrics[at].text_line)
        titles = [self._metrics[at].title for at in textual if not self._measured[at]]
        if titles:
            yield Note(f"text and no numbers, left out: {first_names(titles)}", self.file)
        for column in (self._metrics[at] for at in textual if self._measured[at]):
            yield self.reject(
                column.text_line,
                f"expected numbers as {column.title}, found text in {column.texts} rows from here on; the launches "
                "are kept without it",
            )
        for column in self._metrics:
            if column.differences:
                yield Note(
                    f"the two columns {column.title} differ in {column.differences} rows; the first counts", self.file
                )  # fmt: skip
