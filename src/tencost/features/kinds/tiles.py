"""`tiles`: one row of named columns a program, the tile structure that its trace decides; no lowering, no TVM.

What a compiler engineer reads off a schedule first: the factors of each tiled axis, the innermost vectorized axis and
how it fits the vector width, the register tile, the unroll limit against it, where blocks are computed. Buffer-store
features see the lowered loops but not these relations; on networks held out they are worth more than any change of the
objective. Amounts are sign(x) * log2(1 + |x|). A row depends on the program alone.

Levels are MetaSchedule's multi-level tiling for CPUs, SSRSRS: four spatial levels (s0 outermost) and two of reduction.

Register tiles (:mod:`tencost.programs.codegen.registers`) are read into the same levels, as their order SSRRS has no
third spatial one: s0 and s1 are their outer and middle factors, s2 is 1, s3 is what stays in registers; the columns' s3
holds the numbers of its vectors, its axis is the innermost, and all of the tile is unrolled. How to tell them: a loop
split ``[None, n]`` before post-processing, whose outer part is then tiled three times, has columns of vectors of n
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tencost.features.rows.kind import FeatureKind, Floats, Options, Relations
from tencost.features.rows.ragged import FloatArray, Ragged
from tencost.features.rows.texts import signed_log2, stored_programs
from tencost.programs.trace.instructions import parts_key, plain_trace, trace_parts

NUM_SPATIAL, NUM_REDUCTION, NUM_LOCATIONS, NUM_FUSED = 4, 3, 3, 4
"""Axes, sampled compute locations and fusions described; further ones are left out."""
_ABSENT = -9.0
_COUNTED = (
    "Vectorize", "Parallel", "ComputeInline", "DecomposeReduction", "Fuse", "Split",
    "ReverseComputeAt", "GetSBlock", "ReverseComputeInline",
)  # fmt: skip
_COUNTED_LATER = ("Unroll", "ComputeAt", "PadEinsum", "TransformLayout")

TILE_COLUMNS: tuple[str, ...] = (
    *(
        f"tile_spatial{axis}_{what}"
        for axis in range(NUM_SPATIAL)  # innermost axis first
        for what in ("s0", "s1", "s2", "s3", "s2_s3", "s1_s2_s3")
    ),
    *(f"tile_reduction{axis}_{level}" for axis in range(NUM_REDUCTION) for level in ("r0", "r1")),
    *(f"tile_level_{level}" for level in ("s0", "s1", "s2", "s3", "r0", "r1")),
    "tile_iterations",
    *(f"tile_{product}" for product in ("s2_s3", "s3_r1", "s2_s3_r1", "s2_s3_r", "s1_s2_s3")),
    "tile_vector_axis", "tile_vector_fits_16", "tile_vector_fits_8", "tile_vector_padding_16",
    "tile_inner_extent", "tile_inner_position", "tile_inner_levels",
    "tile_register_rest", "tile_register_vectors_16", "tile_register_vectors_8",
    "tile_unroll_limit", "tile_unroll_covers_register_tile", "tile_unroll_minus_register_tile",
    *(f"tile_location{index}" for index in range(NUM_LOCATIONS)),
    "tile_num_locations", "tile_epilogue_level", "tile_num_cache_writes",
    "tile_rfactor", "tile_rfactor_extent", "tile_num_spatial", "tile_num_reduction",
    *(f"tile_fused{index}" for index in range(NUM_FUSED)),
    *(f"tile_num_{kind}" for kind in _COUNTED),
    "tile_num_instructions",
    "tile_lanes",
    *(f"tile_num_{kind}" for kind in _COUNTED_LATER),
)  # fmt: skip


_LATENCY = 4.0
"""Cycles from one sum to the next of an accumulator."""
MAX_REMEMBERED = 16_384
"""Rows of candidates that are remembered; forgotten all at once."""
_remembered: dict[int, FloatArray | None] = {}


@dataclass
class _Reading:
    """What one pass over the instructions finds."""

    counts: dict[str, int] = field(default_factory=dict)
    tiles: dict[str, list[float]] = field(default_factory=dict)
    """Loop that was split -> its factors, outermost first."""
    loops: dict[str, tuple[int, float, int]] = field(default_factory=dict)
    """Loop made by a split -> (level, extent, number of levels)."""
    order: list[str] = field(default_factory=list)
    locations: list[float] = field(default_factory=list)
    fused: list[float] = field(default_factory=list)
    unroll: float = 0.0
    epilogue_level: float = _ABSENT
    rfactor: float = 0.0
    rfactor_extent: float = 0.0
    vectors: dict[str, float] = field(default_factory=dict)
    """Loop over whole vectors -> numbers of each."""
    lanes: float = 0.0
    """Numbers of a vector of a register tile's columns; 0 in other programs."""
    column: list[float] | None = None
    """A register tile's columns, as four levels."""


