"""Lines of auto_scheduler as rows of the record schema, some thousand at a time."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import msgspec

from tencost.records.formats.ansor.steps import (
    FAMILY,
    PROGRAM_FORMAT,
    RawLine,
    Result,
    decode,
    reading,
    task_of,
)
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


class AnsorRows(TunerRows):
    """Records and rejects of a batch as they are read."""

    family, program_format = FAMILY, PROGRAM_FORMAT

    def __init__(self, about: About) -> None:
        super().__init__(about)
        self.bytes = 0

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
            result, costs = raw_line.r, raw_line.r.costs
            good = result.error == 0 and costs and min(costs) > 0.0 and max(costs) < FAILURE_SECONDS
            task = bytes(raw_line.i.task)
            self.append(
                number,
                (task, raw_line.v, None if good else (result.error, *costs)),
                lambda: _outcome(task, self.about, raw_line),
                _encode(raw_line.i.state.steps),
                (costs, result.all_cost, result.timestamp),
            )
            self.bytes += len(line)
        except ValueError as error:
            self.rejects.append(Reject(self.about.file, number, str(error)))


@lru_cache(maxsize=4096)
def _facts(raw: bytes, about: About) -> TaskFacts:
    """Return a task's facts.

    Raises:
        ValueError: the task, its key or its target is not what the grammar says.
    """
    task = task_of(raw)
    with reading("workload key"):
        key = _workload_key(task.key)
        workload_id = text_id(FAMILY, canonical_json(key))
        workload_args = compact_json(key[1:], sort_keys=True)
    name, logged = _task_name(key[0], workload_id), msgspec.json.decode(raw)
    with reading("target"):
        target = parse_target(task.target)
        return task_facts(logged, workload_id, name, workload_args, target, about)


def _outcome(task: bytes, about: About, line: RawLine) -> Outcome:
    facts = _facts(task, about)
    status, text = _ending(line.r)
    foreign = {"format": FAMILY, "v": line.v, "task": facts.task, "error_no": line.r.error}
    costs = {} if status is Status.ok else {"costs": line.r.costs}
    return Outcome(facts, status, text, _encode(foreign | costs))


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
    """Return how a measurement ended, and what went wrong; "" where nothing did."""
    if result.error:
        status, text = ERRORS.get(result.error, (Status.unknown, "no error number of this format"))
        return status, f"error {result.error}: {text}"
    if result.costs and not any(result.costs):
        return Status.unknown, "not measured: the cost is 0"
    timing = timing_from_log(result.costs)
    return timing.status, timing.error


def holds_nothing(line: bytes) -> bool:
    return line.startswith((b"#", b" ")) or line.isspace() or not line
