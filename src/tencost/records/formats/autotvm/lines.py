"""AutoTVM logs, one JSON object a line, versions 0.2 and 0.1; TVM has dropped AutoTVM, its logs live on.

    line    new | old
    new     {"input": [target, task, args, kwargs], "config": {"index": n, "code_hash": text or null,
             "entity": [entity, ...]}, "result": result, "version": 0.2, "tvm_version": text}
    old     {"i": [target, task, args, kwargs, workload, {"i": n, "t": template, "c": code_hash, "e": [entity, ...]}],
             "r": result, "v": 0.1}
    result  [[cost, ...], error_no, all_cost, timestamp]
    entity  [name, "sp", [size, ...]]      how an axis is split; -1: what the other sizes leave
            [name, "re", [position, ...]]  an order of axes
            [name, "an", [text, ...]]      what is done to each axis: none, unroll, vec, ...
            [name, "ot", value]            a choice of any other kind

`cost` and `all_cost` (building and running together) are seconds, `timestamp` seconds since 1970, all three float64 (an
integer above 2**53 would lose digits). `args` may hold ``["TENSOR", shape, dtype]``. `error_no` is one of ERRORS; the
costs of a failure are [1e9]. `tvm_version` may be absent. Blank lines and lines that begin with # mean nothing. Other
keys of the line or of its config are kept. An example, shortened::

    {"input": ["llvm", "dense_nopack.x86", [["TENSOR", [1, 64], "float32"], ["TENSOR", [8, 64], "float32"]], {}],
     "config": {"index": 3, "code_hash": null, "entity": [["tile_k", "sp", [-1, 8]]]},
     "result": [[1.5e-05], 0, 0.2, 1638857347.4], "version": 0.2, "tvm_version": "0.8.dev0"}

A reader may not rely on the order of records (results of a round of parallel builds come as they end), on a device
name, or on `index`, which counts in a search space that depends on the TVM version.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import msgspec

from tencost.records.reading.protocol import BadLineError, shorten
from tencost.store.status import Status

NAME = "autotvm"
"""Name of the format in the column `foreign`."""
ERRORS = {
    0: (Status.ok, "NO_ERROR"),
    1: (Status.invalid_schedule, "INSTANTIATION_ERROR"),
    2: (Status.build_error, "COMPILE_HOST"),
    3: (Status.build_error, "COMPILE_DEVICE"),
    4: (Status.run_error, "RUNTIME_DEVICE"),
    5: (Status.wrong_answer, "WRONG_ANSWER"),
    6: (Status.build_timeout, "BUILD_TIMEOUT"),
    7: (Status.run_timeout, "RUN_TIMEOUT"),
    8: (Status.unknown, "UNKNOWN_ERROR"),
}
"""error_no -> status and AutoTVM's name of it."""

_NEW_KEYS = ("input", "config", "result", "version", "tvm_version")
_OLD_KEYS = ("i", "r", "v")
_LONGEST_INTEGER = 1 << 63


class Split(msgspec.Struct, frozen=True):
    """How an axis is split: sizes from the outermost; -1 is what the others leave."""

    name: str
    sizes: tuple[int, ...]


class Reorder(msgspec.Struct, frozen=True):
    """An order of axes: positions in the template's list of them."""

    name: str
    order: tuple[int, ...]


class Annotate(msgspec.Struct, frozen=True):
    """Annotation of each axis: none, unroll, vec, ..."""

    name: str
    annotations: tuple[str, ...]


class Other(msgspec.Struct, frozen=True):
    """A choice of any other kind: a JSON value."""

    name: str
    value: Any


Entity = Split | Reorder | Annotate | Other


class Config(msgspec.Struct, frozen=True):
    """A point of a template's search space.

    `template` is the key of an old line ("direct", "winograd"; mostly ""), `extra` holds unknown keys.
    """

    index: int | None
    code_hash: str | None
    entities: tuple[Entity, ...]
    template: str = ""
    extra: dict[str, Any] = {}


class Task(msgspec.Struct, frozen=True):
    """A tuning task: a template's name with its arguments, for a target (its text); `workload` in old lines only."""

    target: str
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    workload: Any = None


class Line(msgspec.Struct, frozen=True):
    """A line of a log; `costs` and `all_cost_s` in seconds, `extra` holds unknown keys."""

    task: Task
    config: Config
    costs: tuple[float, ...]
    error_no: int
    all_cost_s: float
    timestamp: float
    version: Literal["0.2", "0.1"]
    tvm_version: str | None = None
    extra: dict[str, Any] = {}