def tile_row(trace: Sequence[Any]) -> FloatArray | None:
    """Return the columns of one trace, plain JSON values ``[instructions, decisions]``.

    Returns:
        float32 [1, 84]; None for a trace without instructions.
    """
    if not trace[0]:
        return None
    reading = _read(trace)
    values = [*_axes(reading), *_levels(reading), *_vectors(reading), *_placement(reading)]
    assert len(values) == len(TILE_COLUMNS), f"{len(values)} values, expected {len(TILE_COLUMNS)}"
    return np.asarray([values], np.float32)


def candidate_row(candidate: Any, key: int | None = None) -> FloatArray | None:
    """Return the columns of a candidate, see :func:`tile_row`; remembered by its trace. Needs TVM.

    Args:
        candidate: a MeasureCandidate.
        key: its :func:`tencost.programs.trace.instructions.trace_key` where that is known.
    """
    trace, parts = candidate.sch.trace, None
    if trace is None:
        return None
    if key is None:
        parts = trace_parts(trace)
        key = parts_key(parts)
    try:
        return _remembered[key]
    except KeyError:
        row = tile_row(plain_trace(parts or trace_parts(trace)))
    if len(_remembered) >= MAX_REMEMBERED:
        _remembered.clear()
    _remembered[key] = row
    return row


def _read(trace: Sequence[Any]) -> _Reading:
    decided = {int(index): value for index, value in trace[1]}
    sampled: dict[str, Any] = {}
    reading = _Reading()
    for index, (kind, inputs, attributes, outputs) in enumerate(trace[0]):
        decision = decided.get(index)
        if isinstance(decision, list):
            sampled.update(zip(outputs, decision, strict=False))
        elif kind == "SampleCategorical" and decision is not None:
            sampled[outputs[0]] = attributes[0][int(decision)]
        values = [sampled.get(name, name) if isinstance(name, str) else name for name in inputs]
        reading.counts[kind] = reading.counts.get(kind, 0) + 1
        _note(reading, kind, inputs, attributes, outputs, decision, values)
    return reading


def _note(
    reading: _Reading,
    kind: str,
    inputs: Any,
    attributes: Any,
    outputs: Any,
    decision: Any,
    values: Any,
) -> None:
    whole_vectors = len(values) == 3 and values[1] in (None, "None") and _is_number(values[2])
    if kind == "Split" and whole_vectors and "EnterPostproc" not in reading.counts:
        reading.vectors[outputs[0]] = values[2]
        reading.loops[outputs[1]] = (3, values[2], 4)
    elif kind == "Split" and len(values) == 4 and (reading.lanes or inputs[0] in reading.vectors):
        _note_register_tile(reading, inputs[0], outputs, values[1:])
    elif kind == "Split" and all(_is_number(value) for value in values[1:]):
        reading.tiles[inputs[0]] = values[1:]
        for level, (loop, extent) in enumerate(zip(outputs, values[1:], strict=True)):
            reading.loops[loop] = (level, extent, len(outputs))
    elif kind == "Annotate" and attributes and attributes[0] == "meta_schedule.unroll_explicit":
        reading.unroll = float(values[1]) if len(values) > 1 and _is_number(values[1]) else 0.0
    elif kind == "SampleComputeLocation":
        reading.locations.append(float(decision if decision is not None else _ABSENT))
    elif kind == "ReverseComputeAt":
        reading.epilogue_level = float(reading.loops.get(inputs[1], (-2, 0, 0))[0])
    elif kind == "RFactor":
        reading.rfactor = float(attributes[0]) if attributes else 1.0
        reading.rfactor_extent = reading.loops.get(inputs[0], (0, 0.0, 0))[1]
    elif kind == "Reorder":
        reading.order = list(inputs)
    elif kind == "Fuse" and "EnterPostproc" in reading.counts:
        reading.fused.append(float(len(inputs)))


