"""One record: a program measured on a hardware. The columns of TVM RFC 4304 and some more.

Times are seconds in `run_secs` and milliseconds in the two `execution_elapsed_ms_*` columns (the
RFC's unit); a record that failed has neither. Columns of JSON text hold an object unless said
otherwise. The store is partitioned by `hardware`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from tencost.store.generator import UNKNOWN
from tencost.store.record import PROGRAM_FORMATS as PROGRAM_FORMATS
from tencost.store.record import NetworkWeight as NetworkWeight
from tencost.store.record import Provenance as Provenance
from tencost.store.record import Record as Record
from tencost.store.record import Source as Source
from tencost.store.record import elapsed_ms
from tencost.store.record import provenance_from_json as provenance_from_json

SCHEMA_VERSION = "4"
"""Of the columns below. A store of an earlier version is read, and gets the new columns when it is written to."""

ADDED = {
    "2": ("wall_s", "foreign", "quarantine"),
    "3": ("measurements",),
    "4": ("generator", "alias"),
}
"""Columns that a version added, null in older rows; no version has ever taken one away."""

MEASUREMENT = pa.struct(
    [
        ("timestamp", pa.float64()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("run_secs", pa.list_(pa.float64())),
        ("wall_s", pa.float64()),
        ("quarantine", pa.string()),
        ("dataset", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
    ]
)
"""One measurement of a program; members as the columns of the same names, and those of `source`."""

SCHEMA = pa.schema(
    [
        # Identity: content hashes, see ids.py.
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("program_id", pa.string(), nullable=False),
        pa.field("workload_id", pa.string(), nullable=False),
        pa.field("task_name", pa.string(), nullable=False),
        pa.field(
            "networks", pa.list_(pa.struct([("network", pa.string()), ("weight", pa.int64())]))
        ),
        pa.field("hardware", pa.string(), nullable=False),
        # RFC 4304.
        pa.field("timestamp", pa.float64()),  # seconds since 1970, null where the log does not say
        pa.field("schema_version", pa.string(), nullable=False),
        pa.field(
            "additional_info", pa.string()
        ),  # JSON: host provenance, what a foreign log says beyond
        # domain.name: tir.<task_name>, auto_scheduler.<...>, autotvm.<...>, or what the log says
        pa.field("workload", pa.string(), nullable=False),
        pa.field("workload_args", pa.string()),  # JSON list: [["TENSOR", dtype, shape], ...]
        pa.field("engine", pa.string(), nullable=False),
        pa.field("engine_version", pa.string()),
        pa.field("engine_config", pa.string()),  # JSON
        pa.field("target", pa.string(), nullable=False),  # JSON, keys sorted
        pa.field("build_config", pa.string()),  # JSON
        pa.field("env_name", pa.string()),
        pa.field("hw_model", pa.string()),
        pa.field("runtime_config", pa.string()),  # JSON
        pa.field("execution_config", pa.string()),  # JSON: number, repeat, min_repeat_ms
        pa.field("execution_elapsed_ms_mean", pa.float32()),
        pa.field(
            "execution_elapsed_ms_std", pa.float32()
        ),  # sample deviation; null for a single run
        # Beyond the RFC.
        pa.field("program_format", pa.string(), nullable=False),
        # JSON: [instructions, decisions], a list of steps, or a configuration; "" for none
        pa.field("program", pa.string(), nullable=False),
        pa.field(
            "run_secs", pa.list_(pa.float64())
        ),  # seconds, of all measurements that count; null unless status is ok
        pa.field("status", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field(
            "source",
            pa.struct([("dataset", pa.string()), ("file", pa.string()), ("line", pa.int64())]),
        ),
        # Since version 2.
        pa.field("wall_s", pa.float64()),  # building and running together, seconds, as the log says
        # JSON: what a foreign log's line says beyond the other columns, so that it can be written back
        pa.field("foreign", pa.string()),
        pa.field("quarantine", pa.string()),  # why the record is kept out of reads; null: it is not
        # Since version 3: every measurement of a program that was measured more than once, see measured.py.
        pa.field("measurements", pa.list_(MEASUREMENT)),
        # Since version 4.
        pa.field(
            "generator", pa.string()
        ),  # who made the machine code, see generator.py; null: not known
        pa.field(
            "alias", pa.string()
        ),  # the record's id before it had a generator, see migration.py
    ],
    metadata={"tencost.schema_version": SCHEMA_VERSION},
)


def to_arrow(records: Iterable[Record]) -> pa.Table:
    """Return records as a table of :data:`SCHEMA`."""
    return pa.Table.from_pylist([_row(record) for record in records], schema=SCHEMA)


def _row(record: Record) -> dict[str, Any]:
    """Return the columns that a record has."""
    about = record.provenance
    return {
        "record_id": record.record_id,
        "program_id": record.program_id,
        "workload_id": record.workload_id,
        "task_name": record.task_name,
        "networks": [asdict(network) for network in record.networks],
        "hardware": record.hardware,
        "timestamp": about.timestamp,
        "schema_version": SCHEMA_VERSION,
        "additional_info": _json({**(about.additional_info or {}), **(record.extra or {})}),
        "workload": f"tir.{record.task_name}",
        "workload_args": _json(record.workload_args),
        "engine": record.engine,
        "engine_version": about.engine_version,
        "engine_config": _json(about.engine_config),
        "target": _json(record.target),
        "build_config": _json(about.build_config),
        "env_name": about.env_name,
        "hw_model": about.hw_model,
        "runtime_config": _json(about.runtime_config),
        "execution_config": _json(about.execution_config),
        **elapsed_ms(record.run_secs),
        "program_format": record.program_format,
        "program": record.program,
        "run_secs": list(record.run_secs) or None,
        "status": record.status.value,
        "error": record.error or None,
        "source": asdict(record.source),
        "foreign": record.foreign,
        "generator": None if record.generator == UNKNOWN else record.generator,
    }


def _json(value: Any) -> str | None:
    if value is None or value == {}:
        return None
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
