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

Generations 1 and 2 print a tuple as Python does. Generation 3 deletes every space and quote of that text
(:func:`clean_name`), which cannot be undone: `"128"` and `128` look the same. Both become JSON here: words become
texts, parentheses brackets.

A network is called by its label: `resnet_50-1x3x224x224`, or `resnet_50-B16` in generation 0.

TenSet escapes nothing and writes names of any length. Here `/` becomes `_`, and a name with `/` or of more than 255
bytes is cut and ends with a part of its sha256: then the records tell the workload, and the name does not.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import msgspec

Content = Literal["network", "tasks", "log"]

MAX_NAME_BYTES = 255
"""Of a file's name, on every common file system."""
HASH_LENGTH = 12
CURRENT_GENERATION = 3

_CONTENTS: dict[str, Content] = {
    ".relay.pkl": "network",
    ".model.pkl": "network",
    ".task.pkl": "tasks",
    ".task.json": "tasks",
    ".json": "log",
}
_TOKEN = re.compile(r"""'([^']*)'|"([^"]*)"|([^][(),'"\s][^][(),'"]*)|(,?\s*\))|\(""")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SHAPE = re.compile(r"-(\(\)|[0-9]+(?:x[0-9]+)*)$")
_EARLY_LOG = re.compile(r"(.+?-B[0-9]+)-([a-z][a-z0-9_]*)(?:-(.+))?\.json")
_EARLY_FILE = re.compile(r"(.+?-B[0-9]+)(?:-([a-z][a-z0-9_]*))?\.(?:model|task)")


@dataclass(frozen=True)
class FileName:
    """What a file's name tells; None where it does not.

    Attributes:
        generation: of the naming, 0 to 3. Records of generation 1 are named as those of 2.
        content: a network's module, its tasks, or log lines (records or programs).
        network: the network's label, of all log files only in generation 0.
        kind: the target's kind, ``llvm`` or ``cuda``.
        workload_key: JSON list text; of generation 3 rebuilt, see :func:`parse_name`.
        hardware: the device, generation 0 only.
    """

    generation: int
    content: Content
    network: str | None = None
    kind: str | None = None
    workload_key: str | None = None
    hardware: str | None = None


def clean_name(key: object) -> str:
    """Return a key as generation 3 prints it: Python's text without spaces and quotes."""
    return re.sub("[ \"']", "", str(key))


def tasks_file(network: str, kind: str, suffix: str) -> str:
    """Return the current name of the tasks of a network, given by its label, for targets of a kind."""
    shapes: list[tuple[int, ...]] = []
    while (shape := _SHAPE.search(network)) and shape.start() > 0:
        shapes.insert(0, tuple(map(int, re.findall("[0-9]+", shape[1]))))
        network = network[: shape.start()]
    return _file_name(clean_name(((network, shapes), kind)), suffix)


def log_file(workload_key: str, kind: str) -> str:
    """Return the current name of the log of a workload for targets of a kind."""
    return _file_name(clean_name((workload_key, kind)), ".json")


def parse_name(name: str) -> FileName | None:
    """Return what a file's name tells, None for a name that no generation writes.

    A workload key of generation 3 gets its quotes and spaces back as TVM writes them: the first part is text, others
    are text unless they are a JSON number, true, false or null.
    """
    name = _uncompressed(name)
    try:
        return _parse_late(name) if name.startswith("(") else _parse_early(name)
    except (ValueError, RecursionError):
        return None


def is_log_name(name: str) -> bool:
    """Say whether a file may hold log lines, by its ending."""
    return _uncompressed(name).endswith(".json") and not name.startswith(".")


def _uncompressed(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".zst")


def _file_name(name: str, suffix: str) -> str:
    safe = re.sub("[/\0]", "_", name)
    if safe == name and len(f"{name}{suffix}".encode()) <= MAX_NAME_BYTES:
        return name + suffix
    ending = f"-{sha256(name.encode()).hexdigest()[:HASH_LENGTH]}{suffix}"
    room = MAX_NAME_BYTES - len(ending.encode())
    return safe.encode()[:room].decode(errors="ignore") + ending


def _parse_early(name: str) -> FileName | None:
    """Read a name of generation 0, whose README calls a file of tasks `.model` once."""
    if parts := _EARLY_LOG.fullmatch(name):
        return FileName(0, "log", parts[1], parts[2], hardware=parts[3])
    if parts := _EARLY_FILE.fullmatch(name):
        return FileName(0, "tasks" if parts[2] else "network", parts[1], parts[2])
    return None


def _parse_late(name: str) -> FileName | None:
    suffix = next((suffix for suffix in _CONTENTS if name.endswith(suffix)), None)
    if suffix is None:
        return None
    content, stem = _CONTENTS[suffix], name.removesuffix(suffix)
    generation = 2 if "'" in stem or '"' in stem else CURRENT_GENERATION
    match content, json.loads(_TOKEN.sub(_as_json, stem)):
        case "log", [key, str(kind)]:
            text = key if isinstance(key, str) else json.dumps(_argument(key, first=True))
            return FileName(generation, content, None, kind, workload_key=text)
        case "network" | "tasks", [str(network), str(target), list(shapes)]:
            return FileName(1, content, _label(network, shapes), target.partition(" ")[0])
        case "tasks", [[str(network), list(shapes)], str(kind)]:
            return FileName(generation, content, _label(network, shapes), kind)
        case "network", [str(network), list(shapes)]:
            return FileName(generation, content, _label(network, shapes))
    return None


def _as_json(token: re.Match[str]) -> str:
    """Return a word of a printed key as JSON text, a parenthesis as a bracket."""
    if token.lastindex in (1, 2, 3):
        return json.dumps(token[token.lastindex].rstrip() if token[3] else token[token.lastindex])
    return "]" if token[4] else "["


def _label(network: str, shapes: list[Any]) -> str:
    sizes = msgspec.convert(shapes, list[tuple[int, ...]], strict=False)
    return network + "".join(f"-{'x'.join(map(str, shape)) or '()'}" for shape in sizes)


def _argument(word: Any, first: bool) -> Any:
    """Return a part of a workload key with the type that it looks like."""
    if isinstance(word, list):
        if first and not word:
            raise ValueError("expected a workload key")
        return [_argument(part, first and place == 0) for place, part in enumerate(word)]
    typed = _NUMBER.fullmatch(word) or word in ("true", "false", "null")
    return json.loads(word) if typed and not first else word
