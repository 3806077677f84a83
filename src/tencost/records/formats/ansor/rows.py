"""Lines of auto_scheduler as rows of the record schema, some thousand at a time."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tencost.records.formats.ansor.steps import (
    FAMILY,
    PROGRAM_FORMAT,
    RawLine,
    Result,
    decode,
    reading,
    task_of,
)
from tencost.records.reading.columns import networks, record_table, sources
from tencost.records.reading.protocol import About, Batch, Reject, Rows
from tencost.records.reading.targets import device_of, parse_target
from tencost.store.ids import ID_LENGTH, canonical_json, canonical_target, text_id
from tencost.store.schema import SCHEMA
from tencost.store.status import FAILURE_SECONDS, Status, timing_from_log

BATCH_BYTES = 1 << 28
"""A batch ends early when its lines are as long as this, all together."""
_encode = msgspec.json.Encoder().encode
_MD5 = re.compile(r"[0-9a-f]{32}")

ERRORS: dict[int, tuple[Status, str]] = {
    1: (Status.invalid_schedule, "the steps cannot be applied"),
    2: (Status.build_error, "the host code does not compile"),
    3: (Status.build_error, "the device code does not compile"),
    4: (Status.run_error, "failed on the device"),
    5: (Status.wrong_answer, "wrong answer"),
    6: (Status.build_timeout, "building took too long"),
    7: (Status.run_timeout, "running took too long"),
    8: (Status.unknown, "unknown error"),
}
"""Error number -> status and message."""


class _TaskHashes(NamedTuple):
    """Position of a task's facts, and the parts of ids that all its lines share."""

    position: int
    program_start: bytes
    """Text before the steps in the hash of a program's id."""
    record_end: bytes
    """Text after the program's id in the hash of a record's id."""


class AnsorRows(Rows):
    """Records and rejects of a batch as they are read; the columns of a task's facts are dictionaries."""

    def __init__(self, about: About) -> None:
        super().__init__(about)
        self.tasks: dict[bytes, _TaskHashes] = {}
        self.facts: list[_Facts] = []
        self.foreign: dict[tuple[int, str], int] = {}
        self.foreign_texts: list[bytes] = []
        self.bytes = 0
        # One item a record.
        self.task_at: list[int] = []
        self.foreign_at: list[int] = []
        self.programs: list[bytes] = []
        self.program_ids: list[str] = []
        self.record_ids: list[str] = []
        self.cost_counts: list[int] = []
        self.wall_s: list[float] = []
        self.timestamps: list[int] = []
        self.costs: list[float] = []
        self.failed: list[tuple[int, Status, str]] = []

    def full(self, batch_rows: int) -> bool:
        """Say whether it holds as many records, rejects or bytes as a batch has at most."""
        most = max(len(self.lines), len(self.rejects))
        return most >= batch_rows or self.bytes >= BATCH_BYTES

    def add(self, number: int, line: bytes) -> None:
        """Add a line as a record or as a reject, or skip it."""
        if holds_nothing(line):
            return
        try:
            raw_line = decode(line)
            raw = bytes(raw_line.i.task)
            task = self.tasks.get(raw) or self._learn(raw)
            program = _encode(raw_line.i.state.steps)
        except ValueError as error:
            self.rejects.append(Reject(self.about.file, number, str(error)))
            return
        program_id = sha256(task.program_start + program).hexdigest()[:ID_LENGTH]
        record_id = sha256(program_id.encode() + task.record_end).hexdigest()[:ID_LENGTH]
        result = raw_line.r
        costs = result.costs
        if result.error == 0 and costs and min(costs) > 0.0 and max(costs) < FAILURE_SECONDS:
            self.costs += costs
            self.cost_counts.append(len(costs))
            self.foreign_at.append(self._foreign(task.position, raw_line.v))
        else:
            self._fail(raw_line, task.position)
        self.lines.append(number)
        self.task_at.append(task.position)
        self.programs.append(program)
        self.program_ids.append(program_id)
        self.record_ids.append(record_id)
        self.wall_s.append(result.all_cost)
        self.timestamps.append(result.timestamp)
        self.bytes += len(line)

    def batch(self) -> Batch:
        rows = len(self.lines)
        if not rows:
            return Batch(SCHEMA.empty_table(), tuple(self.rejects))
        task_at = np.array(self.task_at, np.int32)
        task_columns = {
            "workload_id": [fact.workload_id for fact in self.facts],
            "task_name": [fact.task_name for fact in self.facts],
            "hardware": [fact.hardware for fact in self.facts],
            "workload": [f"{FAMILY}.{fact.task_name}" for fact in self.facts],
            "workload_args": [fact.workload_args for fact in self.facts],
            "target": [fact.target_json for fact in self.facts],
        }
        columns: dict[str, Any] = {
            name: pa.DictionaryArray.from_arrays(task_at, pa.array(values, pa.string()))
            for name, values in task_columns.items()
        }
        columns["foreign"] = pa.DictionaryArray.from_arrays(
            np.array(self.foreign_at, np.int32), pa.array(self.foreign_texts, pa.string())
        )
        status, errors = self._endings(rows)
        columns |= {
            "record_id": pa.array(self.record_ids, pa.string()),
            "program_id": pa.array(self.program_ids, pa.string()),
            "program": _texts(self.programs),
            "timestamp": np.array(self.timestamps, np.float64),
            "wall_s": np.array(self.wall_s, np.float64),
            "run_secs": self._run_secs(),
            "status": status,
            "error": errors,
            "source": sources(self.about.dataset, self.about.file, self.lines),
            "networks": networks(self.about.dataset, rows),
        }
        constants = {"engine": "tvm", "program_format": PROGRAM_FORMAT}
        return Batch(record_table(rows, columns, constants), tuple(self.rejects))

    def _learn(self, raw: bytes) -> _TaskHashes:
        """Work out a task's facts; a later line of the same task finds them.

        Raises:
            ValueError: the task, its key or its target is not what the grammar says.
        """
        facts = _facts(raw, self.about)
        task = _TaskHashes(
            len(self.facts),
            f"{facts.workload_id}\n{facts.kind}\n".encode(),
            f"\n{facts.canonical_target}\n{facts.hardware}".encode(),
        )
        self.facts.append(facts)
        self.tasks[raw] = task
        return task

    def _foreign(self, task: int, version: str) -> int:
        """Return where the `foreign` text of an ok record is."""
        at = self.foreign.get((task, version))
        if at is None:
            at = self.foreign[task, version] = len(self.foreign_texts)
            self.foreign_texts.append(_foreign_text(self.facts[task].task, version, 0, None))
        return at

    def _fail(self, raw_line: RawLine, task: int) -> None:
        result = raw_line.r
        status, text = _ending(result)
        self.failed.append((len(self.lines), status, text))
        self.cost_counts.append(0)
        self.foreign_at.append(len(self.foreign_texts))
        self.foreign_texts.append(
            _foreign_text(self.facts[task].task, raw_line.v, result.error, result.costs)
        )

    def _endings(self, rows: int) -> tuple[list[str], list[str | None]]:
        status: list[str] = [Status.ok.value] * rows
        errors: list[str | None] = [None] * rows
        for row, failure, text in self.failed:
            status[row], errors[row] = failure.value, text
        return status, errors

    def _run_secs(self) -> pa.Array:
        counts = np.array(self.cost_counts, np.int32)
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.ListArray.from_arrays(
            offsets, np.array(self.costs, np.float64), mask=pa.array(counts == 0)
        )


