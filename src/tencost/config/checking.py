"""Values against a dataclass schema: unknown keys, wrong types and values out of range, each with one clear message."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from functools import cache
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from tencost.errors import ConfigError


def one_of(name: str, choice: object, choices: tuple[str, ...]) -> None:
    if choice not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, found {choice!r}")


def within(prefix: str, config: object, **ranges: str) -> None:
    """Refuse numbers outside their ranges, and those that are not finite; None and what is no number passes.

    Args:
        prefix: stands before the fields' names in the message: ``model``; empty for none.
        config: has the fields.
        ranges: a field's range as it is written in mathematics: ``"[0, 1)"``, ``"(0, inf)"``. A list's elements each
            have to be in it.

    Raises:
        ConfigError: a number is not in its range.
    """
    for name, text in ranges.items():
        setting = getattr(config, name)
        for number in setting if isinstance(setting, list) else [setting]:
            if isinstance(number, int | float) and not _contains(text, number):
                where = f"{prefix}.{name}" if prefix else name
                finite = "" if math.isfinite(number) else "a finite number "
                raise ConfigError(f"{where} must be {finite}{_expected(text)}, found {number!r}")


def _contains(text: str, number: float) -> bool:
    low, high = (float(bound) for bound in text[1:-1].split(","))
    above = number > low or (text[0] == "[" and number == low)
    return above and (number < high or (text[-1] == "]" and number == high))


def _expected(text: str) -> str:
    low, _, high = text[1:-1].partition(", ")
    if high != "inf":
        return f"in {text}"
    return f"at least {low}" if text[0] == "[" else f"above {low}"


def plain_name(field: str, name: object) -> None:
    """Refuse a name that is no name of a file or folder on every system."""
    if isinstance(name, str) and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name):
        raise ConfigError(
            f"{field} must be letters, digits, dots, dashes and underscores, as it names a folder; found {name!r}"
        )


@cache
def _structured(schema: type[Any]) -> Any:
    """Return a schema as OmegaConf has it, which merging copies."""
    return OmegaConf.structured(schema)


def instantiate(schema: type[Any], values: dict[str, Any], prefix: str) -> Any:
    try:
        merged = OmegaConf.merge(_structured(schema), values)  # type: ignore[arg-type]  # a class is hashable
        return OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(_explain(error, schema, prefix)) from error


def _explain(error: OmegaConfBaseException, schema: type[Any], prefix: str) -> str:
    where = f"{prefix}{error.full_key or error.key or ''}"
    first_line = str(error.msg or error).splitlines()[0]
    message = f"configuration: {where}: {first_line}"
    parent: Any = error.parent_node
    node_type = OmegaConf.get_type(parent) if parent is not None else schema
    unknown_key = isinstance(error, ConfigKeyError | ConfigAttributeError)
    if unknown_key and isinstance(node_type, type) and hasattr(node_type, "__dataclass_fields__"):
        valid = ", ".join(sorted(field.name for field in fields(node_type)))
        message += f". Valid keys here: {valid}"
    if "is not a ListConfig" in first_line:
        return (
            f"configuration: {where}: expected a list, found one value. Write it so: {where}=[...]"
        )
    return message
