"""What an RFC 4304 record has no field for, and our own records carry along: the program and all its measurements.

    "tencost": {"record_id": ..., "program_id": ..., "workload_id": ..., "task_name": ..., "networks": [...],
                "program_format": ..., "program": ..., "timestamp": ..., "run_secs": [...], "wall_s": ...,
                "foreign": ..., "measurements": [...], "generator": ...}

Members are the columns of those names. A record of a program read without it would be known by its workload and the
second of its time stamp, which many programs share, and seconds that were written as milliseconds lose a digit. It is
believed only where it says the same as the record itself; otherwise it is a key like any other that is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from tencost.records.formats.table.checks import Measurement, Network
from tencost.store.record import PROGRAM_FORMATS

OURS = "tencost"
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class _Own(msgspec.Struct, forbid_unknown_fields=True):
    record_id: _Name
    program_id: _Name
    workload_id: _Name
    task_name: str
    networks: list[Network] | None
    program_format: Literal[PROGRAM_FORMATS]  # type: ignore[valid-type]
    program: str
    timestamp: float | None
    run_secs: list[float] | None
    wall_s: float | None
    foreign: str | None
    measurements: list[Measurement] | None
    generator: str | None = None


OWN_COLUMNS = _Own.__struct_fields__


def own_columns(value: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that a record's key OURS says; none where it contradicts the record's row, or is no such."""
    if not isinstance(value, dict):
        return {}
    try:
        found = msgspec.convert(value, _Own)
        json.dumps(value, ensure_ascii=False).encode()  # texts that Arrow cannot hold
        for text in (found.foreign, found.program if found.program_format != "none" else None):
            json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    times = row["run_secs"] or []
    told = found.run_secs or []
    alike = len(told) == len(times) and all(map(_close, told, times))
    stamped = found.timestamp == row["timestamp"] and math.isfinite(found.wall_s or 0.0)
    if not (alike and stamped):
        return {}
    return dict(msgspec.to_builtins(found))


def _close(one: float, other: float) -> bool:
    return one > 0 and math.isclose(one, other, rel_tol=1e-9)
