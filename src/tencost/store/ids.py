"""Content ids of workloads, programs and records: pure Python, no TVM, the same on every platform.

TVM's structural hash is neither stable between platforms nor target-aware, so it identifies nothing
here. All ids are the first 32 hex digits of a sha256.

A module's JSON (``tvm.ir.save_json``) is a graph::

    {"root_index": N,
     "nodes": [{"type": "None"}, {"type": "int", "data": 128},
               {"type": "ir.Var", "data": {...}}, ...]}

The ``data`` of an object maps fields to indices of other nodes, except for booleans, floats,
strings and the integer fields of :data:`INLINE_INTEGERS`, which hold the value itself. Arrays and
maps list indices (maps: key, value, key, ...).

What counts for :func:`workload_id`: types, constants, structure, which occurrences are the same
variable, block names (traces refer to them), function names and attributes. What does not: names of
variables and buffers (the order of first appearance stands for them), spans, the numbering and
sharing of nodes, and the types of functions and global variables, which repeat the parameters.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from typing import Any

import orjson

from tencost.errors import RecordError
from tencost.store.generator import UNKNOWN

ID_LENGTH = 32
_OTHER_DIGITS = re.compile(rb"[0-9](?:[eE][0-9+-]|\.0(?=[,\]}]|\Z)|\.0000)")
"""What may be a float that orjson writes otherwise than this module: with an exponent, 0.00001, or 2.0."""
_WHOLE_FLOATS = re.compile(r"[0-9](?:[eE][0-9+-]|\.0(?=[,\]}]|\Z))")
"""What may be a float that is a whole number, in Python's own JSON."""
_MOST_CACHED = 100_000
"""Ids at which the cache is emptied, which bounds its memory."""
_cached_ids: dict[bytes, str] = {}
"""sha256 of a module's text -> its workload id: a dataset has a module once a hardware and archive."""

INLINE_INTEGERS = frozenset(
    {
        "ir.TupleGetItem.index",
        "relax.ShapeType.ndim",
        "relax.TensorType.ndim",
        "relax.VDevice.vdevice_id",
        "tirx.BufferType.data_alignment",
        "tirx.BufferType.offset_factor",
        "tirx.ComposeLayout.atom_len",
        "tirx.ComposeLayout.inner_mask",
        "tirx.ComposeLayout.outer_mask",
        "tirx.ComposeLayout.per_element",
        "tirx.ComposeLayout.swizzle_len",
        "tirx.ExecScope.kind",
        "tirx.For.kind",
        "tirx.IterVar.iter_type",
        "tirx.ScopeIdDef.scope",
    }
)
"""Integer fields of TVM's IR that hold their value; every other integer is the index of a node."""

_VARIABLE_NAMES = frozenset({"name", "name_hint", "vid"})
_IGNORED = frozenset({"ir.GlobalVar.ty", "tirx.PrimFunc.ty", "ir.IRModule.source_map"})
_LISTS = frozenset({"ffi.Array", "ffi.List"})
_MAPS = frozenset({"ffi.Map", "ffi.Dict"})


def canonical_json(value: Any) -> str:
    """Return `value` as JSON text: sorted keys, no spaces, 2.0 written as 2."""
    try:
        fast = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (
        TypeError
    ):  # integers of more than 64 bits, keys that are no text; null may stand for NaN
        fast = b""
    if fast.isascii() and fast and b"null" not in fast and not _OTHER_DIGITS.search(fast):
        return fast.decode()
    if fast:  # keys are text and numbers of 64 bits: it is as it is written, unless a float is a whole number
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        if not _WHOLE_FLOATS.search(text):
            return text
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def canonical_target(target: dict[str, Any]) -> str:
    """Return a target's canonical JSON; an empty tag counts as no tag."""
    return canonical_json(
        {key: value for key, value in target.items() if (key, value) != ("tag", "")}
    )


def workload_id(mod_json: str) -> str:
    """Return the id of the workload whose module TVM saved as `mod_json`.

    Raises:
        RecordError: not a node graph of tvm-ffi (TVM up to 0.21 wrote another one), or a damaged
        one.
    """
    graph: Any = None
    try:
        key = hashlib.sha256(mod_json.encode()).digest()
        if key not in _cached_ids:
            graph = json.loads(mod_json)
            identity = _graph_digest(graph["nodes"], graph["root_index"]).hex()[:ID_LENGTH]
            if len(_cached_ids) >= _MOST_CACHED:
                _cached_ids.clear()
            _cached_ids[key] = identity
        return _cached_ids[key]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        if isinstance(graph, dict) and "root" in graph and "nodes" in graph:
            raise RecordError(
                f"expected a module as tvm-ffi's JSON graph, found the graph of TVM {_tvm_of(graph)}, which TVM 0.22 "
                "and later cannot read: tune the task again with this TVM"
            ) from error
        raise RecordError(
            "expected a module as tvm-ffi's JSON graph (root_index, nodes with type and "
            "data), found "
            f"{mod_json[:60]!r}... ({type(error).__name__}: {error})"
        ) from error


