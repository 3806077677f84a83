"""How rows lie in the files of a record store, so that a look-up reads little of a large one.

A file belongs to one hardware. Its rows are sorted by workload, target and latency (records without
times last) and cut into row groups of about :data:`GROUP_BYTES`; it has at most
:data:`FILE_GROUPS` of them, so that its footer stays small. What is found without reading rows:

* in the Delta log, for each file: its number of rows, the lowest and the highest workload id;
* in a file's footer, for each row group: the same of every column but the long texts, and of the
  single times in `run_secs`. No record's latency is below the lowest time of its row group.

Files that other programs wrote (Delta Lake's own writers, earlier versions) need none of this: where
statistics or columns are missing the rows are read, missing columns are null.
"""

from __future__ import annotations

import json
import re
import time
import uuid
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

from tencost.store.schema import SCHEMA

PARTITION = "hardware"
GROUP_BYTES = 2 << 20
"""Of the rows in memory: what a look-up decodes at least."""
GROUP_ROWS = (256, 8192)
"""Least and most rows of a row group, whatever their size."""
FILE_GROUPS = 32
FILE_BYTES = FILE_GROUPS * GROUP_BYTES
SLAB_BYTES = 8 * FILE_BYTES
"""Rows sorted together: Arrow's texts are limited to 2 GiB a column."""
ORDER = ("workload_id", "target", "latency", "record_id")
"""What the rows of a file are sorted by."""

_LONG_TEXTS = frozenset(
    {
        "additional_info",
        "workload_args",
        "engine_config",
        "build_config",
        "runtime_config",
        "execution_config",
        "program",
        "error",
        "foreign",
    }
)
_SORTED = "tencost.sorted_by"
"""Key of a file's metadata; the value names the columns."""


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
    rows: int | None
    lowest: str | None
    highest: str | None

    def may_have(self, workload_id: str) -> bool:
        """Say whether the workload's id lies between the file's bounds."""
        return (self.lowest is None or self.lowest <= workload_id) and (
            self.highest is None or workload_id <= self.highest
        )


@dataclass(frozen=True)
class Group:
    """A row group: its number in the file, bounds of its workload ids, a lower bound of its latencies.

    `fastest` (seconds) is None where no row has a time, 0.0 where the footer does not say.
    """

    number: int
    rows: int
    lowest: str | None
    highest: str | None
    fastest: float | None

    def may_have(self, workload_id: str) -> bool:
        """Say whether the workload's id lies between the group's bounds."""
        return (self.lowest is None or self.lowest <= workload_id) and (
            self.highest is None or workload_id <= self.highest
        )


