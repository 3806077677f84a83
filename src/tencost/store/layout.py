"""How rows lie in the Parquet files of a store, and scanning them so that little of a large one is read.

A file belongs to one hardware. Its rows are sorted by workload and cut into row groups of about
:data:`GROUP_BYTES`; it has few enough of them that its footer stays small. The Delta log holds each
file's lowest and highest workload id, the footer those of each row group: Polars skips the others.

Files that other programs wrote (Delta Lake's own writers, earlier versions) need none of this: where
bounds or columns are missing the rows are read, missing columns are null.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from tencost.store import remote
from tencost.store.generator import UNKNOWN
from tencost.store.schema import SCHEMA

PARTITION = "hardware"
GROUP_BYTES = 2 << 20
"""Of the rows in memory: what a look-up decodes at least."""
GROUP_ROWS = (256, 8192)
"""Least and most rows of a row group, whatever their size."""
FILE_GROUPS = 32
BOUNDED = (
    "record_id",
    "program_id",
    "workload_id",
    "task_name",
    "target",
    "status",
    "timestamp",
    "quarantine",
    "generator",
)
"""Columns whose bounds the footers hold; those of the long texts would be most of a footer."""

COLUMNS = pl.Schema(SCHEMA)
"""The schema as Polars has it."""


def known_generator() -> pl.Expr:
    """Return the expression of a record's generator, UNKNOWN where the table has null."""
    return pl.col("generator").fill_null(UNKNOWN)


def latency() -> pl.Expr:
    """Return the expression of a record's latency: median of run_secs, seconds; null without."""
    return pl.col("run_secs").list.median()


@dataclass(frozen=True)
class DataFile:
    """A file of a version of a store, as the Delta log describes it.

    `path` is relative to the store, percent-encoded as in the log; `lowest` and `highest` bound its
    workload ids, None: not said.
    """

    path: str
    hardware: str
    rows: int | None = None
    lowest: str | None = None
    highest: str | None = None

    def may_have(self, workloads: Sequence[str]) -> bool:
        """Say whether one of some workload ids, sorted, lies between the file's bounds."""
        first = 0 if self.lowest is None else bisect_left(workloads, self.lowest)
        return first < len(workloads) and (self.highest is None or workloads[first] <= self.highest)


def data_files(table: DeltaTable) -> list[DataFile]:
    """Return the files of a table's version, sorted by path."""
    actions = pl.DataFrame(table.get_add_actions(flatten=True))  # pa.table would import pandas
    names = {
        "path": "path",
        "hardware": f"partition.{PARTITION}",
        "rows": "num_records",
        "lowest": "min.workload_id",
        "highest": "max.workload_id",
    }
    columns = [pl.col(name).alias(key) for key, name in names.items() if name in actions.columns]
    rows = actions.select(columns).to_dicts()
    return sorted((DataFile(**row) for row in rows), key=lambda file: file.path)


def group_rows(nbytes: int, rows: int) -> int:
    """Return how many rows make a row group, of rows that take `nbytes` in memory."""
    fitting = GROUP_BYTES * rows // max(1, nbytes)
    return min(GROUP_ROWS[1], max(GROUP_ROWS[0], fitting))


