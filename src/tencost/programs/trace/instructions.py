"""Traces of live schedules as plain values, and what candidates are told apart by. Needs TVM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MAX_REMEMBERED = 50_000
"""Instructions that are remembered; forgotten all at once."""
_instructions: dict[int, Any] = {}


def trace_values(trace: Any, *, remove_postproc: bool = False) -> list[Any]:
    """Return a live tvm.s_tir.schedule.Trace as the plain values that a database's JSON text holds.

    TVM's C++ gives the text's structure with IntImm and FloatImm objects where the text has numbers. Each value that
    Python reads from it costs a call, and the programs of a search differ in few instructions: so instructions are
    remembered by their structural hash, and only unknown ones and the decisions are read. 0.1 ms a trace of 34
    instructions instead of 0.6 ms (``Trace.as_json``: 2.5 ms, and it leaves those objects in place).

    Args:
        trace: the trace of a schedule.
        remove_postproc: leave out EnterPostproc and what follows, which TraceEncoder does not read.

    Returns:
        ``[instructions, decisions]``; instructions are shared between calls, do not change them.
    """
    return plain_trace(trace_parts(trace, remove_postproc=remove_postproc))


def trace_parts(trace: Any, *, remove_postproc: bool = False) -> Any:
    """Return what TVM's C++ gives for a trace: what :func:`plain_trace` and :func:`parts_key` read."""
    from tvm.s_tir.schedule import _ffi_api

    return _ffi_api.TraceAsJSON(trace, remove_postproc)


def plain_trace(parts: Any) -> list[Any]:
    """Return :func:`trace_parts` as plain values, see :func:`trace_values`."""
    from tvm_ffi import structural_hash

    if len(_instructions) > MAX_REMEMBERED:
        _instructions.clear()
    instruction_objects, decisions = parts
    instructions = []
    for instruction in instruction_objects:
        key = structural_hash(instruction)
        plain = _instructions.get(key)
        if plain is None:
            plain = _instructions[key] = _plain(instruction)
        instructions.append(plain)
    return [instructions, _plain(decisions)]


def trace_key(candidate: Any) -> int:
    """Return a hash of the candidate's trace, instructions and decisions.

    It stands for the program and for everything that features read: the module is what the trace makes of the workload,
    but two traces can make one module and differ in their tile columns.
    """
    if candidate.sch.trace is None:  # made by hand, without a record of how
        return parts_key(candidate.sch.mod)
    return parts_key(trace_parts(candidate.sch.trace))


def parts_key(parts: Any) -> int:
    """Return the :func:`trace_key` of a candidate whose :func:`trace_parts` are known."""
    from tvm_ffi import structural_hash

    return int(structural_hash(parts))


def _plain(value: Any) -> Any:
    # The types are tested by how often they occur.
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "value"):
        return value.value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence):
        return [_plain(inner) for inner in value]
    return _index_map(value)


def _index_map(value: Any) -> str:
    """Return the map of a changed layout as the text that a database holds; raises TypeError for anything else."""
    from tvm.ir import save_json
    from tvm.tirx import IndexMap

    if not isinstance(value, IndexMap):
        raise TypeError(f"expected a value of a trace, found {type(value).__name__}")
    return json.dumps(json.loads(save_json(value)), indent=2)  # with TVM's indentation
