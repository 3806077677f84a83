"""Points in time as logs write them: seconds since 1970, ``20191123003411`` (UTC), or ISO 8601."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

from tencost.records.reading.protocol import shorten

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{14}", re.ASCII)


def epoch_seconds(time: Any) -> float:
    """Return seconds since 1970 of a number or a text; a text without a time zone is UTC.

    Fourteen digits that are a date are one, as a number, too: as seconds they would be the year 641,000.

    Raises:
        ValueError: no point in time.
    """
    seconds = math.nan
    if isinstance(time, str) or (isinstance(time, int) and not isinstance(time, bool)):
        seconds = _seconds_of(str(time).strip())
    elif isinstance(time, float):
        seconds = time
    if not math.isfinite(seconds):
        raise ValueError(
            f"expected seconds since 1970 or a text like 20191123003411, found {shorten(time)}"
        )
    return seconds


def moment_of(seconds: float | None) -> datetime | None:
    """Return seconds since 1970 as a moment in UTC; None without, and for what no calendar has (milliseconds, say)."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _seconds_of(text: str) -> float:
    """Return the seconds, or NaN."""
    if _DATE.fullmatch(text):
        try:
            return datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return float(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return math.nan
