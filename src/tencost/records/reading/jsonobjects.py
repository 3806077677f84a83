"""JSON objects of a file, streamed: one a line, in an array, or one by itself; spread over lines or not.

    file    {object | "," | "[" | "]" | space}
    object  { ... } with NaN, Infinity and -Infinity as Python's json writes them

The brackets of an array and the commas in it carry nothing, so all shapes are read alike, and memory holds one object
and a chunk. What is no object is reported, and reading goes on at the next ``{`` that begins a line, or that begins
an object which the caller takes for a record. Not to be relied on: that a damaged object in an array on a
single line costs no neighbour.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import zstandard

from tencost.records.reading.opening import LONGEST_LINE, TruncatedError, open_log

CHUNK_BYTES = 1 << 20
_DAMAGED = (EOFError, OSError, zlib.error, zstandard.ZstdError)
_BETWEEN = re.compile(r"[\s,\[\]\ufeff]*")
_CANDIDATE = re.compile(r"[\[,\n]\s*(?=\{)")
_TAIL = 16
"""Characters at the end of a buffer where an error may come from the cut: longer than any word or escape of JSON."""
_WASTE = 1 << 26
"""Characters parsed in vain after which a damaged file is given up, if they are also 4 times those read."""


@dataclass(frozen=True)
class Damage:
    """A place that is no object, and why."""

    reason: str


class _Broken(ValueError):
    """No object at this place; `cut`: it may be one that the buffer's end cuts."""

    def __init__(self, reason: str, cut: bool, looked_at: int) -> None:
        super().__init__(reason)
        self.cut = cut
        self.looked_at = looked_at


def json_objects(
    path: Path, is_record: Callable[[dict[str, Any]], bool]
) -> Iterator[tuple[int, dict[str, Any] | Damage]]:
    """Yield (line from 1, object) of a file, and (line, Damage) for what is none.

    Args:
        path: the file, plain, gzip or Zstandard.
        is_record: tells a record from a part of a damaged one, where reading goes on within a line.

    Raises:
        RecordError: the file cannot be opened.
    """
    return _Scanner(_texts(path), is_record).run()


class _Scanner:
    """A window `text[at:]` on the file; `line` is the line that `at` is in."""

    def __init__(self, texts: Iterator[str], is_record: Callable[[dict[str, Any]], bool]) -> None:
        self.texts = texts
        self.is_record = is_record
        self.text = ""
        self.at = 0
        self.line = 1
        self.consumed = 0
        self.wasted = 0
        self.ended = False
        self.truncated = ""

    def run(self) -> Iterator[tuple[int, dict[str, Any] | Damage]]:
        while True:
            found = _BETWEEN.match(self.text, self.at)
            assert found is not None
            self._advance(found.end())
            if self.at == len(self.text):
                if self._more():
                    continue
                break
            try:
                value, end = self._decode(self.at)
            except _Broken as error:
                if error.cut and self._more():
                    continue
                if error.cut and self.truncated:
                    break
                yield self.line, Damage(str(error))
                self.wasted += error.looked_at
                if self._resume():
                    continue
                if self._tired():
                    yield self.line, Damage("too much before this line is damaged: not read on")
                    return
                break
            yield self.line, value
            self._advance(end)
        if self.truncated:
            yield self.line, Damage(self.truncated)

    def _advance(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.consumed += to - self.at
        self.at = to

    def _more(self) -> bool:
        """Append to the window about as much as it holds; False at the file's end or when the window is full."""
        if self.ended or len(self.text) - self.at > LONGEST_LINE:
            return False
        parts = [self.text[self.at :]]
        wanted = max(1, len(parts[0]))
        while wanted > 0 and not self.ended:
            try:
                part = next(self.texts)
            except StopIteration:
                self.ended = True
            except TruncatedError as error:
                self.ended, self.truncated = True, str(error)
            else:
                parts.append(part)
                wanted -= len(part)
        self.text, self.at = "".join(parts), 0
        return len(parts) > 1

    def _decode(self, at: int) -> tuple[dict[str, Any], int]:
        if self.text[at] != "{":
            raise _Broken(f"expected an object, found {self.text[at : at + 40]!r}", False, 1)
        try:
            return cast(tuple[dict[str, Any], int], _DECODER.raw_decode(self.text, at))
        except json.JSONDecodeError as error:
            unterminated = error.msg.startswith("Unterminated string")
            near_end = error.pos >= len(self.text) - _TAIL
            looked_at = (len(self.text) if unterminated else error.pos) - at
            cut = not self.ended and (unterminated or near_end)
            if self.truncated and (unterminated or near_end):
                cut = True
            raise _Broken(f"not JSON: {error.msg}", cut, looked_at) from error
        except RecursionError as error:
            raise _Broken("JSON nested too deeply", False, 1 << 12) from error
        except ValueError as error:
            raise _Broken(f"not JSON: {error}", False, 1 << 12) from error

    def _tired(self) -> bool:
        return self.wasted > _WASTE and self.wasted > 4 * self.consumed

    def _resume(self) -> bool:
        """Go to the next place after `at` where an object begins; False if there is none or the search is given up."""
        self._advance(self.at + 1)
        while not self._tired():
            found = _CANDIDATE.search(self.text, max(0, self.at - 1))
            if found is None:
                # Spaces before a brace that is yet to come stay in the window.
                self._advance(self._unspaced_end())
                if not self._more():
                    return False
                continue
            self._advance(found.end())
            if self.text[self.at - 1] == "\n":
                return True
            try:
                value, end = self._decode(self.at)
            except _Broken as error:
                if error.cut and len(self.text) - self.at < CHUNK_BYTES and self._more():
                    self.text, self.at = "," + self.text, 1
                    continue
                self.wasted += error.looked_at
                self._advance(self.at + 1)
                continue
            if self.is_record(value):
                return True
            self._advance(end)
        return False

    def _unspaced_end(self) -> int:
        """Return where the window's last `[`, `,` or newline stands, if only spaces follow it; else its end."""
        kept = self.text.rstrip()
        separator = kept[-1:] in ("[", ",")
        end = len(kept) - 1 if separator else len(kept)
        return max(self.at, end)


_DECODER = json.JSONDecoder()


def _texts(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="surrogateescape")
    with open_log(path) as file:
        # read1 gives what was decompressed before damage; read would lose it.
        read: Callable[[int], bytes] = file.read1  # type: ignore[attr-defined]
        while True:
            try:
                chunk = read(CHUNK_BYTES)
            except _DAMAGED as error:
                raise TruncatedError(
                    f"the compressed file ends early or is damaged: {error}"
                ) from error
            if not chunk:
                break
            yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)
