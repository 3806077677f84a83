"""Rows of a table that claims the record schema's columns: given its types, and checked against its rules."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tencost.errors import RecordError
from tencost.records.reading.protocol import shorten
from tencost.store.schema import ADDED, PROGRAM_FORMATS, SCHEMA
from tencost.store.status import FAILURE_SECONDS, Status

_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, lt=FAILURE_SECONDS)]


class Network(msgspec.Struct, forbid_unknown_fields=True):
    """An element of `networks`."""

    network: str | None = None
    weight: _Long | None = None


class _Source(msgspec.Struct, forbid_unknown_fields=True):
    dataset: str | None = None
    file: str | None = None
    line: _Long | None = None


class Measurement(msgspec.Struct, forbid_unknown_fields=True):
    """An element of `measurements`."""

    status: Literal[*(status.value for status in Status)]  # type: ignore[valid-type]
    timestamp: float | None = None
    error: str | None = None
    run_secs: list[_Seconds] | None = None
    wall_s: float | None = None
    quarantine: str | None = None
    dataset: str | None = None
    file: str | None = None
    line: _Long | None = None

    def __post_init__(self) -> None:
        if (self.status == Status.ok.value) != bool(self.run_secs):
            raise ValueError("expected times where status is ok, and only there")
        if not all(map(math.isfinite, (self.timestamp or 0.0, self.wall_s or 0.0))):
            raise ValueError("expected finite numbers")


_SHAPES: dict[str, Any] = {
    "networks": list[Network | None] | None,
    "run_secs": list[float | None] | None,
    "source": _Source | None,
    "measurements": list[Measurement] | None,
}
NESTED = tuple(_SHAPES)
"""Columns that are no scalars: JSON text in a CSV."""
_WORDS = {
    "status": [status.value for status in Status],
    "program_format": PROGRAM_FORMATS,
    "schema_version": ("1", *ADDED),
}
_JSON = """
additional_info workload_args engine_config target build_config runtime_config execution_config foreign program
"""
_FINITE = ("timestamp", "execution_elapsed_ms_mean", "execution_elapsed_ms_std", "wall_s")
_NAMES = ("record_id", "program_id", "workload_id", "hardware")

Reasons = dict[int, str]
"""Row number from 0 to the first thing that is wrong with it."""


def check_names(names: Sequence[str], where: str) -> None:
    """Check that a table has the columns of a version of the schema.

    Raises:
        RecordError: a column is missing, unknown or there twice; the message names it.
    """
    added = {name for group in ADDED.values() for name in group}
    faults = {
        "without": [name for name in SCHEMA.names if name not in names and name not in added],
        "unknown:": [name for name in names if name not in SCHEMA.names],
        "twice:": sorted({name for name in names if names.count(name) > 1}),
    }
    if any(faults.values()):
        text = "; ".join(f"{fault} {', '.join(at)}" for fault, at in faults.items() if at)
        raise RecordError(
            f"expected the columns of the record schema in {where}, found them {text}. "
            f"Valid: {', '.join(SCHEMA.names)}"
        )


def checked(table: pa.Table, where: str) -> tuple[pa.Table, Reasons]:
    """Return the good rows of a table as one of schema.SCHEMA, and what is wrong with the others.

    Args:
        table: columns that check_names accepts, of the schema's types or ones that convert to them; NESTED ones may
            be JSON text.
        where: the file, for messages.

    Raises:
        RecordError: a column is of a type that never converts.
    """
    reasons: Reasons = {}
    columns = {
        field.name: _converted(field, table[field.name].combine_chunks(), reasons, where)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in SCHEMA
    }
    for rows, name, fault in _faults(columns):
        for row in pc.indices_nonzero(rows.fill_null(False)).to_pylist():
            cell = f", found {shorten(columns[name][row].as_py())}" if "expected" in fault else ""
            reasons.setdefault(row, f"{name}: {fault}{cell}")
    records = pa.table(columns, schema=SCHEMA)
    if reasons:
        good = [row not in reasons for row in range(records.num_rows)]
        records = records.filter(pa.array(good, pa.bool_()))
    return records, reasons


def _converted(field: pa.Field, column: pa.Array, reasons: Reasons, where: str) -> pa.Array:
    """Return a column in the schema's type; cells that do not convert are null and have a reason."""
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    nested = field.name in NESTED
    wrong_type = RecordError(
        f"expected column {field.name} of type {field.type} in {where}, found {column.type}. "
        "Write the file with `tencost records export table`."
    )
    if nested and not (text or pa.types.is_nested(column.type) or pa.types.is_null(column.type)):
        raise wrong_type
    if not nested or not (text or field.name == "measurements"):
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid:
            pass
        except pa.ArrowException as error:
            if not nested:
                raise wrong_type from error
    convert = _nested_cell(field.name, text) if nested else _scalar_cell(column.type, field.type)
    cells: list[Any] = []
    for row, cell in enumerate(column.to_pylist()):
        try:
            cells.append(convert(cell))
        except (ValueError, RecursionError, pa.ArrowException):
            cells.append(None)
            reasons.setdefault(row, f"{field.name}: found {shorten(cell)}")
    return pa.array(cells, field.type)


