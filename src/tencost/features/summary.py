"""One row a program from its buffer-store rows: what a tree needs to compare two programs.

A packed sum over stores (TenSet, TVM) sees each store alone. A comparison of programs is mostly about the heaviest
store and how its accesses relate to its iterations and to the work of the whole program. So the summary is: that
store's columns (most floating-point operations, then iterations, then first), amounts derived from them, and four
numbers about the program. Columns that are the same on every row (workload flags, tiles, device attributes) ride
along with the heaviest store.

Columns are found by position in TVM's PerStoreFeature (feature ABI 1): 57 of the computation, 18 for each of five
buffers, 10 arithmetic intensities, 4 of the allocation, 3 of the enclosing loops, then what is the same on every row.
Amounts are log2(1 + x), so a difference of two columns is the logarithm of a ratio.

A set with one row a program (`tiles`) is its own summary. Other kinds get the first row, the sums, the maxima and the
number of rows.

Legend: N programs, R rows, C columns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tencost.features.ragged import Ragged
from tencost.features.spec import FeatureSpec

Floats = npt.NDArray[np.float64]

NUM_STORE_COLUMNS = 164
"""Columns of one store; what follows is the same on every row of a program."""

_STORE_KINDS = ("per_store", "per_store_tiles")
_FLOPS = slice(0, 7)
_VECTOR_PROD, _VECTOR_LEN, _UNROLL_PROD = 17, 18, 28
_INTENSITY = slice(147, 157)
_ITERATIONS = 161
_NUM_BUFFERS = 5

_SIZES = {
    3: "bytes",
    4: "unique_bytes",
    5: "lines",
    6: "unique_lines",
    13: "bytes_per_reuse",
    14: "unique_bytes_per_reuse",
    15: "lines_per_reuse",
    16: "unique_lines_per_reuse",
}
"""Position within a buffer's 18 columns -> name."""

_LINES, _UNIQUE_BYTES, _STRIDE = 5, 4, 17
_CACHE_LOG2_BYTES = {"l1": 15.6, "l2": 21.0}
"""Typical first- and second-level caches, as reference points for footprints."""

DERIVED_NAMES: tuple[str, ...] = (
    "iterations_of_work",
    "flops_of_work",
    "flops_per_iteration",
    "iterations_per_vector_loop",
    "iterations_per_vector_and_unroll",
    *(
        name
        for slot in range(3)
        for name in (
            *(f"b{slot}_{size}_per_iteration" for size in _SIZES.values()),
            f"b{slot}_lines_per_unique_line",
            f"b{slot}_bytes_per_unique_byte",
        )
    ),
    "lines",
    "lines_per_iteration",
    "lines_of_work",
    "unique_bytes",
    *(f"unique_bytes_of_{cache}" for cache in _CACHE_LOG2_BYTES),
    "unique_bytes_of_work",
    "largest_stride",
    "num_unit_strides",
    "num_long_strides",
    "num_zero_strides",
    "largest_intensity",
    "least_intensity",
    "intensity_gain",
)
"""Names of the amounts derived from each store."""

_PROGRAM_NAMES = ("scalar_share", "num_stores", "work", "iterations_of_busiest_store")


def summary_names(spec: FeatureSpec) -> list[str]:
    """Names of the columns of `summarize`'s result."""
    names = list(spec.columns)
    if _is_one_row(spec):
        return names
    if not is_per_store(spec):
        parts = ("first", "sum", "max")
        return [*(f"{part}_{name}" for part in parts for name in names), "num_rows"]
    return [*names, *DERIVED_NAMES, *_PROGRAM_NAMES]


def summarize(features: Ragged, spec: FeatureSpec) -> npt.NDArray[np.float32]:
    """Summarize programs: float32 [N, len(summary_names(spec))]; NaN for one without rows.

    Each program's summary depends on its own rows only, so it is the same alone or in a batch.
    """
    out = np.full((len(features), len(summary_names(spec))), np.nan, np.float32)
    used = np.flatnonzero(features.lengths)
    if len(used):
        present = features.take(used)
        if _is_one_row(spec):
            out[used] = present.values[present.offsets[:-1]]
        else:
            out[used] = _per_store(present) if is_per_store(spec) else _generic(present)
    return out


def with_derived(features: Ragged, spec: FeatureSpec) -> Ragged:
    """Append each store's derived amounts to its row; other kinds of features stay as they are."""
    if not is_per_store(spec) or not len(features.values):
        return features
    rows = features.values.astype(np.float64)
    work = _work_of_programs(rows, features.take(np.flatnonzero(features.lengths)).offsets[:-1])
    per_row = np.repeat(work, features.lengths[features.lengths > 0])
    derived = _derived(rows, per_row).astype(np.float32)
    return Ragged(np.concatenate([features.values, derived], axis=1), features.offsets)


def num_constant_columns(spec: FeatureSpec) -> int:
    """Count the trailing columns that are the same on every row of a program.

    Whatever follows TVM's store columns, or what the set's option `constant_columns` says, and the device's.
    """
    if is_per_store(spec):
        return len(spec.columns) - NUM_STORE_COLUMNS
    return int(spec.options.get("constant_columns", 0)) + len(spec.device_columns)


