"""Values against a dataclass schema: unknown keys, wrong types and values out of range, each with one clear message."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from tencost.errors import ConfigError


def one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, found {value!r}")


def at_least(prefix: str, config: object, **least: int) -> None:
    for name, bound in least.items():
        value = getattr(config, name)
        if isinstance(value, int) and value < bound:
            raise ConfigError(f"{prefix}.{name} must be at least {bound}, found {value}")


def plain_name(field: str, name: object) -> None:
    """Refuse a name that is no name of a file or folder on every system."""
    if isinstance(name, str) and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name):
        raise ConfigError(
            f"{field} must be letters, digits, dots, dashes and underscores, as it names a folder; found {name!r}"
        )


def instantiate(schema: type[Any], values: dict[str, Any], prefix: str) -> Any:
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), values)
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
        valid = ", ".join(sorted(item.name for item in fields(node_type)))
        message += f". Valid keys here: {valid}"
    return message
