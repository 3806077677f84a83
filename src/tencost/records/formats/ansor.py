r"""The log of TVM's auto_scheduler (Ansor): read with typed steps, without TVM, and written back.

One JSON object a line, `v0.2` to `v0.6`; TenSet's files of programs and of measurements are such logs, too::

    line    {"i": [task, state], "r": result, "v": "v0.6"}         no other key
    task    [key, target], then hw, then host and layout, then names: 2, 3, 5 or 6 items
    key     JSON text: [name of a registered function or md5 of a compute graph, argument, ...]
    target  text of targets.py, or of a JSON object
    hw      [num_cores, vector_unit_bytes, cache_line_bytes, max_shared_memory_per_block,
             max_local_memory_per_block, max_threads_per_block, max_vthread_extent, warp_size]
    host    target text of the host, "" for none
    layout  what may happen to constant inputs: 0 nothing, 1 a stage that reorders them, 2 they come reordered
    names   [name of an input that the task holds the values of, ...]
    state   [[], [step, ...]]                                       the first list is always empty
    step    [tag, field, ...]: one of STEPS
    result  [[cost, ...], error, all_cost, timestamp]
    cost    seconds of a run; 1e10 after an error; 0.0 for a program that was not measured
    error   0 none, else one of ERRORS
    all_cost, timestamp   seconds of building and running together, seconds since 1970 as an integer

An example line (shortened)::

    {"i": [["[\"matmul\", 64, 64, 64]", "llvm -keys=cpu", [4, 64, 64, 0, 0, 0, 0, 0], "", 1, []],
     [[], [["SP", 2, 0, 64, [2, 4], 1], ["PR", 2, 0, "auto_unroll_max_step$16"]]]],
     "r": [[0.0013, 0.00131], 0, 1.25, 1693565744], "v": "v0.6"}

A blank line and one that begins with `#` or a space hold no record. Stages are counted in the order of the compute
graph, and CHR, CHW and RF insert one, so that a stage id means another stage after them. Iterator ids are positions
in the stage's loops at that step; step ids are positions in the list of steps.

Not to be relied on: the device (a target names it only where its maker wrote -model), the reason of a failure
beyond its code, and that each line was measured with the same number of runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tencost.errors import RecordError
from tencost.records.formats.columns import networks, record_table, sources
from tencost.records.formats.opening import TruncatedError, lines
from tencost.records.formats.protocol import BATCH_ROWS, About, Batch, Reject
from tencost.records.formats.targets import parse_target
from tencost.store.ids import ID_LENGTH, canonical_json, canonical_target, text_id
from tencost.store.schema import SCHEMA
from tencost.store.status import FAILURE_SECONDS, Status, timing_from_log

if TYPE_CHECKING:
    import polars

FAMILY = "auto_scheduler"
PROGRAM_FORMAT = "ansor_steps"
BATCH_BYTES = 1 << 28
"""A batch ends early when its lines are as long as this, all together."""

ANNOTATIONS = (
    "none",
    "unroll",
    "vectorize",
    "parallel",
    "vthread",
    "blockIdx.x",
    "threadIdx.x",
    "blockIdx.y",
    "threadIdx.y",
    "blockIdx.z",
    "threadIdx.z",
    "tensorize",
)
"""Names of the annotation numbers of AN."""

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
"""What the error numbers mean."""

_Bit = Literal[0, 1]
_Timestamp = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
_Empty = Annotated[list[Any], msgspec.Meta(max_length=0)]


class Annotation(
    msgspec.Struct, tag="AN", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Mark a loop; `annotation` is an index of ANNOTATIONS."""

    stage: int
    iterator: int
    annotation: Literal[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


class Fuse(
    msgspec.Struct, tag="FU", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Make one loop of neighbouring loops `iterators`."""

    stage: int
    iterators: list[int]


class Pragma(
    msgspec.Struct, tag="PR", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Give a loop a pragma, such as `auto_unroll_max_step$512`."""

    stage: int
    iterator: int
    pragma: str


class Reorder(
    msgspec.Struct, tag="RE", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Put all loops of a stage into a new order, outermost first."""

    stage: int
    iterators: list[int]


class Split(
    msgspec.Struct, tag="SP", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Split a loop of `extent` iterations (0: unknown) into one loop more than there are `lengths`.

    `inner_to_outer` 1: the lengths are those of the inner loops, outermost of them first, and the outermost loop gets
    what remains; 0: they are those of the outer loops.
    """

    stage: int
    iterator: int
    extent: int
    lengths: list[int]
    inner_to_outer: _Bit


class FollowSplit(
    msgspec.Struct, tag="FSP", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Split a loop as step `source` did, the inner parts joined so that there are `parts` lengths."""

    stage: int
    iterator: int
    source: int
    parts: int


class FollowFusedSplit(
    msgspec.Struct, tag="FFSP", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Split a loop in two by the product of the lengths that the steps `sources` have at `level`.

    `factor` 1: the product is the length of the inner loop; 0: the number of parts, that of the outer one.
    """

    stage: int
    iterator: int
    sources: list[int]
    level: int
    factor: _Bit


class StorageAlign(
    msgspec.Struct, tag="SA", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Align the stride of a dimension: a multiple of `factor`, plus `offset`, in elements."""

    stage: int
    iterator: int
    factor: int
    offset: int


class ComputeAt(
    msgspec.Struct, tag="CA", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Compute a stage inside the loop `target_iterator` of the stage `target_stage`."""

    stage: int
    target_stage: int
    target_iterator: int


class ComputeInline(
    msgspec.Struct, tag="CI", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Compute a stage where its values are used, with no buffer."""

    stage: int


class ComputeRoot(
    msgspec.Struct, tag="CR", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Compute a stage on its own, in no other stage's loops."""

    stage: int


class CacheRead(
    msgspec.Struct, tag="CHR", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Insert a stage that copies a stage's values into memory `scope` for the stages `readers`."""

    stage: int
    scope: str
    readers: list[int]


class CacheWrite(
    msgspec.Struct, tag="CHW", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Insert a stage that computes a stage's values in memory `scope`; the stage itself then copies them."""

    stage: int
    scope: str


class Rfactor(
    msgspec.Struct, tag="RF", array_like=True, forbid_unknown_fields=True, gc=False, frozen=True
):
    """Insert a stage that reduces for each iteration of a reduction loop; its dimension is `factor_iterator`."""

    stage: int
    iterator: int
    factor_iterator: int


Step = (
    Annotation
    | Fuse
    | Pragma
    | Reorder
    | Split
    | FollowSplit
    | FollowFusedSplit
    | StorageAlign
    | ComputeAt
    | ComputeInline
    | ComputeRoot
    | CacheRead
    | CacheWrite
    | Rfactor
)

STEPS: dict[str, type[Step]] = {
    "AN": Annotation,
    "FU": Fuse,
    "PR": Pragma,
    "RE": Reorder,
    "SP": Split,
    "FSP": FollowSplit,
    "FFSP": FollowFusedSplit,
    "SA": StorageAlign,
    "CA": ComputeAt,
    "CI": ComputeInline,
    "CR": ComputeRoot,
    "CHR": CacheRead,
    "CHW": CacheWrite,
    "RF": Rfactor,
}
"""The kinds of steps by their tag."""


class Task(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """What was tuned; fields that a short task lacks have their default."""

    key: str
    target: str
    hw: Annotated[list[int], msgspec.Meta(min_length=8, max_length=8)] | None = None
    host: str = ""
    layout: Literal[0, 1, 2] = 0
    names: list[str] = msgspec.field(default_factory=list)


class Result(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """What measuring gave: seconds of each run, an error number, seconds in all, seconds since 1970."""

    costs: list[float]
    error: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
    all_cost: float
    timestamp: _Timestamp


class Line(NamedTuple):
    """A line as the log has it; `result` still holds sentinels."""

    task: Task
    steps: list[Step]
    result: Result
    version: str


class _State(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    stages: _Empty
    steps: list[Step]


class _Input(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    task: msgspec.Raw
    state: _State


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    i: _Input
    r: Result
    v: Literal["v0.2", "v0.3", "v0.4", "v0.5", "v0.6"]


_line_decoder = msgspec.json.Decoder(_Line)
_steps_decoder = msgspec.json.Decoder(list[Step])
_encode = msgspec.json.Encoder().encode
_MD5 = re.compile(r"[0-9a-f]{32}")
_ARITIES = (2, 3, 5, 6)
_START = re.compile(rb'\{\s*"i"\s*:\s*\[\s*\[\s*"\s*\[')


def parse_line(line: bytes) -> Line:
    """Read one line of a log.

    Raises:
        ValueError: it is not what the grammar says; the text says where.
    """
    found = _decode(line)
    return Line(_task(bytes(found.i.task)), found.i.state.steps, found.r, found.v)


def steps_of(program: str) -> list[Step]:
    """Return the steps of a record's program, as the store has it.

    Raises:
        ValueError: the text is no list of steps.
    """
    try:
        return _steps_decoder.decode(program)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error


class AnsorFormat:
    """Reads logs of auto_scheduler."""

    name = "ansor"

    def recognizes(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Say whether the first line that holds a JSON object is one of auto_scheduler.

        Where the first line is longer than the head, its beginning decides.
        """
        *complete, last = head.split(b"\n")
        for line in complete:
            if (value := _json_object(line)) is not None:
                return _looks_like_a_line(value)
        value = _json_object(last)
        return _looks_like_a_line(value) if value is not None else bool(_START.match(last))

    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yield the file's records and rejects, batches of `batch_rows` records or BATCH_BYTES of lines.

        Raises:
            RecordError: the file cannot be opened, or neither `about` nor a line's target names the device.
        """
        rows = _Rows(about)
        number = 0
        try:
            for number, line in lines(path):
                rows.add(number, line)
                if rows.full(batch_rows):
                    yield rows.batch()
                    rows = _Rows(about)
        except TruncatedError as error:
            rows.rejects.append(Reject(about.file, number + 1, str(error)))
        if rows:
            yield rows.batch()


def write_lines(table: pa.Table | polars.DataFrame) -> Iterator[str]:
    """Yield the line of each record in the table's order, without its end, formatted as auto_scheduler does.

    Times have six digits where these say all of the value, as in every log of TVM, and all of theirs elsewhere.

    Raises:
        RecordError: a record that was not read from such a log.
    """
    arrow = table if isinstance(table, pa.Table) else table.to_arrow()
    wanted = arrow.select(["foreign", "program", "run_secs", "wall_s", "timestamp"])
    for batch in wanted.to_batches(max_chunksize=BATCH_ROWS):
        for foreign, program, run_secs, wall_s, timestamp in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            task, version, error, costs = _foreign_parts(foreign)
            steps = msgspec.json.format(program, indent=0)
            times = ", ".join(map(_number, run_secs if costs is None else costs))
            yield (
                f'{{"i": [{task}, [[], {steps}]], "r": [[{times}], {error}, {_number(wall_s)}, '
                f'{int(timestamp)}], "v": {version}}}'
            )


class _Known(NamedTuple):
    """What is the same for all lines of a task."""

    position: int
    program_start: bytes
    """What a program's id hashes before the steps."""
    record_end: bytes
    """What a record's id hashes after the program's id."""


class _Rows:
    """Records and rejects of a batch as they are read; the columns of a task's facts are dictionaries."""

    def __init__(self, about: About) -> None:
        self.about = about
        self.rejects: list[Reject] = []
        self.tasks: dict[bytes, _Known] = {}
        self.facts: list[_Facts] = []
        self.foreign: dict[tuple[int, str], int] = {}
        self.foreign_texts: list[bytes] = []
        self.bytes = 0
        # One item a record.
        self.lines: list[int] = []
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

    def __bool__(self) -> bool:
        return bool(self.lines or self.rejects)

    def full(self, batch_rows: int) -> bool:
        return (
            len(self.lines) >= batch_rows
            or self.bytes >= BATCH_BYTES
            or len(self.rejects) >= batch_rows
        )

    def add(self, number: int, line: bytes) -> None:
        """Add a line as a record or as a reject, or skip it."""
        if _holds_nothing(line):
            return
        try:
            found = _decode(line)
            raw = bytes(found.i.task)
            known = self.tasks.get(raw) or self._learn(raw)
            program = _encode(found.i.state.steps)
        except ValueError as error:
            self.rejects.append(Reject(self.about.file, number, str(error)))
            return
        program_id = sha256(known.program_start + program).hexdigest()[:ID_LENGTH]
        record_id = sha256(program_id.encode() + known.record_end).hexdigest()[:ID_LENGTH]
        result = found.r
        costs = result.costs
        if result.error == 0 and costs and min(costs) > 0.0 and max(costs) < FAILURE_SECONDS:
            self.costs += costs
            self.cost_counts.append(len(costs))
            self.foreign_at.append(self._foreign(known.position, found.v))
        else:
            self._fail(found, known.position)
        self.lines.append(number)
        self.task_at.append(known.position)
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
        taken = {
            "workload_id": [fact.workload_id for fact in self.facts],
            "task_name": [fact.task_name for fact in self.facts],
            "hardware": [fact.hardware for fact in self.facts],
            "workload": [f"{FAMILY}.{fact.task_name}" for fact in self.facts],
            "workload_args": [fact.workload_args for fact in self.facts],
            "target": [fact.target_json for fact in self.facts],
        }
        columns: dict[str, Any] = {
            name: pa.DictionaryArray.from_arrays(task_at, pa.array(values, pa.string()))
            for name, values in taken.items()
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

    def _learn(self, raw: bytes) -> _Known:
        """Work out a task's facts; a later line of the same task finds them.

        Raises:
            ValueError: the task, its key or its target is not what the grammar says.
        """
        facts = _facts(raw, self.about.hardware)
        if not facts.hardware:
            raise RecordError(
                f"expected a target that names its device by -model, found {facts.target_text[:80]!r} in "
                f"{self.about.file}: say which device was measured with hardware=<name>"
            )
        known = _Known(
            len(self.facts),
            f"{facts.workload_id}\n{facts.kind}\n".encode(),
            f"\n{facts.canonical_target}\n{facts.hardware}".encode(),
        )
        self.facts.append(facts)
        self.tasks[raw] = known
        return known

    def _foreign(self, task: int, version: str) -> int:
        """Return where the `foreign` text of an ok record is."""
        at = self.foreign.get((task, version))
        if at is None:
            at = self.foreign[task, version] = len(self.foreign_texts)
            self.foreign_texts.append(_foreign_text(self.facts[task].task, version, 0, None))
        return at

    def _fail(self, found: _Line, task: int) -> None:
        result = found.r
        status, text = _ending(result)
        self.failed.append((len(self.lines), status, text))
        self.cost_counts.append(0)
        self.foreign_at.append(len(self.foreign_texts))
        self.foreign_texts.append(
            _foreign_text(self.facts[task].task, found.v, result.error, result.costs)
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
    """What a task says, in the words of the schema."""

    task: list[Any]
    """As the log has it."""
    workload_id: str
    task_name: str
    workload_args: str
    target_text: str
    kind: str
    target_json: str
    canonical_target: str
    hardware: str
    """Empty where nobody names it."""


def _facts(raw: bytes, hardware: str | None) -> _Facts:
    """Return a task's facts; `hardware` is the device where the target does not say it.

    Raises:
        ValueError: the task, its key or its target is not what the grammar says.
    """
    task = _task(raw)
    with _reading("workload key"):
        key = _workload_key(task.key)
        workload_id = text_id(FAMILY, canonical_json(key))
        workload_args = _strict_json(key[1:])
    with _reading("target"):
        target = parse_target(task.target)
        return _Facts(
            task=msgspec.json.decode(raw),
            workload_id=workload_id,
            task_name=_task_name(key[0], workload_id),
            workload_args=workload_args,
            target_text=task.target,
            kind=target["kind"],
            target_json=_strict_json(target),
            canonical_target=canonical_target(target),
            hardware=hardware or _device(target),
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


def _device(target: dict[str, Any]) -> str:
    """Return the device that a target's model attribute names, or nothing; TVM writes `unknown` for no model."""
    model = target.get("model")
    known = isinstance(model, (str, int)) and not isinstance(model, bool) and model != "unknown"
    return str(model) if known else ""


def _ending(result: Result) -> tuple[Status, str]:
    """Return how a measurement that gave no times ended."""
    if result.error:
        status, text = ERRORS.get(result.error, (Status.unknown, "no error number of this format"))
        return status, f"error {result.error}: {text}"
    if result.costs and not any(result.costs):
        return Status.unknown, "not measured: the cost is 0"
    timing = timing_from_log(result.costs)
    return timing.status, timing.error


def _decode(line: bytes) -> _Line:
    try:
        return _line_decoder.decode(line)
    except RecursionError as error:
        raise ValueError("not a line of auto_scheduler: nested too deeply") from error
    except ValueError as error:
        where = _bad_step(line)
        raise ValueError(f"not a line of auto_scheduler: {where or error}") from error


def _bad_step(line: bytes) -> str:
    """Say which step of a line is none, and why; nothing if something else is wrong."""
    try:
        steps = msgspec.json.decode(line)["i"][1][1]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    for at, step in enumerate(steps if isinstance(steps, list) else []):
        try:
            msgspec.convert(step, Step)
        except ValueError as error:
            return f"step {at}, {str(step)[:60]}: {error}"
    return ""


@lru_cache(maxsize=64)
def _task(raw: bytes) -> Task:
    with _reading("task"):
        items = msgspec.json.decode(raw)
        if not isinstance(items, list) or len(items) not in _ARITIES:
            count = f"{len(items)} items" if isinstance(items, list) else type(items).__name__
            raise ValueError(f"expected a list of 2, 3, 5 or 6 items, found {count}")
        if len(items) > 2 and items[2] is None:
            raise ValueError("expected 8 hardware parameters, found null")
        return msgspec.convert(items, Task)


@contextmanager
def _reading(part: str) -> Iterator[None]:
    """Say in which part of a line an error is."""
    try:
        yield
    except RecursionError as error:
        raise ValueError(f"{part}: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{part}: {error}") from error


def _holds_nothing(line: bytes) -> bool:
    return line.startswith((b"#", b" ")) or line.isspace() or not line


def _json_object(line: bytes) -> dict[str, Any] | None:
    if _holds_nothing(line):
        return None
    try:
        value = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _looks_like_a_line(value: dict[str, Any]) -> bool:
    pair = value.get("i")
    return (
        value.keys() == {"i", "r", "v"}
        and isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(part, list) for part in pair)
        and bool(pair[0])
        and isinstance(pair[0][0], str)
        and pair[0][0].lstrip().startswith("[")
    )


def _foreign_text(task: list[Any], version: str, error: int, costs: list[float] | None) -> bytes:
    said: dict[str, Any] = {"format": FAMILY, "v": version, "task": task, "error_no": error}
    return _encode(said if costs is None else {**said, "costs": costs})


@lru_cache(maxsize=256)
def _foreign_parts(foreign: str | None) -> tuple[str, str, int, list[float] | None]:
    """Return JSON text of the task, of the version, the error number, and the costs of a failure."""
    said = json.loads(foreign or "null")
    if not (isinstance(said, dict) and said.get("format") == FAMILY):
        raise RecordError(
            f"expected records that were read from a log of auto_scheduler, found one whose `foreign` is "
            f"{(foreign or '')[:60]!r}: select those with program_format = '{PROGRAM_FORMAT}'"
        )
    task, version = (json.dumps(said[name], ensure_ascii=False) for name in ("task", "v"))
    return task, version, said["error_no"], said.get("costs")


def _number(value: float) -> str:
    short = f"{value:.6g}"
    return short if float(short) == value else repr(value)


def _strict_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _texts(values: list[bytes]) -> pa.Array:
    """Return UTF-8 texts as a string column, without a copy of each."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return pa.StringArray.from_buffers(
        len(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(values))
    )