def parse_line(line: bytes) -> Line:
    """Return a line of either version as typed values.

    Raises:
        ValueError: it is no such line; the text says what was expected and found.
    """
    value = load(line)
    if not isinstance(value, dict):
        raise BadLineError(f"expected an object, found {shorten(value)}")
    if "input" not in value and "i" not in value:
        raise BadLineError(
            f"expected the key input (version 0.2) or i (0.1), found {shorten(sorted(value))}"
        )
    parsed = _new_line(value) if "input" in value else _old_line(value)
    if b"NaN" in line or b"Infinity" in line:
        _check_finite([parsed.task.args, parsed.task.kwargs, parsed.task.workload, parsed.extra])
        _check_finite(program_of(parsed.config))
    return parsed


def format_line(line: Line) -> str:
    """Return a line as AutoTVM of its version writes it, without an end of line."""
    task, config = line.task, line.config
    entities = [_entity_json(entity) for entity in config.entities]
    result = [list(line.costs), line.error_no, line.all_cost_s, line.timestamp]
    inputs = [task.target, task.name, task.args, task.kwargs]
    if line.version == "0.1":
        old = {"i": config.index, "t": config.template, "c": config.code_hash, "e": entities}
        inputs += [task.workload, old | config.extra]
        return json.dumps({"i": inputs, "r": result, "v": 0.1} | line.extra)
    new = {"index": config.index, "code_hash": config.code_hash, "entity": entities}
    fields = {"input": inputs, "config": new | config.extra, "result": result, "version": 0.2}
    if line.tvm_version is not None:
        fields["tvm_version"] = line.tvm_version
    return json.dumps(fields | line.extra)


def program_of(config: Config) -> dict[str, Any]:
    """Return a config as the store's program column holds it."""
    program = {
        "code_hash": config.code_hash,
        "entity": [_entity_json(entity) for entity in config.entities],
        "index": config.index,
    }
    if config.template:
        program["template"] = config.template
    return program | config.extra


def looks_alike(line: bytes) -> bool:
    """Say whether a line has the keys and the task of an AutoTVM line, well formed or not."""
    try:
        value = load(line) if line.startswith(b"{") else None
    except ValueError:
        return False
    match value:
        case {"input": [str(), str(), *_], "config": {"entity": _}, "result": _}:
            return True
        case {"i": [str(), str(), *_], "r": _, "v": int() | float()}:
            return True
    return False


def as_tensor(arg: Any) -> tuple[list[int], str] | None:
    """Return shape and dtype of an argument ``["TENSOR", shape, dtype]``, None for any other."""
    if isinstance(arg, list) and len(arg) == 3 and arg[0] == "TENSOR" and isinstance(arg[1], list):
        return arg[1], arg[2]
    return None


def load(line: bytes) -> Any:
    """Return a line's JSON value; NaN and Infinity, which Python writes, are numbers.

    Raises:
        ValueError: not JSON, not UTF-8, or half a surrogate pair.
    """
    try:
        text = line.decode()
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError as error:
        raise BadLineError(f"not UTF-8: {error}") from error
    except RecursionError as error:
        raise BadLineError("JSON nested too deeply") from error
    except ValueError as error:
        raise BadLineError(f"not a line of JSON: {error}") from error
    return value