def _note_register_tile(reading: _Reading, loop: str, parts: Any, factors: Sequence[Any]) -> None:
    """Note three factors as four levels; the loop over whole vectors is the columns'."""
    if not all(_is_number(factor) for factor in factors):
        return
    outer, middle, inner = factors
    lanes = reading.vectors.get(loop, 1.0)
    tile = [outer, middle, 1.0, inner * lanes]
    if loop in reading.vectors:
        reading.lanes, reading.column = lanes, tile
    else:
        reading.tiles[loop] = tile
    for part, level, extent in zip(parts, (0, 1, 3), factors, strict=True):
        reading.loops[part] = (level, extent, 4)


def _spatial(reading: _Reading) -> list[list[float]]:
    tiles = [factors for factors in reading.tiles.values() if len(factors) == 4]
    return tiles if reading.column is None else [*tiles, reading.column]


def _reduction(reading: _Reading) -> list[list[float]]:
    return [factors for factors in reading.tiles.values() if len(factors) == 2]


def _axes(reading: _Reading) -> list[float]:
    values: list[float] = []
    for axis in _padded(_spatial(reading)[::-1], NUM_SPATIAL, [0.0] * 4):
        values += [*axis, axis[2] * axis[3], axis[1] * axis[2] * axis[3]]
    for axis in _padded(_reduction(reading), NUM_REDUCTION, [0.0] * 2):
        values += axis
    return [signed_log2(value) for value in values]


def _products(reading: _Reading) -> tuple[list[float], list[float]]:
    """Products over the axes of each level: four spatial, two of reduction; 0 without such axes."""
    spatial, reduction = _spatial(reading), _reduction(reading)
    s = [math.prod(axis[level] for axis in spatial) if spatial else 0.0 for level in range(4)]
    r = [math.prod(axis[level] for axis in reduction) if reduction else 0.0 for level in range(2)]
    return s, r


def _levels(reading: _Reading) -> list[float]:
    s, r = _products(reading)
    iterations = math.prod(max(extent, 1.0) for extent in (*s, *r))
    inner = s[2] * s[3]
    reuse = [inner, s[3] * r[1], inner * r[1], inner * r[0] * r[1], s[1] * inner]
    return [signed_log2(value) for value in (*s, *r, iterations, *reuse)]


def _vectors(reading: _Reading) -> list[float]:
    """The axis that gets vectorized, the innermost loop that is longer than 1, the register tile in vectors."""
    s, r = _products(reading)
    spatial = _spatial(reading)
    axis = spatial[-1][3] if spatial else 0.0
    loops = [reading.loops.get(name, (0, 0.0, 0)) for name in reversed(reading.order)]
    extent, position, levels = next(
        ((loop[1], index + 1.0, float(loop[2])) for index, loop in enumerate(loops) if loop[1] > 1),
        (0.0, -1.0, 0.0),
    )
    rest, register_tile = s[3] / max(axis, 1.0), s[3] * max(r[1], float(reading.lanes > 0))
    unroll = register_tile if reading.lanes else reading.unroll
    return [
        signed_log2(axis),
        float(axis > 0 and axis % 16 == 0),
        float(axis > 0 and axis % 8 == 0),
        math.ceil(axis / 16) * 16 / max(axis, 1.0),
        signed_log2(extent),
        position,
        levels,
        signed_log2(rest),
        signed_log2(rest * math.ceil(axis / 16)),
        signed_log2(rest * math.ceil(axis / 8)),
        signed_log2(unroll),
        float(unroll >= register_tile),
        signed_log2(unroll) - signed_log2(register_tile),
    ]


def _placement(reading: _Reading) -> list[float]:
    return [
        *_padded(reading.locations, NUM_LOCATIONS, _ABSENT),
        float(len(reading.locations)),
        reading.epilogue_level,
        float(reading.counts.get("CacheWrite", 0)),
        reading.rfactor,
        signed_log2(reading.rfactor_extent),
        float(len(_spatial(reading))),
        float(len(_reduction(reading))),
        *_padded(reading.fused, NUM_FUSED, 0.0),
        *(float(reading.counts.get(kind, 0)) for kind in _COUNTED),
        float(sum(reading.counts.values())),
        signed_log2(reading.lanes),
        *(float(reading.counts.get(kind, 0)) for kind in _COUNTED_LATER),
    ]


