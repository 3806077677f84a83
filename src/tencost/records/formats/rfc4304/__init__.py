"""RFC 4304's benchmark records, both versions: ``columns`` (the mail) and ``json`` (TVM's docs, schema 0.1).

    file       JSON objects, one a line, in an array, or one by itself; or Parquet, one record a row
    columns    {"timestamp", "schema_version", "workload", "engine", "additional_info", "workload_args",
               "engine_version", "engine_config", "target", "build_config", "env_name", "hw_model",
               "runtime_config", "execution_config", "execution_elapsed_ms_mean", "execution_elapsed_ms_std"}
    json       {"workload", "engine", "hardware", "runtime_ms_mean", "runtime_ms_std", "timestamp",
               "schema_version", "metadata", "workload_args", "workload_metadata", "engine_version",
               "engine_config", "compilation_config", "software_config", "runtime_config",
               "hardware_config", "execution_config", "metrics", "runtime_raw": [{"runtime_ms": 12.1}, ...]}

Required in columns: timestamp (which may be null), schema_version, workload, engine; in json: workload, engine; and,
unless the reader is told the device, hardware in json and env_name or hw_model in columns. rfc4304names.py has the map
between the versions.

    {"workload":"arcface_resnet100","engine":"tvm","hardware":"gcp-c2-standard-16","runtime_ms_mean":109.43,
     "runtime_ms_std":0.09,"timestamp":"20191123003411","schema_version":"0.1","engine_config":{}}

Times are milliseconds in the log and seconds in `run_secs`, which holds the entries of runtime_raw, in either
version; without them it holds the mean alone, and `foreign` says ``"run_secs": "mean"``. The two elapsed columns
hold what the log says, so a mean that contradicts its times can be seen. The deviation of a single run
(one raw time, or execution_config.repeat 1) is null, also where a log says 0.

timestamp is a number (seconds since 1970), such a number as text, ``20191123003411`` (UTC; as a number, too: as
seconds it would be the year 641,000), or ISO 8601 text. A failed run has no time, a time that is null, not finite,
not positive, 1e9 or more, or our two extra keys `status` (schema.status; "success" and "correct" mean ok, other
words unknown) and `error` (a text that is not empty means a failure, unless status is ok). Another schema_version
than 0.1 is kept, and noted in additional_info under ``rfc4304_schema_version``.

Identity: records that tencost wrote carry their program and its ids, see own.py. Others have no program, so the
record_id hashes what else sets measurements apart, namely workload and its arguments, engine, engine_version, hardware,
target, engine_config, build_config, runtime_config and timestamp. A record has the same id in both versions.

Whatever a record says that the columns do not give back (unknown keys on any level, timestamps as text, numbers with
other digits, NaN) is in `foreign`::

    {"format": "rfc4304", "version": "json", "keep": {key: value, ...}, "absent": [key, ...], "run_secs": "mean"}

`keep` and `absent` turn the object that the columns give into the one that was read; {"$float": "nan"} stands for a
number that JSON cannot write. Files hold NaN as Python's json writes it.

Parquet: text, numbers and booleans of the known scalar fields are columns of that type; every other field is
a column of JSON text, marked by the field metadata ``tencost.json``. Parquet has no difference between
a null and a key that is not there; records read from it have the key not there, but for timestamp in columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tencost.errors import RecordError
from tencost.records.formats.rfc4304.names import COLUMNS_FIELDS, JSON_FIELDS, Object, Version
from tencost.records.formats.rfc4304.own import OURS
from tencost.records.formats.rfc4304.rows import (
    BadRecordError,
    NoHardwareError,
    object_of,
    row_of,
)
from tencost.records.reading.columns import networks, record_table, sources
from tencost.records.reading.jsonobjects import Damage, json_objects
from tencost.records.reading.opening import TruncatedError
from tencost.records.reading.parquet import is_parquet, open_parquet, parquet_names, parquet_tables
from tencost.records.reading.protocol import BATCH_ROWS, About, Batch, LogFormat, Reject
from tencost.records.reading.targets import NoDeviceError
from tencost.store.schema import SCHEMA

_TELLING = frozenset(
    [
        "execution_elapsed_ms_mean",
        "execution_elapsed_ms_std",
        "env_name",
        "hw_model",
        "runtime_ms_mean",
        "runtime_ms_std",
        "runtime_raw",
        "hardware",
        "schema_version",
    ]
)
"""A file is one of these logs if it has the keys workload and engine, and one of these."""
_KEY = re.compile(rb'"([a-z_]+)"\s*:')
_TEXTS = frozenset(
    [
        "workload",
        "engine",
        "engine_version",
        "target",
        "env_name",
        "hw_model",
        "hardware",
        "schema_version",
    ]
)
_NUMBERS = frozenset(
    [
        "timestamp",
        "execution_elapsed_ms_mean",
        "execution_elapsed_ms_std",
        "runtime_ms_mean",
        "runtime_ms_std",
    ]
)
_JSON_MARK = b"tencost.json"
_OBJECT_FIELDS = frozenset((*COLUMNS_FIELDS, *JSON_FIELDS)) - _TEXTS - _NUMBERS
_NAMELESS = Damage("hardware: missing (columns: env_name or hw_model); pass hardware=<name>")
WRITE_ROWS = 10_000
"""Rows that are turned into objects at a time."""


_EXAMPLE = """\
{"workload": "arcface_resnet100", "engine": "tvm", "hardware": "gcp-c2-standard-16", "runtime_ms_mean": 109.43, \
"runtime_ms_std": 0.09, "timestamp": "20191123003411", "schema_version": "0.1", "engine_config": {}}
{"workload": "topi.conv2d", "engine": "tvm", "hardware": "gcp-c2-standard-16", "timestamp": "20191123003415", \
"schema_version": "0.1", "runtime_raw": [{"runtime_ms": 1.5}, {"runtime_ms": 1.7}], "runtime_ms_mean": 1.6}
{"timestamp": null, "schema_version": "0.1", "workload": "topi.dense", "engine": "tvm", "env_name": "board", \
"target": "llvm", "status": "build_error", "error": "no such intrinsic"}
"""


class Rfc4304Format(LogFormat):
    """RFC 4304 logs of either version, as JSON or Parquet."""

    example = MappingProxyType({"rfc4304.jsonl": _EXAMPLE})

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Say whether a file holds RFC 4304 records, by the keys of its objects or its columns."""
        if head.startswith(b"PAR1"):
            return _are_ours(parquet_names(path))
        return _are_ours(frozenset(key.decode() for key in _KEY.findall(head)))

    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yield the file's records and rejects; a record's line is where it begins, its row in Parquet.

        Raises:
            RecordError: the file cannot be opened, or no record is kept because none names its device and `about`
                does not, either.
        """
        rows: list[dict[str, Any]] = []
        places: list[int] = []
        rejects: list[Reject] = []
        kept = nameless = 0
        for line, value in _values(path, batch_rows):
            found = value if isinstance(value, Damage) else _row(value, about.hardware)
            if isinstance(found, Damage):
                nameless += found == _NAMELESS
                rejects.append(Reject(about.file, line, found.reason))
            else:
                rows.append(found)
                places.append(line)
                kept += 1
            if len(rows) + len(rejects) >= batch_rows:
                yield _batch(rows, places, about, rejects)
                rows, places, rejects = [], [], []
        if nameless and not kept:
            raise NoDeviceError(
                f"expected records in {path} that name their device (hardware; env_name or hw_model "
                f"in the columns version), found none in {nameless}. Import it with hardware=<name>."
            )
        if rows or rejects:
            yield _batch(rows, places, about, rejects)


FORMAT = Rfc4304Format()


def write_rows(table: Any, version: Version) -> Iterator[Object]:
    """Yield the rows of a table of schema.SCHEMA (pyarrow or polars) as records of a version, in the rows' order.

    Rows read from this format come back as they were read. Programs of other formats are not written.
    """
    arrow: pa.Table = table if isinstance(table, pa.Table) else table.to_arrow()
    for batch in arrow.to_batches(max_chunksize=WRITE_ROWS):
        for row in batch.to_pylist():
            yield object_of(row, version)


def write_file(table: Any, path: Path, version: Version) -> int:
    """Write a table of schema.SCHEMA as .jsonl, .json (an array) or .parquet; return the number of records.

    Raises:
        RecordError: another suffix.
    """
    records = write_rows(table, version)
    if path.suffix == ".parquet":
        return _write_parquet(list(records), path, version)
    if path.suffix not in (".jsonl", ".json"):
        raise RecordError(
            f"expected a file that ends in .jsonl, .json or .parquet, found {path}. Name it so."
        )
    array = path.suffix == ".json"
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            before = ("[\n" if not count else ",\n") if array else ""
            file.write(before + json.dumps(record) + ("" if array else "\n"))
            count += 1
        if array:
            file.write("\n]\n" if count else "[]\n")
    return count


def _row(value: Object, hardware: str | None) -> dict[str, Any] | Damage:
    try:
        return row_of(value, hardware)
    except NoHardwareError:
        return _NAMELESS
    except BadRecordError as error:
        return Damage(str(error))
    except ValueError as error:  # NaN or Infinity where a column holds JSON
        return Damage(f"expected values that JSON can hold: {error}")
    except RecursionError:
        return Damage("JSON nested too deeply")


def _are_ours(names: frozenset[str]) -> bool:
    table = "record_id" in names and OURS not in names
    return {"workload", "engine"} <= names and bool(_TELLING & names) and not table


def _values(path: Path, batch_rows: int) -> Iterator[tuple[int, Object | Damage]]:
    if is_parquet(path):
        return _parquet_objects(path, batch_rows)
    return json_objects(path, lambda value: "workload" in value)


def _batch(
    rows: list[dict[str, Any]], places: list[int], about: About, rejects: list[Reject]
) -> Batch:
    """Return a batch of rows that row_of made."""
    if not rows:
        return Batch(SCHEMA.empty_table(), tuple(rejects))
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    columns["source"] = sources(about.dataset, about.file, places)
    plain = networks(about.dataset, len(rows))
    own = pa.array(columns.get("networks", [None] * len(rows)), plain.type)
    columns["networks"] = own.fill_null(plain[0]) if own.null_count < len(rows) else plain
    table = record_table(len(rows), columns, {})
    # record_table computes these of run_secs; the log's own say more where run_secs is the mean alone.
    for name in ("execution_elapsed_ms_mean", "execution_elapsed_ms_std"):
        place = SCHEMA.get_field_index(name)
        values = pa.array([row[name] for row in rows], SCHEMA.field(name).type)
        table = table.set_column(place, SCHEMA.field(name), values)
    return Batch(table, tuple(rejects))


def _parquet_objects(path: Path, batch_rows: int) -> Iterator[tuple[int, Object | Damage]]:
    """Yield (row from 1, record) of a Parquet file, a null as no key."""
    done = 0
    try:
        with open_parquet(path) as file:
            marked = {
                field.name
                for field in file.schema_arrow
                if field.metadata and _JSON_MARK in field.metadata
            }
            for numbers, table, reasons in parquet_tables(file, batch_rows):
                for number, reason in reasons.items():
                    yield number, Damage(reason)
                for number, row in zip(numbers, table.to_pylist(), strict=True):
                    yield number, _object_of_cells(row, marked)
                done += table.num_rows + len(reasons)
    except TruncatedError as error:
        yield done + 1 if done else 0, Damage(str(error))


def _object_of_cells(row: Mapping[str, Any], marked: set[str]) -> Object | Damage:
    try:
        return _cells_object(row, marked)
    except RecursionError:
        return Damage("JSON nested too deeply")
    except ValueError as error:
        return Damage(f"not JSON, or not Unicode text: {error}")


def _cells_object(row: Mapping[str, Any], marked: set[str]) -> Object:
    record: Object = {}
    for name, value in row.items():
        if value is None and not (name == "timestamp" and "execution_elapsed_ms_mean" in row):
            continue
        if (name in marked and value is not None) or (
            name in _OBJECT_FIELDS and isinstance(value, str) and value[:1] in ("{", "[")
        ):
            record[name] = json.loads(value)
        else:
            record[name] = _plain(value)
    return record


def _plain(value: Any) -> Any:
    """Return a Parquet value as JSON has it; members that are null are left out, a struct cannot leave out others."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return value.decode()
    return value


