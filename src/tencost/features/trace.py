"""`trace`: one row a schedule primitive, straight from the trace, no lowering (the idea of TLP, ASPLOS'23).

A trace is ``[instructions, decisions]``: an instruction ``[kind, inputs, attributes, outputs]`` names random variables
(``b0`` a block, ``l2`` a loop, ``v5`` an integer), a decision ``[instruction index, value]`` says what was sampled.
Look-ups (GetSBlock, GetLoops, ...) get no row; they are followed, so that a row knows the block it works on, and
integer variables are replaced by the values sampled for them. Everything from EnterPostproc on is left out: it follows
mechanically from what comes before.

A row: position / max_steps; one-hot of the primitive; its numbers (decision, integer inputs, numeric attributes, in
this order) as sign(x) * log2(1 + |x|); one-hot sums of the hash buckets of its names (block, annotation, scope). Hashes
are CRC-32, the same on every machine.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tencost.features.columns import LOOKUPS, PRIMITIVES, trace_columns
from tencost.features.ragged import FloatArray

_KIND = {name: index for index, name in enumerate(PRIMITIVES)}
_OTHER = len(PRIMITIVES)


class TraceEncoder:
    """Encodes traces with fixed limits; see the module's text."""

    def __init__(self, max_steps: int, vocabulary_buckets: int, max_numbers: int) -> None:
        self.max_steps = max_steps
        self.vocabulary_buckets = vocabulary_buckets
        self.max_numbers = max_numbers
        self.columns = trace_columns(vocabulary_buckets, max_numbers)
        self._numbers_at = 1 + _OTHER + 1
        self._names_at = self._numbers_at + max_numbers

    def encode(self, trace: Sequence[Any]) -> FloatArray | None:
        """Encode one trace given as plain JSON values ``[instructions, decisions]``.

        Returns:
            float32 [steps, columns]; None for a trace without a single primitive, which is no program of a search.
        """
        instructions, decided = trace[0], {int(index): value for index, value in trace[1]}
        values: dict[str, Any] = {}
        rows: list[FloatArray] = []
        for index, (kind, inputs, attributes, outputs) in enumerate(instructions):
            if kind == "EnterPostproc" or len(rows) == self.max_steps:
                break
            decision = decided.get(index)
            self._follow(kind, inputs, attributes, outputs, decision, values)
            if kind not in LOOKUPS:
                rows.append(self._row(len(rows), kind, inputs, attributes, decision, values))
        return np.stack(rows) if rows else None

    def _follow(
        self,
        kind: str,
        inputs: Any,
        attributes: Any,
        outputs: Any,
        decision: Any,
        values: dict[str, Any],
    ) -> None:
        """Remember what the outputs stand for: sampled integers, or the name of the block they belong to."""
        if kind == "SampleCategorical" and decision is not None:
            values[outputs[0]] = attributes[0][int(decision)]
        elif isinstance(decision, list):
            values.update(zip(outputs, decision, strict=False))
        elif kind in ("GetSBlock", "GetBlock"):
            values[outputs[0]] = str(attributes[0])
        else:
            sources = [values.get(name) for name in inputs if isinstance(name, str)]
            block = next((source for source in sources if isinstance(source, str)), None)
            if block is not None:
                values.update((name, block) for name in outputs if not name.startswith("v"))

    def _row(
        self,
        position: int,
        kind: str,
        inputs: Any,
        attributes: Any,
        decision: Any,
        values: dict[str, Any],
    ) -> FloatArray:
        row = np.zeros(len(self.columns), np.float32)
        row[0] = position / self.max_steps
        row[1 + _KIND.get(kind, _OTHER)] = 1.0
        resolved = [values.get(item, item) if isinstance(item, str) else item for item in inputs]
        parameters = [] if kind == "SampleCategorical" else [decision]
        if kind == "SampleCategorical" and decision is not None:
            parameters = [attributes[0][int(decision)]]
        tail = [] if kind == "SampleCategorical" else attributes
        numbers = [
            value for value in _flat([parameters, resolved, tail]) if not isinstance(value, str)
        ]
        for slot, number in enumerate(numbers[: self.max_numbers]):
            row[self._numbers_at + slot] = math.copysign(math.log2(1.0 + abs(number)), number)
        for name in {value for value in _flat([resolved, attributes]) if isinstance(value, str)}:
            row[self._names_at + zlib.crc32(name.encode()) % self.vocabulary_buckets] += 1.0
        return row


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
    from tvm.s_tir.schedule import _ffi_api

    return plain_trace(_ffi_api.TraceAsJSON(trace, remove_postproc))


def plain_trace(parts: Any) -> list[Any]:
    """Return what ``TraceAsJSON`` gave as plain values, see :func:`trace_values`."""
    from tvm_ffi import structural_hash

    if len(_instructions) > MAX_REMEMBERED:
        _instructions.clear()
    found, decisions = parts
    instructions = []
    for instruction in found:
        key = structural_hash(instruction)
        plain = _instructions.get(key)
        if plain is None:
            plain = _instructions[key] = _plain(instruction)
        instructions.append(plain)
    return [instructions, _plain(decisions)]


MAX_REMEMBERED = 50_000
"""Instructions that are remembered; forgotten all at once."""
_instructions: dict[int, Any] = {}


def _plain(value: Any) -> Any:
    # The types are tested by how often they occur.
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "value"):
        return value.value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value]


def _flat(value: Any) -> list[Any]:
    """Flatten nested lists; booleans become numbers, None disappears, loop and block variables stay out."""
    if isinstance(value, Mapping):  # an annotation that is itself a table of options
        value = [item for pair in sorted(value.items()) for item in pair]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _flat(item)]
    if value is None or (isinstance(value, str) and _is_variable(value)):
        return []
    return [float(value) if isinstance(value, bool | int | float) else value]


def _is_variable(text: str) -> bool:
    return len(text) > 1 and text[0] in "blv" and text[1:].isdigit()
