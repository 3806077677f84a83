"""Logs that somebody brings for a project of her own: which devices they are of, and which pipeline they allow.

They are read as the records stage reads them, whole. Nothing is told by their format's name: feature kinds are tried
on their programs (:mod:`tencost.features.computable`), splits on their records.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from tencost.config.composition import choice_files, load_yaml
from tencost.config.project import DATASET, Brought
from tencost.config.schema import DEVICE_AMOUNTS
from tencost.errors import ConfigError
from tencost.features.computable import Readable, readable
from tencost.measure.packing import strictest_split
from tencost.records.databases import import_dataset
from tencost.records.devices import SHOWN, Devices
from tencost.records.log_dataset import read_log_dataset
from tencost.records.logs import is_measured

SPLITS = ("by_task", "within_task")
"""Splits from the stricter on: logs name no networks that could be held out."""
_TARGET = (
    "kind",
    "keys",
    "arch",
    "mcpu",
    "mattr",
    "mtriple",
    "num-cores",
    "max_num_threads",
    "max_threads_per_block",
    "max_shared_memory_per_block",
    "registers_per_block",
    "thread_warp_size",
)
"""Attributes of a target that describe the device, and that today's TVM has."""


def look_at(
    logs: Path, hardware: str, conf: Path, folders: Mapping[str, str] | None = None
) -> Brought:
    """Read logs and say what can be built of them.

    Args:
        logs: a folder or an archive.
        hardware: the device of records that name none.
        conf: the folder of choices of the project that is to be.
        folders: folder or file below the logs -> the device of its records that name none.

    Raises:
        ConfigError: no log, no record with a time, no feature kind that reads the programs, nothing to rank, or a
            device that cannot be one.
        RecordError: no log is in one of `folders`.
    """
    records, workloads, tasks, reject = _read(logs, Devices(hardware, folders or {}))
    ok = records.filter(status="ok")
    if not len(ok):
        statuses = records.group_by("status").len().sort("status").iter_rows()
        counts = ", ".join(f"{count} {status}" for status, count in statuses)
        raise ConfigError(
            f"expected a record with a time in {logs}, found {counts or 'none'}{reject and f'; {reject}'}"
        )
    notes = [] if folders else _measured_again(ok, hardware)
    devices = _devices(logs, ok, hardware)
    ok = _with_devices(ok, hardware, devices)
    names = _device_names(ok, hardware, devices, notes)
    programs = readable(ok, workloads, _kinds(conf))
    features = programs.best()
    if features is None:
        reasons = (f"{name}: {reason}" for name, reason in sorted(programs.reasons.items()))
        raise ConfigError(
            f"expected programs that a feature kind reads in {logs}, found none. {'; '.join(reasons)}"
        )
    notes.append(_feature_note(features, programs))
    chosen, split, share = _fitting(conf, ok, tasks, names, notes)
    if not chosen:
        raise ConfigError(
            f"expected several programs of a workload in {logs}, to rank them; found {len(ok)} records with a time of "
            f"{ok['workload_id'].n_unique()} workloads, which are too few for a test part. Bring the whole search, not "
            "its best programs alone"
        )
    return Brought(
        hardware=chosen,
        features=features,
        base=_base(features),
        split=split,
        valid_fraction=share,
        described=_described(conf, ok, chosen, notes),
        devices={**(folders or {}), **devices},
        notes=notes,
    )


def _read(logs: Path, devices: Devices) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, str]:
    """Return records (`source` a file's name), workloads, tasks, and why the first bad line was not read."""
    imported = (
        import_dataset(logs, DATASET)
        if logs.is_dir() and is_measured(logs)
        else read_log_dataset(logs, DATASET, devices)
    )
    frame = pl.from_arrow(imported.table)
    assert isinstance(frame, pl.DataFrame)
    workloads = [
        {"workload_id": row.workload_id, "mod_json": row.mod_json} for row in imported.workloads
    ]
    bad = next(iter(imported.rejects), None)
    return (
        frame.with_columns(source=pl.col("source").struct.field("file")),
        pl.DataFrame(workloads),
        pl.DataFrame([asdict(task) for task in imported.tasks]),
        "" if bad is None else f"{bad.file}:{bad.line}: {bad.reason}",
    )