class Folder:
    """The files below a store's URI: a local folder, or whatever else Delta Lake can reach."""

    def __init__(self, uri: str, storage_options: dict[str, str] | None = None) -> None:
        self.uri = uri
        self.storage_options = storage_options
        self.local = _local_path(uri)

    def scan(self, files: Sequence[DataFile]) -> pl.LazyFrame:
        """Return the rows of files with all columns of the schema, those that a file lacks null.

        The hardware is the log's; polars.scan_delta takes it from the folder's name, which is for people.
        """
        stored = {name: kind for name, kind in COLUMNS.items() if name != PARTITION}
        root = self.uri.rstrip("/") if self.local is None else str(self.local.absolute())
        parts = [pl.LazyFrame(schema=COLUMNS)]
        for name in sorted({file.hardware for file in files}):
            rows = pl.scan_parquet(
                [f"{root}/{unquote(file.path)}" for file in files if file.hardware == name],
                schema=stored,
                missing_columns="insert",
                glob=False,
                hive_partitioning=False,
                storage_options=self.storage_options,  # Polars has no names for some of remote.settings
            )
            hardware = pl.lit(name, pl.String).alias(PARTITION)
            filled = rows.with_columns(hardware, generator=known_generator())
            parts.append(filled.select(COLUMNS.names()))
        return parts[1] if len(parts) == 2 else pl.concat(parts)

    def write(self, table: pa.Table) -> list[AddAction]:
        """Sort rows of :data:`SCHEMA` and write them as files; return what the log is to add.

        The files belong to no version until those actions are committed. Delta Lake's own writer
        commits what it writes at once: a writer that another overtakes would write its rows again
        for each try, here it commits the same files again.
        """
        rows_of_group = group_rows(table.nbytes, table.num_rows)
        return [
            self._add(name, part, rows_of_group)
            for name, rows in by_hardware(table)
            for part in in_pieces(rows, rows_of_group * FILE_GROUPS)
        ]

    def _add(self, hardware: str, rows: pa.Table, rows_of_group: int) -> AddAction:
        # For people; what the rows' hardware is stands in the log, and a log's word for it may be of any length.
        folder = f"{PARTITION}={re.sub(r'[^A-Za-z0-9._-]', '_', hardware)[:100]}"
        path = f"{folder}/{uuid.uuid4()}.zstd.parquet"
        sink = pa.BufferOutputStream()
        with parquet_writer(sink, rows.drop_columns([PARTITION]).schema) as writer:
            writer.write_table(rows.drop_columns([PARTITION]), row_group_size=rows_of_group)
        content = sink.getvalue()
        if self.local is not None:
            (self.local / folder).mkdir(parents=True, exist_ok=True)
            (self.local / path).write_bytes(content)
        else:
            # The handler's own stream: Arrow's would hand it buffers, which it does not take.
            stream = self._remote._handler.open_output_stream(path, None)
            stream.write(content.to_pybytes())
            stream.close()
        ids = rows.column("workload_id")
        stats = {
            "numRecords": rows.num_rows,
            "minValues": {"workload_id": ids[0].as_py()},
            "maxValues": {"workload_id": ids[-1].as_py()},
            "nullCount": {"workload_id": 0},
        }
        return AddAction(
            path=path,
            size=content.size,
            partition_values={PARTITION: hardware},
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=json.dumps(stats),
        )

    @cached_property
    def _remote(self) -> Any:
        from deltalake.fs import DeltaStorageHandler

        return DeltaStorageHandler(self.uri, remote.settings(self.uri, self.storage_options))


def parquet_writer(where: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of records; the same rows in the same order are the same bytes."""
    bounded = [name for name in schema.names if name in (*BOUNDED, PARTITION)]
    return pq.ParquetWriter(
        where, schema, compression="zstd", compression_level=3, write_statistics=bounded
    )


def in_pieces(rows: pa.Table, most: int) -> Iterator[pa.Table]:
    """Yield rows of one hardware sorted by workload and record, `most` at once."""
    keys = pl.DataFrame(rows.select(["workload_id", "record_id"]))
    order = keys.with_row_index().sort("workload_id", "record_id")["index"].to_arrow()
    for first in range(0, rows.num_rows, most):
        yield rows.take(order.slice(first, most))


def by_hardware(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each hardware of a table with its rows, sorted by name."""
    column = table.column(PARTITION)
    names = sorted(column.unique().to_pylist())
    for name in names:
        yield name, table if len(names) == 1 else table.filter(pa.compute.equal(column, name))


def _local_path(uri: str) -> Path | None:
    if "://" not in uri:
        return Path(uri)
    return Path(unquote(urlparse(uri).path)) if uri.startswith("file://") else None
