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

from tencost.features.rows.kind import FeatureKind, Live, Options, Stored
from tencost.features.rows.ragged import FloatArray
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.texts import stored_programs
from tencost.programs.trace.instructions import trace_values

PRIMITIVES: tuple[str, ...] = (
    "SamplePerfectTile", "SamplePartitionedTile", "SampleCategorical", "SampleComputeLocation",
    "Split", "LoopPartition", "Merge", "Fuse", "Reorder", "ReorderBlockIterVar", "AddUnitLoop",
    "Parallel", "Vectorize", "Bind", "Unroll",
    "CacheRead", "CacheWrite", "ReindexCacheRead", "ReindexCacheWrite", "CacheInplace", "CacheIndex", "ReIndex",
    "ComputeAt", "ReverseComputeAt", "ComputeInline", "ReverseComputeInline", "FuseReductionEpilogue",
    "DecomposeReduction", "RFactor", "StorageAlign", "SetScope", "SetDType",
    "Blockize", "Tensorize", "Annotate", "Unannotate",
    "TransformLayout", "TransformBlockLayout", "SetAxisSeparator", "DecomposePadding", "PadEinsum",
    "RollingBuffer", "UnsafeHideBufferAccess", "AnnotateBufferAccess",
)  # fmt: skip
"""MetaSchedule's primitives that change a program or sample a decision; any other is `Other`."""

LOOKUPS = frozenset(
    {
        "GetSBlock",
        "GetBlock",
        "GetLoops",
        "GetChildBlocks",
        "GetProducers",
        "GetConsumers",
        "GetOutputBlocks",
    }
)
"""Primitives that only name blocks and loops: they are followed, not given a row."""


def trace_columns(vocabulary_buckets: int, max_numbers: int) -> tuple[str, ...]:
    """Return the columns: position, primitive, numbers, hashed names."""
    return (
        "position",
        *(f"is_{name}" for name in (*PRIMITIVES, "Other")),
        *(f"number_{index}" for index in range(max_numbers)),
        *(f"name_bucket_{index}" for index in range(vocabulary_buckets)),
    )


_PLACE = {name: index for index, name in enumerate(PRIMITIVES)}
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
        row[1 + _PLACE.get(kind, _OTHER)] = 1.0
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


def _encoder(options: Options) -> TraceEncoder:
    return TraceEncoder(options["max_steps"], options["vocabulary_buckets"], options["max_numbers"])


def _stored(spec: FeatureSpec) -> Stored:
    return stored_programs(spec, _encoder(spec.options).encode)


def _live(spec: FeatureSpec) -> Live:
    encoder = _encoder(spec.options)

    def row(candidate: Any) -> FloatArray | None:
        trace = candidate.sch.trace
        return None if trace is None else encoder.encode(trace_values(trace, remove_postproc=True))

    return lambda _, candidates: [row(candidate) for candidate in candidates]


KIND = FeatureKind(
    columns=lambda options: trace_columns(options["vocabulary_buckets"], options["max_numbers"]),
    one_row=False,
    program_format="metaschedule_trace",
    stored=_stored,
    live=_live,
    options=("max_steps", "vocabulary_buckets", "max_numbers"),
    for_tests={"max_steps": 8, "vocabulary_buckets": 4, "max_numbers": 4},
)
