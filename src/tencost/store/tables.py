"""data/records/<dataset>, what a build makes and the rooms to the right read: three tables, or four.

records: every column of the schema and `latency_s`, the median of run_secs in seconds (TVM's cost
models take the median, too), null for a failure. workloads: `workload_id, mod_json, task_name,
shash, measured`; ``tvm.ir.load_json(mod_json)`` gives the IRModule. tasks: `network, task_name,
workload_id, weight, flop, measured`, all tasks of every network, measured or not. rule_times, where the
dataset has some: `hardware, workload_id, rules, latency_s`, tasks as the rules schedule them.

Nobody appends to a build product, so its records are one Parquet file: sorted by hardware, workload
and record, and the same bytes for the same records, so that DVC stops where nothing changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa

from tencost.errors import RecordError
from tencost.store.layout import by_hardware, group_rows, in_pieces, latency, parquet_writer
from tencost.store.measured import one_of_each
from tencost.store.reading import RecordFile, StoredRecords
from tencost.store.record_store import RecordStore
from tencost.store.schema import SCHEMA

RECORDS = "records.parquet"
STORE = "store"
"""Where earlier versions put the records, as a Delta Lake table."""
WORKLOADS = "workloads.parquet"
TASKS = "tasks.parquet"
RULE_TIMES = "rule_times.parquet"


def open_records(uri: str, version: int | None = None) -> StoredRecords:
    """Return the records at `uri`: a store, a build's folder (data/records/<dataset>), or its file.

    Raises:
        RecordError: a table that is no record store, or a version of what has none.
    """
    path = Path(uri)
    file = path if path.suffix == ".parquet" else path / RECORDS
    if file.is_file():
        if version is not None:
            raise RecordError(
                f"expected no version for {file}, found {version}: a build product has one state. "
                "Leave it out, or check out the commit that built another"
            )
        return RecordFile(file)
    return RecordStore(str(path / STORE) if (path / STORE).is_dir() else uri, version)


def load_records(
    folder: Path, hardware: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Return the records in `folder` (data/records/<dataset>) with `latency_s`, seconds.

    Args:
        folder: written by the records stage.
        hardware: hardware to read; None reads all.
        columns: columns to read besides `latency_s`; None reads all of the schema.

    Returns:
        Rows sorted by hardware, source file and line.

    Raises:
        RecordError: nothing there, or no records of a hardware named.
    """
    selected = None if columns is None else list(dict.fromkeys([*columns, "run_secs"]))
    store = open_records(str(folder))
    if not store.exists():
        raise RecordError(
            f"expected a record store at {folder}, found none. Build it: tencost records dataset={folder.name}"
        )
    records = store.read(hardware, selected).with_columns(latency_s=latency())
    return records if columns is None else records.select([*dict.fromkeys([*columns, "latency_s"])])


def load_workloads(folder: Path) -> pl.DataFrame:
    """Return the distinct workloads, with and without records."""
    return _read(folder / WORKLOADS)


def load_tasks(folder: Path) -> pl.DataFrame:
    """Return all tasks of every network, measured or not."""
    return _read(folder / TASKS)


def load_rule_times(folder: Path) -> pl.DataFrame:
    """Return the seconds of tasks by rule: hardware, workload_id, latency_s; empty where none were taken."""
    path = folder / RULE_TIMES
    if path.is_file():
        return pl.read_parquet(path, columns=["hardware", "workload_id", "latency_s"])
    columns = {"hardware": pl.String, "workload_id": pl.String, "latency_s": pl.Float64}
    return pl.DataFrame(schema=columns)


def write_records(folder: Path, table: pa.Table) -> int:
    """Write the rows of a table of schema.SCHEMA as the records in `folder`; return how many those are.

    Rows of one record are measurements of one program and become one row, see measured.py.
    """
    distinct = one_of_each(table)
    most = group_rows(distinct.nbytes, distinct.num_rows)
    with parquet_writer(folder / RECORDS, SCHEMA) as writer:
        for _, rows in by_hardware(distinct):
            for part in in_pieces(rows, most):
                writer.write_table(part.combine_chunks())
    return int(distinct.num_rows)


def _read(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise RecordError(f"expected {path}, found nothing. Build it: tencost records")
    return pl.read_parquet(path)
