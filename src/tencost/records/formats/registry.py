"""All log formats that can be read, and which of them a file is: known from its content, never from its name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tencost.records.formats.opening import read_head
from tencost.records.formats.protocol import LogFormat


@cache
def formats() -> tuple[LogFormat, ...]:
    """Return the formats in the order in which they are asked; at most one recognizes a file."""
    from tencost.records.formats.ansor import AnsorFormat
    from tencost.records.formats.autotvm import AutotvmFormat
    from tencost.records.formats.metaschedule_log import MetascheduleFormat
    from tencost.records.formats.rfc4304 import Rfc4304Format
    from tencost.records.formats.table import TencostTableFormat

    return (
        MetascheduleFormat(),
        AnsorFormat(),
        AutotvmFormat(),
        TencostTableFormat(),
        Rfc4304Format(),
    )


def detect(path: Path) -> LogFormat | None:
    """Return the format of a file; None if it is none of them.

    Raises:
        RecordError: the file cannot be opened.
    """
    head = read_head(path)
    return next((item for item in formats() if item.recognizes(path, head)), None)


def named(name: str) -> LogFormat:
    """Return the format of that name."""
    return next(item for item in formats() if item.name == name)
