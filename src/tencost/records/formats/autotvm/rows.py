"""Lines of AutoTVM logs as rows of the record schema, some thousand at a time.

In the store, `program` is ``{"code_hash", "entity", "index"}``, keys sorted, with "template" where an old line names
one, and what else its config holds. `foreign` is ``{"format": "autotvm", "version", "tvm_version", "input",
"error_no"}`` with "costs" where the record is not ok (a cost that is not finite as text) and "extra" for other keys of
the line.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tencost.records.formats.autotvm.lines import (
    ERRORS,
    NAME,
    Line,
    Task,
    as_tensor,
    entity_of,
    load,
    parse_line,
    program_of,
    task_of,
)
from tencost.records.formats.autotvm.plain import PlainEntity, Result, decode_plain, is_plain
from tencost.records.reading.columns import networks, record_table, sources
from tencost.records.reading.protocol import About, Batch, Reject, Rows
from tencost.records.reading.targets import device_of, parse_target
from tencost.store.ids import ID_LENGTH, canonical_json, canonical_target, text_id
from tencost.store.status import FAILURE_SECONDS, Status, timing_from_log

_encode = msgspec.json.Encoder().encode
_KNOWN_TEXTS = 1 << 16
"""Checked entities that are remembered."""


class _UnusualError(Exception):
    """A line that the fast path leaves to parse_line."""


@dataclass(frozen=True)
class _Facts:
    """Facts that all records of a task share; `head` and `tail` are the texts that ids are made of."""

    task: Task
    target: str
    workload_id: str
    workload_args: str
    hardware: str
    head: bytes
    tail: bytes


@dataclass(frozen=True)
class _Outcome:
    """Columns that records of one task with the same outcome share."""

    facts: _Facts
    engine_version: str | None
    status: Status
    error: str | None
    foreign: str


class AutotvmRows(Rows):
    """Makes one batch: a table's columns, a line at a time."""

    def __init__(self, about: About) -> None:
        super().__init__(about)
        self._facts: dict[bytes, _Facts] = {}
        self._outcome_at: dict[Any, int] = {}
        self._distinct: list[_Outcome] = []
        self._checked: set[PlainEntity] = set()
        self._which: list[int] = []
        self._programs: list[bytes] = []
        self._program_ids: list[str] = []
        self._record_ids: list[str] = []
        self._run_secs: list[tuple[float, ...] | None] = []
        self._wall_s: list[float] = []
        self._timestamps: list[float] = []

    def add(self, number: int, line: bytes) -> None:
        """Take a line: a record, a reject, or nothing where it is blank or a comment.

        Raises:
            RecordError: nobody names the device.
        """
        try:
            self._add_plain(number, line)
        except (msgspec.MsgspecError, _UnusualError, ValueError, RecursionError):
            if not line.strip() or line.lstrip().startswith(b"#"):
                return
            try:
                self._add_typed(number, parse_line(line))
            except (ValueError, RecursionError) as error:
                self.rejects.append(Reject(self.about.file, number, str(error)))

    def batch(self) -> Batch:
        if not self.lines:
            return Batch(record_table(0, {"run_secs": []}, {}), tuple(self.rejects))
        which = pa.array(np.asarray(self._which, np.int32))
        outcomes = self._distinct

        def column(values: Iterable[str | None]) -> pa.Array:
            return pa.array(values, pa.string()).take(which)

        columns = {
            "record_id": self._record_ids,
            "program_id": self._program_ids,
            "workload_id": column(outcome.facts.workload_id for outcome in outcomes),
            "task_name": column(outcome.facts.task.name for outcome in outcomes),
            "networks": networks(self.about.dataset, len(which)),
            "hardware": column(outcome.facts.hardware for outcome in outcomes),
            "timestamp": self._timestamps,
            "workload": column(f"autotvm.{outcome.facts.task.name}" for outcome in outcomes),
            "workload_args": column(outcome.facts.workload_args for outcome in outcomes),
            "engine_version": column(outcome.engine_version for outcome in outcomes),
            "target": column(outcome.facts.target for outcome in outcomes),
            "program": self._programs,
            "run_secs": self._run_secs,
            "status": column(outcome.status.value for outcome in outcomes),
            "error": column(outcome.error for outcome in outcomes),
            "source": sources(self.about.dataset, self.about.file, self.lines),
            "wall_s": self._wall_s,
            "foreign": column(outcome.foreign for outcome in outcomes),
        }
        constants = {"engine": "tvm", "program_format": "autotvm_config"}
        return Batch(record_table(len(which), columns, constants), tuple(self.rejects))

    def _add_plain(self, number: int, line: bytes) -> None:
        """Take a line of the usual form.

        Raises:
            msgspec.MsgspecError, ValueError, RecursionError, _UnusualError: it is not of that form.
        """
        plain_line = decode_plain(line)
        config, result, costs = plain_line.config, plain_line.result, plain_line.result.costs
        if not self._checked.issuperset(config.entity):
            self._check(config.entity)
        if config.code_hash is not None and not is_plain(config.code_hash):
            raise _UnusualError
        task_text = bytes(plain_line.input)
        # All good records of a task tell the same; the costs of others are told with them.
        good = result.error_no == 0 and costs and min(costs) > 0.0 and max(costs) < FAILURE_SECONDS
        outcome = None if good else (result.error_no, costs)
        key = (task_text, plain_line.tvm_version, plain_line.version, outcome)
        which = self._outcome_at.get(key)
        if which is None:
            which = self._add_outcome(
                key, task_text, plain_line.tvm_version, plain_line.version, result
            )
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
        which = self._outcome_at.get(key)
        if which is None:
            which = self._add_outcome(key, task_text, line.tvm_version, version, result, extra)
        text = _dumps(program, sort_keys=True).encode()
        self._append(number, which, text, canonical_json(program).encode(), result)

    def _append(
        self, number: int, which: int, program: bytes, identity: bytes, result: Result
    ) -> None:
        outcome = self._distinct[which]
        facts = outcome.facts
        program_id = hashlib.sha256(facts.head + identity).hexdigest()[:ID_LENGTH]
        record_id = hashlib.sha256(program_id.encode() + facts.tail).hexdigest()[:ID_LENGTH]
        self._which.append(which)
        self.lines.append(number)
        self._programs.append(program)
        self._program_ids.append(program_id)
        self._record_ids.append(record_id)
        self._run_secs.append(result.costs if outcome.status is Status.ok else None)
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
                texts += [text for text in value if isinstance(text, str)]  # type: ignore[union-attr]
            if not all(is_plain(text) for text in texts):
                raise _UnusualError
        self._checked.update(entities)

    def _add_outcome(
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
        foreign: dict[str, Any] = {"format": NAME, "version": version}
        if tvm_version is not None:
            foreign["tvm_version"] = tvm_version
        foreign["input"] = [*inputs, task.workload] if version == 0.1 else inputs
        foreign["error_no"] = result.error_no
        if status is not Status.ok:
            foreign["costs"] = [cost if math.isfinite(cost) else str(cost) for cost in result.costs]
        if extra:
            foreign["extra"] = json.loads(extra)
        outcome = _Outcome(facts, tvm_version, status, error or None, _dumps(foreign))
        self._outcome_at[key] = len(self._distinct)
        self._distinct.append(outcome)
        return self._outcome_at[key]


def _facts(task: Task, about: About) -> _Facts:
    target = parse_target(task.target)
    hardware = device_of(target, about)
    workload_id = text_id(NAME, canonical_json([task.name, task.args, task.kwargs]))
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
