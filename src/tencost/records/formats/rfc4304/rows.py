"""One RFC 4304 record as a row of the record schema, and back; see rfc4304.py for what the fields mean."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tencost.records.formats.rfc4304.names import (
    SCHEMA_VERSION,
    Object,
    Version,
    apply,
    difference,
    json_names,
    to_columns,
    to_json,
)
from tencost.records.formats.rfc4304.own import OURS, OWN_COLUMNS, own_columns
from tencost.records.reading.jsonfloats import finite, from_floats, with_floats
from tencost.records.reading.targets import parse_target
from tencost.records.reading.timestamps import epoch_seconds
from tencost.store.ids import canonical_json, canonical_target, text_id
from tencost.store.status import FAILURE_SECONDS, Status, Timing, timing_from_log

NAME = "rfc4304"
VERSION_NOTE = "rfc4304_schema_version"
"""Key of additional_info that holds another schema version than ours."""

_REQUIRED = {
    "columns": ("timestamp", "schema_version", "workload", "engine"),
    "json": ("workload", "engine"),
}
_COLUMNS_KEYS = frozenset({"additional_info", "target", "build_config", "env_name", "hw_model"})
_JSON_KEYS = frozenset(
    [
        "hardware",
        "metadata",
        "workload_metadata",
        "compilation_config",
        "software_config",
        "hardware_config",
        "metrics",
    ]
)
_IN_JSON = {
    "target": "engine_config.tvm_target",
    "execution_elapsed_ms_mean": "runtime_ms_mean",
    "execution_elapsed_ms_std": "runtime_ms_std",
}
"""Names of fields in messages about records of the json version."""
_OBJECTS = ("engine_config", "build_config", "runtime_config", "execution_config")
_GOOD = frozenset({"ok", "success", "correct"})
_STATUSES = frozenset(item.value for item in Status)
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_FLOAT32_MAX = 3.4e38


class BadRecordError(ValueError):
    """A record that cannot be kept; the message names the field."""


class NoHardwareError(BadRecordError):
    """A record that names no device, and none was told."""


@dataclass(frozen=True)
class _Times:
    """Times as the log has them, milliseconds; `raw`: they are the entries of runtime_raw, not the mean."""

    timing: Timing
    raw: bool


def version_of(record: Mapping[str, Any]) -> Version:
    """Return which version a record is: by its names of the times, else by which version's names it has more of."""
    if any(name in record for name in ("execution_elapsed_ms_mean", "execution_elapsed_ms_std")):
        return "columns"
    if any(name in record for name in ("runtime_ms_mean", "runtime_ms_std")):
        return "json"
    of_json = len(_JSON_KEYS & record.keys())
    return "json" if of_json > len(_COLUMNS_KEYS & record.keys()) else "columns"


def row_of(record: Object, hardware: str | None) -> dict[str, Any]:
    """Return the columns of a record, all but networks, source, schema_version and the constant ones.

    Args:
        record: the record as read, of either version.
        hardware: the device, where the record does not name it.

    Raises:
        BadRecordError: a required field is missing, or a field is not what it must be; the message names it.
    """
    version = version_of(record)
    for name in _REQUIRED[version]:
        if name not in record or (record[name] is None and name != "timestamp"):
            raise BadRecordError(f"{name}: missing")
    columns = record if version == "columns" else to_columns(record)
    try:
        row, mean_only = _row(columns, _hardware(record, version, hardware))
    except BadRecordError as error:
        if version == "columns":
            raise
        name, colon, reason = str(error).partition(":")
        raise type(error)(f"{_IN_JSON.get(name, name)}{colon}{reason}") from error
    foreign: Object = {"format": NAME, "version": version}
    keep, absent = difference(record, _generated(row, version, mean_only))
    if keep:
        foreign["keep"] = with_floats(keep)
    if absent:
        foreign["absent"] = absent
    if mean_only:
        foreign["run_secs"] = "mean"
    row["foreign"] = _ENCODE(foreign)
    row |= own_columns(record.get(OURS), row)
    for name, value in row.items():
        if isinstance(value, str):
            _unicode(name, value)
    return row


def object_of(row: Mapping[str, Any], version: Version) -> Object:
    """Return a row of the record schema as a record of a version.

    A row that was read from this format comes back as it was read, renamed where the version is the other one. Of
    any other row, the times and what was measured are written, not the program.
    """
    foreign = json.loads(row["foreign"]) if row["foreign"] else {}
    if foreign.get("format") != NAME or row["measurements"]:
        columns = _columns_object(row, mean_only=False) | _names_of_device(row)
        if columns["target"] == "{}":  # ours for none: what a reader takes for one has a kind
            del columns["target"]
        columns[OURS] = {name: row[name] for name in OWN_COLUMNS}
        return columns if version == "columns" else to_json(columns)
    read: Version = foreign["version"]
    found = _generated(row, read, foreign.get("run_secs") == "mean")
    record = apply(found, from_floats(foreign.get("keep", {})), foreign.get("absent", []))
    if read == version:
        return record
    return to_json(record) if version == "json" else to_columns(record)


