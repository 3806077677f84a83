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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tencost.features.rows.kind import Live
from tencost.features.rows.ragged import FloatArray
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.texts import StepEncoder, step_kind
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
    ("GetSBlock", "GetBlock", "GetLoops", "GetChildBlocks", "GetProducers", "GetConsumers", "GetOutputBlocks")
)  # fmt: skip
"""Primitives that only name blocks and loops: they are followed, not given a row."""

_PLACE = {name: index for index, name in enumerate(PRIMITIVES)}


class TraceEncoder(StepEncoder):
    """Encodes traces with fixed limits; see the module's text."""

    kinds = (*PRIMITIVES, "Other")
    name_column = "name_bucket"

    def encode(self, program: Sequence[Any]) -> FloatArray | None:
        """Encode one trace given as plain JSON values ``[instructions, decisions]``.

        Returns:
            float32 [steps, columns]; None for a trace without a single primitive, which is no program of a search.
        """
        instructions, decided = program[0], {int(index): value for index, value in program[1]}
        values: dict[str, Any] = {}
        rows: list[FloatArray] = []
        for index, (kind, inputs, attributes, outputs) in enumerate(instructions):
            if kind == "EnterPostproc" or len(rows) == self.max_steps:
                break
            decision = decided.get(index)
            if kind == "SampleCategorical":
                options, attributes = attributes, []
                decision = None if decision is None else options[0][int(decision)]
                texts = options
            else:
                texts = attributes
            _follow(kind, inputs, attributes, outputs, decision, values)
            if kind in LOOKUPS:
                continue
            resolved = [
                values.get(name, name) if isinstance(name, str) else name for name in inputs
            ]
            leaves = _flat([decision, resolved, attributes])
            numbers = [leaf for leaf in leaves if not isinstance(leaf, str)]
            names = {leaf for leaf in _flat([resolved, texts]) if isinstance(leaf, str)}
            rows.append(self.row(len(rows), _PLACE.get(kind, len(PRIMITIVES)), numbers, names))
        return np.stack(rows) if rows else None


def _follow(
    kind: str, inputs: Any, attributes: Any, outputs: Any, decision: Any, values: dict[str, Any]
) -> None:
    """Remember what the outputs stand for: sampled integers, or the name of the block they belong to."""
    if kind == "SampleCategorical" and decision is not None:
        values[outputs[0]] = decision
    elif isinstance(decision, list):
        values.update(zip(outputs, decision, strict=False))
    elif kind in ("GetSBlock", "GetBlock"):
        values[outputs[0]] = str(attributes[0])
    else:
        sources = [values.get(name) for name in inputs if isinstance(name, str)]
        block = next((source for source in sources if isinstance(source, str)), None)
        if block is not None:
            values.update((name, block) for name in outputs if not name.startswith("v"))


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


def _live(spec: FeatureSpec) -> Live:
    encoder = TraceEncoder.of(spec.options)

    def row(candidate: Any) -> FloatArray | None:
        trace = candidate.sch.trace
        return None if trace is None else encoder.encode(trace_values(trace, remove_postproc=True))

    return lambda _, candidates: [row(candidate) for candidate in candidates]


KIND = step_kind(TraceEncoder, "metaschedule_trace", live=_live)
