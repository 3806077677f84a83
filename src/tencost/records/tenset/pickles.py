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
    ComputeDAG      state {tensors: JSON graph}: not read, no TVM of today can load it

A JSON graph is ``{"root": 1, "nodes": [{"type_key": ""}, {"type_key": "Target", "attrs": {"kind": "2", ...}}, ...]}``:
an attribute that is an object holds its number as text; other nodes hold `repr_str` (text), `data` (a list, or a
map's values) and `keys` (a map's). Graphs beyond :data:`MAX_GRAPH` or :data:`MAX_NODES` are refused.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from tencost.errors import RecordError
from tencost.records.reading.targets import parse_target
from tencost.records.tenset.unpickling import (
    ARRAYS,
    HARDWARE,
    MAX_BYTES,
    SEARCH_TASK,
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
HARDWARE_FIELDS = (
    "num_cores",
    "vector_unit_bytes",
    "cache_line_bytes",
    "max_shared_memory_per_block",
    "max_local_memory_per_block",
    "max_threads_per_block",
    "max_vthread_extent",
    "warp_size",
)
"""In the order of a log line's eight numbers."""
_TARGET_NODES = ("kind", "id", "tag", "keys", "attrs", "host")
"""Attributes of a target that are nodes; `features` follows from the rest."""

_Contents = TypeVar("_Contents")
_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


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
        ValueError: a target without a kind, or text that is not Unicode.
    """

    workload_key: str
    target: str
    target_host: str = ""
    hardware_params: tuple[_Long, ...] | None = None
    layout_rewrite: _Long | None = None
    input_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parse_target(self.target)
        "".join((self.workload_key, *self.input_names)).encode()

    @property
    def kind(self) -> str:
        """The target's kind, ``llvm`` or ``cuda``."""
        return str(parse_target(self.target)["kind"])


@dataclass(frozen=True)
class WeightedTask:
    """A task and its number of occurrences in a network."""

    task: SearchTask
    weight: Annotated[int, msgspec.Meta(ge=0, le=MAX_WEIGHT)]


class RelayNetwork(NamedTuple):
    """A network's Relay module as JSON text, the length of its parameters, its inputs (name, shape, dtype)."""

    mod_json: str
    param_bytes: _Long
    inputs: tuple[tuple[str, tuple[_Long, ...], str], ...]


def read_tasks(path: Path) -> list[WeightedTask]:
    """Read a ``*.task.pkl``.

    Raises:
        RecordError: it cannot be opened, is no pickle, names anything but TVM's objects, or holds something else.
    """
    return _read(path, list[WeightedTask], _weighted_tasks)


def read_all_tasks(path: Path) -> list[SearchTask]:
    """Read an ``all_tasks.pkl`` in its order; see :func:`read_tasks`."""
    return _read(path, list[SearchTask], _tasks)


def read_relay(path: Path) -> RelayNetwork:
    """Read a ``*.relay.pkl``; see :func:`read_tasks`."""
    return _read(path, RelayNetwork, lambda pickled: pickled)


def _read(path: Path, kind: type[_Contents], plain: Callable[[Any], Any]) -> _Contents:
    """Return a pickle's contents as of a kind; `plain` gives dicts, lists and text for what TVM's objects are in it."""
    try:
        if not path.is_file():
            raise RecordError(f"expected a TenSet pickle at {path}, found no file")
        if path.stat().st_size > MAX_BYTES:
            raise RefusedError(f"expected at most {MAX_BYTES} bytes, found {path.stat().st_size}")
        return msgspec.convert(plain(unpickle(path.read_bytes())), kind)
    except OSError as error:
        raise RecordError(f"expected a TenSet pickle at {path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"expected a TenSet pickle at {path}: {error}. Nothing in it was executed. Records are read without "
            "it: move it away and import again"
        ) from error


def _weighted_tasks(pickled: Any) -> list[dict[str, Any]]:
    tasks, weights = msgspec.convert(pickled, tuple[list[Any], list[Any]])
    if len(tasks) != len(weights):
        raise RefusedError(f"expected a weight a task, found {len(tasks)} and {len(weights)}")
    pairs = zip(_tasks(tasks), weights, strict=True)
    return [{"task": task, "weight": weight} for task, weight in pairs]


def _tasks(pickled: Any) -> list[dict[str, Any]]:
    """Return the fields of each SearchTask of a list."""
    return [_task_fields(task) for task in msgspec.convert(pickled, list[Any])]


def _task_fields(task: Any) -> dict[str, Any]:
    state = _state_of(task, {SEARCH_TASK})
    target, host = _target(state.get("target"))
    if state.get("target_host") is not None:
        host, _ = _target(state["target_host"])
    names = state.get("task_input_names")
    return {
        "workload_key": state.get("workload_key"),
        "target": target,
        "target_host": host,
        "hardware_params": _hardware(state.get("hardware_params")),
        "layout_rewrite": state.get("layout_rewrite_option"),
        "input_names": _graph_of(names, ARRAYS) if isinstance(names, StandIn) else names or (),
    }


def _target(target: Any) -> tuple[str, str]:
    """Return a target's and its host's text, "" without a host."""
    if isinstance(target, str):
        return target, ""
    fields = _graph_of(target, TARGETS)
    text = _target_text(fields)
    return text, _target_text(fields["host"]) if fields.get("host") else ""


def _target_text(target: Any) -> str:
    """Return a target as TVM prints it: kind, keys, attributes by name."""
    fields = target if isinstance(target, dict) else {}
    kind = fields.get("kind", fields.get("id"))
    keys, attributes = fields.get("keys") or [], fields.get("attrs") or {}
    if not (isinstance(kind, str) and isinstance(keys, list) and isinstance(attributes, dict)):
        raise RefusedError("expected a target with a kind, keys and attributes")
    words = [kind, *([f"-keys={','.join(map(str, keys))}"] if keys else ())]
    for name, setting in sorted(attributes.items()):
        text = ",".join(map(str, setting)) if isinstance(setting, list) else str(setting)
        words.append(f"-{name}={shlex.quote(text)}")
    return " ".join(words)


def _hardware(parameters: Any) -> list[Any] | None:
    if parameters is None:
        return None
    fields = msgspec.convert(_graph_of(parameters, {HARDWARE}), dict[str, Any])
    older = {"max_local_memory_per_block": fields.get("max_registers_per_block")}
    numbers = [fields.get(name, older.get(name)) for name in HARDWARE_FIELDS]
    return None if None in numbers else numbers


def _state_of(stand_in: Any, classes: AbstractSet[str]) -> dict[str, Any]:
    """Return the state of an object of one of the classes."""
    if (
        isinstance(stand_in, StandIn)
        and stand_in.dotted in classes
        and isinstance(stand_in.state, dict)
    ):
        return stand_in.state
    raise RefusedError(
        f"expected {' or '.join(sorted(classes))} with its state, found {name_of(stand_in)}"
    )


def _graph_of(stand_in: Any, classes: AbstractSet[str]) -> Any:
    """Return the JSON graph that is the state of an object of one of the classes."""
    text = _state_of(stand_in, classes).get("handle")
    if not isinstance(text, str) or len(text) > MAX_GRAPH:
        raise RefusedError(
            f"expected a JSON graph of up to {MAX_GRAPH} characters in {name_of(stand_in)}"
        )
    return _parse_graph(text)


@lru_cache(maxsize=4096)
def _parse_graph(text: str) -> Any:
    """Return a small JSON graph of TVM's as dicts, lists, text and integers."""
    try:
        graph = json.loads(text)
        return _Graph(graph["nodes"]).node(graph["root"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise RefusedError(
            f"expected a JSON graph, found {text[:40]!r} ({type(error).__name__}: {error})"
        ) from error


class _Graph:
    """The nodes of a JSON graph, and how many may still be reached."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self.nodes = nodes
        self.remaining = MAX_NODES

    def node(self, index: int) -> Any:
        self.remaining -= 1
        if self.remaining < 0:
            raise RefusedError(f"expected a graph of at most {MAX_NODES} nodes")
        node = self.nodes[index]
        attributes = node.get("attrs", {})
        match node["type_key"].rpartition(".")[2]:
            case "":
                return None
            case "String" | "TargetKind" | "StringImm":
                return node.get("repr_str", attributes.get("value", ""))
            case "Array":
                return self.members(node)
            case "Map":
                members = self.members(node)
                if "keys" not in node:
                    return dict(zip(map(str, members[::2]), members[1::2], strict=True))
                return dict(zip(map(str, node["keys"]), members, strict=True))
            case "Target":
                numbers = {name: attributes.get(name, "null") for name in _TARGET_NODES}
                return {name: self.node(int(at)) for name, at in numbers.items() if at != "null"}
            case "HardwareParams":
                return {name: int(number) for name, number in attributes.items()}
            case _:
                return int(attributes["value"] if "value" in attributes else attributes["v_int64"])

    def members(self, node: dict[str, Any]) -> list[Any]:
        return [self.node(index) for index in node.get("data", [])]
