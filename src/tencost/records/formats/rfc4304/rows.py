"""One RFC 4304 record as a row of the record schema, and back; the package's docstring says what the fields mean.

An RFC 4304 record has no field for a program and its measurements, so our own records carry them along::

    "tencost": {"record_id": ..., "program_id": ..., "workload_id": ..., "task_name": ..., "networks": [...],
                "program_format": ..., "program": ..., "timestamp": ..., "run_secs": [...], "wall_s": ...,
                "foreign": ..., "measurements": [...], "generator": ...}

Members are the columns of those names. A record of a program read without it would be known by its workload and the
second of its time stamp, which many programs share, and seconds that were written as milliseconds lose a digit. It is
believed only where it says the same as the record itself; otherwise it is a key like any other that is not known.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from tencost.records.formats.rfc4304.names import (
    COLUMNS_FIELDS,
    JSON_FIELDS,
    SCHEMA_VERSION,
    Object,
    Version,
    apply,
    difference,
    json_names,
    to_columns,
    to_json,
)
from tencost.records.formats.table.checks import Measurement, Network
from tencost.records.reading.jsonfloats import finite, from_floats, with_floats
from tencost.records.reading.protocol import shorten
from tencost.records.reading.targets import parse_target
from tencost.records.reading.timestamps import epoch_seconds
from tencost.store.ids import canonical_json, canonical_target, text_id
from tencost.store.record import PROGRAM_FORMATS, elapsed_ms
from tencost.store.status import FAILURE_SECONDS, Status, Timing, timing_from_log

NAME = "rfc4304"
OURS = "tencost"
VERSION_NOTE = "rfc4304_schema_version"
"""Key of additional_info that holds another schema version than ours."""

_REQUIRED = {
    "columns": ("timestamp", "schema_version", "workload", "engine"),
    "json": ("workload", "engine"),
}
_MEAN, _DEVIATION = "execution_elapsed_ms_mean", "execution_elapsed_ms_std"
_JSON_MESSAGE_NAMES = {
    "target": "engine_config.tvm_target",
    _MEAN: "runtime_ms_mean",
    _DEVIATION: "runtime_ms_std",
}
_JSON_COLUMNS = tuple(
    name for name in COLUMNS_FIELDS if name.endswith(("_info", "_args", "_config"))
)
_CELLS = {name: name in _JSON_COLUMNS for name in COLUMNS_FIELDS[2:-2]}
"""Columns of one field each, and whether they hold JSON; not the timestamp, the schema version and the times."""
_GOOD = ("ok", "success", "correct")
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_FLOAT32_MAX = 3.4e38
_RESERVED = re.compile(r"(topi|relay)(?:[.:]|$)")
_OPERATOR = re.compile(r"(topi|relay)\.[^\s:]+(:[0-9a-fA-F]{4,64})?")
"""A workload in a namespace that the RFC reserves."""
_Id = Annotated[str, msgspec.Meta(min_length=1)]


class BadRecordError(ValueError):
    """A record that cannot be read: its field, and what is wrong with that."""

    def __init__(self, field: str, error: Exception | str) -> None:
        reason = "not Unicode text" if isinstance(error, UnicodeEncodeError) else str(error)
        super().__init__(f"{field}: {reason}")
        self.field, self.reason = field, reason


class NoHardwareError(ValueError):
    """A record that names no device, where the reader was given none."""


class _OwnColumns(msgspec.Struct, forbid_unknown_fields=True):
    record_id: _Id
    program_id: _Id
    workload_id: _Id
    task_name: str
    networks: list[Network] | None
    program_format: Literal[PROGRAM_FORMATS]  # type: ignore[valid-type]
    program: str
    timestamp: float | None
    run_secs: list[float] | None
    wall_s: float | None
    foreign: str | None
    measurements: list[Measurement] | None
    generator: str | None = None


def version_of(record: Mapping[str, Any]) -> Version:
    """Return which version a record is: by its names of the times, else by which version's names it has more of."""
    if _MEAN in record or _DEVIATION in record:
        return "columns"
    if "runtime_ms_mean" in record or "runtime_ms_std" in record:
        return "json"
    # runtime_raw is in the records of both versions that we write
    names = record.keys() - {"runtime_raw"}
    of_columns, of_json = names & set(COLUMNS_FIELDS), names & set(JSON_FIELDS)
    return "json" if len(of_json - of_columns) > len(of_columns - of_json) else "columns"