def _nested_cell(name: str, text: bool) -> Callable[[Any], Any]:
    """Return what checks a nested cell: Arrow itself would cut 1.5 to 1 and leave out unknown members."""
    shape = _SHAPES[name]
    decode = msgspec.json.Decoder(shape).decode
    if text:
        return lambda cell: None if cell is None else msgspec.to_builtins(decode(cell))
    return lambda cell: msgspec.to_builtins(msgspec.convert(cell, shape))


def _scalar_cell(source: pa.DataType, destination: pa.DataType) -> Callable[[Any], Any]:
    return lambda cell: pa.scalar(cell, source).cast(destination).as_py()


def _faults(columns: dict[str, pa.Array]) -> Iterator[tuple[pa.Array, str, str]]:
    """Yield (whether each row breaks a rule, the rule's column, what is wrong) for all rules."""
    for field in SCHEMA:
        if not field.nullable:
            yield pc.is_null(columns[field.name]), field.name, "missing"
    for name in _NAMES:
        yield pc.equal(columns[name], ""), name, "empty"
    for name, words in _WORDS.items():
        strange = pc.invert(pc.is_in(columns[name], pa.array(words)))
        yield strange, name, f"expected one of {', '.join(words)}"
    times, ok = columns["run_secs"], pc.equal(columns["status"], Status.ok.value)
    none = pc.equal(pc.fill_null(pc.list_value_length(times), 0), 0)
    yield pc.and_(ok, none), "run_secs", "expected times, for status is ok"
    yield pc.and_(pc.invert(ok), pc.invert(none)), "run_secs", "expected none: status is not ok"
    yield pc.and_(none, pc.is_valid(times)), "run_secs", "expected null where there are no times"
    seconds = times.flatten()
    good = pc.and_(pc.is_finite(seconds), pc.greater(seconds, 0.0)).fill_null(False)
    rows = pc.list_parent_indices(times).filter(pc.invert(good))
    yield (
        pc.is_in(pa.array(range(len(times))), rows),
        "run_secs",
        "a time is not positive and finite",
    )
    for name in _FINITE:
        yield pc.invert(pc.is_finite(columns[name])), name, "expected a finite number"
    for name in _JSON.split():
        texts = columns[name]
        if name == "program":
            empty = pc.equal(columns["program_format"], "none")
            texts = pc.if_else(empty, pa.scalar(None, pa.string()), texts)
        is_target = name == "target"
        fault = "expected a JSON object" if is_target else "expected JSON"
        encoded = texts.dictionary_encode()
        wrong = [not _is_json(text, is_target) for text in encoded.dictionary.to_pylist()]
        yield pa.array(wrong, pa.bool_()).take(encoded.indices), name, fault


def _is_json(text: str, as_object: bool) -> bool:
    try:
        parsed = orjson.loads(text)
    except ValueError:
        # orjson refuses NaN, which Python's json writes, and numbers of many digits.
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return False
    return not as_object or isinstance(parsed, dict)
