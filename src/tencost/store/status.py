"""How a measurement ended, as a closed set; a failure is a status, never a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FAILURE_SECONDS = 1e9
"""AutoTVM writes 1e9, auto_scheduler and MetaSchedule 1e10 for a failure; no time is as long."""


class Status(StrEnum):
    """How a measurement ended."""

    ok = "ok"
    """Times were taken."""
    build_error = "build_error"
    """The compiler refused the program."""
    build_timeout = "build_timeout"
    """The compiler took too long."""
    run_error = "run_error"
    """The program crashed or reported an error."""
    run_timeout = "run_timeout"
    """The program took too long."""
    wrong_answer = "wrong_answer"
    """The program ran, and its output was wrong."""
    invalid_schedule = "invalid_schedule"
    """The trace cannot be applied to its workload."""
    unknown = "unknown"
    """The log says that it failed, or was not measured, and not why."""


@dataclass(frozen=True)
class Timing:
    """Times of one program, or why there are none.

    `run_secs` (seconds, in the order taken) is empty unless `status` is ok; `error` is empty if it
    is.
    """

    status: Status
    run_secs: tuple[float, ...]
    error: str = ""

    def __post_init__(self) -> None:
        assert bool(self.run_secs) == (self.status is Status.ok)


def timing_from_log(run_secs: Sequence[Any] | None) -> Timing:
    """Turn the times of a log line (seconds, sentinels included) into times or a status.

    null, an empty list, 1e9 and 1e10, 0.0, negative and non-finite times are failures whose cause
    the log does not tell; one of them among good times spoils the record.
    """
    if run_secs is None:
        return Timing(Status.unknown, (), "not measured: run_secs is null")
    if not run_secs:
        return Timing(Status.unknown, (), "not measured: run_secs is empty")
    values = [float(value) for value in run_secs]
    for value in values:
        if not math.isfinite(value):
            return Timing(Status.unknown, (), f"a time is not finite: {value}")
        if value >= FAILURE_SECONDS:
            return Timing(Status.unknown, (), f"the log marks a failure: {value:g} s")
        if value <= 0.0:
            return Timing(Status.unknown, (), f"a time is not positive: {value:g} s")
    return Timing(Status.ok, tuple(values))