def _kinds(conf: Path) -> tuple[str, ...]:
    """Return the feature kinds that a project has a set of the same name for."""
    paths = sorted(choice_files(conf, "features"))
    return tuple(path.stem for path in paths if load_yaml(path).get("kind") == path.stem)


def _base(features: str) -> str:
    from tencost.config.parts import FEATURE_KINDS

    return next(iter(FEATURE_KINDS.load(features).parts), features)


def _feature_note(features: str, programs: Readable) -> str:
    rows, reasons = programs.rows, programs.reasons
    note = (
        f"features: {features}, which reads {rows[features]} of {programs.looked_at} programs tried"
    )
    empty = [name for name in rows if not rows[name] and name != features and name in reasons]
    kin = [name for name in empty if "reads programs of" not in reasons[name]]
    return f"{note}; not {', '.join(kin)}: {reasons[kin[0]]}" if kin else note


def _signature(target: str) -> str:
    """Return what tells devices apart in a target that names none: its architecture, or its kind."""
    attributes = json.loads(target)
    return str(attributes.get("arch") or attributes.get("mcpu") or attributes.get("kind"))


def _devices(logs: Path, ok: pl.DataFrame, hardware: str) -> dict[str, str]:
    """Return the device of each log where those that name none are of several; empty where they are of one.

    Raises:
        ConfigError: a log is of several, or they lie in an archive.
    """
    unnamed = (
        ok.filter(hardware=hardware)
        .select("source", "target")
        .unique()
        .with_columns(signature=pl.col("target").map_elements(_signature, pl.String))
    )
    signatures = sorted(unnamed["signature"].unique().to_list())
    if len(signatures) < 2:
        return {}
    several = unnamed.group_by("source").agg(pl.col("signature").n_unique() > 1)
    mixed = several.filter(pl.col("signature"))["source"].sort().to_list()
    expected = f"expected logs of one device, or each log of one, found {', '.join(signatures)}"
    if mixed:
        raise ConfigError(
            f"{expected} together in {mixed[0]}. Sort its lines by target into one file a device"
        )
    if logs.is_file():
        raise ConfigError(f"{expected} in the archive {logs}. Unpack it and name the folder")
    top = _top(logs)
    return {
        source.removeprefix(top): f"{hardware}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', signature)}"
        for source, signature in unnamed.select("source", "signature").unique().sort("source").iter_rows()
    }  # fmt: skip


def _top(logs: Path) -> str:
    """Return what `fetch` leaves out of the names of a folder's files: the only folder in it."""
    entries = list(logs.iterdir())
    return f"{entries[0].name}/" if len(entries) == 1 and entries[0].is_dir() else ""


def _measured_again(ok: pl.DataFrame, hardware: str) -> list[str]:
    """Return a note where several logs that name no device hold the same programs: they may be of several devices."""
    programs = ok.filter(hardware=hardware).group_by("program_id").agg(pl.col("source").unique())
    several = programs.filter(pl.col("source").list.len() > 1)
    if not len(several):
        return []
    files = several["source"].explode().unique().sort().to_list()
    return [
        f"measured again: {len(several)} programs of {hardware} stand in several logs ({', '.join(files[:SHOWN])}). If "
        "these are of several devices, say which is whose: --hardware FILE=NAME"
    ]


def _with_devices(ok: pl.DataFrame, hardware: str, devices: Mapping[str, str]) -> pl.DataFrame:
    if not devices:
        return ok
    by_source = {
        source: name
        for source in ok["source"].unique()
        for file, name in devices.items()
        if source.endswith(file)
    }
    device = pl.col("source").replace_strict(by_source, default=None, return_dtype=pl.String)
    return ok.with_columns(
        hardware=pl.when(hardware=hardware).then(device.fill_null(hardware)).otherwise("hardware")
    )


