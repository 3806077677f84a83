"""Dataclasses from the JSON values that `dataclasses.asdict` and orjson make of them."""

from __future__ import annotations

import math
from dataclasses import is_dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints


def from_json(kind: Any, value: Any) -> Any:
    """Return a value of a type from its JSON values.

    Args:
        kind: a dataclass, or float (null is NaN), str, int, bool, tuple[X, ...], dict[str, X] or X | None of such
            types. A dataclass may list, in a class variable REMOVED_FIELDS, fields that only older files have.
        value: what orjson reads.

    Raises:
        TypeError, KeyError, AttributeError: the value does not have that form: a field is missing or unknown.
    """
    arguments = get_args(kind)
    if NoneType in arguments:
        return None if value is None else from_json(arguments[0], value)
    if get_origin(kind) is tuple:
        return tuple(from_json(arguments[0], element) for element in value)
    if get_origin(kind) is dict:
        return {key: from_json(arguments[1], element) for key, element in value.items()}
    if is_dataclass(kind) and isinstance(kind, type):
        types, removed = _field_types(kind), getattr(kind, "REMOVED_FIELDS", ())
        fields = {name: field for name, field in value.items() if name not in removed}
        return kind(**{name: from_json(types[name], field) for name, field in fields.items()})
    return math.nan if kind is float and value is None else value


def rounded(value: Any) -> Any:
    """Round every float to 6 digits; orjson writes NaN as null."""
    if isinstance(value, dict):
        return {key: rounded(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(element) for element in value]
    return round(value, 6) if isinstance(value, float) else value


@cache
def _field_types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