def _check_finite(value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise BadLineError(
            f"expected finite numbers but for costs, found {shorten(value)}"
        ) from error


def _new_line(value: dict[str, Any]) -> Line:
    if value.get("version") != 0.2:
        raise BadLineError(f"expected version 0.2, found {shorten(value.get('version'))}")
    version = value.get("tvm_version")
    if version is not None and not isinstance(version, str):
        raise BadLineError(f"expected tvm_version as text, found {shorten(version)}")
    extra = {key: field for key, field in value.items() if key not in _NEW_KEYS}
    config = config_of(value.get("config"), ("index", "code_hash", "entity"))
    if config.template:
        raise BadLineError("expected no key template in a config of version 0.2")
    inputs = value["input"]
    return Line(
        task_of(inputs, "0.2"), config, *_result(value.get("result")), "0.2", version, extra
    )


def _old_line(value: dict[str, Any]) -> Line:
    if value.get("v") != 0.1:
        raise BadLineError(f"expected version 0.1, found {shorten(value.get('v'))}")
    inputs = value["i"]
    if not isinstance(inputs, list) or len(inputs) != 6:
        raise BadLineError(
            f"expected [target, task, args, kwargs, workload, config], found {shorten(inputs)}"
        )
    extra = {key: field for key, field in value.items() if key not in _OLD_KEYS}
    config = inputs[5]
    if not isinstance(config, dict) or not isinstance(config.get("t"), str):
        raise BadLineError(f"expected a config with i, t, c and e, found {shorten(config)}")
    clash = sorted({"index", "code_hash", "entity", "template"} & set(config))
    if clash:
        raise BadLineError(f"expected a config of version 0.1, found the keys {clash} of 0.2")
    renamed = {"template" if key == "t" else key: field for key, field in config.items()}
    return Line(
        task_of(inputs[:5], "0.1"),
        config_of(renamed, ("i", "c", "e")),
        *_result(value.get("r")),
        "0.1",
        None,
        extra,
    )


def task_of(inputs: Any, version: str) -> Task:
    """Return a task from ``[target, task, args, kwargs]``, with the workload at the end in version 0.1.

    Raises:
        ValueError: something else.
    """
    names = ["target", "task", "args", "kwargs", *(["workload"] if version == "0.1" else [])]
    if not isinstance(inputs, list) or len(inputs) != len(names):
        raise BadLineError(f"expected [{', '.join(names)}], found {shorten(inputs)}")
    target, name, args, kwargs = inputs[:4]
    if not isinstance(target, str) or not isinstance(name, str) or not name:
        raise BadLineError(
            f"expected a target and a task as texts, found {shorten(target)}, {shorten(name)}"
        )
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise BadLineError(
            f"expected a list of arguments and an object of keyword arguments, found {shorten(args)}, "
            f"{shorten(kwargs)}"
        )
    return Task(target, name, args, kwargs, inputs[4] if version == "0.1" else None)


def config_of(value: Any, keys: tuple[str, str, str]) -> Config:
    """Return a config from an object whose `keys` hold index, code hash and entities.

    Raises:
        ValueError: something else.
    """
    if not isinstance(value, dict) or any(key not in value for key in keys):
        raise BadLineError(f"expected a config with {', '.join(keys)}, found {shorten(value)}")
    index, code_hash, entities = (value[key] for key in keys)
    template = value.get("template", "")
    if not (index is None or _is_int(index)):
        raise BadLineError(f"expected a config's index as an integer, found {shorten(index)}")
    if not (code_hash is None or isinstance(code_hash, str)):
        raise BadLineError(f"expected a code hash as text or null, found {shorten(code_hash)}")
    if not isinstance(entities, list) or not isinstance(template, str):
        raise BadLineError(f"expected a config's entities as a list, found {shorten(entities)}")
    extra = {key: field for key, field in value.items() if key not in (*keys, "template")}
    return Config(index, code_hash, tuple(entity_of(knob) for knob in entities), template, extra)


def entity_of(knob: Any) -> Entity:
    """Return an entity from ``[name, kind, value]``.

    Raises:
        ValueError: something else, or a value that its kind does not have.
    """
    if not (isinstance(knob, list) and len(knob) == 3 and isinstance(knob[0], str)):
        raise BadLineError(f"expected an entity [name, kind, value], found {shorten(knob)}")
    name, kind, value = knob
    if kind == "ot":
        return Other(name, value)
    parts = value if isinstance(value, (list, tuple)) else None
    if parts is not None and kind in ("sp", "re") and all(_is_int(part) for part in parts):
        return Split(name, tuple(parts)) if kind == "sp" else Reorder(name, tuple(parts))
    if parts is not None and kind == "an" and all(isinstance(part, str) for part in parts):
        return Annotate(name, tuple(parts))
    raise BadLineError(
        f"expected an entity of kind sp or re with integers, an with texts, or ot, found {shorten(knob)}"
    )


def _entity_json(entity: Entity) -> list[Any]:
    match entity:
        case Split(name, sizes):
            return [name, "sp", list(sizes)]
        case Reorder(name, order):
            return [name, "re", list(order)]
        case Annotate(name, annotations):
            return [name, "an", list(annotations)]
        case Other(name, value):
            return [name, "ot", value]


def _result(value: Any) -> tuple[tuple[float, ...], int, float, float]:
    """Return costs (s), error_no, all_cost (s) and timestamp (s)."""
    if not isinstance(value, list) or len(value) != 4:
        raise BadLineError(
            f"expected a result [costs, error_no, all_cost, timestamp], found {shorten(value)}"
        )
    costs, error_no, all_cost, timestamp = value
    if not isinstance(costs, list) or not all(_is_number(cost) for cost in costs):
        raise BadLineError(f"expected costs as a list of numbers, found {shorten(costs)}")
    if not _is_int(error_no):
        raise BadLineError(f"expected error_no as an integer, found {shorten(error_no)}")
    if not all(_is_number(number) and math.isfinite(number) for number in (all_cost, timestamp)):
        raise BadLineError(
            f"expected all_cost and timestamp as numbers, found {shorten([all_cost, timestamp])}"
        )
    return tuple(float(cost) for cost in costs), error_no, float(all_cost), float(timestamp)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (_is_int(value) and abs(value) < _LONGEST_INTEGER)
