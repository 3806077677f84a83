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

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

FAMILY = "auto_scheduler"
PROGRAM_FORMAT = "ansor_steps"
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

_Bit = Literal[0, 1]
_Timestamp = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
_Empty = Annotated[list[Any], msgspec.Meta(max_length=0)]


class _Step(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, frozen=True):
    """A step of a program: what is done to a stage."""

    stage: int


class Annotation(_Step, tag="AN", frozen=True):
    """Mark a loop; `annotation` is an index of ANNOTATIONS."""

    iterator: int
    annotation: Literal[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]


class Fuse(_Step, tag="FU", frozen=True):
    """Make one loop of neighbouring loops `iterators`."""

    iterators: list[int]


class Pragma(_Step, tag="PR", frozen=True):
    """Give a loop a pragma, such as `auto_unroll_max_step$512`."""

    iterator: int
    pragma: str


class Reorder(_Step, tag="RE", frozen=True):
    """Put all loops of a stage into a new order, outermost first."""

    iterators: list[int]


class Split(_Step, tag="SP", frozen=True):
    """Split a loop of `extent` iterations (0: unknown) into one loop more than there are `lengths`.

    `inner_to_outer` 1: the lengths are those of the inner loops, outermost of them first, and the outermost loop gets
    what remains; 0: they are those of the outer loops.
    """

    iterator: int
    extent: int
    lengths: list[int]
    inner_to_outer: _Bit


class FollowSplit(_Step, tag="FSP", frozen=True):
    """Split a loop as step `source` did, the inner parts joined so that there are `parts` lengths."""

    iterator: int
    source: int
    parts: int


class FollowFusedSplit(_Step, tag="FFSP", frozen=True):
    """Split a loop in two by the product of the lengths that the steps `sources` have at `level`.

    `factor` 1: the product is the length of the inner loop; 0: the number of parts, that of the outer one.
    """

    iterator: int
    sources: list[int]
    level: int
    factor: _Bit


class StorageAlign(_Step, tag="SA", frozen=True):
    """Align the stride of a dimension: a multiple of `factor`, plus `offset`, in elements."""

    iterator: int
    factor: int
    offset: int


class ComputeAt(_Step, tag="CA", frozen=True):
    """Compute a stage inside the loop `target_iterator` of the stage `target_stage`."""

    target_stage: int
    target_iterator: int


class ComputeInline(_Step, tag="CI", frozen=True):
    """Compute a stage where its values are used, with no buffer."""


class ComputeRoot(_Step, tag="CR", frozen=True):
    """Compute a stage on its own, in no other stage's loops."""


class CacheRead(_Step, tag="CHR", frozen=True):
    """Insert a stage that copies a stage's values into memory `scope` for the stages `readers`."""

    scope: str
    readers: list[int]


class CacheWrite(_Step, tag="CHW", frozen=True):
    """Insert a stage that computes a stage's values in memory `scope`; the stage itself then copies them."""

    scope: str


class Rfactor(_Step, tag="RF", frozen=True):
    """Insert a stage that reduces for each iteration of a reduction loop; its dimension is `factor_iterator`."""

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

STEPS: dict[str, type[Step]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Step)}
"""The kinds of steps by their tag."""


class Task(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A tuning task; fields that a short task lacks have their default."""

    key: str
    target: str
    hw: Annotated[list[int], msgspec.Meta(min_length=8, max_length=8)] | None = None
    host: str = ""
    layout: Literal[0, 1, 2] = 0
    names: list[str] = msgspec.field(default_factory=list)


class Result(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A measurement: seconds of each run, an error number, seconds in all, seconds since 1970."""

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


class RawLine(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line whose task is still text: most lines of a log have the same."""

    i: _Input
    r: Result
    v: Literal["v0.2", "v0.3", "v0.4", "v0.5", "v0.6"]


_line_decoder = msgspec.json.Decoder(RawLine)
_steps_decoder = msgspec.json.Decoder(list[Step])
_ARITIES = (2, 3, 5, 6)


def parse_line(line: bytes) -> Line:
    """Read one line of a log.

    Raises:
        ValueError: it is not what the grammar says; the text says where.
    """
    raw_line = decode(line)
    return Line(task_of(bytes(raw_line.i.task)), raw_line.i.state.steps, raw_line.r, raw_line.v)


def steps_of(program: str) -> list[Step]:
    """Return the steps of a record's program, as the store has it.

    Raises:
        ValueError: the text is no list of steps.
    """
    try:
        return _steps_decoder.decode(program)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error


def decode(line: bytes) -> RawLine:
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
def task_of(raw: bytes) -> Task:
    with reading("task"):
        items = msgspec.json.decode(raw)
        if not isinstance(items, list) or len(items) not in _ARITIES:
            count = f"{len(items)} items" if isinstance(items, list) else type(items).__name__
            raise ValueError(f"expected a list of 2, 3, 5 or 6 items, found {count}")
        if len(items) > 2 and items[2] is None:
            raise ValueError("expected 8 hardware parameters, found null")
        return msgspec.convert(items, Task)


@contextmanager
def reading(part: str) -> Iterator[None]:
    """Say in which part of a line an error is."""
    try:
        yield
    except RecursionError as error:
        raise ValueError(f"{part}: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{part}: {error}") from error
