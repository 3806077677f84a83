"""MetaSchedule databases of any TVM as a log format: a record file is read, its workload file stands beside it.

The grammar is in database.py. What differs here: both files may be compressed, and a
workload whose module this TVM cannot read (TVM up to 0.21 wrote another graph) does not cost its records. They are
kept under an id made of the module's text, and `additional_info` says why nothing can be compiled from them:
``{"workload_unreadable": reason}``. Tasks are named after the blocks of their module. Modules are the reader's second
result, see `modules`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import orjson

from tencost.errors import RecordError
from tencost.records.formats.metaschedule.database import (
    BadLineError,
    LoggedProgram,
    LoggedWorkload,
    parse_program,
    parse_workload,
    parse_workload_text,
)
from tencost.records.reading.opening import TruncatedError, first_line, lines, read_head
from tencost.records.reading.protocol import (
    BATCH_ROWS,
    About,
    Batch,
    LogFormat,
    Module,
    Reject,
)
from tencost.records.reading.targets import device_of
from tencost.store.ids import canonical_json, program_id, record_id, text_id
from tencost.store.status import Status, timing_from_log

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCKS = frozenset({"Block", "SBlock"})
"""TIR's blocks in modules of any TVM."""
_ODD = re.compile(r"\W+", re.ASCII)
_NAME_LENGTH = 60
_RECORDS, _WORKLOADS = "tuning_record", "workload"
_EXAMPLE_WORKLOADS = """\
["1975445329753602945","RwAAAAAAAAB7InJvb3QiOjEsIm5vZGVzIjpbeyJ0eXBlX2tleSI6IiJ9LHsi\
dHlwZV9rZXkiOiJNYXAiLCJrZXlzIjpbIm1haW4iXX1dfQ=="]
"""
_EXAMPLE_RECORDS = """\
[0,[[[["GetBlock",[],["matmul","main"],["b0"]]],[[0,[4,32]]]],[0.00096,0.00098],{"kind":"cuda","model":"a100"},[]]]
[0,[[[["GetBlock",[],["matmul","main"],["b0"]]],[[0,[8,16]]]],[1e10],{"kind":"cuda","model":"a100"},[]]]
[0,[[[["GetBlock",[],["matmul","main"],["b0"]]],[[0,[2,64]]]],[0.00104],{"kind":"cuda","model":"a100"},[]]]
"""
"""Their module is one of TVM 0.16, which no TVM of today reads."""


@dataclass(frozen=True)
class _Workload:
    logged: LoggedWorkload
    task_name: str
    unreadable: str
    """Why this TVM cannot read its module; empty if it can."""


