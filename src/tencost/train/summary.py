"""One row a program from its buffer-store rows: what a tree needs to compare two programs.

A packed sum of trees over stores (TenSet, TVM) sees each store alone. A comparison of programs is
mostly about the heaviest store, how its accesses relate to the work, and totals over the program;
all of that is laid out here.

Columns are found by position in TVM's PerStoreFeature (feature ABI 1): 57 of the computation, 18
for each of five buffers, 10 arithmetic intensities, 4 of the allocation, 3 of the enclosing loops,
then the workload's flags. Amounts are log2(1 + x).

Legend: N programs, R rows, C columns, D derived columns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tencost.features.ragged import Ragged
from tencost.features.spec import FeatureSpec

Floats = npt.NDArray[np.float64]

_NUM_STORE_COLUMNS = 164
_NUM_FLOP_COLUMNS = 7
_NUM_OP_COLUMNS = 16
_VECTOR_TYPE, _VECTOR_LENGTH, _UNROLL_LENGTH = 17, 18, 28
_INTENSITY = slice(147, 157)
_ITERATIONS = 161
_CACHE_BITS = (15.6, 21.0)
"""log2 bytes of a first- and a second-level cache, as reference points for footprints."""


def _buffer(slot: int, column: int) -> int:
    """Position of a buffer's column: 0-2 access type, 3 bytes, 4 unique bytes, 5 lines, ..."""
    return 57 + 18 * slot + column


_SIZES = (3, 4, 5, 6, 13, 14, 15, 16)
_TOTALS = [
    *range(_NUM_OP_COLUMNS),
    _ITERATIONS,
    *(_buffer(slot, column) for slot in range(5) for column in (3, 4, 5, 6)),
]
_NUM_DERIVED = 5 + 3 * (len(_SIZES) + 2) + 3 + 4 + 4 + 3


def num_summary_columns(spec: FeatureSpec) -> int:
    """Width of `summarize`'s result for features of a spec."""
    columns = len(spec.columns)
    if not _is_per_store(spec):
        return 3 * columns + 1
    return (
        columns
        + _NUM_DERIVED
        + len(_TOTALS)
        + _NUM_STORE_COLUMNS
        + _NUM_STORE_COLUMNS
        + _NUM_DERIVED
        + 5
    )


def summary_sources(spec: FeatureSpec) -> list[str]:
    """Name, for each summary column, the input column that its importance is credited to."""
    names = list(spec.columns)
    if not _is_per_store(spec):
        return [*names, *names, *names, "num_rows"]
    derived = [f"derived_{index:02d}" for index in range(_NUM_DERIVED)]
    stores = names[:_NUM_STORE_COLUMNS]
    totals = [names[index] for index in _TOTALS]
    return [*names, *derived, *totals, *stores, *stores, *derived, *["program_shape"] * 5]


def summarize(features: Ragged, spec: FeatureSpec) -> npt.NDArray[np.float32]:
    """Summarize programs: float32 [N, num_summary_columns(spec)]; NaN for one without rows.

    Each program's summary depends on its own rows only, so it is the same alone or in a batch.
    """
    out = np.full((len(features), num_summary_columns(spec)), np.nan, np.float32)
    used = np.flatnonzero(features.lengths)
    if len(used):
        present = features.take(used)
        out[used] = _per_store(present) if _is_per_store(spec) else _generic(present)
    return out


def _is_per_store(spec: FeatureSpec) -> bool:
    return spec.kind == "per_store" and len(spec.columns) >= _NUM_STORE_COLUMNS


def _generic(features: Ragged) -> npt.NDArray[np.float32]:
    starts = features.offsets[:-1]
    totals = np.add.reduceat(features.values, starts, axis=0)
    largest = np.maximum.reduceat(features.values, starts, axis=0)
    lengths = features.lengths[:, None].astype(np.float32)
    return np.concatenate([features.values[starts], totals, largest, lengths], axis=1)


