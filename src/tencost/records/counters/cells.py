"""Lines and numbers of files of counters, as they come: in any encoding and locale, damaged.

Numbers are ``1234.5``, ``1,234.5`` with thousands separated, ``1.234,5`` where a file's decimals have a comma (files
with semicolons only), and ``158 (3; 5)`` with the instances of a metric behind its value. ``n/a``, ``nan``, ``-`` and
nothing are not measured.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tencost.records.reading.opening import lines

_NOT_MEASURED = frozenset(
    ("", "n/a", "na", "nan", "-", "--", "none", "null", "inf", "+inf", "-inf", "no data", "(!) n/a")
)
_INSTANCES = re.compile(r"\s+[({].*$")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?([eE][+-]?\d+)?")
_ODD_COMMA = re.compile(
    r",(?:(?!\d{3}(?!\d))|(?<!\d,)|(?<=\d{4},)|(?<=\.\d,)|(?<=\.\d\d,)|(?<=\.\d{3},))"
)
"""A comma that separates no thousands."""
_COMMA_NUMBER = re.compile(r"[+-]?\d+(\.\d{3})*(,\d*)?([eE][+-]?\d+)?")


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its end) of a file: plain, gzip or Zstandard; UTF-8, with or without a mark,
    or UTF-16 with one, as Windows' shell writes it.

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
        yield number, line.decode(encoding, errors="replace").rstrip("\r")


def number(cell: object, decimal_comma: bool = False) -> float:
    """Return the number in a cell; NaN where it was not measured.

    Raises:
        ValueError: it holds something else.
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
    if decimal_comma and _COMMA_NUMBER.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    elif not decimal_comma and _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    elif decimal_comma or "_" in text:  # Python's own way of separating thousands
        raise ValueError(text)
    return _finite(text)


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