class MetascheduleFormat(LogFormat):
    """The pair of files that MetaSchedule's JSONDatabase writes."""

    example = MappingProxyType(
        {"a_tuning_record.json": _EXAMPLE_RECORDS, "a_workload.json": _EXAMPLE_WORKLOADS}
    )

    def recognizes(self, _path: Path, head: bytes) -> bool:
        """Say whether it is the record file of a pair: lines ``[index, [trace, ...]]``."""
        return first_line(head).replace(b" ", b"")[:64].lstrip(b"[0123456789").startswith(b",[[[")

    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yield the records; those of an unreadable workload, too."""
        # Here, not above: tuning writes databases with tencost[tuner] alone, which has no pyarrow.
        from tencost.records.reading.jsonobjects import read_objects
        from tencost.store.schema import SCHEMA

        workloads, rejects = _workloads(workload_file(path), about)
        if rejects:
            yield Batch(SCHEMA.empty_table(), tuple(rejects))
        logged = [None if workload is None else workload.logged for workload in workloads]
        by_id = {
            workload.logged.workload_id: workload for workload in workloads if workload is not None
        }

        def row(numbered: tuple[int, bytes]) -> dict[str, Any]:
            number, line = numbered
            program = parse_program(line, number, logged)
            try:
                return _row(program, by_id[program.workload.workload_id], about)
            # A lone surrogate or an integer of more than 64 bits is JSON, and neither text nor a number of the store.
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise ValueError(f"it cannot be stored: {error}") from error

        programs = ((number, (number, line)) for number, line in lines(path) if line.strip())
        yield from read_objects(programs, about, batch_rows, row)

    def part(self, head: bytes) -> str:
        return "the workloads of a MetaSchedule database" if is_workload_file(head) else ""

    def modules(self, path: Path) -> list[Module]:
        workloads, _ = _workloads(workload_file(path), About("", path.name, None))
        return [
            Module(
                workload.logged.workload_id,
                workload.logged.mod_json,
                workload.task_name,
                workload.logged.shash,
            )
            for workload in workloads
            if workload is not None
        ]


def is_workload_file(head: bytes) -> bool:
    """Say whether a file is the other half of a pair: lines ``[hash, module]``."""
    start = first_line(head).replace(b" ", b"")[:64]
    return start.startswith(b'["') and start[2:3].isdigit() and b'","' in start


def workload_file(path: Path) -> Path:
    """Return the workload file of a record file: of the same name, or the only one in the folder.

    Raises:
        RecordError: there is none, or more than one that may be meant.
    """
    stem = path.name.replace(_RECORDS, _WORKLOADS)
    base = stem.removesuffix(".gz").removesuffix(".zst")
    for name in (stem, base, f"{base}.gz", f"{base}.zst"):
        if name != path.name and (path.parent / name).is_file():
            return path.parent / name
    others = [
        other
        for other in sorted(path.parent.iterdir())
        if other.is_file() and other != path and is_workload_file(read_head(other))
    ]
    if len(others) != 1:
        raise RecordError(
            f"expected the workload file of {path} beside it (lines [hash, module]), found {len(others)} that may be "
            "meant. Both files of a database are needed, named alike: x_workload.json, x_tuning_record.json"
        )
    return others[0]


def programs_of(table: pa.Table, modules: dict[str, LoggedWorkload]) -> list[LoggedProgram]:
    """Return records, a table of schema.SCHEMA, as lines of a database, for metaschedule.write_database.

    Args:
        table: records whose program_format is metaschedule_trace.
        modules: their workloads, by id.

    Raises:
        RecordError: a record is of another format, or its workload's module is missing.
    """
    programs = []
    for row in table.to_pylist():
        if row["program_format"] != "metaschedule_trace" or row["workload_id"] not in modules:
            raise RecordError(
                "expected records with a MetaSchedule trace and the module of their workload, found "
                f"{row['program_format']} of workload {row['workload_id']}"
            )
        foreign = json.loads(row["foreign"] or "{}")
        programs.append(
            LoggedProgram(
                modules[row["workload_id"]],
                orjson.loads(row["program"]),
                foreign["run_secs"] if "run_secs" in foreign else row["run_secs"],
                json.loads(row["target"]),
                orjson.loads(row["workload_args"] or "[]"),
                row["source"]["line"],
            )
        )
    return programs


def _workloads(path: Path, about: About) -> tuple[list[_Workload | None], list[Reject]]:
    file = Path(about.file).with_name(path.name).as_posix()
    workloads: list[_Workload | None] = []
    rejects: list[Reject] = []
    try:
        for number, line in lines(path):
            try:
                workloads.append(_workload(line))
            except (BadLineError, UnicodeDecodeError, RecursionError) as error:
                workloads.append(None)
                if line.strip():
                    rejects.append(Reject(file, number, f"workload: {error}"))
    except TruncatedError as error:
        rejects.append(Reject(file, len(workloads) + 1, str(error)))
    return workloads, rejects


def _workload(line: bytes) -> _Workload:
    try:
        logged = parse_workload(line)
        name = _task_name(orjson.loads(logged.mod_json), text_id(logged.mod_json))
        return _Workload(logged, name, "")
    except RecordError as error:
        shash, mod_json = parse_workload_text(line)
        try:
            graph = orjson.loads(mod_json)
        except ValueError as damage:
            raise BadLineError(f"its module is not JSON: {damage}") from damage
        identity = text_id("metaschedule", canonical_json(graph))
        logged = LoggedWorkload(shash, mod_json, identity)
        return _Workload(logged, _task_name(graph, identity), str(error))


def _task_name(graph: Any, identity: str) -> str:
    """Return a module's name: its blocks in their order and the beginning of an id; ms and that where it has none.

    Args:
        graph: the module's JSON, of any TVM: {"nodes": [{"type" or "type_key", "data" or "attrs"}, ...]}.
        identity: of the module.
    """
    names: dict[str, None] = {}
    try:
        nodes = graph["nodes"]
        for node in nodes:
            if str(node.get("type") or node.get("type_key")).rpartition(".")[2] in _BLOCKS:
                hint = nodes[int((node.get("data") or node.get("attrs"))["name_hint"])]
                names[str(hint.get("data") or hint.get("repr_str"))] = None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        names = {}
    names.pop("root", None)
    blocks = _ODD.sub("_", "_".join(names))[:_NAME_LENGTH].strip("_")
    return f"{blocks or 'ms'}_{identity[:8]}"


def _row(program: LoggedProgram, workload: _Workload, about: About) -> dict[str, Any]:
    """Return the columns of a program that is of a workload."""
    identity = program_id(workload.logged.workload_id, program.target["kind"], program.trace)
    hardware = device_of(program.target, about)
    hardware.encode()
    timing = timing_from_log(program.run_secs)
    foreign: dict[str, Any] = {"format": "metaschedule", "shash": workload.logged.shash}
    if timing.status is not Status.ok:
        foreign["run_secs"] = program.run_secs
    return {
        "record_id": record_id(identity, program.target, hardware),
        "program_id": identity,
        "workload_id": workload.logged.workload_id,
        "task_name": workload.task_name,
        "workload": f"tir.{workload.task_name}",
        "workload_args": orjson.dumps(program.args_info).decode(),
        "engine": "tvm",
        "hardware": hardware,
        "target": json.dumps(program.target, sort_keys=True, separators=(",", ":")),
        "program_format": "metaschedule_trace",
        "program": orjson.dumps(program.trace).decode(),
        "run_secs": list(timing.run_secs) or None,
        "status": timing.status.value,
        "error": timing.error or None,
        "additional_info": (
            json.dumps({"workload_unreadable": workload.unreadable})
            if workload.unreadable
            else None
        ),
        "foreign": json.dumps(foreign, separators=(",", ":")),
    }
