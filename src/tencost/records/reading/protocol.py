"""The protocol of a format of logs, hardware counters or latencies of networks: recognize its files, and read them.

A format is a module, or a folder, whose attribute ``FORMAT`` is an instance of :class:`Format`; its name is the
module's. There are three kinds, which differ in what their readers yield:

    kind           package in tencost.records  yields                              entry points
    LogFormat      formats                     Batch: rows of the record schema    tencost.log_formats
    ProfileFormat  counters.formats            Launch, and Note for an oddity      tencost.profile_formats
    GraphFormat    network_graphs.formats      ReadGraphs, one for a whole folder  tencost.graph_formats

A reader knows its format by content, never by a file's name, streams (memory is bounded by a batch, not by the file),
and never gives up on a file: a malformed, truncated or foreign line is a Reject with file, line and reason, the lines
around it are kept. Blank lines and comments, where a format has them, are neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tencost.records.reading.opening import TruncatedError, lines
from tencost.store.rejects import Reject as Reject

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 20_000
"""Rows of a batch."""


def shorten(cell: object) -> str:
    """Return a value as a reason shows it."""
    text = repr(cell)
    return text if len(text) <= 60 else f"{text[:57]}..."


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first names as a message lists them, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclass(frozen=True)
class About:
    """Facts about a file that its reader needs and the file may not hold.

    Attributes:
        dataset: name of the dataset that the records are part of.
        file: the file as records and rejects name it, relative to the dataset's folder.
        hardware: the device, where the log does not say it; None: only the log can.
        default: whether `hardware` is for records that name no device alone; else it is that of all whose target may
            name another.
        decimal_comma: whether the decimal mark of the file's numbers is a comma; None: its cells tell.
    """

    dataset: str
    file: str
    hardware: str | None
    default: bool = False
    decimal_comma: bool | None = None


@dataclass(frozen=True)
class Batch:
    """Some records, a table of schema.SCHEMA in the order of the log, and rejected lines."""

    records: pa.Table
    rejects: tuple[Reject, ...] = ()


class BadLineError(ValueError):
    """A line, or an object in it, that is not what the grammar of its format says: what was expected and found."""


class Module(NamedTuple):
    """A workload that a log carries: id of its records, module as JSON text, task name, TVM's hash as text."""

    workload_id: str
    mod_json: str
    task_name: str
    shash: str


class Format(ABC):
    """A format that can be read."""

    layout: ClassVar[str] = ""
    """Description of such a file or folder, for messages."""

    @abstractmethod
    def recognizes(self, path: Path, head: bytes, /) -> bool:
        """Say whether a file is of this format, from its first lines (decompressed, up to 64 KiB; b"" of a folder)."""

    @abstractmethod
    def read(self, path: Path, about: About, /) -> Iterator[Any]:
        """Yield what a file or folder holds, in its order, and what could not be read of it.

        Raises:
            TencostError: nothing at all can be read.
        """

    def part(self, _head: bytes, /) -> str:
        """Return what a file is that is read with another one of this format; empty for any other file."""
        return ""


class LogFormat(Format):
    """A log format that can be read."""

    example: ClassVar[Mapping[str, str]]
    """A small log for tests, file name -> text; the first file is the log, its last three lines a record each."""

    @abstractmethod
    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yield the file's records and rejects.

        Raises:
            RecordError: the file cannot be opened, or no record of it can be kept: neither the log nor `about` names
                the device.
        """

    def modules(self, _path: Path, /) -> list[Module]:
        """Return the modules that a log, or files beside it, carry; most formats have none."""
        return []


class Rows(ABC):
    """A batch in the making."""

    def __init__(self, about: About) -> None:
        self.about = about
        self.rejects: list[Reject] = []
        self.lines: list[int] = []
        """Line of each record."""

    def __bool__(self) -> bool:
        return bool(self.lines or self.rejects)

    def full(self, batch_rows: int) -> bool:
        """Say whether it holds as many records and rejects as a batch has at most."""
        return len(self.lines) + len(self.rejects) >= batch_rows

    @abstractmethod
    def add(self, number: int, line: bytes) -> None:
        """Take a line: a record, a reject, or nothing."""

    @abstractmethod
    def batch(self) -> Batch:
        """Return what was taken."""


def read_lines(
    path: Path, about: About, batch_rows: int, rows: Callable[[About], Rows]
) -> Iterator[Batch]:
    """Yield the batches of a log of a record a line; where a damaged file ends is a reject.

    Raises:
        RecordError: the file cannot be opened, or `rows` raises it.
    """
    pending = rows(about)
    number = 0
    try:
        for number, line in lines(path):
            pending.add(number, line)
            if pending.full(batch_rows):
                yield pending.batch()
                pending = rows(about)
    except TruncatedError as error:
        pending.rejects.append(Reject(about.file, number + 1, str(error)))
    if pending:
        yield pending.batch()