def data_files(table: DeltaTable, hardware: str | None = None) -> list[DataFile]:
    """Return the files of a table's version, all or those of one hardware, sorted by path."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = {
        "path": "path",
        "hardware": f"partition.{PARTITION}",
        "rows": "num_records",
        "lowest": "min.workload_id",
        "highest": "max.workload_id",
    }
    held = {key: name for key, name in names.items() if name in actions.schema.names}
    rows = actions.select(list(held.values())).rename_columns(list(held)).to_pylist()
    absent = dict.fromkeys(set(names) - set(held))
    files = [DataFile(**{**row, **absent}) for row in rows]
    return sorted(
        (file for file in files if hardware is None or file.hardware == hardware),
        key=lambda file: file.path,
    )


class Folder:
    """The files below a store's URI: a local folder, or whatever else Delta Lake can reach."""

    def __init__(self, uri: str, storage_options: dict[str, str] | None = None) -> None:
        self.uri = uri
        self.storage_options = storage_options
        self.local = _local_path(uri)

    def open(self, path: str) -> RecordFile:
        """Open a file of the log for reading; only its footer is read."""
        if self.local is not None:
            return RecordFile(pq.ParquetFile(self.local / unquote(path)))
        return RecordFile(pq.ParquetFile(self._remote.open_input_file(unquote(path))))

    def write(self, table: pa.Table, data_change: bool = True) -> list[AddAction]:
        """Sort rows of :data:`SCHEMA` and write them as files; return what the log is to add.

        The files belong to no version until those actions are committed. `data_change` says whether
        the rows are new to the store.
        """
        average = max(1, table.nbytes // max(1, table.num_rows))
        group_rows = min(GROUP_ROWS[1], max(GROUP_ROWS[0], GROUP_BYTES // average))
        slab_rows = max(group_rows, SLAB_BYTES // average)
        added = []
        for start in range(0, table.num_rows, slab_rows):
            for hardware, rows in by_hardware(table.slice(start, slab_rows)):
                order = in_order(rows)
                num_files = -(-rows.num_rows // (group_rows * FILE_GROUPS))
                file_rows = -(-rows.num_rows // num_files)
                for first in range(0, rows.num_rows, file_rows):
                    part = rows.take(order.slice(first, file_rows))
                    added.append(self._write_file(hardware, part, group_rows, data_change))
        return added

    def _write_file(
        self, hardware: str, rows: pa.Table, group_rows: int, data_change: bool
    ) -> AddAction:
        # The log says which hardware it is, not the folder's name, which is for people.
        folder = f"{PARTITION}={re.sub(r'[^A-Za-z0-9._-]', '_', hardware)}"
        path = f"{folder}/{uuid.uuid4()}.zstd.parquet"
        if self.local is not None:
            (self.local / folder).mkdir(parents=True, exist_ok=True)
            size = _write_parquet(rows, self.local / path, group_rows)
        else:
            with pa.PythonFile(_Upload(self._remote, path), mode="w") as stream:
                size = _write_parquet(rows, stream, group_rows)
        ids = rows.column("workload_id")
        return AddAction(
            path=path,
            size=size,
            partition_values={PARTITION: hardware},
            modification_time=int(time.time() * 1000),
            data_change=data_change,
            stats=json.dumps(
                {
                    "numRecords": rows.num_rows,
                    "minValues": {"workload_id": ids[0].as_py()},
                    "maxValues": {"workload_id": ids[-1].as_py()},
                    "nullCount": {"workload_id": 0},
                }
            ),
        )

    @cached_property
    def _remote(self) -> Any:
        from deltalake.fs import DeltaStorageHandler

        return DeltaStorageHandler(self.uri, self.storage_options)


class _Upload:
    """A file being written through Delta Lake, whose own stream does not take Arrow's buffers."""

    def __init__(self, storage: Any, path: str) -> None:
        self._stream = storage._handler.open_output_stream(path, None)
        self.closed = False

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data))
        return len(data)

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self.closed = True


class RecordFile:
    """An open file of records."""

    def __init__(self, parquet: pq.ParquetFile) -> None:
        self._parquet = parquet
        self._names = frozenset(parquet.schema_arrow.names)

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._parquet.close(force=True)

    @property
    def is_sorted(self) -> bool:
        """Whether its rows lie in :data:`ORDER`."""
        about = self._parquet.metadata.metadata or {}
        return bool(about.get(_SORTED.encode()) == ",".join(ORDER).encode())

    @property
    def num_groups(self) -> int:
        """Number of row groups."""
        return int(self._parquet.metadata.num_row_groups)

    def groups(self) -> Iterator[Group]:
        """Yield the row groups in their order."""
        footer = self._parquet.metadata
        columns = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
        times = next((columns[path] for path in columns if path.startswith("run_secs.")), None)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            ids = group.column(columns["workload_id"]).statistics
            bounded = ids is not None and ids.has_min_max
            yield Group(
                number,
                group.num_rows,
                ids.min if bounded else None,
                ids.max if bounded else None,
                None if times is None else _lowest_time(group.column(times)),
            )

    def read(
        self,
        hardware: str,
        columns: Sequence[str],
        groups: Sequence[int] | None = None,
    ) -> pa.Table:
        """Read columns of some row groups (None: of all) as :data:`SCHEMA` has them, in its types."""
        numbers = range(self._parquet.metadata.num_row_groups) if groups is None else groups
        held = [name for name in columns if name in self._names and name != PARTITION]
        # Without any column to read, the workload's tells the number of rows.
        loaded = self._parquet.read_row_groups(
            list(numbers), columns=held or ["workload_id"], use_threads=len(numbers) > 1
        )
        count = loaded.num_rows
        made = []
        for name in columns:
            kind = SCHEMA.field(name).type
            if name == PARTITION:
                made.append(pa.repeat(pa.scalar(hardware, kind), count))
            elif name not in self._names:
                made.append(pa.nulls(count, kind))
            else:
                column = loaded.column(name)
                made.append(column if column.type == kind else column.cast(kind))
        return pa.table(made, schema=pa.schema([SCHEMA.field(name) for name in columns]))


def by_hardware(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each hardware of a table with its rows, sorted by name."""
    column = table.column(PARTITION)
    names = sorted(column.unique().to_pylist())
    for name in names:
        yield name, table if len(names) == 1 else table.filter(pa.compute.equal(column, name))


def in_order(table: pa.Table) -> pa.Array:
    """Return the positions of a table's rows in :data:`ORDER`."""
    keys = pl.from_arrow(table.select(["workload_id", "target", "run_secs", "record_id"]))
    assert isinstance(keys, pl.DataFrame)
    ranked = keys.select("workload_id", "target", "record_id", latency=latency()).with_row_index()
    return ranked.sort(ORDER, nulls_last=True)["index"].to_arrow()


def _write_parquet(rows: pa.Table, where: Any, group_rows: int) -> int:
    """Write rows of one hardware, sorted; return the number of bytes."""
    body = rows.drop_columns([PARTITION])
    known = [name for name in body.schema.names if name not in _LONG_TEXTS]
    marked = body.replace_schema_metadata(
        {**(body.schema.metadata or {}), _SORTED: ",".join(ORDER)}
    )
    with pq.ParquetWriter(
        where,
        marked.schema,
        compression="zstd",
        compression_level=3,
        write_statistics=[*known, "run_secs.list.element"],
    ) as writer:
        writer.write_table(marked, row_group_size=group_rows)
    if isinstance(where, Path):
        return where.stat().st_size
    return int(where.tell())


def _lowest_time(chunk: Any) -> float | None:
    statistics = chunk.statistics
    if statistics is None:
        return 0.0
    if statistics.has_min_max:
        return float(statistics.min)
    return None if statistics.num_values == 0 else 0.0


def _local_path(uri: str) -> Path | None:
    if "://" not in uri:
        return Path(uri)
    parsed = urlparse(uri)
    return Path(unquote(parsed.path)) if parsed.scheme == "file" else None
