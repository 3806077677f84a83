"""One row a program, which trees read, and what networks read beside its rows; how is said by the set's kind.

The single row of a one-row kind is its own summary. Of kinds with many rows the first row, the sums, the maxima and the
number of rows are taken, unless the kind has a better summary of its own. Each program's summary depends on its own
rows only, so it is the same alone or in a batch.

Legend: N programs, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tencost.features.rows.kind import Summary, kind_of
from tencost.features.rows.ragged import FloatArray, Ragged
from tencost.features.rows.spec import FeatureSpec


def summary_names(spec: FeatureSpec) -> list[str]:
    """Names of the columns of `summarize_programs`'s result."""
    return _summary_of(spec).names(spec.columns)


def summarize_programs(features: Ragged, spec: FeatureSpec) -> FloatArray:
    """Summarize programs: float32 [N, len(summary_names(spec))]; NaN for one without rows."""
    out = np.full((len(features), len(summary_names(spec))), np.nan, np.float32)
    used = np.flatnonzero(features.lengths)
    if len(used):
        out[used] = _summary_of(spec).rows(features.take(used))
    return out


def with_derived(features: Ragged, spec: FeatureSpec) -> Ragged:
    """Append to each row the amounts that its kind derives from it; most kinds derive none."""
    kind = kind_of(spec)
    if kind.derived is None or not len(features.values):
        return features
    derived = kind.derived(features.take(np.flatnonzero(features.lengths)))
    return Ragged(np.concatenate([features.values, derived], axis=1), features.offsets)


def num_constant_columns(spec: FeatureSpec) -> int:
    """Count the trailing columns that are the same on every row of a program: its kind's and the device's."""
    constant = kind_of(spec).constant_columns(spec.options)
    return len(set(constant) & set(spec.columns)) + len(spec.device_columns)


def constants(features: Ragged, spec: FeatureSpec) -> FloatArray:
    """Return those columns of programs that have rows: float32 [N, num_constant_columns(spec)]."""
    first = features.values[features.offsets[:-1]]
    return np.ascontiguousarray(first[:, features.num_columns - num_constant_columns(spec) :])


def _summary_of(spec: FeatureSpec) -> Summary:
    kind = kind_of(spec)
    return kind.summary or (OWN_ROW if kind.one_row else FIRST_SUM_MAX)


def _own_row(features: Ragged) -> FloatArray:
    return features.values[features.offsets[:-1]]


def _first_sum_max(features: Ragged) -> FloatArray:
    starts = features.offsets[:-1]
    totals = np.add.reduceat(features.values, starts, axis=0)
    largest = np.maximum.reduceat(features.values, starts, axis=0)
    lengths = features.lengths[:, None].astype(np.float32)
    return np.concatenate([features.values[starts], totals, largest, lengths], axis=1)


def _first_sum_max_names(columns: Sequence[str]) -> list[str]:
    return [*(f"{part}_{name}" for part in ("first", "sum", "max") for name in columns), "num_rows"]


OWN_ROW = Summary(list, _own_row)
FIRST_SUM_MAX = Summary(_first_sum_max_names, _first_sum_max)
