"""The two versions of an RFC 4304 record and the way from each to the other, without loss.

columns (the mail of 2019-11-11)                json (TVM's docs, "Benchmark Performance Log Format", schema 0.1)
additional_info                                 metadata; its metrics (METRICS) in metrics
target                                          engine_config.tvm_target
build_config                                    compilation_config
runtime_config: os, cudnn, cuda_driver          software_config
runtime_config: anything else                   runtime_config
env_name, or hw_model without one               hardware
hw_model                                        hardware_config.cpu_platform
execution_elapsed_ms_mean, ..._std              runtime_ms_mean, runtime_ms_std

A key that the other version has no word for keeps its name and place, known (workload_metadata, runtime_raw, what is
left of metrics, software_config and hardware_config) or not. `hardware` in the columns version is ours: a name
besides env_name; env_name then goes to hardware_config.env_name.

Where that is no one-to-one way (empty objects, a null, values of other types, a name that both sides use), the
renamed record carries what it takes to go back under the key ORIGINAL::

    "tencost_original": {"version": "columns", "keep": {key: value, ...}, "absent": [key, ...]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

Version = Literal["columns", "json"]
Object = dict[str, Any]

ORIGINAL = "tencost_original"
SCHEMA_VERSION = "0.1"

COLUMNS_FIELDS = (
    "timestamp",
    "schema_version",
    "additional_info",
    "workload",
    "workload_args",
    "engine",
    "engine_version",
    "engine_config",
    "target",
    "build_config",
    "env_name",
    "hw_model",
    "runtime_config",
    "execution_config",
    "execution_elapsed_ms_mean",
    "execution_elapsed_ms_std",
)
JSON_FIELDS = (
    "workload",
    "engine",
    "hardware",
    "runtime_ms_mean",
    "runtime_ms_std",
    "timestamp",
    "schema_version",
    "metadata",
    "workload_args",
    "workload_metadata",
    "engine_version",
    "engine_config",
    "compilation_config",
    "software_config",
    "runtime_config",
    "hardware_config",
    "execution_config",
    "metrics",
    "runtime_raw",
)
METRICS = {
    "validation_accuracy": "accuracy",
    "device_memory_usage": "device_memory_usage",
    "code_size": "code_size",
    "compile_time": "compile_time",
}
"""What the mail puts into additional_info and the docs into metrics; units are not stated and not changed."""
SOFTWARE = ("os", "cudnn", "cuda_driver")
"""What the mail puts into runtime_config and the docs into software_config."""
_PLAIN = {
    "build_config": "compilation_config",
    "execution_elapsed_ms_mean": "runtime_ms_mean",
    "execution_elapsed_ms_std": "runtime_ms_std",
}


def to_json(record: Mapping[str, Any]) -> Object:
    """Return a record of the columns version in the json version; :func:`to_columns` gives it back."""
    return _renamed(record, "columns", json_names, _column_names)


def to_columns(record: Mapping[str, Any]) -> Object:
    """Return a record of the json version in the columns version; :func:`to_json` gives it back."""
    return _renamed(record, "json", _column_names, json_names)


def same(one: Any, other: Any) -> bool:
    """Say whether two JSON values are written alike: 1 is not 1.0, NaN is NaN."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)


