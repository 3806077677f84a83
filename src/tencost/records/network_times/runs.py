"""Timings of whole networks as they are read for questions: one run each, with what sets it apart.

Records of the table beside the store are read whole, also those that came in as RFC 4304 from elsewhere: what their
workload_args and additional_info do not say is taken as one network with batch 1, on one core, end to end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tencost.errors import RecordError
from tencost.records.answers import ID_SHOWN
from tencost.records.network_times.ratios import Floats
from tencost.records.network_times.timing import Granularity, networks_uri
from tencost.records.reading.timestamps import moment_of
from tencost.store.record_store import RecordStore
from tencost.store.status import Status
from tencost.store.tables import open_records

_COLUMNS = (
    "task_name",
    "workload_args",
    "hardware",
    "timestamp",
    "additional_info",
    "engine",
    "engine_version",
    "env_name",
    "hw_model",
    "runtime_config",
    "run_secs",
    "status",
    "error",
    "measurements",
)
_CORES = ("num_cpu_threads", "cores")
"""Names of the number of cores in runtime_config: RFC 4304's, and that of our records of programs."""


@dataclass(frozen=True, eq=False)
class Run:
    """One timing.

    Attributes:
        network: its name, with batch, size, variant and part where it has them: bert_tiny-b4-s128.
        name: its plain name.
        granularity: what was timed.
        hardware: name of the hardware.
        cores: how many it ran on.
        engine: name of the engine.
        version: of the engine; "-" where none is known.
        host: name of the machine; "-" where none is known.
        timestamp: seconds since 1970; None: not told, or of no calendar.
        seconds: float64 [latencies]; empty for a failure.
        error: of a failure.
        versions: of what the time depends on beside the engine, by name.
        info: additional_info.
    """

    network: str
    name: str
    granularity: str
    hardware: str
    cores: int
    engine: str
    version: str
    host: str
    timestamp: float | None
    seconds: Floats
    error: str
    versions: Mapping[str, str]
    info: Mapping[str, Any]

    @property
    def day(self) -> str:
        """Its day in UTC, 2026-11-22; "-" without a time of day."""
        moment = moment_of(self.timestamp)
        return "-" if moment is None else moment.strftime("%Y-%m-%d")

    @property
    def failed(self) -> bool:
        """Whether it has no latencies."""
        return not len(self.seconds)


@dataclass(frozen=True)
class Chosen:
    """Which runs are asked for; None: all.

    Attributes:
        network: plain name or whole name.
        hardware: name of the hardware.
        engine: name of the engine.
        granularity: what was timed.
    """

    network: str | None = None
    hardware: str | None = None
    engine: str | None = None
    granularity: Granularity = Granularity.end_to_end


def read_runs(store_uri: str, chosen: Chosen | None = None) -> list[Run]:
    """Return the runs beside a record store, the earliest first; those in quarantine are left out.

    Args:
        store_uri: of the record store, or of the table of networks itself.
        chosen: which of them.

    Raises:
        RecordError: there are none, or none that is asked for; the message names those that there are.
    """
    chosen = chosen or Chosen()
    uri = networks_uri(store_uri)
    store = RecordStore(uri)
    if not store.exists():
        raise RecordError(
            f"expected times of whole networks in {uri}, found none. `tencost tune` and `tencost compile` write them, "
            "and tencost.records.network_times.timing.write_timings; another store: --store URI"
        )
    rows = store.read(columns=list(_COLUMNS))
    runs = [run for row in rows.iter_rows(named=True) for run in _runs_of(row)]
    selected = [run for run in runs if run.granularity == chosen.granularity]
    if not selected:
        there = ", ".join(sorted({run.granularity for run in runs})) or "nothing"
        raise RecordError(
            f"expected networks timed {chosen.granularity} in {uri}, found {there}. Times that contradict themselves "
            f"are in quarantine: tencost records quarantine --store {uri}"
        )
    selected = _only(selected, "network", chosen.network, uri, lambda run: (run.network, run.name))
    selected = _only(selected, "hardware", chosen.hardware, uri, lambda run: (run.hardware,))
    selected = _only(selected, "engine", chosen.engine, uri, lambda run: (run.engine,))
    return sorted(selected, key=lambda run: (run.timestamp or 0.0, run.network, run.engine))


