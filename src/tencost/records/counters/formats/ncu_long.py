"""What ``ncu --csv`` prints: a row for each metric of each launch, among all that the program printed itself.

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
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tencost.records.counters import cells
from tencost.records.counters.launches import Columns, Launch, Note, ProfileFormat, Reject
from tencost.records.counters.metrics import SCALED, today, unit_of
from tencost.records.reading.opening import TruncatedError

_NAME = "device__attribute_display_name"
_NEEDED = ("ID", "Kernel Name", "Metric Name", "Metric Value")
_SNIFFED = 200
"""Lines that tell how a file with semicolons writes decimals."""


class _Row(NamedTuple):
    line: int
    kernel: str
    section: str
    metric: str
    unit: str
    value: str


@dataclass(eq=False)
class _Open:
    """A launch whose rows are being read."""

    key: tuple[str, str]
    about: dict[str, str]
    marks: str
    rows: list[_Row] = field(default_factory=list)


def recognises(path: Path) -> bool:
    """Say whether there is a table with a row a metric, or what ncu prints where it can make none."""
    try:
        names = cells.find_header(path)
    except TruncatedError:
        names = None
    return cells.is_log(path) if names is None else "Metric Name" in names


def read(path: Path) -> Iterator[Launch | Reject | Note]:
    """Read every launch.

    Raises:
        RecordError: the file cannot be opened.
    """
    table: _Table | None = None
    separator, number, quoted, denied = ",", 0, False, False
    try:
        for number, line in cells.text_lines(path):
            found = cells.header(line)
            if found is not None:
                if table is not None:
                    yield from table.end()
                names, separator = found
                quoted = line.lstrip().startswith('"')
                commas = separator == ";" and _has_commas(path, separator)
                table = _Table(str(path), names, commas)
            elif line.startswith("==") or table is None:
                denied = denied or cells.PERMISSION in line
            else:
                row = cells.table_row(line, separator, quoted, len(table.names))
                if isinstance(row, str):
                    yield Reject(str(path), number, row)
                elif row is not None:
                    yield from table.add(number, row)
    except TruncatedError as error:
        yield Reject(str(path), number + 1, str(error))
    if table is not None:
        yield from table.end()
    if denied:
        yield Note(cells.PERMISSION_TOLD)


def _has_commas(path: Path, separator: str) -> bool:
    try:
        rows = [
            (cells.split(line, separator) or [])[-1:]
            for _, line in islice(cells.text_lines(path), _SNIFFED)
        ]
    except TruncatedError:
        return False  # told where the file is read
    return cells.decimals_have_commas(rows)


class _Table:
    """The rows of a table, gathered into launches."""

    def __init__(self, file: str, names: Sequence[str], decimal_comma: bool) -> None:
        self.names = list(names)
        self._file = file
        self._decimal_comma = decimal_comma
        self._marks = [place for place, name in enumerate(names) if cells.is_mark(name)]
        self._complete = all(name in names for name in _NEEDED)
        self._open: _Open | None = None
        self._before: _Open | None = None
        """The launch before the open one: it goes on where a single row between had another number by damage."""
        self._known: dict[tuple[tuple[str, ...], tuple[str, ...]], Columns] = {}
        self._numbers: set[str] = set()
        self._texts: Counter[str] = Counter()

    def add(self, line: int, row: Sequence[str]) -> Iterator[Launch | Reject | Note]:
        if not self._complete:
            if not self._texts:
                self._texts["columns"] += 1
                reason = f"expected columns {', '.join(_NEEDED)}, found {', '.join(self.names)}"
                yield Reject(self._file, line, reason[:300])
            return
        about = dict(zip(self.names, map(str.strip, row), strict=True))
        if not about["Metric Name"]:
            return
        if not about["ID"].replace(",", "").isdigit() or not about["Kernel Name"]:
            found = f"{about['ID']!r:.40} and {about['Kernel Name']!r:.40}"
            yield Reject(
                self._file, line, f"expected a launch's number and its kernel, found {found}"
            )
            return
        key = (about.get("Process ID", ""), about["ID"])
        if self._open is None or self._open.key != key:
            if self._before is not None and self._before.key == key:
                yield from self._unreadable(self._open)
                self._open, self._before = self._before, None
            else:
                yield from self._close(self._before)
                marks = " ".join(row[place] for place in self._marks if row[place].strip())
                self._before, self._open = self._open, _Open(key, about, marks)
        self._open.rows.append(
            _Row(
                line, about["Kernel Name"], about.get("Section Name", ""), about["Metric Name"],
                about.get("Metric Unit", ""), about["Metric Value"],
            )
        )  # fmt: skip

    def end(self) -> Iterator[Launch | Reject | Note]:
        """Yield the last launches and what is odd."""
        for last in (self._before, self._open):
            yield from self._close(last)
        self._before = self._open = None
        if self._complete and self._texts:
            names = sorted(self._texts)
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            yield Note(f"{self._file}: text and no numbers, left out: {', '.join(names[:5])}{more}")

    def _unreadable(self, launch: _Open | None) -> Iterator[Reject]:
        for row in () if launch is None else launch.rows:
            number = "" if launch is None else launch.key[1]
            yield Reject(
                self._file, row.line, f"expected rows of one launch, found {number} between"
            )

    def _close(self, launch: _Open | None) -> Iterator[Launch | Reject]:
        if launch is None:
            return
        kernel = Counter(row.kernel for row in launch.rows).most_common(1)[0][0]
        found: dict[str, tuple[str, float]] = {}
        device = launch.about.get("Device Name", "") or launch.about.get("Device", "")
        for row in launch.rows:
            if row.kernel != kernel:
                yield Reject(
                    self._file, row.line, f"expected rows of {kernel:.60}, found {row.kernel!r:.60}"
                )
                continue
            if row.metric == _NAME:
                device = row.value
                continue
            name = today(row.metric, row.section, row.unit)
            try:
                value = cells.number(row.value, self._decimal_comma)
            except ValueError:
                if row.unit or name in self._numbers:
                    reason = f"expected a number, found {row.value[:40]!r} as {row.metric}"
                    yield Reject(self._file, row.line, reason)
                else:
                    self._texts[name] += 1
                continue
            usable = unit_of(name, row.unit)
            if usable is None:
                reason = f"expected another unit for {row.metric}, found {row.unit!r}"
                yield Reject(self._file, row.line, reason)
                continue
            self._numbers.add(name)
            found.setdefault(name, (usable[0], value * usable[1] * SCALED.get(row.metric, 1.0)))
        if not found:
            return
        grid, block = launch.about.get("Grid Size", ""), launch.about.get("Block Size", "")
        shape, blocks, threads = cells.shape(grid, block)
        for metric, told in (("launch__grid_size", blocks), ("launch__block_size", threads)):
            if told == told:
                found.setdefault(metric, ("", told))
        if not shape:
            shape = " x ".join(
                f"{found[name][1]:g}"
                for name in ("launch__grid_size", "launch__block_size")
                if name in found
            )
        if not device or device.isdigit():
            capability = launch.about.get("CC", "")
            device = f"sm_{capability.replace('.', '')}" if capability else ""
        names, units = tuple(found), tuple(unit for unit, _ in found.values())
        columns = self._known.setdefault((names, units), Columns(names, units))
        values = np.array([value for _, value in found.values()])
        line = launch.rows[0].line
        yield Launch(self._file, line, kernel, shape, device, launch.marks, columns, values)


FORMAT = ProfileFormat(
    name="ncu_long",
    layout="what ncu prints as CSV, a row a metric (ncu --csv)",
    recognises=recognises,
    read=read,
)
