"""AutoTVM logs into the store and back; autotvm_lines.py has the grammar.

In the store, `program` is ``{"code_hash", "entity", "index"}``, keys sorted, with "template" where an old line names
one, and what else its config holds. `foreign` is ``{"format": "autotvm", "version", "tvm_version", "input",
"error_no"}`` with "costs" where the record is not ok (a cost that is not finite as text) and "extra" for other keys of
the line.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from tencost.errors import RecordError
from tencost.records.formats.autotvm_lines import (
    ERRORS,
    BadLineError,
    Line,
    Task,
    as_tensor,
    config_of,
    entity_of,
    format_line,
    load,
    looks_alike,
    parse_line,
    program_of,
    shorten,
    task_of,
)
from tencost.records.formats.autotvm_plain import PlainEntity, Result, decode_plain, is_plain
from tencost.records.formats.columns import networks, record_table, sources
from tencost.records.formats.opening import TruncatedError, lines
from tencost.records.formats.protocol import BATCH_ROWS, About, Batch, Reject
from tencost.records.formats.targets import parse_target
from tencost.store.ids import ID_LENGTH, canonical_json, canonical_target, text_id
from tencost.store.status import FAILURE_SECONDS, Status, timing_from_log

__all__ = ["ERRORS", "AutotvmFormat", "format_line", "from_row", "parse_line", "write_lines"]

_encode = msgspec.json.Encoder().encode
_KNOWN_TEXTS = 1 << 16
"""Checked entities that are remembered."""


def from_row(row: Mapping[str, Any]) -> Line:
    """Return the line that a row of the store was read from.

    Args:
        row: the columns foreign, program, run_secs, wall_s and timestamp, at least.

    Raises:
        RecordError: the row is of another format.
    """
    try:
        foreign, program = json.loads(row["foreign"]), json.loads(row["program"])
        if foreign["format"] != AutotvmFormat.name:
            raise BadLineError(f"expected the format autotvm, found {foreign['format']}")
        return Line(
            task=Task(*foreign["input"]),
            config=config_of(program, ("index", "code_hash", "entity")),
            costs=tuple(float(cost) for cost in foreign.get("costs", row["run_secs"])),
            error_no=foreign["error_no"],
            all_cost_s=row["wall_s"],
            timestamp=row["timestamp"],
            version="0.1" if foreign["version"] == 0.1 else "0.2",
            tvm_version=foreign.get("tvm_version"),
            extra=foreign.get("extra", {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"expected a record of an AutoTVM log, found program {shorten(row.get('program'))} and foreign "
            f"{shorten(row.get('foreign'))} ({type(error).__name__}: {error}). Export it in its own format."
        ) from error


def write_lines(table: pa.Table | pl.DataFrame) -> Iterator[str]:
    """Yield the log lines of records, in the rows' order, without ends of line; values are as they were read.

    Raises:
        RecordError: a record is of another format.
    """
    rows = table.to_arrow() if isinstance(table, pl.DataFrame) else table
    needed = rows.select(["foreign", "program", "run_secs", "wall_s", "timestamp"])
    for batch in needed.to_batches(max_chunksize=BATCH_ROWS):
        for row in batch.to_pylist():
            yield format_line(from_row(row))


class AutotvmFormat:
    """Reads AutoTVM logs; see the module's text."""

    name = "autotvm"

    def recognizes(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - by content alone
        """Say whether one of the head's lines has the keys and the task of an AutoTVM line."""
        return any(looks_alike(line) for line in head.split(b"\n"))

    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yield the file's records and rejects.

        Raises:
            RecordError: the file cannot be opened, or neither a target nor `about` names the device.
        """
        batch = _Builder(about)
        try:
            for number, line in lines(path):
                batch.add(number, line)
                if batch.count >= batch_rows:
                    yield batch.finish()
                    batch = _Builder(about)
        except TruncatedError as error:
            batch.rejects.append(Reject(about.file, 0, str(error)))
        if batch.count:
            yield batch.finish()


class _UnusualError(Exception):
    """A line that the fast path leaves to parse_line."""


@dataclass(frozen=True)
class _Facts:
    """What all records of one task have in common; `head` and `tail` are the texts that ids are made of."""

    task: Task
    target: str
    workload_id: str
    workload_args: str
    hardware: str
    head: bytes
    tail: bytes


@dataclass(frozen=True)
class _Told:
    """What records of one task with one outcome have in common: columns of the table."""

    facts: _Facts
    engine_version: str | None
    status: Status
    error: str | None
    foreign: str


class _Builder:
    """Makes one batch: a table's columns, a line at a time."""

    def __init__(self, about: About) -> None:
        self.about = about
        self.rejects: list[Reject] = []
        self._facts: dict[bytes, _Facts] = {}
        self._told: dict[Any, int] = {}
        self._distinct: list[_Told] = []
        self._checked: set[PlainEntity] = set()
        self._which: list[int] = []
        self._lines: list[int] = []
        self._programs: list[bytes] = []
        self._program_ids: list[str] = []
        self._record_ids: list[str] = []
        self._run_secs: list[tuple[float, ...] | None] = []
        self._wall_s: list[float] = []
        self._timestamps: list[float] = []

    @property
    def count(self) -> int:
        return len(self._lines) + len(self.rejects)

    def add(self, number: int, line: bytes) -> None:
        """Take a line: a record, a reject, or nothing where it is blank.

        Raises:
            RecordError: nobody names the device.
        """
        try:
            self._add_plain(number, line)
        except (msgspec.MsgspecError, _UnusualError, ValueError, RecursionError):
            if not line.strip():
                return
            try:
                self._add_typed(number, parse_line(line))
            except (ValueError, RecursionError) as error:
                self.rejects.append(Reject(self.about.file, number, str(error)))

    def finish(self) -> Batch:
        if not self._lines:
            return Batch(record_table(0, {"run_secs": []}, {}), tuple(self.rejects))
        which = pa.array(np.asarray(self._which, np.int32))
        told = self._distinct

        def column(values: Iterable[str | None]) -> pa.Array:
            return pa.array(values, pa.string()).take(which)

        columns = {
            "record_id": self._record_ids,
            "program_id": self._program_ids,
            "workload_id": column(item.facts.workload_id for item in told),
            "task_name": column(item.facts.task.name for item in told),
            "networks": networks(self.about.dataset, len(which)),
            "hardware": column(item.facts.hardware for item in told),
            "timestamp": self._timestamps,
            "workload": column(f"autotvm.{item.facts.task.name}" for item in told),
            "workload_args": column(item.facts.workload_args for item in told),
            "engine_version": column(item.engine_version for item in told),
            "target": column(item.facts.target for item in told),
            "program": self._programs,
            "run_secs": self._run_secs,
            "status": column(item.status.value for item in told),
            "error": column(item.error for item in told),
            "source": sources(self.about.dataset, self.about.file, self._lines),
            "wall_s": self._wall_s,
            "foreign": column(item.foreign for item in told),
        }
        constants = {"engine": "tvm", "program_format": "autotvm_config"}
        return Batch(record_table(len(which), columns, constants), tuple(self.rejects))

    def _add_plain(self, number: int, line: bytes) -> None:
        """Take a line of the usual form.

        Raises:
            msgspec.MsgspecError, ValueError, RecursionError, _UnusualError: it is not of that form.
        """
        found = decode_plain(line)
        config, result, costs = found.config, found.result, found.result.costs
        if not self._checked.issuperset(config.entity):
            self._check(config.entity)
        if config.code_hash is not None and not is_plain(config.code_hash):
            raise _UnusualError
        task_text = bytes(found.input)
        # All good records of a task tell the same; the costs of others are told with them.
        good = result.error_no == 0 and costs and min(costs) > 0.0 and max(costs) < FAILURE_SECONDS
        outcome = None if good else (result.error_no, costs)
        key = (task_text, found.tvm_version, found.version, outcome)
        which = self._told.get(key)
        if which is None:
            which = self._tell(key, task_text, found.tvm_version, found.version, result)
        text = _encode(config)
        self._append(number, which, text, text, result)

    def _add_typed(self, number: int, line: Line) -> None:
        """Take a line of any form; the result is the same as `_add_plain`'s.

        Raises:
            ValueError: its target cannot be read, or a value cannot be kept.
        """
        task, program = line.task, program_of(line.config)
        inputs = [task.target, task.name, task.args, task.kwargs]
        if line.version == "0.1":
            inputs.append(task.workload)
        result = Result(line.costs, line.error_no, line.all_cost_s, line.timestamp)
        line_outcome = (line.error_no, line.costs)
        version = float(line.version)
        extra = _dumps(line.extra) if line.extra else ""
        task_text = _dumps(inputs).encode()
        outcome = None if _outcome(*line_outcome)[0] is Status.ok else repr(line_outcome)
        key = (task_text, line.tvm_version, version, outcome, extra)
        which = self._told.get(key)
        if which is None:
            which = self._tell(key, task_text, line.tvm_version, version, result, extra)
        text = _dumps(program, sort_keys=True).encode()
        self._append(number, which, text, canonical_json(program).encode(), result)

    def _append(
        self, number: int, which: int, program: bytes, identity: bytes, result: Result
    ) -> None:
        told = self._distinct[which]
        facts = told.facts
        program_id = hashlib.sha256(facts.head + identity).hexdigest()[:ID_LENGTH]
        record_id = hashlib.sha256(program_id.encode() + facts.tail).hexdigest()[:ID_LENGTH]
        self._which.append(which)
        self._lines.append(number)
        self._programs.append(program)
        self._program_ids.append(program_id)
        self._record_ids.append(record_id)
        self._run_secs.append(result.costs if told.status is Status.ok else None)
        self._wall_s.append(result.all_cost_s)
        self._timestamps.append(result.timestamp)

    def _check(self, entities: tuple[PlainEntity, ...]) -> None:
        """Remember entities whose values fit their kind and whose texts JSON writers agree on."""
        if len(self._checked) > _KNOWN_TEXTS:
            self._checked.clear()
        for name, kind, value in entities:
            texts = [name]
            if kind == "ot":
                if isinstance(value, tuple):
                    raise _UnusualError
                texts += [value] if isinstance(value, str) else []
            else:
                entity_of([name, kind, value])
                texts += [item for item in value if isinstance(item, str)]  # type: ignore[union-attr]
            if not all(is_plain(text) for text in texts):
                raise _UnusualError
        self._checked.update(entities)

    def _tell(
        self,
        key: Any,
        task_text: bytes,
        tvm_version: str | None,
        version: float,
        result: Result,
        extra: str = "",
    ) -> int:
        facts = self._facts.get(task_text)
        if facts is None:
            task = task_of(load(task_text), "0.1" if version == 0.1 else "0.2")
            facts = self._facts[task_text] = _facts(task, self.about)
        status, error = _outcome(result.error_no, result.costs)
        task = facts.task
        inputs = [task.target, task.name, task.args, task.kwargs]
        foreign: dict[str, Any] = {"format": AutotvmFormat.name, "version": version}
        if tvm_version is not None:
            foreign["tvm_version"] = tvm_version
        foreign["input"] = [*inputs, task.workload] if version == 0.1 else inputs
        foreign["error_no"] = result.error_no
        if status is not Status.ok:
            foreign["costs"] = [cost if math.isfinite(cost) else str(cost) for cost in result.costs]
        if extra:
            foreign["extra"] = json.loads(extra)
        told = _Told(facts, tvm_version, status, error or None, _dumps(foreign))
        self._told[key] = len(self._distinct)
        self._distinct.append(told)
        return self._told[key]


def _facts(task: Task, about: About) -> _Facts:
    target = parse_target(task.target)
    model = target.get("model")
    named = model if isinstance(model, str) and model not in ("", "unknown") else None
    hardware = about.hardware or named
    if hardware is None:
        raise RecordError(
            f"expected the name of the device in {about.file}, found the target {task.target!r} without a model. "
            "Name it: hardware=<name>"
        )
    workload_id = text_id("autotvm", canonical_json([task.name, task.args, task.kwargs]))
    return _Facts(
        task=task,
        target=_dumps(target, sort_keys=True),
        workload_id=workload_id,
        workload_args=_dumps([_rfc_argument(arg) for arg in task.args]),
        hardware=hardware,
        head=f"{workload_id}\n{target['kind']}\n".encode(),
        tail=f"\n{canonical_target(target)}\n{hardware}".encode(),
    )


def _rfc_argument(arg: Any) -> Any:
    """Return an argument with a tensor's type before its shape, as RFC 4304 has it."""
    tensor = as_tensor(arg)
    return arg if tensor is None else ["TENSOR", tensor[1], tensor[0]]


def _outcome(error_no: int, costs: tuple[float, ...]) -> tuple[Status, str]:
    """Return the status of a result, and what went wrong; "" where nothing did."""
    if error_no == 0:
        timing = timing_from_log(costs)
        return timing.status, timing.error
    status, name = ERRORS.get(error_no, (Status.unknown, f"error code {error_no}"))
    return status, name


def _dumps(value: Any, sort_keys: bool = False) -> str:
    """Return compact JSON.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys, allow_nan=False)