def _device_names(
    ok: pl.DataFrame, hardware: str, devices: Mapping[str, str], notes: list[str]
) -> list[str]:
    """Return the devices of the records, those with most first.

    Raises:
        ConfigError: a log names a device in a way that no file can be called.
    """
    counts = Counter(ok["hardware"].to_list())
    names = [name for name, _ in counts.most_common()]
    for name in names:
        if re.fullmatch(r"[A-Za-z0-9][\w.\-]*", name) is None:
            raise ConfigError(
                f"expected devices of letters, digits, '.', '_' and '-', found {name!r} in the logs' targets. Name it "
                "otherwise there"
            )
    if hardware not in counts:
        how = "devices told apart by their targets" if devices else "the logs name their device"
        notes.append(f"{how}: {', '.join(f'{name} ({counts[name]} records)' for name in names)}")
    return names


def _fitting(
    conf: Path, ok: pl.DataFrame, tasks: pl.DataFrame, names: Sequence[str], notes: list[str]
) -> tuple[list[str], str, float | None]:
    """Return the devices that can be learnt from, the strictest split that all of them fill, and its valid_fraction."""
    fits: dict[str, tuple[str, str, float | None]] = {}
    for name in names:
        records = ok.filter(hardware=name)
        split, reason, share = strictest_split(conf, records, tasks, SPLITS)
        if "measure more programs first" in reason:
            notes.append(
                f"left out: {name}, {len(records)} records of {records['workload_id'].n_unique()} workloads are too few"
            )
        else:
            fits[name] = (split, reason, share)
    if not fits:
        return [], "", None
    name, (split, reason, _) = max(fits.items(), key=lambda fit: SPLITS.index(fit[1][0]))
    shares = [share for other, _, share in fits.values() if other == split and share is not None]
    if split != SPLITS[0]:
        notes.append(
            f"split: {split} (figures flatter, since the test part has programs of known workloads); {name}: {reason}"
        )
    return list(fits), split, max(shares, default=None)


def _described(
    conf: Path, ok: pl.DataFrame, names: Sequence[str], notes: list[str]
) -> dict[str, dict[str, Any]]:
    """Return what the logs say of devices that conf/hardware/ does not describe.

    Raises:
        ConfigError: conf/hardware/ describes another device under that name.
    """
    described: dict[str, dict[str, Any]] = {}
    for name in names:
        targets = Counter(ok.filter(hardware=name)["target"].to_list())
        target = json.loads(targets.most_common(1)[0][0])
        path = conf / "hardware" / f"{name}.yaml"
        if path.is_file():
            _check_same(path, target)
            continue
        described[name] = _fields(name, target)
        attributes = [
            str(target[key]) for key in ("kind", "arch", "mcpu", "mtriple") if key in target
        ]
        notes.append(
            f"conf/hardware/{name}.yaml has what the logs say ({', '.join(attributes) or 'nothing'}); not known, and "
            f"in no column: {', '.join(described[name]['unknown'])}"
        )
    return described


def _check_same(path: Path, target: Mapping[str, Any]) -> None:
    described = load_yaml(path).get("target") or {}
    for key in ("kind", "arch"):
        if key in described and key in target and described[key] != target[key]:
            raise ConfigError(
                f"expected logs of {path.stem} ({key} {described[key]}, as tencost's conf/hardware/{path.name} says), "
                f"found {key} {target[key]}. Name the device that they are of: --hardware NAME"
            )


def _fields(name: str, target: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of HardwareConfig that a target says; amounts that it does not say are zero and `unknown`."""
    amounts: dict[str, Any] = {"cores": 1, "simd_bits": 128, "l1d_kib": 0, "l2_kib": 0, "l3_kib": 0}
    from_target: dict[str, Any] = {}
    is_cpu = target.get("kind") == "llvm"
    if is_cpu and isinstance(target.get("num-cores"), int) and target["num-cores"] > 0:
        from_target["cores"] = target["num-cores"]
    warp = target.get("thread_warp_size")
    if not is_cpu and isinstance(warp, int) and warp > 1:
        from_target["simd_bits"] = 32 * warp
    return {
        "name": name,
        "description": "as its logs' target says",
        "target": {key: target[key] for key in _TARGET if target.get(key, "") not in ("", [])},
        "model": str(target.get("model") or "unknown"),
        **amounts,
        **from_target,
        "unknown": [amount for amount in DEVICE_AMOUNTS if amount not in from_target],
        "runner": "local" if is_cpu else "rpc",
    }
