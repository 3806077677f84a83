"""MetaSchedule's JSON database: read as text, without TVM or replay, and written back.

Two files of one JSON value a line::

    database_workload.json        [shash, module]
    database_tuning_record.json   [workload_index, [trace, run_secs, target, args_info]]

    shash           TVM's structural hash as decimal text; platform dependent, kept for round trips
    module          base64 of: length (8 bytes, little endian), module as JSON graph (see ids.py)
    workload_index  line of the workload file, from 0
    trace           [[instruction, ...], [decision, ...]]
    instruction     [kind, inputs, attributes, outputs]; variables are b0, l1, v2, ... as defined
    decision        [instruction_index, value]
    run_secs        times in seconds; null if the program was not measured, [1e10] if it failed
    target          {"kind": ..., "mcpu": ..., "num-cores": ..., ...}
    args_info       [["TENSOR", dtype, shape], ...]

An example record line (shortened)::

    [0,[[[["GetSBlock",[],["matmul","main"],["b0"]],...],[[4,[4,32,1,1]],...]],
        [0.00096,0.00098],{"kind":"llvm",...},[["TENSOR","float32",[128,128]],...]]]

Not to be relied on: a record has no time stamp, no host, no error text; TVM ignores the target on
look-up; two writers on one database give both workload 0 to their first workload, so an index may
point to the wrong module. The module of a workload is kept as its JSON text:
``tvm.ir.load_json(mod_json)`` gives the IRModule back.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tencost.errors import RecordError
from tencost.records.reading.protocol import BadLineError as BadLineError
from tencost.records.reading.protocol import Reject as Reject
from tencost.records.reading.protocol import shorten
from tencost.store.ids import workload_id

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"
_HEADER_BYTES = 8
_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_WIDE = b"0" * 19
"""The digits of an integer that may be beyond 64 bits, all of them written as zeros."""


@dataclass(frozen=True)
class LoggedWorkload:
    """A workload line: TVM's hash as text, the module as JSON text, our id."""

    shash: str
    mod_json: str
    workload_id: str


@dataclass(frozen=True)
class LoggedProgram:
    """A record line as the log has it; `run_secs` still holds sentinels."""

    workload: LoggedWorkload
    trace: list[Any]
    run_secs: list[float] | None
    target: dict[str, Any]
    args_info: list[Any]
    line: int


def read_workloads(path: Path) -> tuple[list[LoggedWorkload | None], list[Reject]]:
    """Read a workload file; a line that cannot be read is None in its place, so indices stay right.

    Raises:
        RecordError: the file cannot be opened.
    """
    workloads: list[LoggedWorkload | None] = []
    rejects: list[Reject] = []
    for number, line in _lines(path):
        try:
            workloads.append(parse_workload(line))
        except (ValueError, RecordError) as error:
            workloads.append(None)
            rejects.append(Reject(str(path), number, f"workload: {error}"))
    return workloads, rejects


def read_programs(
    path: Path, workloads: Sequence[LoggedWorkload | None]
) -> Iterator[LoggedProgram | Reject]:
    """Stream a record file, one line in memory at a time; a bad line becomes a Reject.

    Raises:
        RecordError: the file cannot be opened.
    """
    for number, line in _lines(path):
        try:
            yield parse_program(line, number, workloads)
        except ValueError as error:
            yield Reject(str(path), number, str(error))


def write_database(
    folder: Path,
    workloads: Sequence[LoggedWorkload],
    programs: Iterable[LoggedProgram],
) -> None:
    """Write a database pair that stock TVM's JSONDatabase loads.

    Raises:
        RecordError: a program's workload is not among `workloads`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    indices = {workload.workload_id: index for index, workload in enumerate(workloads)}
    with (folder / WORKLOAD_FILE).open("w", encoding="utf-8") as file:
        for workload in workloads:
            file.write(_dump([workload.shash, encode_module(workload.mod_json)]) + "\n")
    with (folder / RECORD_FILE).open("w", encoding="utf-8") as file:
        for program in programs:
            index = indices.get(program.workload.workload_id)
            if index is None:
                raise RecordError(
                    f"expected every program's workload in the database, found a program of "
                    f"{program.workload.workload_id}; pass that workload, too"
                )
            body = [program.trace, program.run_secs, program.target, program.args_info]
            file.write(_dump([index, body]) + "\n")


def encode_module(mod_json: str) -> str:
    """Return a module's JSON text as a database holds it: base64 with a length in front."""
    data = mod_json.encode()
    return base64.b64encode(len(data).to_bytes(_HEADER_BYTES, "little") + data).decode("ascii")


