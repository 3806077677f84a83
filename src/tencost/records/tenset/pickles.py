"""TenSet's pickles, read without executing them: tasks with their weights, task lists, network modules.

::

    *.task.pkl       ([SearchTask, ...], [weight, ...])     weight: occurrences in the network
    all_tasks.pkl    [SearchTask, ...]                      its order gives TenSet's task numbers
    *.relay.pkl      (module as JSON text, length of the parameters in bytes, [(name, shape, dtype), ...])

:mod:`tencost.records.tenset.unpickling` gives stand-ins for TVM's objects. How TVM stored what is read here::

    SearchTask      state {workload_key, target, target_host, hardware_params, compute_dag, layout_rewrite_option,
                    task_input_names, desc}; the older, the fewer
    Target, HardwareParams, Array
                    state {handle: the object as a JSON graph}
    String          text as the only argument; its state, an object, says the same
    ComputeDAG      state {tensors: JSON graph}: not read, no TVM of today can load it

A JSON graph is ``{"root": 1, "nodes": [{"type_key": ""}, {"type_key": "Target", "attrs": {"kind": "2", ...}}, ...]}``:
an attribute that is an object holds its number as text; other nodes hold `repr_str` (text), `data` (a list, or a
map's values) and `keys` (a map's). Graphs beyond :data:`MAX_GRAPH` or :data:`MAX_NODES` are refused.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from tencost.errors import RecordError
from tencost.records.reading.targets import parse_target
from tencost.records.tenset.unpickling import (
    ARRAYS,
    HARDWARE,
    LAYOUT,
    MAX_BYTES,
    SEARCH_TASK,
    STRINGS,
    TARGETS,
    RefusedError,
    StandIn,
    name_of,
    unpickle,
)

MAX_GRAPH = 1 << 16
"""Characters of a target, a description of hardware or a list of names as a JSON graph."""
MAX_NODES = 2_000
"""Of such a graph, counted as often as they are reached: a target has some 20."""

MAX_WEIGHT = 1 << 31
"""Occurrences of a task in a network."""

_Value = TypeVar("_Value")

HARDWARE_FIELDS = (
    ("num_cores",),
    ("vector_unit_bytes",),
    ("cache_line_bytes",),
    ("max_shared_memory_per_block",),
    ("max_local_memory_per_block", "max_registers_per_block"),
    ("max_threads_per_block",),
    ("max_vthread_extent",),
    ("warp_size",),
)
"""In the order of a log line's eight numbers, with older names."""


@dataclass(frozen=True)
class SearchTask:
    """A tuning task of auto_scheduler as its pickle tells it.

    Attributes:
        workload_key: JSON list text, ``["<md5 of the graph>", 1, 56, ...]``.
        target: target text, ``llvm -keys=cpu -model=platinum-8272``.
        target_host: target text, "" without a host.
        hardware_params: the eight numbers of a log line, in its order; None where the pickle has fewer or none.
        layout_rewrite: 0 none, 1 insert a stage, 2 for pre-transformed inputs; None where the pickle does not say.
        input_names: inputs with special values.

    Raises:
        ValueError: a target without a kind.
    """

    workload_key: str
    target: str
    target_host: str = ""
    hardware_params: tuple[int, ...] | None = None
    layout_rewrite: int | None = None
    input_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parse_target(self.target)

    @property
    def kind(self) -> str:
        """The target's kind, ``llvm`` or ``cuda``."""
        return str(parse_target(self.target)["kind"])


@dataclass(frozen=True)
class WeightedTask:
    """A task and its number of occurrences in a network, up to MAX_WEIGHT.

    Raises:
        ValueError: the weight is negative or larger.
    """

    task: SearchTask
    weight: int

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= MAX_WEIGHT:
            raise ValueError(f"expected a weight from 0 to {MAX_WEIGHT}, found {self.weight}")


@dataclass(frozen=True)
class RelayNetwork:
    """A network's Relay module as JSON text, the length of its parameters, its inputs (name, shape, dtype)."""

    mod_json: str
    param_bytes: int
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]