def difference(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[Object, list[str]]:
    """Return (keys to set, keys to remove) that make `found` the `wanted` one; see :func:`apply`."""
    keep = {
        key: value
        for key, value in wanted.items()
        if key not in found or not same(found[key], value)
    }
    return keep, [key for key in found if key not in wanted]


def apply(found: Mapping[str, Any], keep: Mapping[str, Any], absent: Iterable[str]) -> Object:
    """Return `found` with the keys `keep` set and the keys `absent` removed."""
    removed = set(absent)
    return {key: value for key, value in {**found, **keep}.items() if key not in removed}


def _renamed(
    record: Mapping[str, Any],
    version: Version,
    forth: Callable[[Object], Object],
    back: Callable[[Object], Object],
) -> Object:
    """Rename a record of `version`; add what the way back does not give by itself."""
    other = record.get(ORIGINAL)
    if isinstance(other, dict) and _is_original(other) and other["version"] != version:
        plain = {key: value for key, value in record.items() if key != ORIGINAL}
        return apply(forth(plain), other["keep"], other["absent"])
    result = forth({key: value for key, value in record.items() if key != ORIGINAL})
    keep, absent = difference(record, back(result))
    if keep or absent:
        result[ORIGINAL] = {"version": version, "keep": keep, "absent": absent}
    return result


def _is_original(value: Object) -> bool:
    return (
        set(value) == {"version", "keep", "absent"}
        and value["version"] in ("columns", "json")
        and isinstance(value["keep"], dict)
        and isinstance(value["absent"], list)
        and all(isinstance(key, str) for key in value["absent"])
    )


def json_names(record: Object) -> Object:
    """Return a record of the columns version with the names of the json version, without ORIGINAL."""
    rest = dict(record)
    out: Object = {new: rest.pop(old) for old, new in _PLAIN.items() if old in rest}
    if "additional_info" in rest:
        info = rest.pop("additional_info")
        out["metadata"], metrics = _split(info, METRICS)
        _add(rest, out, "metrics", {METRICS[key]: value for key, value in metrics.items()})
    if "target" in rest and isinstance(rest.get("engine_config", {}), dict):
        out["engine_config"] = rest.pop("engine_config", {}) | {"tvm_target": rest.pop("target")}
    if "runtime_config" in rest:
        out["runtime_config"], software = _split(rest.pop("runtime_config"), SOFTWARE)
        _add(rest, out, "software_config", software)
    details: Object = {}
    if "hardware" in rest:
        out["hardware"] = rest.pop("hardware")
        if "env_name" in rest:
            details["env_name"] = rest.pop("env_name")
    elif rest.get("env_name") is not None:
        out["hardware"] = rest.pop("env_name")
    elif rest.get("hw_model") is not None:
        out["hardware"] = rest["hw_model"]
    if rest.get("hw_model") is not None:
        details["cpu_platform"] = rest.pop("hw_model")
    _add(rest, out, "hardware_config", details)
    return _ordered({**rest, **out}, JSON_FIELDS)


def _column_names(record: Object) -> Object:
    rest = dict(record)
    out: Object = {old: rest.pop(new) for old, new in _PLAIN.items() if new in rest}
    names = {new: old for old, new in METRICS.items()}
    metrics = {names[key]: value for key, value in _take(rest, "metrics", names).items()}
    if "metadata" in rest or metrics:
        info = rest.pop("metadata", {})
        out["additional_info"] = {**info, **metrics} if isinstance(info, dict) else info
    target = _take(rest, "engine_config", ("tvm_target",))
    if target:
        out["target"] = target["tvm_target"]
    software = _take(rest, "software_config", SOFTWARE)
    if software:
        config = rest.pop("runtime_config", {})
        out["runtime_config"] = {**config, **software} if isinstance(config, dict) else config
    details = _take(rest, "hardware_config", ("env_name", "cpu_platform"))
    if "env_name" in details:
        out["env_name"] = details["env_name"]
    elif "hardware" in rest and not same(rest["hardware"], details.get("cpu_platform")):
        out["env_name"] = rest.pop("hardware")
    else:
        rest.pop("hardware", None)
    if "cpu_platform" in details:
        out["hw_model"] = details["cpu_platform"]
    return _ordered({**rest, **out}, COLUMNS_FIELDS)


def _split(value: Any, names: Iterable[str]) -> tuple[Any, Object]:
    """Return (what is left, the members of those names) of a value; a value that is no object is left."""
    if not isinstance(value, dict):
        return value, {}
    taken = {key: value[key] for key in names if key in value}
    return {key: item for key, item in value.items() if key not in taken}, taken


def _add(rest: Object, out: Object, name: str, members: Object) -> None:
    """Put members into out[name] beside those that a key of that name in `rest` has."""
    if members:
        own = rest.pop(name, {})
        out[name] = {**own, **members} if isinstance(own, dict) else members


def _take(rest: Object, name: str, names: Iterable[str]) -> Object:
    """Remove the members of those names from the object rest[name] and return them; an object left empty goes."""
    if name not in rest:
        return {}
    left, taken = _split(rest[name], names)
    if taken and left:
        rest[name] = left
    elif taken:
        del rest[name]
    return taken


def _ordered(record: Object, names: tuple[str, ...]) -> Object:
    """Return a record with its known keys first, in the version's order."""
    known = {name: record[name] for name in names if name in record}
    return {**known, **{key: value for key, value in record.items() if key not in known}}
