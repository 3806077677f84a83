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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tencost.errors import MissingDependencyError, RecordError
from tencost.programs.trace.allowed import load_checked
from tencost.records.formats.metaschedule import LoggedProgram, LoggedWorkload, write_database
from tencost.records.measurements import MEASUREMENTS_FILE
from tencost.records.query_tables import Tables, quoted
from tencost.records.raw_layout import folder_name
from tencost.records.raw_layout import read_modules as modules_of_networks
from tencost.store.modules import read_modules
from tencost.store.reading import Records
from tencost.writing import put_folder, scratch_beside

_OF_RECORD = ("round", "batch", "arm", "score")
"""Keys of additional_info that differ from record to record of a run."""
_ABOUT = ("engine_version", "env_name", "hw_model")
_ABOUT_JSON = ("engine_config", "build_config", "runtime_config", "execution_config")


@dataclass(frozen=True)
class Added:
    """What was added: records, their workloads, tasks that were new; names of workloads that have no module."""

    records: int
    workloads: int
    tasks: int
    without_module: tuple[str, ...]


def add_to_dataset(store: Records, folder: Path, model: str | None = None) -> Added:
    """Add the records of tuning runs to a raw dataset's folder, which is made if it is not there.

    Args:
        store: where the runs wrote to.
        folder: of the dataset.
        model: of runs with this registered model only; None: of all runs, also of those without a model.

    Raises:
        RecordError: no store, or no such records with modules.
        MissingDependencyError: a module has no hash, and TVM, which computes it, is not installed.
    """
    rows = Tables(store).ask(_RECORDS.format(only=_only(model))).to_dicts()
    modules = _modules(store, folder)
    kept = [row for row in rows if row["workload_id"] in modules]
    lost = {row["task_name"] for row in rows if row["workload_id"] not in modules}
    if not kept:
        raise RecordError(
            f"expected records of tuning runs with their modules in {store.uri}, found {len(rows)} records and no "
            "module of theirs. `tencost tune` writes both"
        )
    source = f"tune-{hashlib.sha256(f'{store.uri} {model}'.encode()).hexdigest()[:8]}"
    for hardware in sorted({row["hardware"] for row in kept}):
        mine = [row for row in kept if row["hardware"] == hardware]
        _write_records(folder / "measure_records" / hardware, source, mine, modules)
    tasks = _add_tasks(folder, kept, modules)
    workloads = {row["workload_id"] for row in kept}
    return Added(len(kept), len(workloads), tasks, tuple(sorted(lost)))


def _modules(store: Records, folder: Path) -> dict[str, tuple[str, str | None]]:
    """Return (module as JSON text, TVM's hash or None) by workload, of the dataset and of the store."""
    found: dict[str, tuple[str, str | None]] = {
        item.workload_id: (item.mod_json, None) for item in modules_of_networks(folder)
    }
    for row in read_modules(store.uri).iter_rows(named=True):
        found[row["workload_id"]] = (row["mod_json"], row["shash"])
    return found


def _write_records(
    top: Path, source: str, rows: Sequence[dict[str, Any]], modules: dict[str, Any]
) -> None:
    with scratch_beside(top / source) as scratch:
        sessions: dict[str, dict[str, Any]] = {}
        for workload in sorted({row["workload_id"] for row in rows}):
            mine = [row for row in rows if row["workload_id"] == workload]
            place = scratch / "content" / folder_name(mine[0]["task_name"], workload)
            mod_json, shash = modules[workload]
            logged = LoggedWorkload(shash or _hash(mod_json), mod_json, workload)
            write_database(place, [logged], (_program(row, logged) for row in mine))
            lines = [_measurement(row, sessions) for row in mine]
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
    own = {key: about.pop(key) for key in _OF_RECORD if key in about}
    name = f"{about.get('run') or about['chosen_by']}"
    if name not in sessions:
        told = {key: row[key] for key in _ABOUT if row[key] is not None}
        told |= {key: json.loads(row[key]) for key in _ABOUT_JSON if row[key] is not None}
        sessions[name] = {"session": name, **told, "additional_info": about}
    line = {"status": row["status"], "timestamp": row["timestamp"], "session": name}
    if row["error"]:
        line["error"] = row["error"]
    return {**line, **own}


def _add_tasks(folder: Path, rows: Sequence[dict[str, Any]], modules: dict[str, Any]) -> int:
    """Add the tasks that network_info/ and tasks.json lack; return how many network_info/ lacked."""
    wanted: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        for item in row["networks"] or ():
            entry = {"task_name": row["task_name"], "weight": item["weight"]}
            wanted.setdefault(item["network"], {})[row["workload_id"]] = entry
    index = folder / "tasks.json"
    listed = json.loads(index.read_bytes()) if index.is_file() else None
    count = 0
    for network, tasks in sorted(wanted.items()):
        path = folder / "network_info" / f"{network}.json"
        known = json.loads(path.read_bytes()) if path.is_file() else []
        have = {item["workload_id"] for item in known}
        missing = [
            {**entry, "flop": _flop(modules[name][0]), "workload_id": name, "mod": modules[name][0]}
            for name, entry in sorted(tasks.items())
            if name not in have
        ]
        if missing:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps([*known, *missing], indent=1) + "\n", encoding="utf-8")
            count += len(missing)
        if listed is not None:
            there = {item["workload_id"] for item in listed if item["network"] == network}
            for item in missing:
                if item["workload_id"] not in there:
                    plain = {key: value for key, value in item.items() if key != "mod"}
                    listed.append({"network": network, **plain, "measured": True, "folder": None})
    if listed is not None and count:
        index.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    return count


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


def _write_lines(path: Path, values: Iterable[dict[str, Any]]) -> None:
    text = "".join(json.dumps(value, separators=(",", ":")) + "\n" for value in values)
    path.write_text(text, encoding="utf-8")


def _only(model: str | None) -> str:
    if model is None:
        return "true"
    version = "json_extract_string(additional_info, '$.chosen_by')"
    return f"({version} = {quoted(model)} OR starts_with({version}, {quoted(f'models:/{model}/')}))"


_RECORDS = """
SELECT hardware, workload_id, task_name, networks, target, program, workload_args, run_secs, status, error, timestamp,
    engine_version, env_name, hw_model, engine_config, build_config, runtime_config, execution_config, additional_info
FROM records
WHERE contains(additional_info, '"chosen_by":') AND program_format = 'metaschedule_trace' AND {only}
ORDER BY hardware, workload_id, timestamp, record_id
"""