def _tvm_of(graph: dict[str, Any]) -> str:
    attributes = graph.get("attrs")
    version = attributes.get("tvm_version") if isinstance(attributes, dict) else None
    return version[:20] if isinstance(version, str) else "0.21 or earlier"


def program_id(workload: str, target_kind: str, trace: Any) -> str:
    """Return the id of a workload with a trace `[instructions, decisions]` for a kind of target."""
    return _hash_list(workload, target_kind, trace)


def text_id(*parts: str) -> str:
    """Return the id of some texts in their order: for logs whose workloads are no modules.

    The readers of such logs call it with canonical texts, so that spaces and float digits do not matter.
    """
    return _hash_text("\n".join(parts))


def record_id(program: str, target: dict[str, Any], hardware: str, generator: str = UNKNOWN) -> str:
    """Return the id of a program compiled for `target` by a code generator and measured on `hardware`.

    A generator that is not known is no part of the id: such records have the id of before there were generators.
    """
    parts = [program, canonical_target(target), hardware]
    return _hash_list(*(parts if generator == UNKNOWN else [*parts, generator]))


def _hash_list(*items: Any) -> str:
    """Hash the canonical JSON of a list, each item by itself: in an id, 2e6 would be taken for a float."""
    return _hash_text(f"[{','.join(map(canonical_json, items))}]")


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _graph_digest(nodes: list[dict[str, Any]], root: int) -> bytes:
    """Hash the graph depth first, children in field order, without recursion (modules are deep).

    A variable is numbered when the walk first enters it, so a digest does not depend on names; a
    node's digest depends on its content only, so it does not matter whether equal constants are one
    node or two.
    """
    digests: dict[int, bytes] = {}
    numbers: dict[int, int] = {}
    entered: set[int] = set()
    stack = [root]
    while stack:
        index = stack[-1]
        node = _node(nodes, index)
        if index in digests:
            stack.pop()
        elif index in entered:
            digests[index] = _node_digest(node, digests, numbers.get(index))
            stack.pop()
        else:
            entered.add(index)
            if _is_variable(node["type"]):
                numbers[index] = len(numbers)
            children = [child for child in _children(node) if child not in digests]
            cycle = [child for child in children if child in entered]
            if cycle:
                raise ValueError(f"node {index} contains itself through node {cycle[0]}")
            stack.extend(reversed(children))
    return digests[root]


def _node(nodes: list[dict[str, Any]], index: Any) -> dict[str, Any]:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(nodes):
        raise IndexError(f"no node {index!r}, the graph has {len(nodes)}")
    return nodes[index]


def _is_variable(kind: str) -> bool:
    return kind.rsplit(".", 1)[-1] in ("Var", "SizeVar", "DataflowVar", "Buffer")


def _references(node: dict[str, Any]) -> dict[str, int]:
    """Return the fields of an object that refer to other nodes and count for the id."""
    values, ignored = _not_references(node["type"])
    return {
        name: value
        for name, value in node["data"].items()
        if type(value) is int and name not in values and name not in ignored
    }


@cache
def _not_references(kind: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the integer fields of a type that hold their value, and the fields that do not count for the id."""
    prefix = f"{kind}."
    values = {field.removeprefix(prefix) for field in INLINE_INTEGERS if field.startswith(prefix)}
    ignored = {field.removeprefix(prefix) for field in _IGNORED if field.startswith(prefix)}
    names = _VARIABLE_NAMES if _is_variable(kind) else frozenset()
    return frozenset(values), frozenset(ignored | names | {"span"})


def _children(node: dict[str, Any]) -> list[int]:
    data = node.get("data")
    if node["type"] in _LISTS or node["type"] in _MAPS:
        return list(data or [])
    if isinstance(data, dict):
        return list(_references(node).values())
    return []


def _node_digest(node: dict[str, Any], digests: dict[int, bytes], number: int | None) -> bytes:
    kind, data = node["type"], node.get("data")
    content: Any
    if kind in _LISTS or kind in _MAPS:
        content = [digests[child].hex() for child in data or []]
        if kind in _MAPS:
            content = sorted(zip(content[::2], content[1::2], strict=True))
        return hashlib.sha256(orjson.dumps([kind, content])).digest()  # a digest may look like 2e6
    if isinstance(data, dict):
        references = _references(node)
        content = {name: digests[child].hex() for name, child in references.items()}
        values, _ = _not_references(kind)
        literals = {
            name: value for name, value in data.items() if type(value) is not int or name in values
        }
        if number is not None:
            literals = {
                name: value for name, value in literals.items() if name not in _VARIABLE_NAMES
            }
        content = [content, _plain(literals), number]
    else:
        content = data
    return hashlib.sha256(_text([kind, content])).digest()


def _text(value: Any) -> bytes:
    """Return Python's own JSON, sorted, without spaces: written by orjson where it cannot differ."""
    try:
        fast = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        fast = b""
    plain = fast.isascii() and b"null" not in fast and b"\x7f" not in fast
    if fast and plain and not _OTHER_DIGITS.search(fast):
        return fast
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
