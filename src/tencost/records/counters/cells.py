"""Lines and numbers of files of counters, as they come: in any encoding and locale, damaged.

A number has a decimal mark, a point or a comma, at most once; its thousands may be separated by the other mark, a
space of any width or an apostrophe, every three digits: ``1234.5``, ``1,234.5``, ``1'234.5``, ``1.234,5``, ``1 234,5``.
``158 (3; 5)`` has the instances of a metric behind its value. ``n/a``, ``nan``, ``-`` and nothing are not measured.

Which mark is the decimal one is decided once per file, from all its cells (:class:`DecimalVotes`): ``211.968`` alone
may be either number.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tencost.records.reading.opening import lines

_NOT_MEASURED = frozenset(
    ("", "n/a", "na", "nan", "-", "--", "none", "null", "inf", "+inf", "-inf", "no data", "(!) n/a")
)
_INSTANCES = re.compile(r"\s+[({].*$")
_NUMBERS = {
    decimal: re.compile(
        rf"[+-]?(?=[{decimal}]?\d)(?:[1-9]\d{{0,2}}([{group}\s'\u2019])\d{{3}}(?:\1\d{{3}})*|\d*)(?:[{decimal}]\d*)?"
        r"(?:[eE][+-]?\d+)?"
    )
    for decimal, group in (".,", ",.")
}
"""Decimal mark -> numbers that are written with it."""
_ODD_COMMA = re.compile(
    r"(?<![^\0])[+-]?0\d*,|,(?:(?!\d{3}(?!\d))|(?<!\d,)|(?<=\d{4},)|(?<=\.\d,)|(?<=\.\d\d,)|(?<=\.\d{3},))"
)
"""A comma that separates no thousands."""
_DECIMAL_POINT = re.compile(r"\.(?!\d{3}(?!\d))")
"""A point that separates no thousands."""
_MOST_DISSENT = 0.1
"""Share of the cells that may be written with the other decimal mark: they are damaged, and rejects."""


def _read_as_windows_1252(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    damaged = error.object[error.start : error.end]
    return damaged.decode("cp1252", errors="replace"), error.end


codecs.register_error("tencost.windows-1252", _read_as_windows_1252)


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its end) of a file: plain, gzip or Zstandard; UTF-8, with or without a mark,
    or UTF-16 with one, as Windows' shell writes it. Bytes that are no UTF-8 are read as Windows-1252 (Latin-1).

    Raises:
        RecordError: the file cannot be opened.
        TruncatedError: it ends early or is damaged; what was yielded before is good.
    """  # noqa: D205
    encoding = "utf-8"
    for number, line in lines(path):
        if number == 1:
            if line.startswith(codecs.BOM_UTF16_LE):
                encoding, line = "utf-16-le", line[2:]
            elif line.startswith(codecs.BOM_UTF16_BE):
                encoding, line = "utf-16-be", line[2:]
            line = line.removeprefix(codecs.BOM_UTF8)
        elif encoding == "utf-16-le":
            line = line.removeprefix(b"\0")  # the second byte of the line break before
        if encoding == "utf-16-be":
            line = line.removesuffix(b"\n").removesuffix(b"\0")
        line = line.rstrip(b"\n") if encoding == "utf-8" else line.removesuffix(b"\n")
        on_error = "tencost.windows-1252" if encoding == "utf-8" else "replace"
        yield number, line.decode(encoding, errors=on_error).rstrip("\r")


def number(cell: object, decimal_comma: bool = False) -> float:
    """Return the number in a cell; NaN where it was not measured.

    Args:
        cell: text, or a number as JSON has it.
        decimal_comma: whether the decimal mark is a comma.

    Raises:
        ValueError: the cell holds something else.
    """
    try:
        if not decimal_comma and not (isinstance(cell, str) and "_" in cell):
            return _finite(cell)
    except (ValueError, TypeError):  # it may still be one in Nsight Compute's own way
        pass
    text = str(cell).strip()
    if text.lower() in _NOT_MEASURED:
        return math.nan
    text = _INSTANCES.sub("", text)
    match = _NUMBERS["," if decimal_comma else "."].fullmatch(text)
    if match is None:
        raise ValueError(text)
    if match[1]:
        text = text.replace(match[1], "")
    return _finite(text.replace(",", "."))


