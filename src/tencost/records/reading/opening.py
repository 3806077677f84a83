"""Log files as they come: plain, gzip or Zstandard, known by their first bytes; read a line at a time."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from tencost.errors import RecordError

HEAD_BYTES = 1 << 16
"""How much of a file `read_head` returns."""
HEADS_TRIED, HEADS_BYTES = 8, 1 << 23
"""Lines, and bytes, in which a log is looked for that does not begin as one."""
LONGEST_LINE = 1 << 26
"""Bytes of the longest line that is read; a longer one is no log line (a module of a large network has some 1e6)."""
MOST_BLANK_BYTES = 1 << 20
"""Blank lines in a row after which a log is not read on: they say nothing and may have no end."""
MOST_RATIO = 300
"""Bytes read per byte of a compressed log; logs of schedules reach about 30, a bomb more than 1000."""
LEAST_LIMIT_BYTES = 1 << 26
"""A small file may hold this much whatever its ratio."""
GZIP, ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class TruncatedError(ValueError):
    """A compressed file ends early or is damaged; the lines before are good, `rest` is what there is of the next."""

    rest: bytes = b""


def open_log(path: Path) -> BinaryIO:
    """Open a log for reading, decompressing as it is read.

    Raises:
        RecordError: it cannot be opened.
    """
    try:
        raw = path.open("rb")
        magic = raw.read(4)
        raw.seek(0)
    except OSError as error:
        raise RecordError(f"expected a log file at {path}: {error}") from error
    if magic.startswith(GZIP):
        unzipped: Any = gzip.GzipFile(fileobj=raw)
        unzipped.myfileobj = raw  # closed with it
        return cast(BinaryIO, unzipped)
    if magic == ZSTANDARD:
        import zstandard

        stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, stream)))
    return raw


def most_bytes(path: Path) -> int:
    """Return how many bytes of a compressed file are read at most."""
    return max(LEAST_LIMIT_BYTES, MOST_RATIO * path.stat().st_size)


def read_head(path: Path) -> bytes:
    """Return the first HEAD_BYTES of a log, decompressed; less where it is damaged.

    Blank lines before them are left out, MOST_BLANK_BYTES at most.

    Raises:
        RecordError: it cannot be opened.
    """
    head, blank = b"", 0
    with open_log(path) as file, suppress(TruncatedError):
        while len(head) < HEAD_BYTES and (chunk := _chunk(file)):
            if head or chunk.strip() or blank >= MOST_BLANK_BYTES:
                head += chunk
            else:
                blank += len(chunk)
    return head[:HEAD_BYTES]


def later_heads(path: Path) -> Iterator[bytes]:
    """Yield heads that begin at the next lines of a log: its first may be a bad one, of any length.

    As many as HEADS_TRIED, within the first HEADS_BYTES.

    Raises:
        RecordError: it cannot be opened.
    """
    with open_log(path) as file, suppress(TruncatedError):
        text, start, chunk = b"", 0, b" "
        for _ in range(HEADS_TRIED):
            while chunk and not 0 <= text.find(b"\n", start) < len(text) - HEAD_BYTES:
                chunk = _chunk(file) if len(text) < HEADS_BYTES else b""
                text += chunk
            start = text.find(b"\n", start) + 1
            if not start or not text[start:].strip():
                return
            yield text[start : start + HEAD_BYTES]


def first_line(head: bytes) -> bytes:
    """Return the first line of a head that is neither blank nor a comment (`#`), without its end; b"" without one."""
    for line in head.split(b"\n"):
        if line.strip() and not line.startswith(b"#"):
            return line.strip()
    return b""


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line with its end) of a log, blank lines included.

    Raises:
        RecordError: it cannot be opened.
        TruncatedError: the compressed data end early or are damaged, a line is longer than LONGEST_LINE, or a limit of
            bytes is reached; what was yielded before is good.
    """
    number = size = blank = 0
    parts: list[bytes] = []
    with open_log(path) as file:
        most = most_bytes(path)
        while chunk := _chunk(file, parts):
            size += len(chunk)
            blank = 0 if chunk.strip() else blank + len(chunk)
            if size > most:
                raise TruncatedError(
                    f"more than {most} bytes, {MOST_RATIO} times the compressed file: no log is like that. Not read on"
                )
            if blank > MOST_BLANK_BYTES:
                raise TruncatedError(
                    f"more than {MOST_BLANK_BYTES} bytes of blank lines in a row: not read on"
                )
            first, *others = chunk.split(b"\n")
            parts.append(first)
            for other in others:
                number += 1
                yield number, b"".join(parts) + b"\n"
                parts = [other]
            if len(parts) > 1 and sum(map(len, parts)) > LONGEST_LINE:
                raise TruncatedError(
                    f"a line of more than {LONGEST_LINE} bytes is no line of a log"
                )
    if rest := b"".join(parts):
        yield number + 1, rest


def _chunk(file: BinaryIO, parts: Iterable[bytes] = ()) -> bytes:
    """Return the next bytes of a file, b"" at its end; `parts` are of the line that is not yet whole."""
    try:
        # read1, as read loses what it has when the file turns out to be damaged
        return cast(bytes, cast(Any, file).read1(HEAD_BYTES))
    except (EOFError, OSError, zlib.error, _zstandard_error()) as error:
        truncated = TruncatedError(f"the compressed file ends early or is damaged: {error}")
        truncated.rest = b"".join(parts)
        raise truncated from error


def _zstandard_error() -> type[Exception]:
    """Return Zstandard's error; tencost[tuner], which reads no compressed log, does not have the package."""
    try:
        import zstandard
    except ImportError:
        return EOFError
    return cast(type[Exception], zstandard.ZstdError)
