"""Reads the databases of a raw dataset as records: ids, status, names, weights, provenance."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tencost.records.formats.metaschedule import RECORD_FILE, LoggedProgram, LoggedWorkload, Reject
from tencost.records.measurements import (
    MEASUREMENTS_FILE,
    Measurement,
    read_measurements,
    read_sessions,
)
from tencost.records.raw_layout import (
    Task,
    databases,
    read_database,
    read_modules,
    read_provenance,
    read_tasks,
)
from tencost.records.rule_times import RuleTime, join_rule_times, parse_rule_times
from tencost.store.generator import inferred
from tencost.store.ids import program_id, record_id
from tencost.store.schema import NetworkWeight, Provenance, Record, Source, to_arrow
from tencost.store.status import Status, timing_from_log


@dataclass(frozen=True)
class Workload:
    """A distinct workload: module as JSON text, a name, TVM's hash where a database has it."""

    workload_id: str
    mod_json: str
    task_name: str
    shash: str | None
    measured: bool


@dataclass(frozen=True)
class Import:
    """Everything that one raw dataset holds; of a folder of logs, records are a table in the order of the logs."""

    records: list[Record] | pa.Table
    workloads: list[Workload]
    tasks: list[Task]
    rejects: list[Reject]
    rule_times: list[RuleTime] = field(default_factory=list)

    @property
    def table(self) -> pa.Table:
        """The records as a table of schema.SCHEMA."""
        return to_arrow(self.records) if isinstance(self.records, list) else self.records