@dataclass
class DecimalVotes:
    """Cells of a file that can be read with one decimal mark only, and the first one that two marks read differently.

    Attributes:
        point: cells that only a decimal point reads: 71.25, 1,234.5.
        comma: cells that only a decimal comma reads: 71,25, 1.234,5.
        whole_point: cells of whole quantities that only a decimal point reads as whole numbers: 211,968 ns.
        whole_comma: cells of whole quantities that only a decimal comma reads as whole numbers: 211.968 ns.
        doubtful: where the first cell stands that two marks read differently, and its text.
    """

    point: int = 0
    comma: int = 0
    whole_point: int = 0
    whole_comma: int = 0
    doubtful: tuple[int, str, str] | None = None

    def add_row(self, line: int, cells: Sequence[tuple[str, str, bool]]) -> None:
        """Count the cells of a row.

        Args:
            line: its number in the file.
            cells: (name of the metric, text, whether the metric is a whole number) of each metric.
        """
        marked = [(name, cell, whole) for name, cell, whole in cells if "." in cell or "," in cell]
        texts = [cell for _, cell, _ in marked]
        if numbers(texts) is not None:  # no cell needs a decimal comma
            points = len(_DECIMAL_POINT.findall("\0".join(texts)))
            self.point += points
            if points:
                return
        for name, cell, whole in marked:
            point, comma = _read(cell, False), _read(cell, True)
            if point is None or comma is None:
                self.point += point is not None
                self.comma += comma is not None
            elif point != comma and not (math.isnan(point) and math.isnan(comma)):
                self.doubtful = self.doubtful or (line, name, cell)
                if whole:
                    self.whole_point += point.is_integer() and not comma.is_integer()
                    self.whole_comma += comma.is_integer() and not point.is_integer()

    def decimal_comma(self) -> bool | None:
        """Say whether the file's decimal mark is a comma; None where its cells do not tell.

        A cell that only one mark reads decides; where there is none, a count (ns, bytes, registers) is a whole number.
        """
        for point, comma in ((self.point, self.comma), (self.whole_point, self.whole_comma)):
            if point or comma:
                mixed = min(point, comma) > _MOST_DISSENT * max(point, comma)
                return None if mixed and self.doubtful else comma > point
        return None if self.doubtful else False

    def reason(self) -> str:
        """Return why the file is refused: the two readings of a cell, and the option that says which."""
        assert self.doubtful is not None
        _, name, cell = self.doubtful
        found = (
            f"cells with decimal points ({self.point}) and with decimal commas ({self.comma})"
            if self.point or self.comma
            else "no cell that only one decimal mark reads"
        )
        return (
            f"expected numbers that can be read in one way, found {found}: {cell} as {name} is "
            f"{number(cell):.15g} with a decimal point, {number(cell, True):.15g} with a decimal comma. Say which: "
            "tencost profiles import --decimal point, or --decimal comma"
        )


def _read(cell: str, decimal_comma: bool) -> float | None:
    try:
        return number(cell, decimal_comma)
    except ValueError:
        return None


def numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """Return the numbers of cells with decimal points, float64 [len(cells)]: a row at once, much faster than `number`.

    None where a cell holds something else, or something odd: `number` says which.
    """
    text = "\0".join("nan" if cell in _NOT_MEASURED else cell for cell in cells)
    if "_" in text or _ODD_COMMA.search(text):
        return None
    try:
        values = np.array(text.replace(",", "").split("\0"), dtype=np.float64)
    except ValueError:
        return None
    values[~np.isfinite(values)] = np.nan
    return values if len(values) == len(cells) else None


def _finite(cell: object) -> float:
    try:
        value = float(cell)  # type: ignore[arg-type]
    except OverflowError:  # a sheet's number of hundreds of digits
        return math.nan
    return value if math.isfinite(value) else math.nan
