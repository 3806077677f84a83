"""Names of the files of a TenSet dataset, in four generations.

::

    0  resnet_50-B16.model                              a network
       resnet_50-B16-llvm.task                          its tasks for a kind of target
       resnet_50-B1-llvm-e5-2666.json                   its records, all tasks, on a device
    1  ('resnet_50', 'llvm', [(1, 3, 224, 224)]).model.pkl, .task.pkl
    2  ('resnet_50', [(1, 3, 224, 224)]).relay.pkl
       (('resnet_50', [(1, 3, 224, 224)]), 'llvm').task.pkl
       ('["12b8...", 1, 56, 56]', 'llvm').json          records or programs of a task, of generation 1 as well
    3  (resnet_50,[(1,3,224,224)]).relay.pkl
       ((resnet_50,[(1,3,224,224)]),llvm).task.pkl
       ([12b8...,1,56,56],llvm).json

Generations 1 and 2 print a tuple as Python does, generation 3 prints it and deletes every space and quote
(:func:`clean_name`), which cannot be undone: `"128"` and `128` look the same. One grammar reads both::

    value   ( value, ... ) | [ value, ... ] | 'text' | "text" | text without any of ()[],'"

Names hold `[`, which a glob takes for a pattern. TenSet escapes nothing and writes names of any length; here `/`
becomes `_`, and such a name or one of more than 255 bytes is cut and ends with a part of its sha256: then the records
tell the workload, and the name does not.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

MAX_NAME_BYTES = 255
"""Of a file's name, on every common file system."""
HASH_LENGTH = 12
CURRENT_GENERATION = 3

_COMPRESSIONS = (".gz", ".zst")
_MAX_DEPTH = 32
_TOKEN = re.compile(r"""\s*(?:([\[\](),])|'([^']*)'|"([^"]*)"|([^\[\](),'"]+))""")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SHAPE = re.compile(r"-(\(\)|[0-9]+(?:x[0-9]+)*)$")
_EARLY_NETWORK = re.compile(r"(?P<name>.+?)-B(?P<batch>[0-9]+)(?:-(?P<kind>[a-z][a-z0-9_]*))?")
_EARLY_RECORDS = re.compile(_EARLY_NETWORK.pattern.removesuffix("?") + r"(?:-(?P<hardware>.+))?")

Value = str | tuple["Value", ...] | list["Value"]
"""A name as the grammar reads it; all leaves are text."""


class _NoKeyError(ValueError):
    """A name that is printed as a key is, and is none."""


@dataclass(frozen=True)
class NetworkKey:
    """What TenSet calls a network: a name and the shapes of its inputs, or in generation 0 a name and a batch."""

    name: str
    shapes: tuple[tuple[int, ...], ...] = ()
    batch: int | None = None

    @property
    def label(self) -> str:
        """The network's name in the record store: ``resnet_50-1x3x224x224``, ``resnet_50-B16``."""
        if self.batch is not None:
            return f"{self.name}-B{self.batch}"
        return self.name + "".join(f"-{'x'.join(map(str, shape)) or '()'}" for shape in self.shapes)


@dataclass(frozen=True)
class FileName:
    """What a file's name tells; None where it does not.

    Attributes:
        generation: of the naming, 0 to 3. Records of generation 1 are named as those of 2.
        content: a network's module, its tasks, or log lines (records or programs).
        network: the network, of all log files only in generation 0.
        kind: the target's kind, ``llvm`` or ``cuda``.
        workload_key: JSON list text; of generation 3 rebuilt, see :func:`parse_name`.
        hardware: the device, generation 0 only.
    """

    generation: int
    content: Literal["network", "tasks", "log"]
    network: NetworkKey | None = None
    kind: str | None = None
    workload_key: str | None = None
    hardware: str | None = None


def clean_name(value: object) -> str:
    """Return a key as generation 3 prints it: Python's text without spaces and quotes."""
    return str(value).translate({ord(character): None for character in " \"'"})


def network_from_label(label: str) -> NetworkKey:
    """Return the key whose label this is; a label of another form is a name without shapes."""
    if (found := _EARLY_NETWORK.fullmatch(label)) and found["kind"] is None:
        return NetworkKey(found["name"], batch=int(found["batch"]))
    shapes: list[tuple[int, ...]] = []
    name = label
    while (part := _SHAPE.search(name)) and part.start() > 0:
        text = part[1]
        shapes.insert(0, () if text == "()" else tuple(int(size) for size in text.split("x")))
        name = name[: part.start()]
    return NetworkKey(name, tuple(shapes))


def tasks_file(network: NetworkKey, kind: str, suffix: str) -> str:
    """Return the current name of a network's tasks for targets of a kind."""
    name = network.label if network.batch is not None else network.name
    return _file_name(clean_name(((name, list(network.shapes)), kind)), suffix)


def log_file(workload_key: str, kind: str) -> str:
    """Return the current name of the log of a workload for targets of a kind."""
    return _file_name(clean_name((workload_key, kind)), ".json")


def parse_name(name: str) -> FileName | None:
    """Return what a file's name tells, None for a name that no generation writes.

    A workload key of generation 3 gets its quotes and spaces back as TVM writes them: the first item is text, others
    are text unless they are a JSON number, true, false or null.
    """
    for compression in _COMPRESSIONS:
        name = name.removesuffix(compression)
    try:
        return _late(name) if name.startswith("(") else _early(name)
    except ValueError:
        return None


