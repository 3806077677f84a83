"""Log files as they come: plain, gzip or Zstandard, known by their first bytes; read a line at a time."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from tencost.errors import RecordError

HEAD_BYTES = 1 << 16
"""How much of a file `read_head` returns."""
LONGEST_LINE = 1 << 26
"""Bytes of the longest line that is read; a longer one is no log line (a module of a large network has some 1e6)."""
_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


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
    if magic.startswith(_GZIP):
        zipped: Any = gzip.GzipFile(fileobj=raw)
        zipped.myfileobj = raw  # closed with it
        return cast(BinaryIO, zipped)
    if magic == _ZSTANDARD:
        import zstandard

        stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, stream)))
    return raw


def read_head(path: Path) -> bytes:
    """Return the first HEAD_BYTES of a log, decompressed; less where it is damaged.

    Raises:
        RecordError: it cannot be opened.
    """
    with open_log(path) as file:
        head = b""
        with suppress(TruncatedError):
            while len(head) < HEAD_BYTES and (chunk := _chunk(file, [])):
                head += chunk
        return head[:HEAD_BYTES]


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
        TruncatedError: the compressed data end early or are damaged, or a line is longer than LONGEST_LINE; what was
            yielded before is good.
    """
    with open_log(path) as file:
        number = 0
        parts: list[bytes] = []
        while chunk := _chunk(file, parts):
            first, *others = chunk.split(b"\n")
            parts.append(first)
            for other in others:
                number += 1
                parts.append(b"\n")
                yield number, b"".join(parts)
                parts = [other]
            if len(parts) > 1 and sum(map(len, parts)) > LONGEST_LINE:
                raise TruncatedError(
                    f"a line of more than {LONGEST_LINE} bytes is no line of a log"
                )
        if rest := b"".join(parts):
            yield number + 1, rest


def _chunk(file: BinaryIO, parts: list[bytes]) -> bytes:
    """Return the next bytes of a file, b"" at its end; `parts` are of the line that is not yet whole."""
    try:
        # read1, as read loses what it has when the file turns out to be damaged
        return cast(bytes, cast(Any, file).read1(HEAD_BYTES))
    except (EOFError, OSError, zlib.error, _zstandard_error()) as error:
        truncated = TruncatedError(f"the compressed file ends early or is damaged: {error}")
        truncated.rest = b"".join(parts)
        raise truncated from error


def _zstandard_error() -> type[Exception]:
    try:
        import zstandard
    except ModuleNotFoundError:
        return EOFError
    return cast(type[Exception], zstandard.ZstdError)
