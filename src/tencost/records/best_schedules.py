"""The best schedules of a record store as a MetaSchedule database: `tencost records export metaschedule`.

With it a network is compiled with no tuning at all. The records are those of the live store, data/store, or of the one
named. The modules of the workloads come from the table beside the store (see modules.py) and from
data/records/<dataset>/workloads.parquet, of all datasets or the one named.

Stock TVM loads what is written (see formats/metaschedule.py)::

    with target:
        mod = relax.transform.MetaScheduleApplyDatabase("<folder>")(mod)

A database names no hardware, and TVM ignores the target on look-up. So a database is of one hardware and one target,
and holds records that were measured successfully only. TVM picks the record whose run_secs have the least mean; with n
of 1 (the default) that is the fastest by our measure, the median, too. With more, the two may differ on noisy records.

A workload's structural hash is not the same in every version of TVM. The one written is what the TVM that is installed
computes; without TVM, what the dataset's logs have.

Programs and modules that could run foreign code (see programs/trace/allowed.py) are left out; the export lists them.

A schedule that uses hardware intrinsics needs them registered before TVM can load it:
``import tvm.s_tir.tensor_intrin``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tencost.config import PathsConfig
from tencost.errors import MissingDependencyError, RecordError, UntrustedError
from tencost.programs.trace.allowed import check_module, check_trace
from tencost.records import query
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    LoggedProgram,
    LoggedWorkload,
    write_database,
)
from tencost.records.query_command import (
    Place,
    dataset_folder,
    open_store,
    project_folder,
    target_of,
)
from tencost.store.ids import workload_id
from tencost.store.modules import stored_modules
from tencost.store.reading import StoredRecords
from tencost.store.tables import WORKLOADS, load_workloads
from tencost.writing import scratch_beside

FORMAT = "metaschedule_trace"


@dataclass(frozen=True)
class LeftOut:
    """A workload with records of the hardware and target that is not in the database, and why."""

    workload_id: str
    task_name: str
    reason: str


@dataclass(frozen=True)
class Export:
    """The exported folder, its numbers of workloads and records, and the workloads that are left out."""

    folder: Path
    workloads: int
    records: int
    left_out: tuple[LeftOut, ...]


def export_metaschedule(
    store: StoredRecords,
    folder: Path,
    workloads_table: pl.DataFrame,
    *,
    hardware: str,
    target: query.Target,
    n: int = 1,
    workload: str | None = None,
    overwrite: bool = False,
) -> Export:
    """Write the n fastest schedules of each workload on a hardware for a target as a MetaSchedule database.

    Args:
        store: where the records are.
        folder: gets the two files; made if it is not there.
        workloads_table: the modules, with columns workload_id, mod_json and shash, as `tables.load_workloads` and
            `modules.stored_modules` return them.
        hardware: the device, exactly as the store names it.
        target: what was compiled for.
        n: schedules of each workload at most.
        workload: of this workload's id only; None: of all.
        overwrite: whether a database in the folder is replaced; nothing is ever added to one.

    Raises:
        RecordError: no such hardware or target, a database in the folder, or nothing to write.
        MissingDependencyError: a workload's hash is nowhere, and TVM is not installed.
    """
    _require_free(folder, overwrite)
    fastest = query.best(
        store,
        hardware=hardware,
        target=target,
        workload=workload,
        n=n,
        columns=("program", "workload_args", "run_secs"),
    )
    modules = {row["workload_id"]: row for row in workloads_table.iter_rows(named=True)}
    left_out: list[LeftOut] = []
    logged: dict[str, LoggedWorkload] = {}
    programs: list[LoggedProgram] = []
    unreadable: dict[str, str] = {}
    hash_of = _hasher()
    target_json = json.loads(query.canonical(target))
    for row in fastest.iter_rows(named=True):
        identity = row["workload_id"]
        reason = unreadable.get(identity) or _reason(row, identity in modules)
        if not reason and identity not in logged:
            module = modules[identity]
            try:
                _check_readable(module["mod_json"])
                shash = hash_of(module["mod_json"], module["shash"])
            except _UnreadableError as error:
                reason = unreadable[identity] = str(error)
            else:
                logged[identity] = LoggedWorkload(shash, module["mod_json"], identity)
        if reason:
            left_out.append(LeftOut(identity, row["task_name"], reason))
            continue
        programs.append(
            LoggedProgram(
                workload=logged[identity],
                trace=json.loads(row["program"]),
                run_secs=row["run_secs"],
                target=target_json,
                args_info=json.loads(row["workload_args"] or "[]"),
                line=len(programs) + 1,
            )
        )
    left_out += _only_failures(store, fastest, hardware, target, workload)
    if not programs:
        reasons = "; ".join(f"{omission.task_name}: {omission.reason}" for omission in left_out[:3])
        raise RecordError(
            f"expected schedules of {hardware} for {query.canonical(target)} in {store.uri}, found none that can be "
            f"exported. {reasons}"
        )
    _write(folder, list(logged.values()), programs)
    return Export(folder, len(logged), len(programs), tuple(dict.fromkeys(left_out)))


def run(
    folder: Path,
    place: Place,
    *,
    hardware: str,
    target: str | None = None,
    workload: str | None = None,
    n: int = 1,
    overwrite: bool = False,
) -> None:
    """Export from the store at a place, as :func:`export_metaschedule` does, and say what was written.

    Of a place that names a build, only the build's modules are used. `target` is JSON or text; None: the only one of
    the hardware. `workload` is an id, the beginning of one, or a task's name.

    Raises:
        RecordError: no store, or what `export_metaschedule` raises.
    """
    store = open_store(place)
    export = export_metaschedule(
        store,
        folder,
        _modules(store, place.build),
        hardware=hardware,
        target=target_of(store, target, hardware),
        n=n,
        workload=workload and query.find_workload(store, workload, hardware=hardware),
        overwrite=overwrite,
    )
    lines = [
        f"{export.folder}: {export.records} schedules of {export.workloads} workloads on {hardware}"
    ]
    lines += [
        f"left out {omission.workload_id[:12]} {omission.task_name}: {omission.reason}"
        for omission in export.left_out
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _modules(store: StoredRecords, dataset: str | None) -> pl.DataFrame:
    """Return the modules beside a store and those of a dataset, or of all datasets of the project."""
    if dataset is not None:
        folders = [dataset_folder(dataset)]
    else:
        paths = (project_folder() / PathsConfig().records).glob(f"*/{WORKLOADS}")
        folders = sorted(path.parent for path in paths)
    columns = ["workload_id", "mod_json", "shash"]
    tables = [stored_modules(store.uri), *map(load_workloads, folders)]
    return pl.concat([table.select(columns) for table in tables]).unique(
        "workload_id", keep="first"
    )


def _reason(row: dict[str, Any], has_module: bool) -> str:
    if row["program_format"] != FORMAT:
        return f"its best program is in the format {row['program_format']}, which MetaSchedule cannot read"
    if not has_module:
        return "its module is neither beside the store nor in a dataset's workloads.parquet"
    try:
        check_trace(json.loads(row["program"]))
    except UntrustedError as error:
        return f"a program of it cannot be trusted: {error}"
    return ""


def _only_failures(
    store: StoredRecords,
    fastest: pl.DataFrame,
    hardware: str,
    target: query.Target,
    workload: str | None,
) -> list[LeftOut]:
    """Return the workloads whose every record failed."""
    statistics = query.statistics(store, by=("workload",), hardware=hardware, workload=workload)
    failed = statistics.filter(
        pl.col("target") == query.canonical(target),
        pl.col("ok") == 0,
        ~pl.col("workload_id").is_in(fastest["workload_id"].implode()),
    )
    rows = failed.select("workload_id", "task_name").iter_rows()
    reason = "none of its programs was measured successfully"
    return [LeftOut(identity, name, reason) for identity, name in rows]


class _UnreadableError(ValueError):
    """A module that the installed TVM cannot read, or that could run foreign code."""


def _hasher() -> Callable[[str, str | None], str]:
    """Return a function from (module's JSON, hash in the log or None) to TVM's structural hash.

    It raises _UnreadableError for a module of another TVM, as a database with one such line is of no use to TVM at all.
    """
    try:
        import tvm
        from tvm.ir import load_json
        from tvm_ffi import structural_hash
    except ModuleNotFoundError:
        return _logged_hash

    def computed(mod_json: str, _logged: str | None) -> str:
        try:
            digest = int(structural_hash(load_json(mod_json)))
        # What TVM raises for a graph that it does not know depends on where it gives up.
        except (ValueError, RuntimeError, TypeError, LookupError, AttributeError) as error:
            lines = str(error).strip().splitlines()
            raise _UnreadableError(
                f"its module is of another TVM, which TVM {tvm.__version__} cannot read: "
                f"{lines[-1] if lines else type(error).__name__}"
            ) from error
        return str(digest % 2**64)

    return computed


def _check_readable(mod_json: str) -> None:
    """Raise _UnreadableError for a module of another TVM, a damaged one, and one that could run code of others."""
    try:
        workload_id(mod_json)
        check_module(mod_json)
    except RecordError as error:
        raise _UnreadableError(f"its module is of another TVM, or damaged: {error}") from error
    except UntrustedError as error:
        raise _UnreadableError(
            f"its module is of another TVM, or cannot be trusted: {error}"
        ) from error


def _logged_hash(_mod_json: str, logged: str | None) -> str:
    if logged is None:
        raise MissingDependencyError(
            "a workload of no log has no structural hash, and computing one needs TVM: pip install 'tencost[tuner]'"
        )
    return logged


def _require_free(folder: Path, overwrite: bool) -> None:
    existing = [name for name in (WORKLOAD_FILE, RECORD_FILE) if (folder / name).exists()]
    if existing and not overwrite:
        raise RecordError(
            f"expected a folder without a MetaSchedule database, found {', '.join(existing)} in {folder}. Choose "
            "another folder, or replace it: --overwrite"
        )


def _write(folder: Path, workloads: list[LoggedWorkload], programs: list[LoggedProgram]) -> None:
    """Write the pair beside its place and move it there, so that a killed run leaves no half of it."""
    with scratch_beside(folder / RECORD_FILE) as scratch:
        write_database(scratch, workloads, programs)
        for name in (RECORD_FILE, WORKLOAD_FILE):
            (folder / name).unlink(missing_ok=True)
        for name in (WORKLOAD_FILE, RECORD_FILE):
            (scratch / name).replace(folder / name)
