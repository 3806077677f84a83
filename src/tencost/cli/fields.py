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
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

import click

REQUIRED = "???"
"""How OmegaConf writes that a value must be given."""
LONGEST = 40
"""Characters of a default that a help shows; `--cfg job` shows all."""


@dataclass(frozen=True)
class Told:
    """A field as a help shows it."""

    name: str
    type: str
    default: str
    sentence: str

    def row(self) -> tuple[str, str]:
        default = self.default if len(self.default) <= LONGEST else f"{self.default[:LONGEST]}..."
        return self.name, f"{self.sentence} [{self.type}; default: {default}]"


def told_fields(schema: type, prefix: str, values: Mapping[str, Any]) -> Iterator[Told]:
    """Yield the fields of a dataclass, those of dataclasses in it below it.

    Args:
        schema: the dataclass.
        prefix: what the names begin with, ``model.``.
        values: what a file sets; these are shown as defaults.
    """
    hints = typing.get_type_hints(schema)
    sentences = _sentences(schema)
    for item in fields(schema):
        hint = hints[item.name]
        default = shown(values[item.name]) if item.name in values else shown(_default(item))
        name = f"{prefix}{item.name}"
        yield Told(name, type_text(hint), default, sentences.get(item.name, ""))
        for inner in typing.get_args(hint):
            if is_dataclass(inner) and isinstance(inner, type):
                yield from told_fields(inner, f"{name}.<name>.", {})


def type_text(hint: Any) -> str:
    """Return a type as a person writes its values."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(str(member.value) for member in hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return "|".join(
            "null" if item is types.NoneType else type_text(item) for item in typing.get_args(hint)
        )
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return "list" if arguments == (Any,) else f"list of {type_text(arguments[0])}"
    if origin is dict or (isinstance(hint, type) and is_dataclass(hint)):
        return "mapping"
    return "any" if hint is Any else str(getattr(hint, "__name__", hint))


def shown(value: Any) -> str:
    """Return a value as it is written on a command line."""
    if value == REQUIRED:
        return "none, must be given"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, list):
        if any(isinstance(item, dict) for item in value):
            return f"{len(value)} of them"
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{shown(item)}" for key, item in value.items()) + "}"
    return str(value) if value != "" else "''"


def write_fields(title: str, told: Iterator[Told], formatter: click.HelpFormatter) -> None:
    """Write a part of a help: one field a row."""
    rows = [item.row() for item in told]
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows, col_max=26)


def _default(item: Field[Any]) -> Any:
    if item.default is not MISSING:
        return item.default
    return item.default_factory() if item.default_factory is not MISSING else REQUIRED


def _sentences(schema: type) -> dict[str, str]:
    """Return field -> sentence, those of base classes included; nothing where the source is not at hand."""
    found: dict[str, str] = {}
    for base in reversed(schema.__mro__):
        if is_dataclass(base):
            found.update(_documented(base.__module__).get(base.__qualname__, {}))
    return found


@cache
def _documented(module: str) -> dict[str, dict[str, str]]:
    """Return class -> field -> the string under it, of a module's source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}
    return {
        node.name: dict(_pairs(node.body)) for node in tree.body if isinstance(node, ast.ClassDef)
    }


def _pairs(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, below in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            yield statement.target.id, " ".join(below.value.value.split())
