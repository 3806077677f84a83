"""Reads the files that `tencost measure run` writes beside a MetaSchedule database: status, time, session of records.

    measurements.jsonl   beside a database pair, one line for each of its record lines, in the same order:
        {"status": "build_timeout", "timestamp": 1795269619.6, "session": "...", "noise": 1.01, "error": "..."}
        status as in status.py; timestamp in seconds since 1970; noise is the time of a fixed reference kernel shortly
        before, over its best time in the session; error is absent where status is ok
    sessions*.jsonl      in the hardware's folder: {"session": "...", <fields of record.Provenance>}; a later line of
        the same session adds to the earlier one; a shard has a file of its own, sessions-shard-<i>-of-<n>.jsonl

A record line without a line here (a foreign database, a file that was cut) is taken as the database alone has it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tencost.store.record import Provenance, provenance_from_json
from tencost.store.status import Status, Timing, timing_from_log

MEASUREMENTS_FILE = "measurements.jsonl"
SESSIONS_PATTERN = "sessions*.jsonl"
_OWN = frozenset({"status", "timestamp", "session", "error"})


@dataclass(frozen=True)
class Measurement:
    """A line of measurements.jsonl; `extra` holds the fields that are no column."""

    status: Status
    error: str
    timestamp: float | None
    session: str | None
    extra: dict[str, Any]

    def timing(self, run_secs: list[float] | None) -> Timing:
        """Return the status and times of the program, from the database's times and this line's status."""
        logged = timing_from_log(run_secs)
        if self.status is Status.ok or logged.status is Status.ok:
            return logged
        return Timing(self.status, (), self.error or logged.error)


def sessions_file(shard: tuple[int, int]) -> str:
    """Return the name of the file that a shard's sessions are written to; (0, 1) is the whole."""
    index, count = shard
    return "sessions.jsonl" if count == 1 else f"sessions-shard-{index}-of-{count}.jsonl"


def read_measurements(folder: Path) -> tuple[list[Measurement | None], list[tuple[int, str]]]:
    """Read a database folder's measurements.jsonl: (a measurement for each line, (line, reason) of bad ones)."""
    path = folder / MEASUREMENTS_FILE
    if not path.is_file():
        return [], []
    measurements: list[Measurement | None] = []
    rejects: list[tuple[int, str]] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            measurements.append(_measurement(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            measurements.append(None)
            rejects.append((number, f"measurement: {error}"))
    return measurements, rejects


def read_sessions(dataset: Path, hardware: str) -> dict[str, Provenance]:
    """Return the provenance of each session on a hardware; bad lines are left out."""
    folder = dataset / "measure_records" / hardware
    merged: dict[str, dict[str, Any]] = {}
    paths = sorted(folder.glob(SESSIONS_PATTERN))
    for line in (line for path in paths for line in path.read_bytes().splitlines()):
        try:
            value = json.loads(line)
            name = value.pop("session")
        except (ValueError, KeyError, AttributeError):
            continue
        session = merged.setdefault(name, {})
        extra = {
            **(session.get("additional_info") or {}),
            **(value.pop("additional_info", None) or {}),
        }
        session |= value
        if extra:
            session["additional_info"] = extra
    return {name: provenance_from_json(value) for name, value in merged.items()}


def _measurement(value: dict[str, Any]) -> Measurement:
    timestamp = value.get("timestamp")
    return Measurement(
        status=Status(value["status"]),
        error=str(value.get("error") or ""),
        timestamp=None if timestamp is None else float(timestamp),
        session=value.get("session"),
        extra={key: item for key, item in value.items() if key not in _OWN},
    )