@contextmanager
def _no_collections() -> Iterator[None]:
    """Do without the collector of cycles: records have none, and it looks at all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_no_collections()
def import_dataset(
    folder: Path, dataset: str, on_database: Callable[[int, int], None] = lambda *_: None
) -> Import:
    """Read every database of a raw dataset; bad lines become rejects.

    Tasks that no index names get the dataset's name as their network and weight 1.

    Raises:
        DatasetError: the folder is not in the layout.
    """
    tasks = read_tasks(folder)
    names = {task.workload_id: task.task_name for task in reversed(tasks)}
    networks = _weights(tasks)
    records: list[Record] = []
    rejects: list[Reject] = []
    logged: dict[str, LoggedWorkload] = {}
    pairs = list(databases(folder))
    about = {pair.hardware: read_provenance(folder, pair.hardware) for pair in pairs}
    sessions = {pair.hardware: read_sessions(folder, pair.hardware) for pair in pairs}
    for number, pair in enumerate(pairs):
        on_database(number, len(pairs))
        workloads, programs, bad_workloads = read_database(folder, pair)
        rejects += bad_workloads
        for workload in workloads:
            if workload is not None:
                logged.setdefault(workload.workload_id, workload)
                if workload.workload_id not in names:
                    name = pair.folder.name.removesuffix(f"-{workload.workload_id[:12]}")
                    names[workload.workload_id] = name
                    networks[workload.workload_id] = (NetworkWeight(dataset, 1),)
                    tasks.append(Task(dataset, name, workload.workload_id, 1, 0.0, True))
        measurements, bad_measurements = read_measurements(pair.folder)
        beside = f"{pair.relative}/{MEASUREMENTS_FILE}"
        rejects += [Reject(beside, line, reason) for line, reason in bad_measurements]
        for program in programs:
            if isinstance(program, Reject):
                rejects.append(program)
                continue
            has_measurement = program.line <= len(measurements)
            measurement = measurements[program.line - 1] if has_measurement else None
            identity = program.workload.workload_id
            record = _record(
                program,
                measurement,
                pair.hardware,
                Source(dataset, f"{pair.relative}/{RECORD_FILE}", program.line),
                _provenance(measurement, sessions[pair.hardware], about[pair.hardware]),
            )
            records.append(replace(record, task_name=names[identity], networks=networks[identity]))
    measured = {record.workload_id for record in records}
    tasks = [replace(task, measured=task.workload_id in measured) for task in tasks]
    rule_times, bad_rule_times = parse_rule_times(folder)
    rejects += bad_rule_times
    return Import(records, _workloads(folder, logged, names, measured), tasks, rejects, rule_times)


@_no_collections()
def import_parts(
    folders: Sequence[Path], on_database: Callable[[int, int], None] = lambda *_: None
) -> Import:
    """Read the raw datasets that together are one dataset, each as :func:`import_dataset` reads it alone.

    A record keeps its part as its source. A task that several parts have is one, and the records of a workload have the
    networks of all parts.

    Raises:
        DatasetError: a folder is not in the layout.
    """
    parts = [import_dataset(folder, folder.name, on_database) for folder in folders]
    measured = {record.workload_id for part in parts for record in part.records}
    tasks: list[Task] = []
    workloads: dict[str, Workload] = {}
    for part in parts:
        task_keys = {(task.network, task.workload_id) for task in tasks}
        tasks += [
            replace(task, measured=task.workload_id in measured)
            for task in part.tasks
            if (task.network, task.workload_id) not in task_keys
        ]
        for workload in part.workloads:
            same = workloads.setdefault(workload.workload_id, workload)
            workloads[workload.workload_id] = replace(
                same, shash=same.shash or workload.shash, measured=workload.workload_id in measured
            )
    networks = _weights(tasks)
    records = [
        replace(
            record,
            task_name=workloads[record.workload_id].task_name,
            networks=networks[record.workload_id],
        )
        for part in parts
        for record in part.records
    ]
    rejects = [
        replace(reject, file=f"{folder.name}/{reject.file}")
        for folder, part in zip(folders, parts, strict=True)
        for reject in part.rejects
    ]
    ordered = [workloads[identity] for identity in sorted(workloads)]
    rule_times = join_rule_times(part.rule_times for part in parts)
    return Import(records, ordered, tasks, rejects, rule_times)


def _weights(tasks: Sequence[Task]) -> dict[str, tuple[NetworkWeight, ...]]:
    """Return the networks of each workload, with how often they have it."""
    weights_by_workload: dict[str, dict[str, int]] = {}
    for task in tasks:
        weights = weights_by_workload.setdefault(task.workload_id, {})
        weights[task.network] = weights.get(task.network, 0) + task.weight
    return {
        workload: tuple(NetworkWeight(*weight) for weight in weights.items())
        for workload, weights in weights_by_workload.items()
    }


def _provenance(
    measurement: Measurement | None, sessions: dict[str, Provenance], common: Provenance
) -> Provenance:
    if measurement is None:
        return common
    about = sessions.get(measurement.session or "", common)
    if measurement.timestamp is None:
        return about
    return replace(about, timestamp=measurement.timestamp)


def _record(
    program: LoggedProgram,
    measurement: Measurement | None,
    hardware: str,
    source: Source,
    about: Provenance,
) -> Record:
    """Return the record of a program, without the names of its task and networks."""
    logged = timing_from_log(program.run_secs)
    timing = logged if measurement is None else measurement.timing(program.run_secs)
    identity = program_id(program.workload.workload_id, program.target["kind"], program.trace)
    generator = inferred(
        program.target["kind"],
        about.engine_version,
        about.engine_config,
        about.additional_info,
        about.timestamp,
    )
    extra: dict[str, Any] | None = None
    if timing.status is not Status.ok:
        extra = {"raw_run_secs": repr(program.run_secs)}
    if measurement is not None:
        extra = {**(extra or {}), "session": measurement.session, **measurement.extra}
    return Record(
        record_id=record_id(identity, program.target, hardware, generator),
        program_id=identity,
        workload_id=program.workload.workload_id,
        task_name="",
        networks=(),
        hardware=hardware,
        target=program.target,
        program_format="metaschedule_trace",
        program=json.dumps(program.trace, separators=(",", ":")),
        run_secs=timing.run_secs,
        status=timing.status,
        error=timing.error,
        source=source,
        workload_args=program.args_info,
        provenance=about,
        extra=extra,
        generator=generator,
    )


def _workloads(
    folder: Path, logged: dict[str, LoggedWorkload], names: dict[str, str], measured: set[str]
) -> list[Workload]:
    workloads = {
        identity: Workload(
            identity, workload.mod_json, names[identity], workload.shash, identity in measured
        )
        for identity, workload in logged.items()
    }
    for module in read_modules(folder):
        if module.workload_id not in workloads:
            workloads[module.workload_id] = Workload(
                module.workload_id, module.mod_json, module.task_name, None, False
            )
    return [workloads[identity] for identity in sorted(workloads)]
