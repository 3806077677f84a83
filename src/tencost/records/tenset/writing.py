"""Writes records of auto_scheduler as a TenSet dataset folder of the current generation; layout.py has the layout."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tencost.errors import RecordError
from tencost.records.formats import ansor
from tencost.records.tenset.layout import (
    INFO_FOLDERS,
    PROGRAM_FOLDER,
    RECORD_FOLDER,
    NetworkTasks,
    distinct_tasks,
)
from tencost.records.tenset.names import log_file, tasks_file
from tencost.records.tenset.pickles import SearchTask, WeightedTask

if TYPE_CHECKING:
    import polars


def write_layout(folder: Path, table: pa.Table | polars.DataFrame) -> list[Path]:
    """Write records as a TenSet dataset of the current generation, and return its files.

    Args:
        folder: to be made, or empty.
        table: rows of the record schema whose program_format is ansor_steps, in the order that the logs shall have.

    Records that were not measured go to to_measure_programs/, where TenSet keeps no hardware. Networks and weights
    are those of the column `networks`, per kind of target.

    Raises:
        RecordError: the folder holds something, rows are of another format, or a hardware cannot name a folder.
    """
    if folder.exists() and any(folder.iterdir()):
        raise RecordError(
            f"expected a new folder to write a TenSet dataset to, found files in {folder}"
        )
    arrow = table if isinstance(table, pa.Table) else table.to_arrow()
    formats = set(arrow.column("program_format").to_pylist())
    if formats - {ansor.PROGRAM_FORMAT}:
        raise RecordError(
            f"expected records whose program_format is {ansor.PROGRAM_FORMAT}, found {sorted(formats)}: select them "
            "first; tencost records query stats --by format"
        )
    rows: dict[str, list[int]] = {}
    tasks: dict[tuple[str, str], dict[str, WeightedTask]] = {}
    columns = (arrow.column(name).to_pylist() for name in ("hardware", "foreign", "networks"))
    for row, (hardware, foreign, networks) in enumerate(zip(*columns, strict=True)):
        task, log, measured = _logged(foreign)
        rows.setdefault(_log_folder(hardware, measured) + log, []).append(row)
        for network in networks or []:
            of_network = tasks.setdefault((network["network"], task.kind), {})
            of_network.setdefault(task.workload_key, WeightedTask(task, network["weight"]))
    columns_of_lines = arrow.select(["foreign", "program", "run_secs", "wall_s", "timestamp"])
    files = [_write_log(folder / log, columns_of_lines.take(rows[log])) for log in sorted(rows)]
    info = folder / INFO_FOLDERS[0]
    listed = [
        NetworkTasks(label, kind, list(of_network.values()))
        for (label, kind), of_network in sorted(tasks.items())
    ]
    for network in listed:
        name = tasks_file(network.network, network.kind, ".task.json")
        files.append(_write_json(info / name, network))
    if listed:
        every = sorted(distinct_tasks(listed), key=lambda task: (task.kind, task.workload_key))
        files.append(_write_json(info / "all_tasks.json", every))
    return files


@lru_cache(maxsize=4096)
def _logged(foreign: str) -> tuple[SearchTask, str, bool]:
    """Return the task of a record's line, the name of its log, and whether the record was measured."""
    line = json.loads(foreign)
    key, target, *rest = line["task"]
    hardware, host, layout, names = rest + [None, "", None, []][len(rest) :]
    task = SearchTask(
        key, target, host, tuple(hardware) if hardware else None, layout, tuple(names)
    )
    costs = line.get("costs")
    measured = bool(line["error_no"] or not costs or any(costs))
    return task, log_file(task.workload_key, task.kind), measured


def _log_folder(hardware: str, measured: bool) -> str:
    if not measured:
        return f"{PROGRAM_FOLDER}/"
    if hardware in ("", ".", "..") or "/" in hardware or "\0" in hardware:
        raise RecordError(f"expected a hardware that can name a folder, found {hardware!r}")
    return f"{RECORD_FOLDER}/{hardware}/"


def _write_log(path: Path, table: pa.Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in ansor.write_lines(table))
    return path


def _write_json(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    return path
