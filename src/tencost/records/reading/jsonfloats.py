"""Numbers in a JSON value that JSON cannot write: NaN and the infinities, which Python's json reads and writes."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """Return a JSON value with null for numbers that JSON cannot write."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return value


def with_floats(value: Any) -> Any:
    """Return a JSON value with {"$float": text} for numbers that JSON cannot write; :func:`from_floats` undoes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, list):
        return [with_floats(item) for item in value]
    if isinstance(value, dict):
        inner = {key: with_floats(item) for key, item in value.items()}
        return {"$float": [inner]} if set(value) == {"$float"} else inner
    return value


def from_floats(value: Any) -> Any:
    """Undo :func:`with_floats`."""
    if isinstance(value, list):
        return [from_floats(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$float"}:
        marked = value["$float"]
        if isinstance(marked, str):
            return float(marked)
        value = marked[0]
    return {key: from_floats(item) for key, item in value.items()}
