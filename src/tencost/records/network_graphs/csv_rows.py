"""Lines of numbers in CSV files that may be damaged: parsed all at once, and which of them are which graph's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from tencost.networks.graph.operators import OPERATOR_CODES, OPERATORS

_INT32 = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Rows:
    """The lines of a file as numbers.

    Attributes:
        operator: uint8 [N]; of nodes only.
        numbers: int32 [N, width].
        bad: bool [N], lines that could not be read; they have zeros.
        text: the lines; None where none is bad.
        with_operator: whether an operator stands before the numbers.
    """

    operator: NDArray[np.uint8]
    numbers: NDArray[np.int32]
    bad: NDArray[np.bool_]
    text: pl.Series | None = None
    with_operator: bool = False

    def __len__(self) -> int:
        return len(self.bad)

    def reason(self, row: int) -> str:
        """Say what is wrong with a bad line."""
        assert self.text is not None
        line = self.text[row]
        words = [word.strip(' "\r') for word in line.split(",")]
        width = self.numbers.shape[1] + self.with_operator
        if len(words) != width:
            return f"expected {width} values, found {len(words)}"
        if self.with_operator and words[0] not in OPERATOR_CODES:
            return f"expected one of {len(OPERATORS)} known operators, found {words[0][:40]!r}"
        return f"expected whole numbers below 2^31, found {line.strip()[:60]!r}"


@dataclass(frozen=True, eq=False)
class Spans:
    """Rows of each graph: the first row, their count, and whether both are certain."""

    start: NDArray[np.int64]
    count: NDArray[np.int64]
    certain: NDArray[np.bool_]


def read_rows(text: bytes, width: int, *, with_operator: bool = False) -> Rows:
    """Parse lines of `width` whole numbers, behind an operator where nodes have one."""
    fields = {f"{place}": pl.Int32() for place in range(width)}
    schema = {"operator": pl.String(), **fields} if with_operator else dict(fields)
    height = text.count(b"\n") + 1 if text else 0
    try:
        frame = (
            pl.read_csv(text, has_header=False, schema=schema)
            if text
            else pl.DataFrame(schema=schema)
        )
    except PolarsError:
        return _checked(text, width, with_operator)
    codes = (
        _codes(frame["operator"]) if with_operator else pl.zeros(len(frame), pl.UInt8, eager=True)
    )
    if len(frame) != height or sum(frame.null_count().row(0)) or codes.null_count():
        return _checked(text, width, with_operator)
    numbers = np.ascontiguousarray(frame.select(*fields).to_numpy(), dtype=np.int32)
    return Rows(codes.to_numpy(), numbers.reshape(height, width), np.zeros(height, dtype=bool))


def _checked(text: bytes, width: int, with_operator: bool) -> Rows:
    """Parse like `read_rows` a text with lines that cannot be read, and say which."""
    lines = pl.Series(text.decode("utf-8", errors="replace").split("\n"), dtype=pl.String)
    parts = lines.str.strip_chars().str.split(",")
    first = 1 if with_operator else 0
    bad = parts.list.len() != width + first
    fields = [
        parts.list.get(place, null_on_oob=True).str.strip_chars(' "')
        for place in range(width + first)
    ]
    codes = _codes(fields[0]) if with_operator else pl.zeros(len(lines), pl.UInt8, eager=True)
    numbers = np.zeros((len(lines), width), dtype=np.int32)
    bad |= codes.is_null()
    for place, words in enumerate(fields[first:]):
        values = words.cast(pl.Float64, strict=False)
        whole = ((values == values.round()) & (values.abs() <= _INT32)).fill_null(False)
        bad |= ~whole
        numbers[:, place] = values.set(~whole, 0.0).fill_null(0.0).to_numpy().astype(np.int32)
    wrong = bad.to_numpy()
    operator = codes.fill_null(OPERATOR_CODES["Other"]).to_numpy()
    return Rows(operator, numbers, wrong, lines if wrong.any() else None, with_operator)


def _codes(names: pl.Series) -> pl.Series:
    """Return the codes of operators, null where there is none of that name."""
    return names.replace_strict(OPERATOR_CODES, default=None, return_dtype=pl.UInt8)


def find_spans(counts: NDArray[np.int64], begins: NDArray[np.bool_], rows: int) -> Spans:
    """Assign rows to graphs; where the counts do not fit the file, from both ends up to the damage."""
    sizes = np.maximum(counts, 0)
    ends = np.cumsum(sizes)
    if (counts >= 0).all() and ends[-1] == rows:
        return Spans(ends - sizes, sizes, np.ones(len(counts), dtype=bool))
    passed = np.concatenate([[0], np.cumsum(begins)])
    bounds = np.append(begins, True)  # a graph ends where the next begins, or the file ends

    def fits(start: NDArray[np.int64]) -> NDArray[np.bool_]:
        inside = (counts >= 0) & (start >= 0) & (start + sizes <= rows)
        first = np.where(inside & (sizes > 0), start, 0)
        last = np.where(inside, start + sizes, 0)
        alone = (passed[last] - passed[first] == 1) & bounds[first] & bounds[last]
        return inside & (alone | (sizes == 0))

    if not rows:
        return Spans(np.zeros_like(sizes), sizes, np.zeros(len(counts), dtype=bool))
    from_front = ends - sizes
    from_back = rows - (ends[-1] - from_front)
    front = np.logical_and.accumulate(fits(from_front))
    back = np.logical_and.accumulate(fits(from_back)[::-1])[::-1]
    return Spans(np.where(front, from_front, from_back), sizes, front | back)


def rows_of(spans: Spans, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of some graphs, one graph after the other."""
    counts = spans.count[graphs]
    shift = spans.start[graphs] - (np.cumsum(counts) - counts)
    return np.arange(counts.sum()) + np.repeat(shift, counts)
