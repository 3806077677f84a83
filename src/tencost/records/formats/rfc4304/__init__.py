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
unless the reader is told the device, hardware in json and env_name or hw_model in columns. names.py has the map
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

Identity: records that tencost wrote carry their program and its ids, see rows.py. Others have no program, so the
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
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tencost.errors import RecordError
from tencost.records.formats.rfc4304.names import COLUMNS_FIELDS, JSON_FIELDS, Object, Version
from tencost.records.formats.rfc4304.rows import OURS, NoHardwareError, object_of, row_of
from tencost.records.reading.jsonobjects import Damage, json_objects, read_objects
from tencost.records.reading.opening import TruncatedError
from tencost.records.reading.parquet import is_parquet, open_parquet, parquet_names, parquet_tables
from tencost.records.reading.protocol import BATCH_ROWS, About, Batch, LogFormat
from tencost.records.reading.targets import NoDeviceError
from tencost.writing import whole_file

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
_TIMES = frozenset(
    ["execution_elapsed_ms_mean", "execution_elapsed_ms_std", "runtime_ms_mean", "runtime_ms_std"]
)
_NUMBERS = _TIMES | {"timestamp"}
_OBJECTS = frozenset((*COLUMNS_FIELDS, *JSON_FIELDS)) - _TEXTS - _NUMBERS
_MARKS = _TIMES | {"env_name", "hw_model", "runtime_raw", "hardware", "schema_version"}
"""A file is one of these logs if it has the keys workload and engine, and one of these."""
_KEY = re.compile(rb'"([a-z_]+)"\s*:')
_JSON_MARK = b"tencost.json"
_NAMELESS = "hardware: missing (columns: env_name or hw_model); pass hardware=<name>"
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
            names = parquet_names(path)
        else:
            names = frozenset(key.decode() for key in _KEY.findall(head))
        is_table = "record_id" in names and OURS not in names
        return names >= {"workload", "engine"} and bool(_MARKS & names) and not is_table

    def read(self, path: Path, about: About, batch_rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """Yield the file's records and rejects; a record's line is where it begins, its row in Parquet.

        Raises:
            RecordError: the file cannot be opened, or no record can be read because none names its device and
                `about` does not, either.
        """
        readable = nameless = 0

        def row(record: Object) -> dict[str, Any]:
            nonlocal readable, nameless
            try:
                columns = row_of(record, about.hardware)
            except NoHardwareError as error:
                nameless += 1
                raise ValueError(_NAMELESS) from error
            readable += 1
            return columns

        if is_parquet(path):
            records = _parquet_objects(path, batch_rows)
        else:
            records = json_objects(path, lambda part: "workload" in part)
        yield from read_objects(records, about, batch_rows, row)
        if nameless and not readable:
            raise NoDeviceError(
                f"expected records in {path} that name their device (hardware; env_name or hw_model "
                f"in the columns version), found none in {nameless}. Import it with hardware=<name>."
            )


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
        with whole_file(path) as scratch:
            return _write_parquet(list(records), scratch, version)
    if path.suffix not in (".jsonl", ".json"):
        raise RecordError(
            f"expected a file that ends in .jsonl, .json or .parquet, found {path}. Name it so."
        )
    start, between, end = ("[\n", ",\n", "\n]\n") if path.suffix == ".json" else ("", "\n", "\n")
    count = 0
    with whole_file(path) as scratch, scratch.open("w", encoding="utf-8") as file:
        for count, record in enumerate(records, 1):
            file.write((start if count == 1 else between) + json.dumps(record))
        file.write(end if count else start.strip() + end.strip())
    return count


def _parquet_objects(path: Path, batch_rows: int) -> Iterator[tuple[int, Object | Damage]]:
    """Yield (row from 1, record) of a Parquet file, a null as no key."""
    row = 0
    try:
        with open_parquet(path) as file:
            schema = file.schema_arrow
            marked = {field.name for field in schema if _JSON_MARK in (field.metadata or {})}
            for numbers, table, reasons in parquet_tables(file, batch_rows):
                for row, reason in reasons.items():
                    yield row, Damage(reason)
                for row, cells in zip(numbers, table.to_pylist(), strict=True):
                    yield row, _object_of_cells(cells, marked)
                row = max([*reasons, *numbers[-1:]], default=row)
    except TruncatedError as error:
        yield row + 1 if row else 0, Damage(str(error))


def _object_of_cells(cells: Mapping[str, Any], marked: set[str]) -> Object | Damage:
    record: Object = {}
    try:
        for name, cell in cells.items():
            may_be_null = name == "timestamp" and "execution_elapsed_ms_mean" in cells
            is_json = name in _OBJECTS and isinstance(cell, str) and cell[:1] in ("{", "[")
            if cell is not None and (is_json or name in marked):
                record[name] = json.loads(cell)
            elif cell is not None or may_be_null:
                record[name] = _plain(cell)
    except RecursionError:
        return Damage("JSON nested too deeply")
    except ValueError as error:
        return Damage(f"not JSON, or not Unicode text: {error}")
    return record


def _plain(cell: Any) -> Any:
    """Return a Parquet value as JSON has it; members that are null are left out, a struct cannot leave out others."""
    match cell:
        case dict():
            return {name: _plain(part) for name, part in cell.items() if part is not None}
        case list() | tuple():
            return [_plain(part) for part in cell]
        case datetime():
            return (cell if cell.tzinfo else cell.replace(tzinfo=UTC)).timestamp()
        case date():
            return cell.isoformat()
        case Decimal():
            return float(cell)
        case bytes():
            return cell.decode()
    return cell


def _write_parquet(records: list[Object], path: Path, version: Version) -> int:
    fields = COLUMNS_FIELDS if version == "columns" else JSON_FIELDS
    columns: dict[pa.Field, pa.Array] = {}
    for name in dict.fromkeys([*fields, *(name for record in records for name in record)]):
        types = {type(record[name]) for record in records if record.get(name) is not None}
        if name in _TEXTS and types <= {str}:
            field = pa.field(name, pa.string())
        elif name in _NUMBERS and (types <= {float} or types == {int}):
            field = pa.field(name, pa.int64() if types == {int} else pa.float64())
        else:
            field = pa.field(name, pa.string(), metadata={_JSON_MARK: b"1"})
            cells = [json.dumps(record[name]) if name in record else None for record in records]
            columns[field] = pa.array(cells, field.type)
            continue
        columns[field] = pa.array([record.get(name) for record in records], field.type)
    table = pa.table(list(columns.values()), schema=pa.schema(list(columns)))
    pq.write_table(table, path, compression="zstd")
    return len(records)
