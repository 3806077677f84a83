"""What the rooms to the right read of data/records/<dataset>: three tables.

records: every column of the schema and `latency_s`, the median of run_secs in seconds (TVM's cost
models take the median, too), null for a failure. workloads: `workload_id, mod_json, task_name,
shash, measured`; ``tvm.ir.load_json(mod_json)`` gives the IRModule. tasks: `network, task_name,
workload_id, weight, flop, measured`, all tasks of every network, measured or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from tencost.errors import RecordError
from tencost.store.record_store import RecordStore, latency

STORE = "store"
WORKLOADS = "workloads.parquet"
TASKS = "tasks.parquet"


def load_records(
    folder: Path, hardware: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Return the records in `folder` (data/records/<dataset>) with `latency_s`, seconds.

    Args:
        folder: what the records stage wrote.
        hardware: hardware to read; None reads all.
        columns: columns to read besides `latency_s`; None reads all of the schema.

    Raises:
        RecordError: nothing there, or no records of a hardware named.
    """
    store = RecordStore(str(folder / STORE))
    wanted = None if columns is None else list(dict.fromkeys([*columns, "run_secs"]))
    frame = store.read(hardware, wanted).with_columns(latency_s=latency())
    return frame if columns is None else frame.select([*dict.fromkeys([*columns, "latency_s"])])


def load_workloads(folder: Path) -> pl.DataFrame:
    """Return the distinct workloads, with and without records."""
    return _read(folder / WORKLOADS)


def load_tasks(folder: Path) -> pl.DataFrame:
    """Return all tasks of every network, measured or not."""
    return _read(folder / TASKS)


def _read(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise RecordError(f"expected {path}, found nothing. Build it: tencost records")
    return pl.read_parquet(path)