def _padded(items: Sequence[Any], size: int, filler: Any) -> list[Any]:
    return [*items[:size], *[filler] * (size - len(items))]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _relations(rows: Ragged, _: Options, device: Mapping[str, Floats]) -> Floats:
    """Relate programs to a device's lanes, vector registers and caches: float64 [N, relations].

    Accumulators are the vectors of the innermost spatial tile, which an unrolled program sums up in registers. A step
    of the sum takes cycles for their products (two a cycle), for loading a vector of each column and a number of each
    row (two a cycle), and at least four, as a sum waits for the one before. The panels of a level are what its tile
    reads and writes over the whole sum: its columns', its rows', and the tile.
    """
    first = rows.values[rows.offsets[:-1]].astype(np.float64)
    column = dict(zip(TILE_COLUMNS, first.T, strict=True))
    lanes = np.round(_amounts(device["device_log2_simd_bits"])) / 32.0
    registers = device["device_log2_registers"]
    axis = np.round(_amounts(column["tile_vector_axis"]))
    vectors = np.ceil(axis / lanes)
    some = np.maximum(axis, 1.0)
    rest = _amounts(column["tile_register_rest"])
    accumulators = np.log2(1.0 + rest * vectors)
    inner = np.log2(1.0 + _amounts(column["tile_s2_s3"]) / some * vectors)
    products, loads = rest * vectors / 2.0, (rest + vectors) / 2.0
    cycles = np.maximum(np.maximum(products, loads), _LATENCY)
    spilled = np.maximum(rest * vectors + vectors + 1.0 - np.exp2(registers) + 1.0, 0.0)
    caches = (device["device_log2_l1d_kib"], device["device_log2_l2_kib"])
    panels = _panels(column)
    out = [
        np.log2(lanes),
        registers,
        np.where(axis > 0, np.log2(some / lanes), _ABSENT),
        (axis > 0) & (axis % lanes == 0),
        vectors * lanes / some,
        accumulators,
        accumulators - registers,
        inner - registers,
        products / (cycles + spilled) * axis / np.maximum(vectors * lanes, 1.0),  # of a core's peak
        np.log2(cycles),
        np.log2(1.0 + spilled),
        loads / np.maximum(products, 1e-9),
        *(panel - cache for cache in caches for panel in panels),
    ]
    return np.stack(out, axis=1)


def _panels(column: Mapping[str, Floats]) -> list[Floats]:
    """Return log2 KiB of what the innermost, the two and the three inner spatial levels touch over the whole sum."""
    whole = np.maximum(_amounts(column["tile_level_r0"]) * _amounts(column["tile_level_r1"]), 1.0)
    panels = []
    for level in ("s3", "s2_s3", "s1_s2_s3"):
        columns, rows = (_amounts(column[f"tile_spatial{axis}_{level}"]) for axis in (0, 1))
        panels.append(np.log2(1.0 + 4.0 * ((columns + rows) * whole + columns * rows)) - 10.0)
    return panels


def _amounts(logs: Floats) -> Floats:
    return np.asarray(np.exp2(logs) - 1.0)


RELATIONS = Relations(
    names=(
        "rel_lanes", "rel_registers", "rel_vector_axis_of_lanes", "rel_vector_axis_fits", "rel_vector_padding",
        "rel_accumulators", "rel_accumulators_of_registers", "rel_inner_tile_of_registers", "rel_of_peak", "rel_cycles",
        "rel_spilled", "rel_loads_of_products",
        *(f"rel_{panel}_panels_of_{cache}" for cache in ("l1d", "l2") for panel in ("s3", "s2", "s1")),
    ),
    needs=(
        "device_log2_simd_bits", "device_log2_registers", "device_log2_l1d_kib", "device_log2_l2_kib",
    ),
    columns=_relations,
)  # fmt: skip

KIND = FeatureKind(
    columns=lambda _: TILE_COLUMNS,
    one_row=True,
    program_format="metaschedule_trace",
    stored=lambda spec: stored_programs(spec, tile_row),
    live=lambda _: lambda _, candidates: [candidate_row(candidate) for candidate in candidates],
    relations=RELATIONS,
    preference=1,
)
