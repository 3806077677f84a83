"""The output of ``ncu --csv``: a row for each metric of each launch, among the lines that the program itself printed.

::

    Reading File                                                             the program's own words, as many as it has
    ==PROF== Connected to process 27599 (/home/me/bfs)
    "ID","Process ID",...,"Kernel Name",...,"Section Name","Metric Name","Metric Unit","Metric Value"
    "0","27599",...,"Kernel2(bool*)",...,"GPU Speed Of Light","Duration","nsecond","3,200"

The rows of a launch follow each other. A metric is named in the words of its section, or, where it was asked for by
``--metrics``, by its own name; tencost.records.counters.metrics has today's name of both. Rows may be cut off anywhere;
what the program printed may stand before a row in its line. Rows of rules (no metric's name) are advice, not counters.

Source: Nsight Compute CLI, option --csv without --page raw; Volta's and today's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tencost.records.counters.cells import number
from tencost.records.counters.formats import _ncu
from tencost.records.counters.launches import Columns, Launch, Note, ProfileFormat, Reject
from tencost.records.counters.metrics import current_name, parse_metric
from tencost.records.reading.opening import TruncatedError
from tencost.records.reading.protocol import About, first_names

_REQUIRED = ("ID", "Kernel Name", "Metric Name", "Metric Value")
_LOG_LINES = (b"==PROF==", b"==ERROR==", b"ERR_NVGPUCTRPERM")


class _Row(NamedTuple):
    line: int
    cells: dict[str, str]
    marks: str

    @property
    def launch(self) -> tuple[str, str]:
        """The launch of a row: process and number."""
        return self.cells.get("Process ID", ""), self.cells["ID"]


class NcuLongFormat(ProfileFormat):
    """Reads what `ncu --csv` prints."""

    layout = "what ncu prints as CSV, a row a metric (ncu --csv)"

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Say whether there is a table with a row a metric, or what ncu prints where it can make none."""
        try:
            names = _ncu.header_names(path)
        except TruncatedError:
            names = None
        if names is None:
            return any(word in head for word in _LOG_LINES)
        return "Metric Name" in names

    def read(self, path: Path, about: About) -> Iterator[Launch | Reject | Note]:
        return _ncu.read_tables(path, about, _LongTable)


FORMAT = NcuLongFormat()


class _LongTable(_ncu.Table):
    """The rows of a table, gathered into launches."""

    def __init__(self, file: str, names: Sequence[str], decimal_comma: bool) -> None:
        super().__init__(file, names, decimal_comma)
        self._complete = all(name in names for name in _REQUIRED)
        self._rows = 0
        self._open: list[_Row] = []
        self._previous: list[_Row] = []
        """The launch before the open one: it goes on where rows between had another number by damage."""
        self._columns: dict[tuple[tuple[str, ...], tuple[str, ...]], Columns] = {}
        self._numeric: set[str] = set()
        self._textual: set[str] = set()

    def read_row(self, line: int, cells: Sequence[str]) -> Iterator[Launch | Reject | Note]:
        self._rows += 1
        if not self._complete:
            if self._rows == 1:
                reason = f"expected columns {', '.join(_REQUIRED)}, found {', '.join(self.names)}"
                yield self.reject(line, reason[:300])
            return
        marks = self.marks_of(cells) if self.marks else ""
        row = _Row(line, dict(zip(self.names, map(str.strip, cells), strict=True)), marks)
        launch, kernel = row.cells["ID"], row.cells["Kernel Name"]
        if not row.cells["Metric Name"]:
            return
        if not _ncu.is_launch_number(launch) or not kernel:
            read = f"{launch!r:.40} and {kernel!r:.40}"
            yield self.reject(line, f"expected a launch's number and its kernel, found {read}")
            return
        if self._open and self._open[0].launch != row.launch:
            if self._previous and self._previous[0].launch == row.launch:
                for other in self._open:
                    reason = f"expected rows of one launch, found {other.cells['ID']} between"
                    yield self.reject(other.line, reason)
                self._open, self._previous = self._previous, []
            else:
                yield from self._close(self._previous)
                self._open, self._previous = [], self._open
        self._open.append(row)

    def end(self) -> Iterator[Launch | Reject | Note]:
        yield from self._close(self._previous)
        yield from self._close(self._open)
        if self._textual:
            names = first_names(sorted(self._textual))
            yield Note(f"text and no numbers, left out: {names}", self.file)

    def _close(self, rows: Sequence[_Row]) -> Iterator[Launch | Reject]:
        if not rows:
            return
        first = rows[0]
        kernel = Counter(row.cells["Kernel Name"] for row in rows).most_common(1)[0][0]
        metrics: dict[str, tuple[str, float]] = {}
        for row in rows:
            if row.cells["Kernel Name"] != kernel:
                other = row.cells["Kernel Name"]
                yield self.reject(row.line, f"expected rows of {kernel:.60}, found {other!r:.60}")
            elif row.cells["Metric Name"] == _ncu.DEVICE_NAME:
                first.cells[_ncu.DEVICE_NAME] = row.cells["Metric Value"]
            elif reason := self._read_metric(row, metrics):
                yield self.reject(row.line, reason)
        if not metrics:
            return
        shape, sizes = _ncu.extents(first.cells)
        for name, size in sizes.items():
            metrics.setdefault(name, ("", size))
        if not shape:
            sized = (name for name in (_ncu.GRID, _ncu.BLOCK) if name in metrics)
            shape = " x ".join(f"{metrics[name][1]:g}" for name in sized)
        names, units = tuple(metrics), tuple(unit for unit, _ in metrics.values())
        columns = self._columns.setdefault((names, units), Columns(names, units))
        values = np.array([value for _, value in metrics.values()])
        device = _ncu.device_of(first.cells)
        yield Launch(self.file, first.line, kernel, shape, device, first.marks, columns, values)

    def _read_metric(self, row: _Row, metrics: dict[str, tuple[str, float]]) -> str:
        """Add a row to the metrics of its launch; return why it is none, or ""."""
        label, cell = row.cells["Metric Name"], row.cells["Metric Value"]
        unit, section = row.cells.get("Metric Unit", ""), row.cells.get("Section Name", "")
        name = current_name(label, section, unit)
        try:
            value = number(cell, self.decimal_comma)
        except ValueError:
            if unit or name in self._numeric:
                return f"expected a number, found {cell[:40]!r} as {label}"
            self._textual.add(name)
            return ""
        metric = parse_metric(label, unit, section)
        if metric is None:
            return f"expected another unit for {label}, found {unit!r}"
        self._numeric.add(name)
        metrics.setdefault(name, (metric.unit, value * metric.factor))
        return ""
