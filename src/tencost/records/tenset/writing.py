"""Writes records of auto_scheduler as a TenSet dataset folder of the current generation; tenset.py has the layout."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from tencost.errors import RecordError
from tencost.records.formats import ansor
from tencost.records.tenset.layout import (
    INFO_FOLDERS,
    PROGRAM_FOLDER,
    RECORD_FOLDER,
    TaskFile,
    distinct_tasks,
)
from tencost.records.tenset.names import log_file, network_from_label, tasks_file
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
            "first; tencost records query stats by=format"
        )
    rows: dict[str, list[int]] = {}
    tasks: dict[tuple[str, str], dict[str, WeightedTask]] = {}
    columns = (arrow.column(name).to_pylist() for name in ("hardware", "foreign", "networks"))
    for row, (hardware, foreign, networks) in enumerate(zip(*columns, strict=True)):
        said = _said(foreign)
        rows.setdefault(_place(hardware, said), []).append(row)
        for network in networks or []:
            listed = tasks.setdefault((network["network"], said.kind), {})
            if said.task.workload_key not in listed:
                listed[said.task.workload_key] = WeightedTask(said.task, network["weight"])
    logged = arrow.select(["foreign", "program", "run_secs", "wall_s", "timestamp"])
    written = [_write_log(folder / place, logged.take(rows[place])) for place in sorted(rows)]
    for (label, kind), listed in sorted(tasks.items()):
        name = tasks_file(network_from_label(label), kind, ".task.json")
        content = TaskFile(label, kind, list(listed.values()))
        written.append(_write_json(folder / INFO_FOLDERS[0] / name, content))
    if tasks:
        every = distinct_tasks(item.task for listed in tasks.values() for item in listed.values())
        every.sort(key=lambda task: (task.kind, task.workload_key))
        written.append(_write_json(folder / INFO_FOLDERS[0] / "all_tasks.json", every))
    return written


class _Said(NamedTuple):
    """What a record's line says: its task, the target's kind, the log's name, whether it was measured."""

    task: SearchTask
    kind: str
    file: str
    measured: bool


@lru_cache(maxsize=4096)
def _said(foreign: str) -> _Said:
    value = json.loads(foreign)
    key, target, *rest = value["task"]
    hardware, host, layout, names = rest + [None, "", None, []][len(rest) :]
    task = SearchTask(
        workload_key=key,
        target=target,
        target_host=host,
        hardware_params=tuple(hardware) if hardware else None,
        layout_rewrite=layout,
        input_names=tuple(names),
    )
    costs = value.get("costs")
    measured = bool(value["error_no"] or not costs or any(costs))
    return _Said(task, task.kind, log_file(key, task.kind), measured)


def _place(hardware: str, said: _Said) -> str:
    if not said.measured:
        return f"{PROGRAM_FOLDER}/{said.file}"
    if hardware in ("", ".", "..") or "/" in hardware or "\0" in hardware:
        raise RecordError(f"expected a hardware that can name a folder, found {hardware!r}")
    return f"{RECORD_FOLDER}/{hardware}/{said.file}"


def _write_log(path: Path, table: pa.Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in ansor.write_lines(table):
            file.write(f"{line}\n")
    return path


def _write_json(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    return path