def _row(record: Object, device: str) -> tuple[dict[str, Any], bool]:
    """Return the row of a record of the columns version, and whether its run_secs are the mean alone."""
    workload = _text(record, "workload")
    engine = _text(record, "engine")
    version = record.get("engine_version")
    version = None if version is None else version if isinstance(version, str) else str(version)
    target = _target(record.get("target"))
    timestamp = _timestamp(record.get("timestamp"))
    objects = {name: _object(record.get(name)) for name in _OBJECTS}
    times = _times(record)
    timing = times.timing
    workload_id = text_id(NAME, workload, canonical_json(finite(record.get("workload_args"))))
    program_id = text_id(workload_id, str(target.get("kind", "")), "")
    what = [engine, version, *(objects[name] or {} for name in _OBJECTS[:3]), timestamp]
    row: dict[str, Any] = {
        "record_id": text_id(program_id, canonical_target(target), device, canonical_json(what)),
        "program_id": program_id,
        "workload_id": workload_id,
        "task_name": _task_name(workload),
        "hardware": device,
        "timestamp": timestamp,
        "additional_info": _json(_noted(record)),
        "workload": workload,
        "workload_args": _json(finite(record.get("workload_args"))),
        "engine": engine,
        "engine_version": version,
        "target": _json(target),
        "env_name": _text_or_none(record.get("env_name")),
        "hw_model": _text_or_none(record.get("hw_model")),
        "program_format": "none",
        "program": "",
        "run_secs": list(timing.run_secs) or None,
        "status": timing.status.value,
        "error": timing.error or None,
    }
    row |= {name: _json(value) for name, value in objects.items()}
    row |= _elapsed(record, times, objects["execution_config"])
    return row, bool(timing.run_secs) and not times.raw


def _generated(row: Mapping[str, Any], version: Version, mean_only: bool) -> Object:
    """Return what the columns of a row that was read from this format say, as a record of a version."""
    columns = _columns_object(row, mean_only)
    return columns if version == "columns" else json_names(columns)


def _columns_object(row: Mapping[str, Any], mean_only: bool) -> Object:
    """Return what the columns of a row say, as a record of the columns version."""
    record: Object = {
        "timestamp": row["timestamp"],
        "schema_version": SCHEMA_VERSION,
        "additional_info": _loaded(row["additional_info"]),
        "workload": row["workload"],
        "workload_args": _loaded(row["workload_args"]),
        "engine": row["engine"],
        "engine_version": row["engine_version"],
        "engine_config": _loaded(row["engine_config"]),
        "target": row["target"],
        "build_config": _loaded(row["build_config"]),
        "env_name": row["env_name"],
        "hw_model": row["hw_model"],
        "runtime_config": _loaded(row["runtime_config"]),
        "execution_config": _loaded(row["execution_config"]),
    }
    record = {
        key: value for key, value in record.items() if value is not None or key == "timestamp"
    }
    if not row["run_secs"]:
        failure = {"status": row["status"], "error": row["error"]}
        return record | {key: value for key, value in failure.items() if value}
    milliseconds = [1e3 * value for value in row["run_secs"]]
    record["execution_elapsed_ms_mean"] = statistics.fmean(milliseconds)
    single = len(milliseconds) < 2
    record["execution_elapsed_ms_std"] = None if single else statistics.stdev(milliseconds)
    if not mean_only:
        record["runtime_raw"] = [{"runtime_ms": value} for value in milliseconds]
    return record


def _names_of_device(row: Mapping[str, Any]) -> Object:
    """Return the keys that name the device of a row which was not read from this format."""
    if row["env_name"] in (None, row["hardware"]):
        return {"env_name": row["hardware"]}
    return {"hardware": row["hardware"]}


