"""Lines of AutoTVM logs as rows of the record schema, some thousand at a time.

In the store, `program` is ``{"code_hash", "entity", "index"}``, keys sorted, with "template" where an old line names
one, and what else its config holds. The id of a program is made of all that but the index, which counts in a search
space that depends on TVM's version: one configuration in logs of two versions is one program. `foreign` is ``{"format":
"autotvm", "version", "tvm_version", "input", "error_no"}`` with "costs" where the record is not ok (a cost that is not
finite as text) and "extra" for other keys of the line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import msgspec

from tencost.records.formats.autotvm.lines import (
    ERRORS,
    NAME,
    Line,
    as_tensor,
    entity_of,
    load,
    parse_line,
    program_of,
    task_of,
)
from tencost.records.formats.autotvm.plain import PlainEntity, Result, decode_plain, is_plain
from tencost.records.reading.columns import (
    Outcome,
    TaskFacts,
    TunerRows,
    compact_json,
    task_facts,
)
from tencost.records.reading.protocol import About, Reject
from tencost.records.reading.targets import parse_target
from tencost.store.ids import canonical_json, text_id
from tencost.store.status import FAILURE_SECONDS, Status, timing_from_log

_encode = msgspec.json.Encoder().encode
_KNOWN_TEXTS = 1 << 16
"""Checked entities that are remembered."""


class _UnusualError(Exception):
    """A line that the fast path leaves to parse_line."""


class AutotvmRows(TunerRows):
    """Makes one batch: a table's columns, a line at a time."""

    family, program_format = NAME, "autotvm_config"

    def __init__(self, about: About) -> None:
        super().__init__(about)
        self._checked: set[PlainEntity] = set()

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
        # All good records of a task tell the same; the costs of others are told with them.
        good = result.error_no == 0 and costs and min(costs) > 0.0 and max(costs) < FAILURE_SECONDS
        outcome = None if good else (result.error_no, costs)
        facts = bytes(plain_line.input), plain_line.tvm_version, plain_line.version
        program = _encode(config)
        # The index is the last field, and counts in a space that depends on TVM's version: no part of the id.
        identity = program[: program.rindex(b',"index":')] + b"}"
        self._append(number, (*facts, outcome), facts, program, result, identity)

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
        good = _ending(line.error_no, line.costs)[0] is Status.ok
        outcome = None if good else repr((line.error_no, line.costs))
        facts = compact_json(inputs).encode(), line.tvm_version, float(line.version)
        extra = compact_json(line.extra) if line.extra else ""
        text = compact_json(program, sort_keys=True).encode()
        point = {name: field for name, field in program.items() if name != "index"}
        identity = canonical_json(point).encode()
        self._append(number, (*facts, outcome, extra), facts, text, result, identity, extra)

    def _append(
        self,
        number: int,
        key: Hashable,
        facts: tuple[bytes, str | None, float],
        program: bytes,
        result: Result,
        identity: bytes,
        extra: str = "",
    ) -> None:
        self.append(
            number,
            key,
            lambda: _outcome(*facts, result, extra, self.about),
            program,
            (result.costs, result.all_cost_s, result.timestamp),
            identity,
        )

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


def _outcome(
    task_text: bytes,
    tvm_version: str | None,
    version: float,
    result: Result,
    extra: str,
    about: About,
) -> Outcome:
    facts = _facts(task_text, "0.1" if version == 0.1 else "0.2", about)
    status, error = _ending(result.error_no, result.costs)
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
    return Outcome(facts, status, error, compact_json(foreign), tvm_version)


@lru_cache(maxsize=4096)
def _facts(task_text: bytes, version: str, about: About) -> TaskFacts:
    task = task_of(load(task_text), version)
    workload_id = text_id(NAME, canonical_json([task.name, task.args, task.kwargs]))
    args = compact_json([_rfc_argument(arg) for arg in task.args])
    return task_facts(task, workload_id, task.name, args, parse_target(task.target), about)


def _rfc_argument(arg: Any) -> Any:
    """Return an argument with a tensor's type before its shape, as RFC 4304 has it."""
    tensor = as_tensor(arg)
    return arg if tensor is None else ["TENSOR", tensor[1], tensor[0]]


def _ending(error_no: int, costs: tuple[float, ...]) -> tuple[Status, str]:
    """Return the status of a result, and what went wrong; "" where nothing did."""
    if error_no == 0:
        timing = timing_from_log(costs)
        return timing.status, timing.error
    return ERRORS.get(error_no, (Status.unknown, f"error code {error_no}"))
