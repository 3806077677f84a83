"""What tuning runs measured, added to a raw dataset's folder, so that the next model learns from it.

The folder is in the layout of records/raw_layout.py; `measured/<name>` of `tencost measure` is such a folder::

    measure_records/<hardware>/<source>/<task>/    database pair and measurements.jsonl, failures included
    measure_records/<hardware>/sessions-<source>.jsonl
    network_info/<network>.json, tasks.json        the tasks that they lack

<source> is `tune-` and a hash of the store's URI and the model asked for: adding again replaces what was added before.
A record that the dataset has already is a duplicate, which the records stage leaves out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tencost.errors import MissingDependencyError, RecordError
from tencost.programs.trace.allowed import load_checked
from tencost.records.formats.metaschedule import LoggedProgram, LoggedWorkload, write_database
from tencost.records.measurements import MEASUREMENTS_FILE
from tencost.records.query_tables import Tables
from tencost.records.raw_layout import folder_name
from tencost.records.raw_layout import read_modules as modules_of_networks
from tencost.register.drift import of_model
from tencost.store.modules import stored_modules
from tencost.store.reading import StoredRecords
from tencost.writing import put_folder, scratch_beside

_OF_RECORD = ("round", "batch", "arm", "score")
"""Keys of additional_info that differ from record to record of a run."""
_ABOUT = ("engine_version", "env_name", "hw_model")
_ABOUT_JSON = ("engine_config", "build_config", "runtime_config", "execution_config")


@dataclass(frozen=True)
class DatasetAddition:
    """What was added: records, their workloads, tasks that were new; names of workloads that have no module."""

    records: int
    workloads: int
    tasks: int
    without_module: tuple[str, ...]


def add_to_dataset(store: StoredRecords, folder: Path, model: str | None = None) -> DatasetAddition:
    """Add the records of tuning runs to a raw dataset's folder, which is made if it is not there.

    Args:
        store: where the runs wrote to.
        folder: of the dataset.
        model: of runs with this registered model only; None: of all runs, also of those without a model.

    Raises:
        RecordError: no store, or no such records with modules.
        MissingDependencyError: a module has no hash, and TVM, which computes it, is not installed.
    """
    rows = Tables(store).ask(_RECORDS.format(only=of_model(_CHOSEN_BY, model))).to_dicts()
    modules = _modules(store, folder)
    usable = [row for row in rows if row["workload_id"] in modules]
    if not usable:
        raise RecordError(
            f"expected records of tuning runs with their modules in {store.uri}, found {len(rows)} records and no "
            "module of theirs. `tencost tune` writes both"
        )
    source = f"tune-{hashlib.sha256(f'{store.uri} {model}'.encode()).hexdigest()[:8]}"
    for hardware, group in groupby(usable, itemgetter("hardware")):
        _write_records(folder / "measure_records" / hardware, source, group, modules)
    return DatasetAddition(
        records=len(usable),
        workloads=len({row["workload_id"] for row in usable}),
        tasks=_add_tasks(folder, usable, modules),
        without_module=tuple(
            sorted({row["task_name"] for row in rows if row["workload_id"] not in modules})
        ),
    )


def _modules(store: StoredRecords, folder: Path) -> dict[str, tuple[str, str | None]]:
    """Return (module as JSON text, TVM's hash or None) by workload, of the dataset and of the store."""
    modules: dict[str, tuple[str, str | None]] = {
        module.workload_id: (module.mod_json, None) for module in modules_of_networks(folder)
    }
    for workload, mod_json, shash in (
        stored_modules(store.uri).select("workload_id", "mod_json", "shash").iter_rows()
    ):
        modules[workload] = (mod_json, shash)
    return modules


def _write_records(
    top: Path,
    source: str,
    rows: Iterable[dict[str, Any]],
    modules: Mapping[str, tuple[str, str | None]],
) -> None:
    """Write the records of a hardware, sorted by workload."""
    with scratch_beside(top / source) as scratch:
        sessions: dict[str, dict[str, Any]] = {}
        for workload, group in groupby(rows, itemgetter("workload_id")):
            programs = list(group)
            place = scratch / "content" / folder_name(programs[0]["task_name"], workload)
            mod_json, shash = modules[workload]
            logged = LoggedWorkload(shash or _hash(mod_json), mod_json, workload)
            write_database(place, [logged], (_program(row, logged) for row in programs))
            lines = [_measurement(row, sessions) for row in programs]
            _write_lines(place / MEASUREMENTS_FILE, lines)
        _write_lines(scratch / "sessions.jsonl", sessions.values())
        put_folder(scratch / "content", top / source, scratch)
        (scratch / "sessions.jsonl").replace(top / f"sessions-{source}.jsonl")


def _program(row: dict[str, Any], workload: LoggedWorkload) -> LoggedProgram:
    return LoggedProgram(
        workload=workload,
        trace=json.loads(row["program"]),
        run_secs=row["run_secs"],
        target=json.loads(row["target"]),
        args_info=json.loads(row["workload_args"] or "[]"),
        line=0,
    )


def _measurement(row: dict[str, Any], sessions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a record's line of measurements.jsonl; its session is added where it is new."""
    about = json.loads(row["additional_info"])
    of_record = {key: about.pop(key) for key in _OF_RECORD if key in about}
    session = str(about.get("run") or about["chosen_by"])
    if session not in sessions:
        provenance = {key: row[key] for key in _ABOUT if row[key] is not None}
        provenance |= {key: json.loads(row[key]) for key in _ABOUT_JSON if row[key] is not None}
        sessions[session] = {"session": session, **provenance, "additional_info": about}
    error = {"error": row["error"]} if row["error"] else {}
    line = {"status": row["status"], "timestamp": row["timestamp"], "session": session}
    return {**line, **error, **of_record}


def _add_tasks(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    modules: Mapping[str, tuple[str, str | None]],
) -> int:
    """Add the tasks that network_info/ and tasks.json lack; return how many network_info/ lacked."""
    tasks: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        for network in row["networks"] or ():
            task = {"task_name": row["task_name"], "weight": network["weight"]}
            tasks.setdefault(network["network"], {})[row["workload_id"]] = task
    index = folder / "tasks.json"
    listed = json.loads(index.read_bytes()) if index.is_file() else []
    listed_ids = {(task["network"], task["workload_id"]) for task in listed}
    added, has_index = 0, index.is_file()
    for network, by_workload in sorted(tasks.items()):
        path = folder / "network_info" / f"{network}.json"
        present = json.loads(path.read_bytes()) if path.is_file() else []
        new = []
        for workload in sorted(by_workload.keys() - {task["workload_id"] for task in present}):
            mod_json = modules[workload][0]
            task = {**by_workload[workload], "flop": _flop(mod_json), "workload_id": workload}
            new.append({**task, "mod": mod_json})
            if (network, workload) not in listed_ids:
                listed.append({"network": network, **task, "measured": True, "folder": None})
        if new:
            _write_json(path, [*present, *new])
            added += len(new)
    if has_index and added:
        _write_json(index, listed)
    return added


def _flop(mod_json: str) -> float:
    """Return the floating-point operations of a call; 0 where TVM, which counts them, is not installed."""
    try:
        from tvm.s_tir.analysis import estimate_tir_flops
    except ModuleNotFoundError:
        return 0.0
    return float(estimate_tir_flops(load_checked(mod_json)))


def _hash(mod_json: str) -> str:
    try:
        from tvm_ffi import structural_hash
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "a workload without a structural hash needs TVM: pip install 'tencost[tuner]'"
        ) from error
    return str(int(structural_hash(load_checked(mod_json))) % 2**64)


def _write_json(path: Path, tasks: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tasks, indent=1) + "\n", encoding="utf-8")


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


_CHOSEN_BY = "json_extract_string(additional_info, '$.chosen_by')"
_RECORDS = """
SELECT hardware, workload_id, task_name, networks, target, program, workload_args, run_secs, status, error, timestamp,
    engine_version, env_name, hw_model, engine_config, build_config, runtime_config, execution_config, additional_info
FROM records
WHERE contains(additional_info, '"chosen_by":') AND program_format = 'metaschedule_trace' AND {only}
ORDER BY hardware, workload_id, timestamp, record_id
"""
