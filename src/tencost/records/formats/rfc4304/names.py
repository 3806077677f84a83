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

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

Version = Literal["columns", "json"]
Object = dict[str, Any]

ORIGINAL = "tencost_original"
SCHEMA_VERSION = "0.1"

_COLUMNS = """
timestamp schema_version additional_info workload workload_args engine engine_version engine_config target build_config
env_name hw_model runtime_config execution_config execution_elapsed_ms_mean execution_elapsed_ms_std
"""
_JSON = """
workload engine hardware runtime_ms_mean runtime_ms_std timestamp schema_version metadata workload_args
workload_metadata engine_version engine_config compilation_config software_config runtime_config hardware_config
execution_config metrics runtime_raw
"""
COLUMNS_FIELDS, JSON_FIELDS = tuple(_COLUMNS.split()), tuple(_JSON.split())
METRICS = {
    "validation_accuracy": "accuracy",
    "device_memory_usage": "device_memory_usage",
    "code_size": "code_size",
    "compile_time": "compile_time",
}
"""Fields that the mail puts into additional_info and the docs into metrics; units are not stated and not changed."""
SOFTWARE = ("os", "cudnn", "cuda_driver")
"""Fields that the mail puts into runtime_config and the docs into software_config."""
_MEMBERS = (
    ("additional_info", "metrics", METRICS),
    ("runtime_config", "software_config", {name: name for name in SOFTWARE}),
)
"""An object of the mail, the object of the docs that some of its members are in, and the names of these."""
_FIELDS = {
    "additional_info": "metadata",
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


def same(first: Any, second: Any) -> bool:
    """Say whether two JSON values are written alike: 1 is not 1.0, NaN is NaN."""
    if first is second:
        return True
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def difference(target: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[Object, list[str]]:
    """Return (keys to set, keys to remove) that make `base` the `target`; see :func:`apply`."""
    keep = {
        key: member
        for key, member in target.items()
        if key not in base or not same(base[key], member)
    }
    return keep, [key for key in base if key not in target]


def apply(base: Mapping[str, Any], keep: Mapping[str, Any], absent: Iterable[str]) -> Object:
    """Return `base` with the keys `keep` set and the keys `absent` removed."""
    removed = set(absent)
    return {key: member for key, member in {**base, **keep}.items() if key not in removed}


def _renamed(
    record: Mapping[str, Any],
    version: Version,
    forth: Callable[[Object], Object],
    back: Callable[[Object], Object],
) -> Object:
    """Rename a record of `version`; add what the way back does not give by itself."""
    renamed = forth({key: member for key, member in record.items() if key != ORIGINAL})
    match record.get(ORIGINAL):
        case {
            "version": "columns" | "json" as other,
            "keep": dict(keep),
            "absent": [*absent],
            **rest,
        } if other != version and not rest and all(isinstance(key, str) for key in absent):
            return apply(renamed, keep, absent)
    keep, absent = difference(record, back(renamed))
    if keep or absent:
        renamed[ORIGINAL] = {"version": version, "keep": keep, "absent": absent}
    return renamed


def json_names(record: Object) -> Object:
    """Return a record of the columns version with the names of the json version, without ORIGINAL."""
    rest = dict(record)
    for source, destination, names in _MEMBERS:
        remaining, members = _split(rest.get(source), names)
        if members:
            rest[source] = remaining
            _add(rest, destination, {names[key]: member for key, member in members.items()})
    if "target" in rest and isinstance(rest.get("engine_config", {}), dict):
        _add(rest, "engine_config", {"tvm_target": rest.pop("target")})
    details: Object = {}
    if "hardware" in rest and "env_name" in rest:
        details["env_name"] = rest.pop("env_name")
    elif "hardware" not in rest and rest.get("env_name") is not None:
        rest["hardware"] = rest.pop("env_name")
    elif "hardware" not in rest and rest.get("hw_model") is not None:
        rest["hardware"] = rest["hw_model"]
    if rest.get("hw_model") is not None:
        details["cpu_platform"] = rest.pop("hw_model")
    if details:
        _add(rest, "hardware_config", details)
    return _with_fields(rest, _FIELDS, JSON_FIELDS)


def _column_names(record: Object) -> Object:
    rest = dict(record)
    for destination, source, names in _MEMBERS:
        places = {name: key for key, name in names.items()}
        members = {places[key]: member for key, member in _take(rest, source, places).items()}
        if members:
            destination = _FIELDS.get(destination, destination)
            if isinstance(rest.get(destination, {}), dict):
                _add(rest, destination, members)
    target = _take(rest, "engine_config", ("tvm_target",))
    if target:
        rest["target"] = target["tvm_target"]
    details = _take(rest, "hardware_config", ("env_name", "cpu_platform"))
    if "env_name" in details:
        rest["env_name"] = details["env_name"]
    else:
        hardware = rest.pop("hardware", details.get("cpu_platform"))
        if not same(hardware, details.get("cpu_platform")):
            rest["env_name"] = hardware
    if "cpu_platform" in details:
        rest["hw_model"] = details["cpu_platform"]
    return _with_fields(rest, {new: old for old, new in _FIELDS.items()}, COLUMNS_FIELDS)


def _split(container: Any, names: Iterable[str]) -> tuple[Any, Object]:
    """Return (the remaining members, those of the names) of an object; anything else has no members."""
    if not isinstance(container, dict):
        return container, {}
    members = {key: container[key] for key in names if key in container}
    return {key: member for key, member in container.items() if key not in members}, members


def _add(record: Object, name: str, members: Object) -> None:
    """Put members into the object record[name]; anything else that is there is replaced."""
    container = record.get(name)
    record[name] = {**container, **members} if isinstance(container, dict) else members


def _take(record: Object, name: str, names: Iterable[str]) -> Object:
    """Remove members from the object record[name] and return them; an object that they leave empty goes."""
    remaining, members = _split(record.get(name), names)
    if members:
        record[name] = remaining
        if not remaining:
            del record[name]
    return members


def _with_fields(record: Object, renames: Mapping[str, str], order: Iterable[str]) -> Object:
    """Return a record with fields renamed, the known ones first in the version's order."""
    renamed = {renames[name]: record.pop(name) for name in renames if name in record}
    record |= renamed
    return {name: record.pop(name) for name in order if name in record} | record
