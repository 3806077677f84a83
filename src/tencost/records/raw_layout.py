"""A raw dataset in TenSet's layout, with MetaSchedule databases in place of pickles.

::

    README.md                             the dataset card
    tasks.json                            [{network, task_name, weight, flop, workload_id,
                                            measured, folder}]; optional
    network_info/<network>.json           [{task_name, weight, flop, workload_id, mod}], mod as
                                            JSON text; optional
    to_measure_programs/<folder>/         database pair, run_secs null: what is or was to measure
    measure_records/<hardware>/<folder>/  database pair: what was measured
    measure_records/<hardware>/<folder>/measurements.jsonl
                                          {status, timestamp, session, noise?, error?} for each
                                            record line; optional
    measure_records/<hardware>/<folder>/by_rule.json
                                          how long the task takes by rule, see rule_times.py; optional
    measure_records/<hardware>/provenance.json
                                          what holds for all its records (record.Provenance);
                                            optional
    measure_records/<hardware>/sessions*.jsonl
                                          {session, ...record.Provenance}: what holds for the
                                            records of a session; optional

`<folder>` is any path below the hardware; :func:`folder_name` gives the one that tencost writes.
Weights are numbers of occurrences in the network, flop is a count (not a rate).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tencost.errors import DatasetError, RecordError
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    LoggedProgram,
    LoggedWorkload,
    Reject,
    read_programs,
    read_workloads,
)
from tencost.records.reading.protocol import Module
from tencost.store.ids import workload_id
from tencost.store.record import Provenance, provenance_from_json

NAME_LENGTH = 80
FOLDER_ID_LENGTH = 12


@dataclass(frozen=True)
class Task:
    """A workload of a network: occurrences, floating-point operations, whether it was measured."""

    network: str
    task_name: str
    workload_id: str
    weight: int
    flop: float
    measured: bool


@dataclass(frozen=True)
class Database:
    """A database pair of one hardware; `file` is relative to the dataset's folder."""

    hardware: str
    folder: Path
    relative: str


def folder_name(task_name: str, workload: str) -> str:
    """Return the name of a task's folder: safe for file systems, unique by the workload's id."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", task_name)[:NAME_LENGTH].lstrip(".") or "task"
    return f"{safe}-{workload[:FOLDER_ID_LENGTH]}"


def databases(dataset: Path) -> Iterator[Database]:
    """Yield every database pair under measure_records/, sorted by hardware and path.

    Raises:
        DatasetError: there is none.
    """
    top = dataset / "measure_records"
    paths = sorted(top.glob(f"*/**/{RECORD_FILE}"))
    if not paths:
        raise DatasetError(
            f"expected measure_records/<hardware>/.../{RECORD_FILE} in {dataset}, found none. "
            "Fetch it again: tencost fetch dataset=<name>"
        )
    for path in paths:
        folder = path.parent
        hardware = folder.relative_to(top).parts[0]
        yield Database(hardware, folder, folder.relative_to(dataset).as_posix())


def read_database(
    dataset: Path, database: Database
) -> tuple[list[LoggedWorkload | None], Iterator[LoggedProgram | Reject], list[Reject]]:
    """Return a pair's workloads, a stream of its programs, and the rejects of its workload file.

    A pair whose workload file is missing is one reject.
    """
    try:
        workloads, rejects = read_workloads(database.folder / WORKLOAD_FILE)
    except RecordError as error:
        return [], iter(()), [Reject(f"{database.relative}/{RECORD_FILE}", 0, str(error))]
    programs = read_programs(database.folder / RECORD_FILE, workloads)
    relative = [_relative(reject, dataset) for reject in rejects]
    return (
        workloads,
        (
            _relative(program, dataset) if isinstance(program, Reject) else program
            for program in programs
        ),
        relative,
    )


def read_tasks(dataset: Path) -> list[Task]:
    """Return the index of tasks, from tasks.json or else network_info/; empty without either.

    Raises:
        DatasetError: a file is not what its grammar says.
    """
    index = dataset / "tasks.json"
    if index.is_file():
        return [_task(fields, index) for fields in _load_list(index)]
    tasks = []
    for path in sorted((dataset / "network_info").glob("*.json")):
        for fields in _load_list(path):
            task = {"network": path.stem, "measured": False, **fields}
            if "workload_id" not in task and isinstance(task.get("mod"), str):
                task["workload_id"] = workload_id(task["mod"])
            tasks.append(_task(task, path))
    return tasks


def read_modules(dataset: Path) -> Iterator[Module]:
    """Yield the module of every task in network_info/, without TVM's hash.

    Raises:
        DatasetError: a file is not what its grammar says.
    """
    for path in sorted((dataset / "network_info").glob("*.json")):
        for fields in _load_list(path):
            if not (isinstance(fields, dict) and isinstance(fields.get("mod"), str)):
                raise DatasetError(f"expected tasks with a module `mod` as JSON text in {path}")
            name = str(fields.get("task_name", ""))
            yield Module(workload_id(fields["mod"]), fields["mod"], name, "")


def read_provenance(dataset: Path, hardware: str) -> Provenance:
    """Return what the dataset says about all records of a hardware; empty if it says nothing.

    Raises:
        DatasetError: the file is not an object.
    """
    path = dataset / "measure_records" / hardware / "provenance.json"
    if not path.is_file():
        return Provenance()
    value = _load_json(path)
    if not isinstance(value, dict):
        raise DatasetError(f"expected a JSON object in {path}, found {type(value).__name__}")
    return provenance_from_json(value)


def _relative(reject: Reject, dataset: Path) -> Reject:
    file = Path(reject.file)
    return Reject(file.relative_to(dataset).as_posix(), reject.line, reject.reason)


def _load_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise DatasetError(f"expected JSON in {path}: {error}") from error


def _load_list(path: Path) -> list[Any]:
    value = _load_json(path)
    if not isinstance(value, list):
        raise DatasetError(f"expected a JSON list in {path}, found {type(value).__name__}")
    return value


def _task(fields: Any, path: Path) -> Task:
    try:
        return Task(
            network=str(fields["network"]),
            task_name=str(fields["task_name"]),
            workload_id=str(fields["workload_id"]),
            weight=int(fields["weight"]),
            flop=float(fields["flop"]),
            measured=bool(fields.get("measured", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(
            f"expected a task with network, task_name, workload_id, weight and flop in {path}, "
            f"found {str(fields)[:80]} ({type(error).__name__}: {error})"
        ) from error
