"""Reads a raw dataset that is a folder of logs in any format, for the stage records.

Its workloads are no modules, but for MetaSchedule's: their text is ``{"workload": name, "args": [...]}``, as much as
the log says. Its tasks are the workloads themselves, in the networks that a TenSet folder names or else in one that has
the dataset's name; FLOPs are not known (0).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa

from tencost.config.parts import LOG_FORMATS
from tencost.errors import DatasetError
from tencost.records.databases import Import, Workload
from tencost.records.devices import Devices
from tencost.records.logs import Logs, find_logs, log_modules, read_logs
from tencost.records.raw_layout import Task
from tencost.records.reading.protocol import Reject
from tencost.store.schema import SCHEMA


def read_log_dataset(
    folder: Path,
    dataset: str,
    hardware: Devices | str | None,
    on_file: Callable[[int, int], None] = lambda *_: None,
) -> Import:
    """Read every log of a folder.

    Raises:
        DatasetError: there is no log in it.
        RecordError: a log does not say its device, and `hardware` does not either.
    """
    logs = find_logs([folder], dataset, hardware)
    if not logs.files:
        formats = ", ".join(LOG_FORMATS.names())
        raise DatasetError(
            f"expected measure_records/<hardware>/... or logs ({formats}) in {folder}, found none. "
            "See docs/how-to/your-own-data.md"
        )
    tables: list[pa.Table] = []
    rejects: list[Reject] = list(logs.rejects)
    for number, (batches, bad) in enumerate(read_logs(logs)):
        tables += batches
        rejects += bad
        on_file(number, len(logs.files))
    table = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
    return Import(table, _workloads(table, logs), _tasks(table), rejects)


def _workloads(table: pa.Table, logs: Logs) -> list[Workload]:
    modules = {
        module.workload_id: (module.mod_json, module.shash)
        for log in logs.files
        for module in log_modules(log)
    }
    workloads = []
    for row in _distinct(table).iter_rows(named=True):
        args = json.loads(row["workload_args"] or "[]")
        about = json.dumps({"workload": row["workload"], "args": args}, separators=(",", ":"))
        text, shash = modules.get(row["workload_id"], (about, None))
        workloads.append(Workload(row["workload_id"], text, row["task_name"], shash, True))
    return workloads


def _tasks(table: pa.Table) -> list[Task]:
    return [
        Task(network["network"], row["task_name"], row["workload_id"], network["weight"], 0.0, True)
        for row in _distinct(table).iter_rows(named=True)
        for network in row["networks"]
    ]


def _distinct(table: pa.Table) -> pl.DataFrame:
    columns = ["workload_id", "task_name", "workload", "workload_args", "networks"]
    frame = pl.DataFrame(table.select(columns))
    return frame.unique("workload_id", keep="first").sort("workload_id")
