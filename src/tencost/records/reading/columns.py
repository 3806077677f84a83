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
    arrays: dict[str, pa.Array] = {}
    for name, cells in columns.items():
        field = SCHEMA.field(name)
        array = cells if isinstance(cells, pa.Array) else pa.array(cells, field.type)
        arrays[name] = array.cast(field.type)
    for name, constant in {"schema_version": SCHEMA_VERSION, **constants}.items():
        arrays[name] = pa.repeat(pa.scalar(constant, SCHEMA.field(name).type), rows)
    arrays |= elapsed(arrays["run_secs"])
    nulls = {field.name: pa.nulls(rows, field.type) for field in SCHEMA if field.name not in arrays}
    return pa.table({**nulls, **arrays}, schema=SCHEMA)


def sources(dataset: str, file: str, lines: Sequence[int]) -> pa.Array:
    """Return the `source` column of records that stand in one file."""
    names = [pa.repeat(pa.scalar(name), len(lines)) for name in (dataset, file)]
    fields = list(SCHEMA.field("source").type)
    return pa.StructArray.from_arrays([*names, pa.array(lines, pa.int64())], fields=fields)


def networks(dataset: str, rows: int) -> pa.Array:
    """Return the `networks` column of records of no known network: the dataset, weight 1."""
    members = [pa.repeat(pa.scalar(dataset), rows), pa.repeat(pa.scalar(1, pa.int64()), rows)]
    kind = SCHEMA.field("networks").type
    structs = pa.StructArray.from_arrays(members, fields=list(kind.value_type))
    # pa.repeat takes nested scalars, too, 40 times slower
    return pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), structs, type=kind)


def elapsed(run_secs: pa.Array) -> dict[str, pa.Array]:
    """Return the RFC's mean and sample deviation columns, milliseconds, of lists of seconds; null without times."""
    lengths = run_secs.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    milliseconds = run_secs.flatten().to_numpy(zero_copy_only=False) * 1e3
    row = np.repeat(np.arange(len(lengths)), lengths)
    total = np.bincount(row, milliseconds, len(lengths))
    mean = total / np.maximum(lengths, 1)
    squares = np.bincount(row, (milliseconds - mean[row]) ** 2, len(lengths))
    deviation = np.sqrt(squares / np.maximum(lengths - 1, 1))
    return {
        "execution_elapsed_ms_mean": pa.array(mean.astype(np.float32), mask=lengths < 1),
        "execution_elapsed_ms_std": pa.array(deviation.astype(np.float32), mask=lengths < 2),
    }