def constants(features: Ragged, spec: FeatureSpec) -> npt.NDArray[np.float32]:
    """Return those columns of programs that have rows: float32 [N, num_constant_columns(spec)]."""
    first = features.values[features.offsets[:-1]]
    return np.ascontiguousarray(first[:, features.num_columns - num_constant_columns(spec) :])


def is_per_store(spec: FeatureSpec) -> bool:
    """Whether the rows are buffer stores in TVM's layout."""
    return spec.kind in _STORE_KINDS and len(spec.columns) >= NUM_STORE_COLUMNS


def _is_one_row(spec: FeatureSpec) -> bool:
    return spec.kind == "tiles"


def _generic(features: Ragged) -> npt.NDArray[np.float32]:
    starts = features.offsets[:-1]
    totals = np.add.reduceat(features.values, starts, axis=0)
    largest = np.maximum.reduceat(features.values, starts, axis=0)
    lengths = features.lengths[:, None].astype(np.float32)
    return np.concatenate([features.values[starts], totals, largest, lengths], axis=1)


def _per_store(features: Ragged) -> npt.NDArray[np.float32]:
    rows, starts = features.values.astype(np.float64), features.offsets[:-1]
    segment, iterations = features.segment_ids, rows[:, _ITERATIONS]
    flops = _log(_amount(rows[:, _FLOPS]).sum(axis=1))
    heaviest = _first_of_each(segment, flops, iterations)
    work = _work_of_programs(rows, starts)
    scalar = _amount(iterations) * (rows[:, _VECTOR_PROD] <= 0)
    scalar[heaviest] = 0.0
    total = np.maximum(np.add.reduceat(_amount(iterations), starts), 1e-9)
    program = np.stack(
        [
            np.add.reduceat(scalar, starts) / total,
            features.lengths.astype(np.float64),
            work,
            np.maximum.reduceat(iterations, starts) - iterations[heaviest],
        ],
        axis=1,
    )
    main = rows[heaviest]
    return np.concatenate([main, _derived(main, work), program], axis=1).astype(np.float32)


def _work_of_programs(rows: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """log2(1 + iterations of all stores) of each program: float64 [N]."""
    return _log(np.add.reduceat(_amount(rows[:, _ITERATIONS]), starts))


def _first_of_each(segment: npt.NDArray[np.int64], *keys: Floats) -> npt.NDArray[np.int64]:
    """Position of each segment's row with the largest keys, by the first key first; int64."""
    order = np.lexsort((np.arange(len(segment)), *(-key for key in reversed(keys)), segment))
    first = np.ones(len(order), bool)
    first[1:] = np.diff(segment[order]) != 0
    return np.asarray(order[first])


def _derived(rows: Floats, work: Floats) -> Floats:
    """Amounts relative to the store's iterations and to the program's work.

    Args:
        rows: float64 [R, C].
        work: float64 [R], of the program that each row belongs to.

    Returns:
        float64 [R, len(DERIVED_NAMES)].
    """
    iterations = rows[:, _ITERATIONS]
    flops = _log(_amount(rows[:, _FLOPS]).sum(axis=1))
    out = [iterations - work, flops - work, flops - iterations]
    out.append(iterations - np.maximum(rows[:, _VECTOR_LEN], 0.0))
    out.append(iterations - np.maximum(rows[:, _VECTOR_PROD], 0.0) - rows[:, _UNROLL_PROD])
    for slot in range(3):
        column = [rows[:, 57 + 18 * slot + position] for position in range(18)]
        present = column[0] + column[1] + column[2] > 0
        out += [np.where(present, column[size] - iterations, -5.0) for size in _SIZES]
        out.append(np.where(present, column[5] - column[6], -5.0))
        out.append(np.where(present, column[3] - column[4], -5.0))
    lines = _log(_amount(rows[:, _of_buffers(_LINES)]).sum(axis=1))
    unique = _log(_amount(rows[:, _of_buffers(_UNIQUE_BYTES)]).sum(axis=1))
    out += [lines, lines - iterations, lines - work, unique]
    out += [unique - size for size in _CACHE_LOG2_BYTES.values()]
    out.append(unique - work)
    strides = rows[:, _of_buffers(_STRIDE)]
    out.append(strides.max(axis=1))
    out += [counted.sum(axis=1) for counted in (strides == 1, strides > 1, strides == 0)]
    intensity = rows[:, _INTENSITY]
    out += [intensity.max(axis=1), intensity.min(axis=1), intensity[:, -1] - intensity[:, 0]]
    return np.stack(out, axis=1)


def _of_buffers(position: int) -> list[int]:
    return [57 + 18 * slot + position for slot in range(_NUM_BUFFERS)]


def _amount(logs: Floats) -> Floats:
    return np.asarray(np.exp2(logs) - 1.0)


def _log(amounts: Floats) -> Floats:
    return np.asarray(np.log2(1.0 + np.maximum(amounts, 0.0)))