def row_of(record: Object, hardware: str | None) -> dict[str, Any]:
    """Return the columns of a record, all but source, schema_version and, mostly, networks.

    Args:
        record: the record as read, of either version.
        hardware: the device, where the record does not name it.

    Raises:
        NoHardwareError: neither the record nor `hardware` names the device.
        ValueError: a required field is missing, or a field is not what it must be; the message names it.
    """
    version = version_of(record)
    for name in _REQUIRED[version]:
        if name not in record or (record[name] is None and name != "timestamp"):
            raise BadRecordError(name, "missing")
    columns = record if version == "columns" else to_columns(record)
    device = _device(record, version) or hardware
    if device is None:
        raise NoHardwareError
    try:
        row, mean_only = _columns_row({**columns, "hardware": device})
    except BadRecordError as error:
        if version == "columns":
            raise
        field = _JSON_MESSAGE_NAMES.get(error.field, error.field)
        raise BadRecordError(field, error.reason) from error
    foreign: Object = {"format": NAME, "version": version}
    keep, absent = difference(record, _generated(row, version, mean_only))
    if keep:
        foreign["keep"] = with_floats(keep)
    if absent:
        foreign["absent"] = absent
    if mean_only:
        foreign["run_secs"] = "mean"
    row["foreign"] = _ENCODE(foreign)
    if OURS in record:
        row |= _own_columns(record[OURS], row)
    return row


def object_of(row: Mapping[str, Any], version: Version) -> Object:
    """Return a row of the record schema as a record of a version.

    A row that was read from this format comes back as it was read, renamed where the version is the other one. Of
    any other row, the times and what was measured are written, not the program.
    """
    foreign = json.loads(row["foreign"] or "{}")
    if foreign.get("format") != NAME or row["measurements"]:
        columns = _columns_object(row, mean_only=False)
        if row["env_name"] in (None, row["hardware"]):
            columns["env_name"] = row["hardware"]
        else:
            columns["hardware"] = row["hardware"]
        if columns["target"] == "{}":  # ours for none: what a reader takes for one has a kind
            del columns["target"]
        columns[OURS] = {name: row[name] for name in _OwnColumns.__struct_fields__}
        return columns if version == "columns" else to_json(columns)
    read: Version = foreign["version"]
    generated = _generated(row, read, foreign.get("run_secs") == "mean")
    record = apply(generated, from_floats(foreign.get("keep", {})), foreign.get("absent", []))
    if read == version:
        return record
    return to_json(record) if version == "json" else to_columns(record)