def _text(record: Object, name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadRecordError(f"{name}: expected a text, found {_shorten(value)}")
    return _unicode(name, value)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _hardware(record: Object, version: Version, told: str | None) -> str:
    names = ("hardware", "env_name", "hw_model") if version == "columns" else ("hardware",)
    for name in names:
        value = record.get(name)
        if isinstance(value, str) and value.strip():
            return _unicode(name, value)
    if told is None:
        raise NoHardwareError("hardware: missing")
    return told


def _task_name(workload: str) -> str:
    """Return ``conv2d`` of ``topi.conv2d:0a1b2c``: without domain and git hash."""
    domain, _, name = workload.partition(".")
    return (name if domain and name else workload).partition(":")[0] or workload


def _target(value: Any) -> Object:
    if value is None or value == "":
        return {}
    if isinstance(value, dict):
        value = json.dumps(finite(value))
    if not isinstance(value, str):
        raise BadRecordError(f"target: expected a target, found {_shorten(value)}")
    try:
        return parse_target(_unicode("target", value))
    except BadRecordError:
        raise
    except ValueError as error:
        raise BadRecordError(f"target: {error}") from error


def _timestamp(value: Any) -> float | None:
    try:
        return None if value is None else epoch_seconds(value)
    except ValueError as error:
        raise BadRecordError(f"timestamp: {error}") from error


def _noted(record: Object) -> Object | None:
    info = _object(record.get("additional_info"))
    version = record.get("schema_version")
    if version is None or str(version) == SCHEMA_VERSION:
        return info
    return {**(info or {}), VERSION_NOTE: finite(version)}


def _times(record: Object) -> _Times:
    raw = record.get("runtime_raw")
    if raw is not None and not isinstance(raw, list):
        raise BadRecordError(f"runtime_raw: expected a list, found {_shorten(raw)}")
    if raw:
        values = [_raw_time(index, entry) for index, entry in enumerate(raw)]
    elif record.get("execution_elapsed_ms_mean") is not None:
        values = [_milliseconds("execution_elapsed_ms_mean", record["execution_elapsed_ms_mean"])]
    else:
        values = []
    return _Times(_timing(record, values), bool(raw))


def _raw_time(index: int, entry: Any) -> float | None:
    name = f"runtime_raw[{index}]"
    value = entry.get("runtime_ms") if isinstance(entry, dict) else entry
    if value is None and isinstance(entry, dict):
        return None
    return _milliseconds(name, value)


def _milliseconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadRecordError(f"{name}: expected milliseconds, found {_shorten(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _timing(record: Object, values: list[float | None]) -> Timing:
    """Return the times in seconds, or the status that the record or its times tell."""
    said, error = record.get("status"), record.get("error")
    text = error if isinstance(error, str) else "" if error is None else json.dumps(finite(error))
    word = said.strip().casefold() if isinstance(said, str) else said
    if word is not None and not (isinstance(word, str) and word in _GOOD):
        known = isinstance(word, str) and word in _STATUSES
        status = Status(word) if known else Status.unknown
        return Timing(status, (), text or f"the log says status {_shorten(said)}")
    if text and word is None:
        return Timing(Status.unknown, (), text)
    if not values:
        return Timing(Status.unknown, (), "not measured: no time")
    for value in values:
        if value is None:
            return Timing(Status.unknown, (), "not measured: a time is null")
        if value >= FAILURE_SECONDS and math.isfinite(value):
            return Timing(Status.unknown, (), f"the log marks a failure: {value:g} ms")
    return timing_from_log([value / 1e3 for value in values if value is not None])


def _elapsed(record: Object, times: _Times, execution: Object | None) -> dict[str, float | None]:
    """Return the two elapsed columns, milliseconds: as the record says, else of its times."""
    seconds = times.timing.run_secs
    if not seconds:
        return {"execution_elapsed_ms_mean": None, "execution_elapsed_ms_std": None}
    said = _number(record.get("execution_elapsed_ms_mean"))
    mean = said if said is not None and said > 0 else 1e3 * statistics.fmean(seconds)
    deviation = _number(record.get("execution_elapsed_ms_std"))
    single = len(seconds) == 1 if times.raw else (execution or {}).get("repeat") == 1
    if deviation is None and len(seconds) > 1:
        deviation = 1e3 * statistics.stdev(seconds)
    known = deviation is not None and deviation >= 0 and not single
    return {
        "execution_elapsed_ms_mean": mean,
        "execution_elapsed_ms_std": deviation if known else None,
    }


def _number(value: Any) -> float | None:
    """Return a number that fits the elapsed columns (float32); None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -_FLOAT32_MAX < value < _FLOAT32_MAX else None


def _object(value: Any) -> Object | None:
    """Return an object, also one that is JSON text; None for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return finite(value) if isinstance(value, dict) else None


def _json(value: Any) -> str | None:
    return None if value is None else _SORTED(value)


def _loaded(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _unicode(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRecordError(f"{name}: not Unicode text") from error
    return text


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