def decode_module(text: str) -> str:
    """Return the JSON text of a module as a database holds it.

    Raises:
        ValueError: not base64, or not as long as it says.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise BadLineError(f"expected a base64 module, found {text[:20]!r}...: {error}") from error
    length = int.from_bytes(data[:_HEADER_BYTES], "little")
    body = data[_HEADER_BYTES:]
    if len(body) != length:
        raise BadLineError(f"expected a module of {length} bytes, found {len(body)}: truncated?")
    return body.decode("utf-8")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line); blank lines are skipped at the end of a file only."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise RecordError(f"expected a MetaSchedule database file at {path}: {error}") from error
    blank: list[int] = []
    with file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                blank.append(number)
                continue
            for skipped in blank:
                yield skipped, b""
            blank.clear()
            yield number, line


def _load(line: bytes) -> Any:
    if not line:
        raise BadLineError("blank line")
    try:
        if _has_wide_integer(line):  # orjson makes a float of one, without a word
            return json.loads(line)
        try:
            return orjson.loads(line)
        except ValueError:  # NaN, which Python's parser takes
            return json.loads(line)
    except RecursionError as error:
        raise BadLineError("JSON nested too deeply") from error
    except ValueError as error:
        raise BadLineError(f"not a line of JSON: {error}") from error


def _has_wide_integer(line: bytes) -> bool:
    """Say whether a line may have an integer beyond 64 bits: digits that do not follow a point."""
    digits = line.translate(_ZEROS)
    place = digits.find(_WIDE)
    while place >= 0 and line[place - 1 : place] == b".":
        place = digits.find(_WIDE, place + len(_WIDE))
    return place >= 0


def parse_workload(line: bytes) -> LoggedWorkload:
    """Read a line of a workload file.

    Raises:
        BadLineError: not what the grammar says.
        RecordError: a module that this TVM cannot read.
    """
    shash, mod_json = parse_workload_text(line)
    return LoggedWorkload(shash, mod_json, workload_id(mod_json))


def parse_workload_text(line: bytes) -> tuple[str, str]:
    """Read a line of a workload file, as far as any TVM writes it: hash and module as JSON text.

    Raises:
        BadLineError: not what the grammar says.
    """
    value = _load(line)
    if not (isinstance(value, list) and len(value) == 2):
        raise BadLineError(f"expected [shash, module], found {shorten(value)}")
    shash, module = value
    if not (isinstance(shash, str) and shash.isascii() and shash.isdigit()):
        raise BadLineError(f"expected a hash of decimal digits as text, found {shorten(shash)}")
    if not isinstance(module, str):
        raise BadLineError(f"expected a base64 module, found {shorten(module)}")
    return shash, decode_module(module)


def parse_program(
    line: bytes, number: int, workloads: Sequence[LoggedWorkload | None]
) -> LoggedProgram:
    """Read a line of a record file; raises BadLineError if it is not what the grammar says."""
    value = _load(line)
    if not (isinstance(value, list) and len(value) == 2):
        raise BadLineError(f"expected [workload_index, record], found {shorten(value)}")
    index, body = value
    if not _is_int(index) or not 0 <= index < len(workloads):
        raise BadLineError(
            f"expected a workload index below {len(workloads)}, found {shorten(index)}"
        )
    workload = workloads[index]
    if workload is None:
        raise BadLineError(f"its workload, line {index + 1} of {WORKLOAD_FILE}, cannot be read")
    if not (isinstance(body, list) and len(body) == 4):
        raise BadLineError(f"expected [trace, run_secs, target, args_info], found {shorten(body)}")
    trace, run_secs, target, args_info = body
    _check_trace(trace)
    if run_secs is not None and not (
        isinstance(run_secs, list) and all(_is_number(seconds) for seconds in run_secs)
    ):
        raise BadLineError(f"expected run_secs as numbers or null, found {shorten(run_secs)}")
    if not (isinstance(target, dict) and isinstance(target.get("kind"), str)):
        raise BadLineError(f"expected a target object with a kind, found {shorten(target)}")
    if not isinstance(args_info, list):
        raise BadLineError(f"expected args_info as a list, found {shorten(args_info)}")
    return LoggedProgram(workload, trace, run_secs, target, args_info, number)


def _check_trace(trace: Any) -> None:
    if not (
        isinstance(trace, list)
        and len(trace) == 2
        and all(isinstance(part, list) for part in trace)
    ):
        raise BadLineError(f"expected a trace [instructions, decisions], found {shorten(trace)}")
    instructions, decisions = trace
    for position, instruction in enumerate(instructions):
        if not (
            isinstance(instruction, list)
            and len(instruction) == 4
            and isinstance(instruction[0], str)
            and isinstance(instruction[1], list)
            and isinstance(instruction[2], list)
            and isinstance(instruction[3], list)
        ):
            raise BadLineError(
                f"expected instruction {position} as [kind, inputs, attributes, outputs], "
                f"found {shorten(instruction)}"
            )
    for position, decision in enumerate(decisions):
        if not (
            isinstance(decision, list)
            and len(decision) == 2
            and _is_int(decision[0])
            and 0 <= decision[0] < len(instructions)
        ):
            raise BadLineError(
                f"expected decision {position} as [instruction_index, value] with an index below "
                f"{len(instructions)}, found {shorten(decision)}"
            )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
