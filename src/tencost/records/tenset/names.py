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
(:func:`clean_name`), which cannot be undone: `"128"` and `128` look the same. To be read, both become JSON: words
become texts, parentheses brackets. A log of one task is not read by its name, as its lines hold the task.

A network is called by its label: `resnet_50-1x3x224x224`, or `resnet_50-B16` in generation 0.

TenSet escapes nothing and writes names of any length. Here `/` becomes `_`, and a name with `/` or of more than 255
bytes is cut and ends with a part of its sha256.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import msgspec

MAX_NAME_BYTES = 255
"""Of a file's name, on every common file system."""
HASH_LENGTH = 12

_CONTENTS: dict[str, Literal["network", "tasks"]] = {
    ".relay.pkl": "network",
    ".model.pkl": "network",
    ".task.pkl": "tasks",
    ".task.json": "tasks",
}
_TOKEN = re.compile(r"""'([^']*)'|"([^"]*)"|([^][(),'"\s][^][(),'"]*)|(,?\s*\))|\(""")
_SHAPE = re.compile(r"-(\(\)|[0-9]+(?:x[0-9]+)*)$")
_EARLY_LOG = re.compile(r"(.+?-B[0-9]+)-[a-z][a-z0-9_]*(?:-(.+))?\.json")
_EARLY_FILE = re.compile(r"(.+?-B[0-9]+)(-[a-z][a-z0-9_]*)?\.(?:model|task)")


@dataclass(frozen=True)
class FileName:
    """The parts of a file's name.

    Attributes:
        content: a network's module, its tasks, or, in generation 0, the records of all its tasks.
        network: the network's label.
        hardware: the device of records, None where the name has none.
    """

    content: Literal["network", "tasks", "log"]
    network: str
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
    """Return what a file's name tells, None for a log of one task and for a name that no generation writes."""
    name = _uncompressed(name)
    if not name.startswith("("):
        if parts := _EARLY_LOG.fullmatch(name):
            return FileName("log", parts[1], parts[2])
        if parts := _EARLY_FILE.fullmatch(name):  # TenSet's README once calls tasks `.model`
            return FileName("tasks" if parts[2] else "network", parts[1])
    key, _, suffix = name.rpartition(")")
    try:
        return _parse_key(f"{key})", _CONTENTS[suffix]) if suffix in _CONTENTS else None
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


def _parse_key(key: str, content: Literal["network", "tasks"]) -> FileName | None:
    match content, json.loads(_TOKEN.sub(_as_json, key)):
        case (
            (_, [str(network), str(_), [*shapes]])
            | ("tasks", [[str(network), [*shapes]], str(_)])
            | ("network", [str(network), [*shapes]])
        ):
            sizes = msgspec.convert(shapes, list[tuple[int, ...]], strict=False)
            labels = (f"-{'x'.join(map(str, shape)) or '()'}" for shape in sizes)
            return FileName(content, network + "".join(labels))
    return None


def _as_json(token: re.Match[str]) -> str:
    """Return a word of a printed key as JSON text, a parenthesis as a bracket."""
    if token.lastindex in (1, 2, 3):
        return json.dumps(token[token.lastindex].rstrip() if token[3] else token[token.lastindex])
    return "]" if token[4] else "["