class _Facts(NamedTuple):
    """A task's facts, named as in the schema."""

    task: list[Any]
    """As the log has it."""
    workload_id: str
    task_name: str
    workload_args: str
    kind: str
    target_json: str
    canonical_target: str
    hardware: str


def _facts(raw: bytes, about: About) -> _Facts:
    """Return a task's facts.

    Raises:
        ValueError: the task, its key or its target is not what the grammar says.
    """
    task = task_of(raw)
    with reading("workload key"):
        key = _workload_key(task.key)
        workload_id = text_id(FAMILY, canonical_json(key))
        workload_args = _strict_json(key[1:])
    with reading("target"):
        target = parse_target(task.target)
        return _Facts(
            task=msgspec.json.decode(raw),
            workload_id=workload_id,
            task_name=_task_name(key[0], workload_id),
            workload_args=workload_args,
            kind=target["kind"],
            target_json=_strict_json(target),
            canonical_target=canonical_target(target),
            hardware=device_of(target, about),
        )


def _workload_key(text: str) -> list[Any]:
    key = json.loads(text)
    if not (isinstance(key, list) and key and isinstance(key[0], str)):
        raise ValueError(f"expected a list that begins with a name, found {text[:60]!r}")
    return key


def _task_name(name: str, workload_id: str) -> str:
    """Return the registered function's name, or one made of the graph's md5 (of the id where it is neither)."""
    if _MD5.fullmatch(name):
        return f"ansor_{name[:8]}"
    return name if name.isidentifier() else f"ansor_{workload_id[:8]}"


def _ending(result: Result) -> tuple[Status, str]:
    """Return how a measurement that gave no times ended."""
    if result.error:
        status, text = ERRORS.get(result.error, (Status.unknown, "no error number of this format"))
        return status, f"error {result.error}: {text}"
    if result.costs and not any(result.costs):
        return Status.unknown, "not measured: the cost is 0"
    timing = timing_from_log(result.costs)
    return timing.status, timing.error


def _foreign_text(task: list[Any], version: str, error: int, costs: list[float] | None) -> bytes:
    foreign: dict[str, Any] = {"format": FAMILY, "v": version, "task": task, "error_no": error}
    return _encode(foreign if costs is None else {**foreign, "costs": costs})


def holds_nothing(line: bytes) -> bool:
    return line.startswith((b"#", b" ")) or line.isspace() or not line


def _strict_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _texts(values: list[bytes]) -> pa.Array:
    """Return UTF-8 texts as a string column, without a copy of each."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return pa.StringArray.from_buffers(
        len(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(values))
    )
