"""What a reader of a log format gives: batches of the record store's columns, and the lines that it could not read.

A reader knows its format by content, never by a file's name, streams (memory is bounded by a batch, not by the file),
and never gives up on a file: a malformed, truncated or foreign line is a Reject with file, line and reason, the lines
around it are kept. Blank lines and comments, where a format has them, are neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 20_000
"""Rows of a batch."""


@dataclass(frozen=True)
class Reject:
    """A line that could not be read: file, line from 1 (0: the file as a whole), reason."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True)
class About:
    """What a reader is told about a file.

    Attributes:
        dataset: name of the dataset that the records are part of.
        file: the file as records and rejects name it, relative to the dataset's folder.
        hardware: the device, where the log does not say it; None: only the log can.
    """

    dataset: str
    file: str
    hardware: str | None


@dataclass(frozen=True)
class Batch:
    """Some records, a table of schema.SCHEMA in the order of the log, and rejected lines."""

    records: pa.Table
    rejects: tuple[Reject, ...] = ()


class LogFormat(Protocol):
    """A log format that can be read."""

    name: str
    """As `tencost records import` reports it."""

    def recognizes(self, path: Path, head: bytes, /) -> bool:
        """Say whether a file is of this format, from its first lines (decompressed, up to 64 KiB)."""
        ...

    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yield the file's records and rejects.

        Raises:
            RecordError: the file cannot be opened, or no record of it can be kept: neither the log nor `about` names
                the device.
        """
        ...
