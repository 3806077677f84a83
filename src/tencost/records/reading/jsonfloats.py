"""Numbers in a JSON value that JSON cannot write: NaN and the infinities, which Python's json reads and writes."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(json_value: Any) -> Any:
    """Return a JSON value with null for numbers that JSON cannot write."""
    return json.loads(json.dumps(json_value), parse_constant=lambda _: None)


def with_floats(json_value: Any) -> Any:
    """Return a JSON value with {"$float": text} for numbers that JSON cannot write; :func:`from_floats` undoes it."""
    match json_value:
        case float() if not math.isfinite(json_value):
            return {"$float": repr(json_value)}
        case list():
            return [with_floats(part) for part in json_value]
        case dict():
            members = {key: with_floats(part) for key, part in json_value.items()}
            return {"$float": [members]} if set(json_value) == {"$float"} else members
    return json_value


def from_floats(json_value: Any) -> Any:
    """Undo :func:`with_floats`."""
    match json_value:
        case list():
            return [from_floats(part) for part in json_value]
        case {"$float": str(text), **rest} if not rest:
            return float(text)
        case {"$float": [members], **rest} if not rest:
            return {key: from_floats(part) for key, part in members.items()}
        case dict():
            return {key: from_floats(part) for key, part in json_value.items()}
    return json_value
