"""The fields of the configuration for people: name, type, default and the sentence that stands under each in the code.

Sentences are read from the source of the dataclasses, so that they are written once. Defaults are those that a command
starts with: what the file of a group's default choice sets, and what the schema says where no file sets it.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

_LONGEST = 40
"""Characters of a default that a help shows; `--cfg job` shows all."""


@dataclass(frozen=True)
class FieldHelp:
    """A field as a help shows it."""

    name: str
    type: str
    default: str
    sentence: str

    def row(self) -> tuple[str, str]:
        default = self.default if len(self.default) <= _LONGEST else f"{self.default[:_LONGEST]}..."
        return self.name, f"{self.sentence} [{self.type}; default: {default}]"


def described_fields(schema: type, prefix: str, values: Mapping[str, Any]) -> Iterator[FieldHelp]:
    """Yield the fields of a dataclass, those of dataclasses in it below it.

    Args:
        schema: the dataclass.
        prefix: what the names begin with, ``model.``.
        values: what a file sets; these are shown as defaults.
    """
    hints = typing.get_type_hints(schema)
    sentences: dict[str, str] = {}
    for base in reversed(schema.__mro__):
        if is_dataclass(base):
            sentences |= _sentences(base.__module__).get(base.__qualname__, {})
    for field in fields(schema):
        default: Any = "???" if field.default is MISSING else field.default  # as OmegaConf says
        if field.default_factory is not MISSING:
            default = field.default_factory()
        default = values.get(field.name, default)
        name, hint = f"{prefix}{field.name}", hints[field.name]
        yield FieldHelp(
            name, type_text(hint), on_command_line(default), sentences.get(field.name, "")
        )
        for inner in typing.get_args(hint):
            if is_dataclass(inner) and isinstance(inner, type):
                yield from described_fields(inner, f"{name}.<name>.", {})


def type_text(hint: Any) -> str:
    """Return a type as a person writes its values."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(str(member.value) for member in hint)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return "|".join("null" if part is types.NoneType else type_text(part) for part in arguments)
    if origin is list:
        return "list" if arguments == (Any,) else f"list of {type_text(arguments[0])}"
    if origin is dict or (isinstance(hint, type) and is_dataclass(hint)):
        return "mapping"
    return "any" if hint is Any else str(getattr(hint, "__name__", hint))


def on_command_line(setting: Any) -> str:
    """Return a value as it is written on a command line."""
    match setting:
        case "???":
            return "none, must be given"
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[setting]
        case Enum():
            return str(setting.value)
        case list() if any(isinstance(element, dict) for element in setting):
            return f"{len(setting)} of them"
        case list():
            return f"[{','.join(map(on_command_line, setting))}]"
        case dict():
            pairs = (f"{key}:{on_command_line(inner)}" for key, inner in setting.items())
            return "{" + ",".join(pairs) + "}"
    return str(setting) if setting != "" else "''"


@cache
def _sentences(module: str) -> dict[str, dict[str, str]]:
    """Return class -> field -> the string under it, of a module's source; nothing where that is not at hand."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {
        node.name: dict(_pairs(node.body)) for node in tree.body if isinstance(node, ast.ClassDef)
    }


def _pairs(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, below in itertools.pairwise(body):
        match statement, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())