def read_tasks(path: Path) -> list[WeightedTask]:
    """Read a ``*.task.pkl``.

    Raises:
        RecordError: it cannot be opened, is no pickle, names anything but TVM's objects, or holds something else.
    """
    return _read(path, _weighted_tasks)


def read_all_tasks(path: Path) -> list[SearchTask]:
    """Read an ``all_tasks.pkl`` in its order; see :func:`read_tasks`."""
    return _read(path, lambda value: [_task(item) for item in _sequence(value, "tasks")])


def read_relay(path: Path) -> RelayNetwork:
    """Read a ``*.relay.pkl``; see :func:`read_tasks`."""
    return _read(path, _relay)


def _read(path: Path, convert: Callable[[Any], _Value]) -> _Value:
    try:
        if not path.is_file():
            raise RecordError(f"expected a TenSet pickle at {path}, found no file")
        if path.stat().st_size > MAX_BYTES:
            raise RefusedError(f"expected at most {MAX_BYTES} bytes, found {path.stat().st_size}")
        return convert(unpickle(path.read_bytes()))
    except OSError as error:
        raise RecordError(f"expected a TenSet pickle at {path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"expected a TenSet pickle at {path}: {error}. Nothing in it was executed. Records are read without "
            "it: move it away and import again"
        ) from error


def _weighted_tasks(value: Any) -> list[WeightedTask]:
    if not (isinstance(value, tuple) and len(value) == 2):
        raise RefusedError(f"expected (tasks, weights), found {name_of(value)}")
    tasks, weights = _sequence(value[0], "tasks"), _sequence(value[1], "weights")
    if len(tasks) != len(weights):
        raise RefusedError(f"expected a weight a task, found {len(tasks)} and {len(weights)}")
    return [
        WeightedTask(_task(task), _integer(weight, "a weight"))
        for task, weight in zip(tasks, weights, strict=True)
    ]


def _relay(value: Any) -> RelayNetwork:
    if not (isinstance(value, tuple) and len(value) == 3):
        raise RefusedError(f"expected (module, length, inputs), found {name_of(value)}")
    module, length, inputs = value
    return RelayNetwork(
        _text(module, "a module"),
        _integer(length, "a length"),
        tuple(_input(item) for item in _sequence(inputs, "inputs")),
    )


def _input(value: Any) -> tuple[str, tuple[int, ...], str]:
    parts = _sequence(value, "an input")
    if len(parts) != 3:
        raise RefusedError(f"expected (name, shape, dtype) as an input, found {len(parts)} parts")
    shape = tuple(_integer(item, "a size") for item in _sequence(parts[1], "a shape"))
    return _text(parts[0], "a name"), shape, _text(parts[2], "a dtype")


def _task(value: Any) -> SearchTask:
    if not (isinstance(value, StandIn) and value.name == SEARCH_TASK):
        raise RefusedError(f"expected a SearchTask, found {name_of(value)}")
    state = value.state
    if not isinstance(state, dict):
        raise RefusedError(f"expected a SearchTask's state as a dict, found {name_of(state)}")
    target, own_host = _target(state.get("target"))
    host = state.get("target_host")
    layout = state.get("layout_rewrite_option")
    names = state.get("task_input_names")
    return SearchTask(
        workload_key=_text(state.get("workload_key"), "a workload key"),
        target=target,
        target_host=own_host if host is None else _target(host)[0],
        hardware_params=_hardware(state.get("hardware_params")),
        layout_rewrite=None if layout is None else _integer(layout, "a layout option"),
        input_names=() if names is None else _names(names),
    )


def _target(value: Any) -> tuple[str, str]:
    """Return a target's and its host's text, "" without a host."""
    if isinstance(value, str):
        return value, ""
    if not (isinstance(value, StandIn) and value.name in TARGETS):
        raise RefusedError(f"expected a target, found {name_of(value)}")
    found = _plain(_handle(value))
    text = _target_text(found)
    return text, _target_text(found["host"]) if found.get("host") else ""


