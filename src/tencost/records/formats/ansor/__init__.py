"""Logs of TVM's auto_scheduler (Ansor), read with typed steps and written back; steps.py has the grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from tencost.records.formats.ansor.rows import AnsorRows, holds_nothing
from tencost.records.formats.ansor.steps import FAMILY, PROGRAM_FORMAT, parse_line, steps_of
from tencost.records.formats.ansor.writing import write_lines
from tencost.records.reading.protocol import BATCH_ROWS, About, Batch, LogFormat, read_lines

__all__ = [
    "FAMILY",
    "FORMAT",
    "PROGRAM_FORMAT",
    "AnsorFormat",
    "parse_line",
    "steps_of",
    "write_lines",
]

_START = re.compile(rb'\{\s*"i"\s*:\s*\[\s*\[\s*"\s*\[')
_EXAMPLE = """\
# three programs of a matmul, one of which does not compile
{"i": [["[\\"matmul\\", 64, 64, 64]", "llvm -keys=cpu -model=i7", [4, 64, 64, 0, 0, 0, 0, 0], "", 1, []], \
[[], [["SP", 2, 0, 64, [2, 4], 1]]]], "r": [[0.0013, 0.00131], 0, 1.25, 1693565744], "v": "v0.6"}
{"i": [["[\\"matmul\\", 64, 64, 64]", "llvm -keys=cpu -model=i7", [4, 64, 64, 0, 0, 0, 0, 0], "", 1, []], \
[[], [["SP", 2, 0, 64, [4, 4], 1]]]], "r": [[0.0011], 0, 1.21, 1693565750], "v": "v0.6"}
{"i": [["[\\"matmul\\", 64, 64, 64]", "llvm -keys=cpu -model=i7", [4, 64, 64, 0, 0, 0, 0, 0], "", 1, []], \
[[], [["SP", 2, 0, 64, [8, 4], 1], ["PR", 2, 0, "auto_unroll_max_step$16"]]]], \
"r": [[1e+10], 2, 1.1, 1693565757], "v": "v0.6"}
"""


class AnsorFormat(LogFormat):
    """Reads logs of auto_scheduler."""

    example = MappingProxyType({"ansor.json": _EXAMPLE})

    def recognizes(self, _path: Path, head: bytes) -> bool:
        """Say whether the first line that holds a JSON object is one of auto_scheduler.

        Where the first line is longer than the head, its beginning decides.
        """
        *complete, last = head.split(b"\n")
        for line in complete:
            if (value := _json_object(line)) is not None:
                return _looks_like_a_line(value)
        value = _json_object(last)
        return _looks_like_a_line(value) if value is not None else bool(_START.match(last))

    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        return read_lines(path, about, batch_rows, AnsorRows)


FORMAT = AnsorFormat()


def _json_object(line: bytes) -> dict[str, Any] | None:
    if holds_nothing(line):
        return None
    try:
        value = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _looks_like_a_line(value: dict[str, Any]) -> bool:
    pair = value.get("i")
    return (
        value.keys() == {"i", "r", "v"}
        and isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(part, list) for part in pair)
        and bool(pair[0])
        and isinstance(pair[0][0], str)
        and pair[0][0].lstrip().startswith("[")
    )
