"""Lines, cells and numbers of Nsight Compute's tables, as they come: quoted or not, in any locale, damaged.

A table is read a line at a time and each line by itself, so that a lost quote costs its line and no more; a line break
within a cell costs that line, too. Fields are separated by commas or semicolons. Numbers are ``1234.5``, ``1,234.5``
with thousands separated, ``1.234,5`` where a file's decimals have a comma (files with semicolons only), and
``158 (3; 5)`` with the instances of a metric behind its value. ``n/a``, ``nan``, ``-`` and nothing are not measured.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tencost.records.reading.opening import lines, read_head

PERMISSION = "ERR_NVGPUCTRPERM"
PERMISSION_TOLD = (
    "the profiler was not allowed to read the GPU's counters (ERR_NVGPUCTRPERM): load the driver with the option "
    "NVreg_RestrictProfilingToAdminUsers=0, or run ncu as root"
)
IDENTITY = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC", "Device Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value",
    "Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup", "Demangled Name",
)  # fmt: skip
"""Columns that are no metrics; those of NVTX have names that differ."""
_SEARCHED_BYTES = 1 << 23
"""Where a table's header is looked for: a program may have had much to say before."""
_NOTHING = frozenset(
    ("", "n/a", "na", "nan", "-", "--", "none", "null", "inf", "+inf", "-inf", "no data", "(!) n/a")
)
_ROW = re.compile(r'"\d+"[,;\t]"')
_INSTANCES = re.compile(r"\s+[({].*$")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?([eE][+-]?\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d{1,3}(\.\d{3})+,\d+|[+-]?\d+,(\d{1,2}|\d{4,})")
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


def header(line: str) -> tuple[list[str], str] | None:
    """Return the names of a table's columns and its separator, where a line is a table's header; else None."""
    if "Kernel Name" not in line:
        return None
    for separator in (",", ";", "\t"):
        cells = split(line, separator)
        if cells is not None:
            names = [cell.strip() for cell in cells]
            if "ID" in names and "Kernel Name" in names:
                return names, separator
    return None


def find_header(path: Path) -> list[str] | None:
    """Return the columns of the first table of a file; None where its first megabytes have none."""
    searched = 0
    for _, line in text_lines(path):
        found = header(line)
        if found is not None:
            return found[0]
        searched += len(line) + 1
        if searched > _SEARCHED_BYTES:
            break
    return None


def is_log(path: Path) -> bool:
    """Say whether a file begins as what ncu prints, with or without a table."""
    head = read_head(path)
    return any(word in head for word in (b"==PROF==", b"==ERROR==", PERMISSION.encode()))


def split(line: str, separator: str) -> list[str] | None:
    """Return the cells of a line; None where its quotes do not fit."""
    try:
        return next(csv.reader([line], delimiter=separator, strict=True), None)
    except csv.Error:
        return None


def table_row(line: str, separator: str, quoted: bool, width: int) -> list[str] | str | None:
    """Return the cells of a table's row; or why a row is none; None where a line is no part of the table.

    A program may have printed something before a row, in its line.

    Args:
        line: the line.
        separator: the table's.
        quoted: whether the table's header has quotes; its rows have them, too, then.
        width: cells of a row.
    """
    behind = _ROW.search(line, 1)
    if quoted and not line.startswith('"'):
        if behind is None:
            damaged = line.count(separator) >= width - 1
            return f"expected a row in quotes, found {line[:40]!r}" if damaged else None
        line, behind = line[behind.start() :], None
    elif not quoted and not re.match(rf"\d|{re.escape(separator)}", line):
        return None
    row = split(line, separator)
    if row is not None and len(row) == width:
        return row
    if behind is not None:
        later = split(line[behind.start() :], separator)
        if later is not None and len(later) == width:
            return later
    if row is None:
        return f"expected {width} cells in quotes, found {line[-40:]!r} at the end"
    return f"expected {width} cells, found {len(row)}"


def decimals_have_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Say whether numbers in some rows of a file with semicolons are written 1.234,5."""
    return any(_DECIMAL_COMMA.fullmatch(cell.strip()) for row in rows for cell in row)


def number(cell: object, decimal_comma: bool = False) -> float:
    """Return the number in a cell; NaN where it says that there is none.

    Raises:
        ValueError: it holds something else.
    """
    if isinstance(cell, str) and not decimal_comma and "_" not in cell and "," not in cell:
        try:
            value = float(cell)
        except ValueError:
            pass
        else:
            return value if math.isfinite(value) else math.nan
    if cell is None or isinstance(cell, int | float):
        try:
            value = math.nan if cell is None else float(cell)
        except OverflowError:  # a sheet's number of hundreds of digits; as text it is infinite, too
            value = math.nan
        return value if math.isfinite(value) else math.nan
    text = str(cell).strip()
    if text.lower() in _NOTHING:
        return math.nan
    if _INSTANCES.search(text):
        text = _INSTANCES.sub("", text)
    if decimal_comma:
        if not _COMMA_NUMBER.fullmatch(text):
            raise ValueError(text)
        text = text.replace(".", "").replace(",", ".")
    elif "," in text:
        if not _THOUSANDS.fullmatch(text):
            raise ValueError(text)
        text = text.replace(",", "")
    elif "_" in text:  # Python's own way of separating thousands
        raise ValueError(text)
    value = float(text)
    return value if math.isfinite(value) else math.nan


def numbers(row: Sequence[object]) -> NDArray[np.float64] | None:
    """Return the numbers of cells, float64 [len(row)], NaN where one says that there is none; None where one cannot
    be read so quickly: :func:`number` says what it holds. Decimals have points.
    """  # noqa: D205
    cells: Sequence[object] = row
    if all(isinstance(cell, str) for cell in row):
        text = "\0".join("nan" if cell in _NOTHING else str(cell) for cell in row)
        if "_" in text or ("," in text and not _thousands(text)):
            return None
        cells = text.replace(",", "").split("\0")
    try:
        values = np.array(cells, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    if len(values) != len(row):
        return None
    values[~np.isfinite(values)] = np.nan
    return values


def _thousands(text: str) -> bool:
    """Say whether every comma of cells, joined by zeros, separates thousands."""
    codes = np.frombuffer(f"\0\0\0\0{text}\0\0\0\0".encode("latin-1", "replace"), dtype=np.uint8)
    digit = (codes >= ord("0")) & (codes <= ord("9"))
    at = np.flatnonzero(codes == ord(","))
    behind = digit[at + 1] & digit[at + 2] & digit[at + 3] & ~digit[at + 4]
    point = (codes[at[:, None] - np.arange(1, 5)] == ord(".")).any(axis=1)
    return bool((behind & digit[at - 1] & ~digit[at - 4] & ~point).all())


def shape(grid: str, block: str) -> tuple[str, float, float]:
    """Return grid and block as one text, and how many blocks and threads a block that are; NaN where it is not told."""
    return f"{grid} x {block}" if grid or block else "", _extent(grid), _extent(block)


def _extent(text: str) -> float:
    found = re.findall(r"\d+", text)
    return float(math.prod(int(part) for part in found)) if 1 <= len(found) <= 3 else math.nan


def is_mark(name: str) -> bool:
    """Say whether a column holds ranges of NVTX."""
    return "Domain:" in name or "nvtx" in name.lower()