def _write_parquet(records: list[Object], path: Path, version: Version) -> int:
    fields = COLUMNS_FIELDS if version == "columns" else JSON_FIELDS
    names = dict.fromkeys([*fields, *(name for record in records for name in record)])
    arrays: list[pa.Array] = []
    schema: list[pa.Field] = []
    for name in names:
        kind = _scalar_type(name, [record[name] for record in records if name in record])
        if kind is None:
            texts = [json.dumps(record[name]) if name in record else None for record in records]
            arrays.append(pa.array(texts, pa.string()))
            schema.append(pa.field(name, pa.string(), metadata={_JSON_MARK: b"1"}))
        else:
            arrays.append(pa.array([record.get(name) for record in records], kind))
            schema.append(pa.field(name, kind))
    pq.write_table(pa.table(arrays, schema=pa.schema(schema)), path, compression="zstd")
    return len(records)


def _scalar_type(name: str, values: Iterable[Any]) -> pa.DataType | None:
    """Return the type that a known scalar field can be written as without loss; None: as JSON text."""
    types = {type(value) for value in values if value is not None}
    if name in _TEXTS and types <= {str}:
        return pa.string()
    if name in _NUMBERS and types <= {float}:
        return pa.float64()
    if name in _NUMBERS and types == {int}:
        return pa.int64()
    return None