def _own_columns(members: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that a record's key OURS says; none where it contradicts the record's row, or is no such."""
    try:
        columns = msgspec.convert(members, _OwnColumns)
        json.dumps(members, ensure_ascii=False).encode()  # texts that Arrow cannot hold
        for text in (
            columns.foreign,
            columns.program if columns.program_format != "none" else None,
        ):
            json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    times, own_times = row["run_secs"] or [], columns.run_secs or []
    alike = len(own_times) == len(times) and all(
        own_time > 0 and math.isclose(own_time, time, rel_tol=1e-9)
        for own_time, time in zip(own_times, times, strict=True)
    )
    stamped = columns.timestamp == row["timestamp"] and math.isfinite(columns.wall_s or 0.0)
    return dict(msgspec.to_builtins(columns)) if alike and stamped else {}


def _columns_row(record: Object) -> tuple[dict[str, Any], bool]:
    """Return the row of a record of the columns version, and whether its run_secs are the mean alone."""
    cells: Object = {}
    for name, read in _READERS.items():
        try:
            cells[name] = read(record.get(name))
        except ValueError as error:
            raise BadRecordError(name, error) from error
    times, raw = _times(record)
    timing = _timing(record.get("status"), cells["error"], times)
    ids = _ids(cells)
    elapsed = _elapsed(record, timing.run_secs, raw, cells["execution_config"])
    schema_version = record.get("schema_version")
    if schema_version is not None and str(schema_version) != SCHEMA_VERSION:
        noted = {VERSION_NOTE: finite(schema_version)}
        cells["additional_info"] = (cells["additional_info"] or {}) | noted
    for name in (*_JSON_COLUMNS, "target"):
        cells[name] = None if cells[name] is None else _SORTED(cells[name])
    row: dict[str, Any] = {
        **ids,
        **cells,
        **elapsed,
        "task_name": _task_name(cells["workload"]),
        "program_format": "none",
        "program": "",
        "run_secs": list(timing.run_secs) or None,
        "status": timing.status.value,
        "error": timing.error or None,
    }
    return row, bool(timing.run_secs) and not raw


def _ids(cells: Object) -> dict[str, str]:
    arguments = canonical_json(cells["workload_args"])
    workload_id = text_id(NAME, cells["workload"], arguments)
    program_id = text_id(workload_id, str(cells["target"].get("kind", "")), "")
    configs = [cells[name] or {} for name in ("engine_config", "build_config", "runtime_config")]
    measured = [cells["engine"], cells["engine_version"], *configs, cells["timestamp"]]
    target = canonical_target(cells["target"])
    return {
        "record_id": text_id(program_id, target, cells["hardware"], canonical_json(measured)),
        "program_id": program_id,
        "workload_id": workload_id,
    }


def _generated(row: Mapping[str, Any], version: Version, mean_only: bool) -> Object:
    """Return what the columns of a row that was read from this format say, as a record of a version."""
    columns = _columns_object(row, mean_only)
    return columns if version == "columns" else json_names(columns)


def _columns_object(row: Mapping[str, Any], mean_only: bool) -> Object:
    """Return what the columns of a row say, as a record of the columns version."""
    record: Object = {"timestamp": row["timestamp"], "schema_version": SCHEMA_VERSION}
    for name, is_json in _CELLS.items():
        cell = row[name]
        if cell is not None:
            record[name] = json.loads(cell) if is_json else cell
    if not row["run_secs"]:
        return record | {name: row[name] for name in ("status", "error") if row[name]}
    record |= elapsed_ms(row["run_secs"])
    if not mean_only:
        record["runtime_raw"] = [{"runtime_ms": 1e3 * seconds} for seconds in row["run_secs"]]
    return record


def _device(record: Object, version: Version) -> str | None:
    names = ("hardware", "env_name", "hw_model") if version == "columns" else ("hardware",)
    devices = (record.get(name) for name in names)
    return next((device for device in devices if isinstance(device, str) and device.strip()), None)


def _task_name(workload: str) -> str:
    """Return ``conv2d`` of ``topi.conv2d:0a1b2c``: without domain and git hash."""
    domain, _, name = workload.partition(".")
    return (name if domain and name else workload).partition(":")[0] or workload


def _text(text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"expected a text, found {shorten(text)}")
    return _unicode(text)


def _workload(workload: Any) -> str:
    text = _text(workload)
    if (reserved := _RESERVED.match(text)) and not _OPERATOR.fullmatch(text):
        raise ValueError(
            f"expected {reserved[1]}.<operator> or {reserved[1]}.<operator>:<git SHA>, as the namespace is reserved "
            f"for TVM's operators, found {shorten(text)}"
        )
    return text


def _name(name: Any) -> str | None:
    return _unicode(name) if isinstance(name, str) else None


def _unicode(text: str) -> str:
    text.encode()  # Arrow cannot hold a lone surrogate
    return text


def _error(error: Any) -> str:
    text = "" if error is None else error if isinstance(error, str) else json.dumps(finite(error))
    return _unicode(text)


def _target(target: Any) -> Object:
    if target is None or target == "":
        return {}
    if isinstance(target, dict):
        target = json.dumps(finite(target))
    if isinstance(target, str):
        return parse_target(_unicode(target))
    raise ValueError(f"expected a target, found {shorten(target)}")


def _object(members: Any) -> Object | None:
    """Return an object, also one that is JSON text; None for anything else."""
    if isinstance(members, str) and members.lstrip().startswith("{"):
        try:
            members = json.loads(members)
        except ValueError:
            return None
    return finite(members) if isinstance(members, dict) else None


_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_JSON_COLUMNS, _object),
    "workload": _workload,
    "workload_args": finite,
    "hardware": _text,
    "engine": _text,
    "engine_version": lambda version: _name(None if version is None else str(version)),
    "target": _target,
    "timestamp": lambda time: None if time is None else epoch_seconds(time),
    "env_name": _name,
    "hw_model": _name,
    "error": _error,
}
"""Column -> function from a field of the columns version to its cell, not yet as JSON."""


def _times(record: Object) -> tuple[list[float | None], bool]:
    """Return the times in milliseconds, and whether they are the entries of runtime_raw, not the mean."""
    raw, mean = record.get("runtime_raw"), record.get(_MEAN)
    if raw is not None and not isinstance(raw, list):
        raise BadRecordError("runtime_raw", f"expected a list, found {shorten(raw)}")
    times: list[float | None] = []
    for place, run in enumerate(raw or []):
        time = run.get("runtime_ms") if isinstance(run, dict) else run
        is_null = time is None and isinstance(run, dict)
        times.append(None if is_null else _milliseconds(f"runtime_raw[{place}]", time))
    if not times and mean is not None:
        times.append(_milliseconds(_MEAN, mean))
    return times, bool(raw)


def _milliseconds(name: str, time: Any) -> float:
    if isinstance(time, bool) or not isinstance(time, (int, float)):
        raise BadRecordError(name, f"expected milliseconds, found {shorten(time)}")
    try:
        return float(time)
    except OverflowError:
        return math.inf


def _timing(status: Any, error: str, times: list[float | None]) -> Timing:
    """Return the times in seconds, or the status that the record or its times tell."""
    word = status.strip().casefold() if isinstance(status, str) else ""
    if status is not None and word not in _GOOD:
        reported = Status(word) if word in Status.__members__ else Status.unknown
        return Timing(reported, (), error or f"the log says status {shorten(status)}")
    if error and status is None:
        return Timing(Status.unknown, (), error)
    if not times:
        return Timing(Status.unknown, (), "not measured: no time")
    for time in times:
        if time is None:
            return Timing(Status.unknown, (), "not measured: a time is null")
        if FAILURE_SECONDS <= time < math.inf:
            return Timing(Status.unknown, (), f"the log marks a failure: {time:g} ms")
    return timing_from_log([time / 1e3 for time in times if time is not None])


def _elapsed(
    record: Object, run_secs: tuple[float, ...], raw: bool, execution: Object | None
) -> dict[str, float | None]:
    """Return the two elapsed columns, milliseconds: as the record says, else of its times."""
    elapsed = elapsed_ms(run_secs)
    if not run_secs:
        return elapsed
    mean, deviation = _float32(record.get(_MEAN)), _float32(record.get(_DEVIATION))
    if mean is None or mean <= 0:
        mean = elapsed[_MEAN]
    if deviation is None:
        deviation = elapsed[_DEVIATION]
    single = len(run_secs) == 1 if raw else (execution or {}).get("repeat") == 1
    if deviation is not None and (deviation < 0 or single):
        deviation = None
    return {_MEAN: mean, _DEVIATION: deviation}


def _float32(number: Any) -> float | None:
    """Return a number that fits the elapsed columns; None for anything else."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return float(number) if -_FLOAT32_MAX < number < _FLOAT32_MAX else None