def is_log_name(name: str) -> bool:
    """Say whether a file may hold log lines, by its ending."""
    for compression in _COMPRESSIONS:
        name = name.removesuffix(compression)
    return name.endswith(".json") and not name.startswith(".")


def _file_name(name: str, suffix: str) -> str:
    safe = name.replace("/", "_").replace("\0", "_")
    if safe == name and len(f"{name}{suffix}".encode()) <= MAX_NAME_BYTES:
        return name + suffix
    ending = f"-{sha256(name.encode()).hexdigest()[:HASH_LENGTH]}{suffix}"
    room = MAX_NAME_BYTES - len(ending.encode())
    return safe.encode()[:room].decode(errors="ignore") + ending


def _early(name: str) -> FileName | None:
    """Read a name of generation 0, whose README calls a file of tasks `.model` once."""
    stem, dot, suffix = name.rpartition(".")
    pattern = {"model": _EARLY_NETWORK, "task": _EARLY_NETWORK, "json": _EARLY_RECORDS}.get(suffix)
    found = pattern.fullmatch(stem) if pattern and dot else None
    if found is None:
        return None
    network = NetworkKey(found["name"], batch=int(found["batch"]))
    if suffix == "json":
        return FileName(0, "log", network, found["kind"], hardware=found["hardware"])
    return FileName(0, "tasks" if found["kind"] else "network", network, found["kind"])


def _late(name: str) -> FileName | None:
    for suffix, read in _LATE.items():
        if name.endswith(suffix):
            stem = name.removesuffix(suffix)
            quoted = "'" in stem or '"' in stem
            return read(parse_key(stem), quoted)
    return None


def _network(value: Value, quoted: bool) -> FileName:
    if isinstance(value, tuple) and len(value) == 3:
        network, kind = _first_generation_key(value)
        return FileName(1, "network", network, kind)
    return FileName(2 if quoted else 3, "network", _network_key(value))


def _tasks(value: Value, quoted: bool) -> FileName:
    if isinstance(value, tuple) and len(value) == 3:
        network, kind = _first_generation_key(value)
        return FileName(1, "tasks", network, kind)
    pair = _pair(value)
    return FileName(2 if quoted else 3, "tasks", _network_key(pair[0]), _word(pair[1]))


def _log(value: Value, quoted: bool) -> FileName:
    key, kind = _pair(value)
    text = key if isinstance(key, str) else json.dumps(_arguments(key))
    return FileName(2 if quoted else 3, "log", None, _word(kind), workload_key=text)


_LATE = {
    ".relay.pkl": _network,
    ".model.pkl": _network,
    ".task.pkl": _tasks,
    ".task.json": _tasks,
    ".json": _log,
}


def _first_generation_key(value: tuple[Value, ...]) -> tuple[NetworkKey, str]:
    target = _word(value[1])
    return _network_key((value[0], value[2])), target.partition(" ")[0]


def _network_key(value: Value) -> NetworkKey:
    name, shapes = _pair(value)
    if not isinstance(shapes, list):
        raise _NoKeyError("expected shapes as a list")
    return NetworkKey(_word(name), tuple(_shape(shape) for shape in shapes))


def _shape(value: Value) -> tuple[int, ...]:
    if isinstance(value, str):
        raise _NoKeyError("expected a shape as a tuple")
    return tuple(int(_word(size)) for size in value)


def _pair(value: Value) -> tuple[Value, Value]:
    if not (isinstance(value, tuple) and len(value) == 2):
        raise _NoKeyError("expected a pair")
    return value[0], value[1]


def _word(value: Value) -> str:
    if not isinstance(value, str):
        raise _NoKeyError("expected a word")
    return value


def _arguments(value: Value, first: bool = True) -> object:
    """Return a workload key with the types that its words look like."""
    if isinstance(value, str):
        plain = _NUMBER.fullmatch(value) or value in ("true", "false", "null")
        return json.loads(value) if plain and not first else value
    if first and not value:
        raise _NoKeyError("expected a workload key")
    return [_arguments(item, first and position == 0) for position, item in enumerate(value)]


def parse_key(text: str) -> Value:
    """Return a printed key as tuples, lists and text.

    Raises:
        ValueError: it is not of the grammar.
    """
    open_values: list[tuple[str, list[Value]]] = [("", [])]
    position, separated = 0, True
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError(f"expected a key, found {text[position:]!r}")
        position = token.end()
        mark, items = token[1], open_values[-1][1]
        if mark == "," and not separated:
            separated = True
        elif mark in _CLOSING and separated and len(open_values) <= _MAX_DEPTH:
            open_values.append((_CLOSING[mark], []))
        elif (
            mark in (")", "]") and mark == open_values[-1][0] and (not separated or len(items) < 2)
        ):
            open_values.pop()
            open_values[-1][1].append(tuple(items) if mark == ")" else items)
            separated = False
        elif mark is None and separated:
            quoted = token[2] if token[2] is not None else token[3]
            items.append(token[4].strip() if quoted is None else quoted)
            separated = False
        else:
            raise ValueError(f"unexpected {token[0]!r} in {text!r}")
    if len(open_values) != 1 or len(open_values[0][1]) != 1:
        raise ValueError(f"expected one key, found {text!r}")
    return open_values[0][1][0]


_CLOSING = {"(": ")", "[": "]"}