def _per_store(features: Ragged) -> npt.NDArray[np.float32]:
    rows, starts, segment = (
        features.values.astype(np.float64),
        features.offsets[:-1],
        features.segment_ids,
    )
    lengths = features.lengths
    iterations = rows[:, _ITERATIONS]
    flops = _log(_amount(rows[:, :_NUM_FLOP_COLUMNS]).sum(axis=1))
    heaviest = _first_of_each(segment, flops, iterations)
    main = rows[heaviest]
    work = _log(np.add.reduceat(_amount(iterations), starts))
    derived = _derived(rows, work[segment])
    totals = _log(np.add.reduceat(_amount(rows[:, _TOTALS]), starts, axis=0))
    largest = np.maximum.reduceat(rows[:, :_NUM_STORE_COLUMNS], starts, axis=0)

    other = np.ones(len(rows), bool)
    other[heaviest] = False
    second = np.full((len(starts), _NUM_STORE_COLUMNS + _NUM_DERIVED), -9.0)
    scalar = np.zeros((len(starts), 2))
    rest = np.flatnonzero(other)
    if len(rest):
        runner_up = rest[_first_of_each(segment[rest], iterations[rest])]
        second[segment[runner_up]] = np.concatenate(
            [rows[runner_up, :_NUM_STORE_COLUMNS], derived[runner_up]], axis=1
        )
        unvectorized = (rows[rest, _VECTOR_TYPE] <= 0).astype(np.float64)
        np.add.at(scalar[:, 0], segment[rest], unvectorized)
        np.add.at(scalar[:, 1], segment[rest], unvectorized * _amount(iterations[rest]))
        scalar[:, 1] /= np.maximum(_amount(work), 1.0)
    busiest = np.maximum.reduceat(iterations, starts)
    shape = np.stack([lengths.astype(np.float64), work, busiest - main[:, _ITERATIONS]], axis=1)
    parts = [main, derived[heaviest], totals, largest, second, scalar, shape]
    return np.concatenate(parts, axis=1).astype(np.float32)


def _first_of_each(segment: npt.NDArray[np.int64], *keys: Floats) -> npt.NDArray[np.int64]:
    """Position of each segment's row with the largest keys, by the first key first; int64."""
    order = np.lexsort((np.arange(len(segment)), *(-key for key in reversed(keys)), segment))
    first = np.ones(len(order), bool)
    first[1:] = np.diff(segment[order]) != 0
    return np.asarray(order[first])


def _derived(rows: Floats, work: Floats) -> Floats:
    """Amounts relative to the loop's iterations and to the program's work: float64 [R, D]."""
    iterations = rows[:, _ITERATIONS]
    flops = _log(_amount(rows[:, :_NUM_FLOP_COLUMNS]).sum(axis=1))
    vector = rows[:, _VECTOR_LENGTH]
    out = [iterations - work, flops - work, flops - iterations]
    out.append(iterations - vector * (vector > 0))
    out.append(
        iterations - rows[:, _VECTOR_TYPE] * (rows[:, _VECTOR_TYPE] > 0) - rows[:, _UNROLL_LENGTH]
    )
    for slot in range(3):
        present = rows[:, _buffer(slot, 0) : _buffer(slot, 3)].sum(axis=1) > 0
        out += [
            np.where(present, rows[:, _buffer(slot, size)] - iterations, -5.0) for size in _SIZES
        ]
        out.append(np.where(present, rows[:, _buffer(slot, 5)] - rows[:, _buffer(slot, 6)], -5.0))
        out.append(np.where(present, rows[:, _buffer(slot, 3)] - rows[:, _buffer(slot, 4)], -5.0))
    lines = _log(_amount(rows[:, [_buffer(slot, 5) for slot in range(5)]]).sum(axis=1))
    unique = _log(_amount(rows[:, [_buffer(slot, 4) for slot in range(5)]]).sum(axis=1))
    out += [lines, lines - iterations, lines - work]
    out += [unique, *(unique - bits for bits in _CACHE_BITS), unique - work]
    strides = rows[:, [_buffer(slot, 17) for slot in range(5)]]
    out += [strides.max(axis=1)]
    out += [
        hits.sum(axis=1).astype(np.float64) for hits in (strides == 1, strides > 1, strides == 0)
    ]
    intensity = rows[:, _INTENSITY]
    out += [intensity.max(axis=1), intensity.min(axis=1), intensity[:, -1] - intensity[:, 0]]
    return np.stack(out, axis=1)


def _amount(logs: Floats) -> Floats:
    return np.asarray(np.exp2(logs) - 1.0)


def _log(amounts: Floats) -> Floats:
    return np.asarray(np.log2(1.0 + np.maximum(amounts, 0.0)))
