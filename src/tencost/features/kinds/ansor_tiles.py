"""`ansor_tiles`: one row an Ansor program, the tile structure that its schedule steps decide.

It reads a program straight from the log, a JSON list of steps (their grammar is in tencost.records.formats.ansor): the
loops are followed through splits, fusions and reorderings, so that the row knows how many iterations each annotation
covers (blocks, threads, virtual threads, vector lanes, parallel, unrolled), and how the split lengths of each level
multiply. Amounts are log2(1 + x). What cannot be known without the computation's definition, extents that no split
names, counts as absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tencost.features.kinds.ansor_steps import ANNOTATIONS, STEPS
from tencost.features.rows.kind import FeatureKind, Floats, Options, Relations
from tencost.features.rows.ragged import FloatArray, Ragged
from tencost.features.rows.texts import stored_programs

NUM_SPLITS = 8
"""Splits of the tiled stage whose lengths have columns of their own, in the order of the log."""
NUM_LEVELS = 5
"""Lengths of a split with columns: what is left outside, then up to four from outside in."""
_SPATIAL, _REDUCTION = 4, 2
"""Lengths that a multi-level tiling gives a spatial axis of a GPU program, and a reduction axis."""
_UNROLL = "auto_unroll_max_step$"

TILE_COLUMNS: tuple[str, ...] = (
    *(f"num_{name}" for name in STEPS),
    *(f"{what}_{name}" for name in ANNOTATIONS for what in ("num", "sum", "max")),
    *(f"split_{split}_{level}" for split in range(NUM_SPLITS) for level in range(NUM_LEVELS)),
    *(f"spatial_{level}" for level in range(NUM_LEVELS)),
    *(f"reduction_{level}" for level in range(NUM_LEVELS)),
    "other_outer", "other_inner", "auto_unroll_max_step", "num_stages_tiled",
    "threads", "blocks", "vthreads", "points_per_thread",
)  # fmt: skip
"""num: steps or annotated loops; sum, max: of the log2 of their iterations."""


def ansor_tile_row(steps: Sequence[Sequence[Any]]) -> FloatArray | None:
    """Return float32 [1, columns]; None for a program without steps."""
    if not steps:
        return None
    loops = _Loops()
    values = dict.fromkeys(TILE_COLUMNS, 0.0)
    annotated: dict[str, list[float]] = {name: [] for name in ANNOTATIONS}
    for step in steps:
        values[f"num_{step[0]}"] += 1.0
        extent = loops.apply(step)
        if step[0] == "AN":
            annotated[ANNOTATIONS[int(step[3])]].append(_log(extent))
        elif step[0] == "PR" and str(step[3]).startswith(_UNROLL):
            values["auto_unroll_max_step"] = _log(float(step[3].removeprefix(_UNROLL)))
    for name, amounts in annotated.items():
        values[f"num_{name}"] += len(amounts)
        values[f"sum_{name}"] = sum(amounts)
        values[f"max_{name}"] = max(amounts, default=0.0)
    _put_splits(values, loops)
    values["threads"] = sum(values[f"max_thread_{axis}"] for axis in "xyz")
    values["blocks"] = sum(values[f"max_block_{axis}"] for axis in "xyz")
    values["vthreads"] = values["max_vthread"]
    values["points_per_thread"] = values["spatial_3"] + values["spatial_4"]
    return np.asarray([[values[name] for name in TILE_COLUMNS]], np.float32)


def _put_splits(values: dict[str, float], loops: _Loops) -> None:
    """Fill in the lengths of the stage with the most splits, and their products by level."""
    by_stage: dict[int, list[list[float]]] = {}
    for stage, lengths in loops.splits:
        by_stage.setdefault(stage, []).append(lengths)
    tiled = max(by_stage.values(), key=len, default=[])
    values["num_stages_tiled"] = float(len(by_stage))
    for number, lengths in enumerate(tiled):
        for level, length in enumerate(lengths[:NUM_LEVELS]):
            if number < NUM_SPLITS:
                values[f"split_{number}_{level}"] = _log(length)
            if len(lengths) > _SPATIAL:
                values[f"spatial_{level}"] += _log(length)
            elif len(lengths) > _REDUCTION:
                values[f"reduction_{level}"] += _log(length)
    for stage, lengths in loops.splits:
        if by_stage[stage] is not tiled:
            values["other_outer"] += _log(lengths[0])
            values["other_inner"] += sum(map(_log, lengths[1:]))


class _Loops:
    """The loops of each stage as far as steps tell: an extent, or 0 where it (or a factor of it) is not known.

    Stages are numbered as the log does at that moment: a cache stage or an rfactor stage moves those behind it.
    """

    def __init__(self) -> None:
        self.splits: list[tuple[int, list[float]]] = []
        self._stages: dict[int, list[float]] = {}
        self._lengths: list[list[float]] = []
        """Split lengths by the number of the step, for the steps that follow a split."""
        self._extents: list[float] = []
        """The extent that was split, likewise."""

    def apply(self, step: Sequence[Any]) -> float:
        """Follow one step; return the extent of the loop that it works on, 0 where it is not known."""
        kind, stage = step[0], int(step[1])
        extent = 0.0
        self._lengths.append([])
        self._extents.append(0.0)
        if kind in ("SP", "FSP", "FFSP"):
            extent = self._split(stage, step)
        elif kind == "FU":
            extent = self._fuse(stage, [int(position) for position in step[2]])
        elif kind == "RE":
            order = [int(position) for position in step[2]]
            loops = self._loops(stage, len(order) - 1)
            self._stages[stage] = [loops[at] if at < len(loops) else 0.0 for at in order]
        elif kind == "AN":
            extent = self._loops(stage, int(step[2]))[int(step[2])]
        elif kind in ("CHR", "CHW", "RF"):
            self._insert(stage + 1 if kind == "CHR" else stage)
        return extent

    def _split(self, stage: int, step: Sequence[Any]) -> float:
        position = int(step[2])
        loops = self._loops(stage, position)
        if step[0] == "SP":
            lengths = [float(length or 0) for length in step[4]]
            extent = float(step[3]) or loops[position]
        elif step[0] == "FSP":
            followed, levels = int(step[3]), int(step[4])
            source = self._lengths[followed] if followed < len(self._lengths) else []
            # Follows the outer `levels - 1` lengths; the inner ones become one.
            lengths = [*source[: levels - 1], math.prod(source[levels - 1 :])]
            lengths = lengths if source else [0.0] * levels
            extent = loops[position] or (self._extents[followed] if source else 0.0)
        else:
            level = int(step[4])
            sources = [self._lengths[int(at)] for at in step[3] if int(at) < len(self._lengths)]
            parts = [source[level] if level < len(source) else 0.0 for source in sources]
            lengths, extent = [math.prod(parts)], loops[position]
            if not int(step[5]) and extent and lengths[0]:  # a number of parts, not a factor
                lengths = [float(math.ceil(extent / lengths[0]))]
        self._lengths[-1], self._extents[-1] = lengths, extent
        inner = math.prod(lengths)
        outer = math.ceil(extent / inner) if extent and inner else 0.0
        loops[position : position + 1] = [outer, *lengths]
        if step[0] == "SP":
            self.splits.append((stage, [outer, *lengths]))
        return extent

    def _fuse(self, stage: int, positions: list[int]) -> float:
        if not positions:
            return 0.0
        loops = self._loops(stage, positions[-1])
        extent = math.prod(loops[positions[0] : positions[-1] + 1])
        loops[positions[0] : positions[-1] + 1] = [extent]
        return extent

    def _insert(self, stage: int) -> None:
        moved = {at + 1 if at >= stage else at: loops for at, loops in self._stages.items()}
        self._stages = moved
        self.splits = [(at + 1 if at >= stage else at, lengths) for at, lengths in self.splits]

    def _loops(self, stage: int, position: int) -> list[float]:
        """Return the loops of a stage, at least up to a position."""
        loops = self._stages.setdefault(stage, [])
        loops.extend([0.0] * (position + 1 - len(loops)))
        return loops


def _log(value: float) -> float:
    return math.log2(1.0 + max(value, 0.0))


def _relations(rows: Ragged, _: Options, device: Mapping[str, Floats]) -> Floats:
    """Relate GPU programs to a device's warps, multiprocessors and local memories: float64 [N, relations]."""
    first = rows.values[rows.offsets[:-1]].astype(np.float64)
    column = dict(zip(TILE_COLUMNS, first.T, strict=True))
    lanes = _counts(device["device_log2_simd_bits"]) / 32.0
    cores = _counts(device["device_log2_cores"])
    threads, blocks = (_launched(column, of) for of in ("thread", "block"))
    tile = sum(column[f"spatial_{level}"] for level in range(1, NUM_LEVELS))
    chunk = sum(column[f"reduction_{level}"] for level in range(1, NUM_LEVELS))
    # A square tile of two operands, as of a matrix product, 4 bytes an element
    footprint = tile / 2 + chunk + 3.0
    out = [
        np.log2(threads / lanes),
        np.ceil(threads / lanes) * lanes / threads,
        np.log2(blocks / cores),
        np.ceil(blocks / cores) * cores / blocks,
        footprint - device["device_log2_l1d_kib"] - 10.0,
        footprint - device["device_log2_l2_kib"] - 10.0,
    ]
    return np.stack(out, axis=1)


def _launched(column: Mapping[str, Floats], what: str) -> Floats:
    """Return how many threads or blocks a program launches; 1 where the steps do not tell."""
    extents = [np.maximum(_counts(column[f"max_{what}_{axis}"]), 1.0) for axis in "xyz"]
    return np.asarray(extents[0] * extents[1] * extents[2])


def _counts(logs: Floats) -> Floats:
    """Return the whole numbers whose log2(1 + x) these are: rounded, or a whole warp would be one and a bit."""
    return np.asarray(np.round(np.exp2(logs) - 1.0))


RELATIONS = Relations(
    names=(
        "rel_threads_of_lanes", "rel_threads_padding", "rel_blocks_of_cores", "rel_blocks_padding",
        "rel_block_tile_of_l1", "rel_block_tile_of_l2",
    ),
    needs=("device_log2_simd_bits", "device_log2_cores", "device_log2_l1d_kib", "device_log2_l2_kib"),
    columns=_relations,
)  # fmt: skip

KIND = FeatureKind(
    columns=lambda _: TILE_COLUMNS,
    one_row=True,
    program_format="ansor_steps",
    stored=lambda spec: stored_programs(spec, ansor_tile_row),
    relations=RELATIONS,
    preference=2,
)
