"""JSON objects of a file, streamed: one a line, in an array, or one by itself; spread over lines or not.

    file    {object | "," | "[" | "]" | space}
    object  { ... } with NaN, Infinity and -Infinity as Python's json writes them

A format whose array is a member of one large object says what of that object stands around its records (`around`).

The brackets of an array and the commas in it carry nothing, so all shapes are read alike, and memory holds one object
and a chunk of lines. What is no object is reported, and reading goes on at the next ``{`` that begins a line, or that
begins an object which the caller takes for a record: a streaming parser (ijson) would stop at the first damage, and
line by line an object that is spread over lines cannot be read. Not to be relied on: that a damaged object in an array
on a single line costs no neighbour.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from tencost.records.reading.columns import elapsed
from tencost.records.reading.opening import LONGEST_LINE, TruncatedError, lines
from tencost.records.reading.protocol import About, Batch, Reject, shorten
from tencost.store.schema import SCHEMA, SCHEMA_VERSION

CHUNK_BYTES = 1 << 20
_BETWEEN = re.compile(r"[\s,\[\]\ufeff]*")
_REST = re.compile(r"\s*\Z")
_CANDIDATE = re.compile(r"[\[,\n]\s*(?=\{)")
_TAIL = 16
"""Longer than any word or escape of JSON."""
_LONGEST_PART = 1 << 12
"""Characters of the longest part of what stands around records."""
_WASTE = 1 << 26
"""Characters parsed in vain after which a damaged file is given up, if they are also 4 times those read."""
_decode = json.JSONDecoder().raw_decode
Item = TypeVar("Item")


@dataclass(frozen=True)
class Damage:
    """A place that is no object, and why."""

    reason: str


def json_objects(
    path: Path,
    is_record: Callable[[dict[str, Any]], bool],
    around: re.Pattern[str] | None = None,
) -> Iterator[tuple[int, dict[str, Any] | Damage]]:
    """Yield (line from 1, object) of a file, and (line, Damage) for what is none.

    Args:
        path: the file, plain, gzip or Zstandard.
        is_record: tells a record from a part of a damaged one, where reading goes on within a line.
        around: matches what may stand between two records where an object holds their array, the empty text too;
            records are then looked for in an object that is none, after it was yielded.

    Raises:
        RecordError: the file cannot be opened.
    """
    window = Window(path)
    while window.skip(around or _BETWEEN):
        parsed, end, reason = window.parse()
        if parsed is not None:
            yield window.line, parsed
            if around is None or is_record(parsed):
                window.advance(end)
            elif not window.resume(is_record):
                break
        elif window.truncated and window.cut:
            break
        else:
            yield window.line, Damage(reason)
            if not window.resume(is_record):
                break
    if window.tired():
        yield window.line, Damage("too much before this line is damaged: not read on")
    elif window.truncated:
        yield window.line, Damage(window.truncated)


def read_objects(
    objects: Iterable[tuple[int, Item | Damage]],
    about: About,
    batch_rows: int,
    row_of: Callable[[Item], dict[str, Any]],
) -> Iterator[Batch]:
    """Yield the batches of a log of one record an object; where a damaged file ends is a reject.

    Args:
        objects: (line, object), as `json_objects` yields them; TruncatedError, where the file is damaged, ends them.
        about: the file, the dataset.
        batch_rows: records and rejects of a batch.
        row_of: gives an object's columns by name; raises ValueError, or what a value of another type or a missing key
            raises, for one that is no record. Source, schema version and, where the row has none, network and mean
            time are added.

    Raises:
        RecordError: `row_of` raises it.
    """
    rows: list[dict[str, Any]] = []
    rejects: list[Reject] = []
    line = 0
    try:
        for line, record in objects:
            try:
                if isinstance(record, Damage):
                    rejects.append(Reject(about.file, line, record.reason))
                else:
                    row = row_of(record)
                    source = {"dataset": about.dataset, "file": about.file, "line": line}
                    rows.append({**row, "source": source, "schema_version": SCHEMA_VERSION})
                    if row.get("networks") is None:
                        rows[-1]["networks"] = [{"network": about.dataset, "weight": 1}]
            except RecursionError:
                rejects.append(Reject(about.file, line, "JSON nested too deeply"))
            except ValueError as error:
                rejects.append(Reject(about.file, line, str(error)))
            except (TypeError, LookupError, AttributeError) as error:
                reason = f"not of this format ({type(error).__name__}: {error}): {shorten(record)}"
                rejects.append(Reject(about.file, line, reason))
            if len(rows) + len(rejects) >= batch_rows:
                yield _batch(rows, rejects)
                rows, rejects = [], []
    except TruncatedError as error:
        rejects.append(Reject(about.file, line + 1, str(error)))
    if rows or rejects:
        yield _batch(rows, rejects)


def _batch(rows: list[dict[str, Any]], rejects: list[Reject]) -> Batch:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    if rows and "execution_elapsed_ms_mean" not in rows[0]:
        for name, column in elapsed(table["run_secs"].combine_chunks()).items():
            table = table.set_column(table.schema.get_field_index(name), SCHEMA.field(name), column)
    return Batch(table, tuple(rejects))


class Window:
    """A part of the file, `text[at:]`, which begins in line `line`; it holds whole lines only."""

    def __init__(self, path: Path, errors: str = "surrogateescape") -> None:
        """Open a file; `errors` is what becomes of bytes that are no UTF-8, as in bytes.decode."""
        self.errors = errors
        self.lines = lines(path)
        self.text = "\n"
        self.at = 1
        self.line = 1
        self.read = self.wasted = 0
        self.cut = self.ended = False
        self.truncated = ""

    def advance(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def find(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the next match of a pattern, None where there is none; nothing is passed over."""
        while (match := pattern.search(self.text, self.at)) is None and self._more():
            pass
        return match

    def skip(self, between: re.Pattern[str] = _BETWEEN) -> bool:
        """Go to where a value may begin, behind a match of `between`; False at the file's end."""
        while True:
            passed = between.match(self.text, self.at)
            assert passed is not None
            self.advance(passed.end())
            # A part of what stands around records may be cut off by the window's end.
            is_value = (
                self.text.startswith("{", self.at) or len(self.text) - self.at > _LONGEST_PART
            )
            if is_value or not self._more():
                return self.at < len(self.text)

    def parse(self) -> tuple[dict[str, Any] | None, int, str]:
        """Return (the object that begins here, its end, ""), or (None, 0, why there is none)."""
        while True:
            parsed, end, reason = self._parse_window()
            if parsed is not None or not self.cut or not self._more():
                return parsed, end, reason

    def resume(self, is_record: Callable[[dict[str, Any]], bool]) -> bool:
        """Go to the next place after this one where an object begins; False at the file's end or when tired."""
        self.advance(self.at + 1)
        while not self.tired():
            candidate = _CANDIDATE.search(self.text, self.at - 1)
            if candidate is None:
                self.advance(len(self.text))
                if not self._more():
                    return False
                continue
            self.advance(candidate.end())
            if self.text[self.at - 1] == "\n":
                return True
            parsed, end, _ = self.parse()
            if parsed is not None and is_record(parsed):
                return True
            self.advance(max(end, self.at + 1))
        return False

    def tired(self) -> bool:
        return self.wasted > _WASTE and self.wasted > 4 * self.read

    def _parse_window(self) -> tuple[dict[str, Any] | None, int, str]:
        self.cut = False
        if self.text[self.at] != "{":
            return None, 0, f"expected an object, found {self.text[self.at : self.at + 40]!r}"
        looked_at = 1 << 12
        try:
            return *_decode(self.text, self.at), ""
        except json.JSONDecodeError as error:
            # No token goes over a line's end: what is cut off by the window's end fails right there.
            # Where the file itself is truncated, a token may be cut, too.
            self.cut = _REST.match(self.text, error.pos) is not None or (
                bool(self.truncated)
                and (error.msg.startswith("Unterminated") or error.pos >= len(self.text) - _TAIL)
            )
            looked_at, reason = error.pos - self.at, f"not JSON: {error.msg}"
        except RecursionError:
            reason = "JSON nested too deeply"
        except ValueError as error:
            reason = f"not JSON: {error}"
        self.wasted += looked_at
        return None, 0, reason

    def _more(self) -> bool:
        """Append about as much as the window holds; False at the file's end or when the window is full."""
        rest = self.text[self.at - 1 :]
        if self.ended or len(rest) > LONGEST_LINE:
            return False
        parts, missing = [rest], max(CHUNK_BYTES, len(rest))
        try:
            while missing > 0 and (line := next(self.lines, None)) is not None:
                parts.append(line[1].decode(errors=self.errors))
                missing -= len(parts[-1])
            self.ended = missing > 0
        except TruncatedError as error:
            self.ended, self.truncated = True, str(error)
            parts.append(error.rest.decode(errors=self.errors))
        self.text, self.at = "".join(parts), 1
        self.read += len(self.text) - len(rest)
        return len(parts) > 1