def _target_text(target: Any) -> str:
    """Return a target as TVM prints it: kind, keys, attributes by name."""
    fields = target if isinstance(target, dict) else {}
    kind = fields.get("kind", fields.get("id"))
    keys, attributes = fields.get("keys") or [], fields.get("attrs") or {}
    if not (isinstance(kind, str) and isinstance(keys, list) and isinstance(attributes, dict)):
        raise RefusedError("expected a target with a kind, keys and attributes")
    words = [kind]
    if keys:
        words.append(f"-keys={','.join(map(str, keys))}")
    for name, value in sorted(attributes.items()):
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(f"-{name}={shlex.quote(text)}")
    return " ".join(words)


def _hardware(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not (isinstance(value, StandIn) and value.name == HARDWARE):
        raise RefusedError(f"expected HardwareParams, found {name_of(value)}")
    found = _plain(_handle(value))
    if not isinstance(found, dict):
        raise RefusedError(f"expected HardwareParams as a graph, found {name_of(found)}")
    numbers = [
        next((found[name] for name in names if name in found), None) for names in HARDWARE_FIELDS
    ]
    if any(number is None for number in numbers):
        return None
    return tuple(_integer(number, "a hardware parameter") for number in numbers)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, StandIn) and value.name in ARRAYS:
        value = _plain(_handle(value))
    return tuple(_text(item, "a name of an input") for item in _sequence(value, "names of inputs"))


def _sequence(value: Any, what: str) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise RefusedError(f"expected {what} as a list, found {name_of(value)}")
    return value


def _text(value: Any, what: str) -> str:
    if isinstance(value, StandIn) and value.name in STRINGS and value.args:
        value = value.args[0]
    if not isinstance(value, str):
        raise RefusedError(f"expected {what} as text, found {name_of(value)}")
    value.encode()  # a lone surrogate is no text
    return value


def _integer(value: Any, what: str) -> int:
    if isinstance(value, StandIn) and value.name == LAYOUT and value.args:
        value = value.args[0]
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise RefusedError(f"expected {what} as an integer of 64 bits, found {name_of(value)}")
    return value


def _handle(value: StandIn) -> str:
    state = value.state
    if not (isinstance(state, dict) and "handle" in state):
        raise RefusedError(f"expected the state {{handle: JSON}} of {name_of(value)}")
    text = _text(state["handle"], "a JSON graph")
    if len(text) > MAX_GRAPH:
        raise RefusedError(
            f"expected {name_of(value)} in {MAX_GRAPH} characters, found {len(text)}"
        )
    return text


@lru_cache(maxsize=4096)
def _plain(text: str) -> Any:
    """Return a small JSON graph of TVM's as dicts, lists, text and integers."""
    try:
        graph = json.loads(text)
        return _Graph(graph["nodes"]).value(graph["root"])
    except RefusedError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise RefusedError(
            f"expected a JSON graph, found {text[:40]!r} ({type(error).__name__}: {error})"
        ) from error


_OBJECTS = frozenset({"kind", "id", "tag", "keys", "attrs", "host"})
"""Attributes of a target that are nodes; `features` follows from the rest."""


class _Graph:
    """The nodes of a JSON graph, and how many may still be reached."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self.nodes = nodes
        self.left = MAX_NODES

    def value(self, index: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RefusedError(f"expected a graph of at most {MAX_NODES} nodes")
        node = self.nodes[index]
        kind = node["type_key"].rpartition(".")[2]
        attributes = node.get("attrs", {})
        if kind == "":
            return None
        if kind in ("String", "TargetKind", "StringImm"):
            return node.get("repr_str", attributes.get("value", ""))
        if kind == "Array":
            return [self.value(item) for item in node.get("data", [])]
        if kind == "Map":
            return self.map(node)
        if kind == "Target":
            known = {name: item for name, item in attributes.items() if name in _OBJECTS}
            return {name: self.value(int(item)) for name, item in known.items() if item != "null"}
        if kind == "HardwareParams":
            return {name: int(item) for name, item in attributes.items()}
        return int(attributes["value"] if "value" in attributes else attributes["v_int64"])

    def map(self, node: dict[str, Any]) -> dict[str, Any]:
        values = [self.value(item) for item in node.get("data", [])]
        if "keys" in node:
            return {str(key): item for key, item in zip(node["keys"], values, strict=True)}
        return {str(key): value for key, value in zip(values[::2], values[1::2], strict=True)}