def read_program_runs(store_uri: str, chosen: Chosen | None = None) -> list[Run]:
    """Return the measurements of the store's programs that were measured again, as runs; `network` names the program.

    A program's measurements have no versions of their own, and no host: they can be divided by a day only.

    Raises:
        RecordError: no store, or no program in it was measured twice.
    """
    chosen = chosen or Chosen()
    columns = [name for name in _COLUMNS if name != "engine_version"]
    store = open_records(store_uri)
    rows = store.read(chosen.hardware, [*columns, "record_id", "networks"])
    rows = rows.filter(pl.col("measurements").is_not_null())
    if chosen.network is not None:
        names = pl.col("networks").list.eval(pl.element().struct.field("network"))
        rows = rows.filter(names.list.contains(chosen.network))
    if chosen.engine is not None:
        rows = rows.filter(pl.col("engine") == chosen.engine)
    runs = []
    for row in rows.iter_rows(named=True):
        name = f"{row['task_name']}/{row['record_id'][:ID_SHOWN]}"
        plain = {**row, "task_name": name, "workload_args": None, "engine_version": None}
        plain |= {"env_name": None, "additional_info": None}
        runs += _runs_of(plain)
    if not runs:
        raise RecordError(
            f"expected programs in {store_uri} that were measured more than once, found none that is asked for. How "
            "often each was: tencost records query stats"
        )
    return runs


def _only(
    runs: Sequence[Run],
    what: str,
    name: str | None,
    uri: str,
    names: Callable[[Run], tuple[str, ...]],
) -> list[Run]:
    if name is None:
        return list(runs)
    selected = [run for run in runs if name in names(run)]
    if not selected:
        available = ", ".join(sorted({names(run)[0] for run in runs}))
        raise RecordError(
            f"expected times of networks with {what} {name!r} in {uri}, found only those with {available}"
        )
    return selected


def _runs_of(row: Mapping[str, Any]) -> list[Run]:
    """Return the runs of a record: more than one where it has further measurements."""
    if not row["measurements"]:
        return [_run(row, row)]
    return [
        _run(row, measurement)
        for measurement in row["measurements"]
        if measurement["quarantine"] is None
    ]


def _run(row: Mapping[str, Any], measured: Mapping[str, Any]) -> Run:
    subject, info, runtime = (
        _object(row[name]) for name in ("workload_args", "additional_info", "runtime_config")
    )
    name = str(subject.get("network") or row["task_name"])
    cores = next((runtime[key] for key in _CORES if isinstance(runtime.get(key), int)), 1)
    failed = measured["status"] != Status.ok.value
    versions = info.get("versions")
    return Run(
        network=_whole_name(name, subject),
        name=name,
        granularity=str(info.get("granularity") or Granularity.end_to_end.value),
        hardware=row["hardware"],
        cores=cores,
        engine=row["engine"],
        version=row["engine_version"] or "-",
        host=row["env_name"] or "-",
        timestamp=measured["timestamp"] if moment_of(measured["timestamp"]) else None,
        seconds=np.asarray([] if failed else measured["run_secs"], np.float64),
        error=(measured["error"] or measured["status"]) if failed else "",
        versions={key: str(value) for key, value in versions.items()}
        if isinstance(versions, dict)
        else {},
        info=info,
    )


def _whole_name(name: str, subject: Mapping[str, Any]) -> str:
    batch, size = subject.get("batch", 1), subject.get("size")
    parts = [name]
    parts += [f"b{batch}"] if batch != 1 else []
    parts += [f"s{size}"] if size else []
    parts += [str(subject["variant"])] if subject.get("variant") else []
    whole = "-".join(parts)
    return f"{whole}/{subject['part']}" if subject.get("part") else whole


def _object(text: str | None) -> dict[str, Any]:
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {}


def frame(rows: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    """Return rows as a frame, ratios rounded to four digits."""
    table = pl.DataFrame(rows, schema=dict(schema))
    ratios = [name for name in table.columns if name.startswith("ratio")]
    return table.with_columns(pl.col(ratios).round(4))
