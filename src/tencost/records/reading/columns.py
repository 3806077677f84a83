"""Tables of the record schema from columns, for readers that make thousands of rows at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tencost.store.schema import SCHEMA, SCHEMA_VERSION


def record_table(
    rows: int, columns: Mapping[str, Sequence[Any] | pa.Array], constants: Mapping[str, Any]
) -> pa.Table:
    """Return a table of SCHEMA.

    Args:
        rows: number of rows.
        columns: values of a column, one a row.
        constants: values of columns that are the same in all rows.

    The columns execution_elapsed_ms_mean and _std are computed from run_secs, schema_version is set, all others that
    are not given are null.
    """
    given: dict[str, pa.Array] = {}
    for name, values in columns.items():
        field = SCHEMA.field(name)
        made = values if isinstance(values, pa.Array) else pa.array(values, field.type)
        given[name] = made.cast(field.type)
    for name, value in {"schema_version": SCHEMA_VERSION, **constants}.items():
        given[name] = pa.repeat(pa.scalar(value, SCHEMA.field(name).type), rows)
    given |= elapsed(given["run_secs"])
    arrays = [
        given[field.name] if field.name in given else pa.nulls(rows, field.type) for field in SCHEMA
    ]
    return pa.table(arrays, schema=SCHEMA)


def sources(dataset: str, file: str, lines: Sequence[int]) -> pa.Array:
    """Return the `source` column of records that stand in one file."""
    count = len(lines)
    parts = [
        pa.repeat(pa.scalar(dataset), count),
        pa.repeat(pa.scalar(file), count),
        pa.array(lines, pa.int64()),
    ]
    return pa.StructArray.from_arrays(parts, fields=list(SCHEMA.field("source").type))


def networks(dataset: str, rows: int) -> pa.Array:
    """Return the `networks` column of records of no known network: the dataset, weight 1."""
    one = [pa.repeat(pa.scalar(dataset), rows), pa.repeat(pa.scalar(1, pa.int64()), rows)]
    kind = SCHEMA.field("networks").type
    values = pa.StructArray.from_arrays(one, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), values, type=kind)


def elapsed(run_secs: pa.Array) -> dict[str, pa.Array]:
    """Return the RFC's mean and sample deviation columns, milliseconds, of lists of seconds; null without times."""
    lengths = run_secs.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = run_secs.flatten().to_numpy(zero_copy_only=False) * 1e3
    owner = np.repeat(np.arange(len(lengths)), lengths)
    total = np.bincount(owner, values, len(lengths))
    mean = total / np.maximum(lengths, 1)
    squares = np.bincount(owner, (values - mean[owner]) ** 2, len(lengths))
    deviation = np.sqrt(squares / np.maximum(lengths - 1, 1))
    return {
        "execution_elapsed_ms_mean": pa.array(mean.astype(np.float32), mask=lengths < 1),
        "execution_elapsed_ms_std": pa.array(deviation.astype(np.float32), mask=lengths < 2),
    }
