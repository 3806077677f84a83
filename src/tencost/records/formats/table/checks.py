"""Rows of a table that claims the record schema's columns: given its types, and checked against its rules."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tencost.errors import RecordError
from tencost.store.schema import ADDED, PROGRAM_FORMATS, SCHEMA
from tencost.store.status import FAILURE_SECONDS, Status

NESTED = ("networks", "run_secs", "source", "measurements")
"""Columns that are no scalars: JSON text in a CSV."""
VERSIONS = ("1", *ADDED)
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

    status: Literal[*(item.value for item in Status)]  # type: ignore[valid-type]
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
_JSON = (
    "additional_info",
    "workload_args",
    "engine_config",
    "target",
    "build_config",
    "runtime_config",
    "execution_config",
    "foreign",
)
_FINITE = (
    "timestamp",
    "execution_elapsed_ms_mean",
    "execution_elapsed_ms_std",
    "wall_s",
)
_NAMES = ("record_id", "program_id", "workload_id", "hardware")

Reasons = dict[int, str]
"""Row number from 0 to the first thing that is wrong with it."""


def check_names(names: Sequence[str], where: str) -> None:
    """Check that a table has the columns of a version of the schema.

    Raises:
        RecordError: a column is missing, unknown or there twice; the message names it.
    """
    added = {name for group in ADDED.values() for name in group}
    missing = [name for name in SCHEMA.names if name not in names and name not in added]
    unknown = [name for name in names if name not in SCHEMA.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    wrong = [
        f"{what} {', '.join(found)}"
        for what, found in (("without", missing), ("unknown:", unknown), ("twice:", twice))
        if found
    ]
    if wrong:
        raise RecordError(
            f"expected the columns of the record schema in {where}, found them {'; '.join(wrong)}. "
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
    arrays = []
    for field in SCHEMA:
        if field.name in table.column_names:
            values = table.column(field.name).combine_chunks()
            arrays.append(_converted(field, values, reasons, where))
        else:
            arrays.append(pa.nulls(table.num_rows, field.type))
    made = pa.table(arrays, schema=SCHEMA)
    for check in (_check_present, _check_words, _check_times, _check_finite, _check_json):
        check(made, reasons)
    if reasons:
        keep = [row not in reasons for row in range(made.num_rows)]
        made = made.filter(pa.array(keep, pa.bool_()))
    return made, reasons


def _converted(field: pa.Field, values: pa.Array, reasons: Reasons, where: str) -> pa.Array:
    text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if field.name in NESTED:
        if not (text or pa.types.is_nested(values.type) or pa.types.is_null(values.type)):
            raise _wrong_type(field, values, where)
        if text or field.name == "measurements":
            return _one_by_one(field, values, text, reasons)
        try:
            return values.cast(field.type)
        except pa.ArrowException:
            return _one_by_one(field, values, False, reasons)
    try:
        return values.cast(field.type)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _wrong_type(field, values, where) from error
    except pa.ArrowInvalid:
        return _cast_one_by_one(field, values, reasons)


def _wrong_type(field: pa.Field, values: pa.Array, where: str) -> RecordError:
    return RecordError(
        f"expected column {field.name} of type {field.type} in {where}, found {values.type}. "
        "Write the file with `tencost records export table`."
    )


def _one_by_one(field: pa.Field, values: pa.Array, text: bool, reasons: Reasons) -> pa.Array:
    """Return nested values as an array; those of another shape are null and have a reason.

    Arrow itself would cut 1.5 to 1 and leave out unknown members.
    """
    shape = _SHAPES[field.name]
    decode = msgspec.json.Decoder(shape).decode
    found: list[Any] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            found.append(
                decode(value) if text and value is not None else msgspec.convert(value, shape)
            )
        except (ValueError, RecursionError):
            found.append(None)
            _blame(reasons, row, field.name, value)
    return pa.array(msgspec.to_builtins(found), field.type)


def _cast_one_by_one(field: pa.Field, values: pa.Array, reasons: Reasons) -> pa.Array:
    good: list[Any] = []
    for row, value in enumerate(values):
        try:
            good.append(value.cast(field.type).as_py())
        except pa.ArrowException:
            good.append(None)
            _blame(reasons, row, field.name, value.as_py())
    return pa.array(good, field.type)


def _blame(reasons: Reasons, row: int, name: str, value: Any) -> None:
    text = repr(value)
    reasons.setdefault(row, f"{name}: found {text if len(text) <= 60 else f'{text[:57]}...'}")


def _rows_where(mask: pa.Array | pa.ChunkedArray) -> list[int]:
    found = mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask
    return pc.indices_nonzero(found.fill_null(False)).to_pylist()


def _check_present(table: pa.Table, reasons: Reasons) -> None:
    for field in SCHEMA:
        if not field.nullable:
            for row in _rows_where(pc.is_null(table[field.name])):
                reasons.setdefault(row, f"{field.name}: missing")
    for name in _NAMES:
        for row in _rows_where(pc.equal(table[name], "")):
            reasons.setdefault(row, f"{name}: empty")


def _check_words(table: pa.Table, reasons: Reasons) -> None:
    allowed = {
        "status": tuple(item.value for item in Status),
        "program_format": PROGRAM_FORMATS,
        "schema_version": VERSIONS,
    }
    for name, words in allowed.items():
        values = table[name]
        for row in _rows_where(pc.invert(pc.is_in(values, pa.array(words)))):
            found = values[row].as_py()
            reasons.setdefault(row, f"{name}: expected one of {', '.join(words)}, found {found!r}")


def _check_times(table: pa.Table, reasons: Reasons) -> None:
    times = table["run_secs"].combine_chunks()
    none = pc.equal(pc.fill_null(pc.list_value_length(times), 0), 0)
    ok = pc.equal(table["status"].combine_chunks(), Status.ok.value)
    for row in _rows_where(pc.and_(ok, none)):
        reasons.setdefault(row, "run_secs: expected times, for status is ok; found none")
    for row in _rows_where(pc.and_(pc.invert(ok), pc.invert(none))):
        reasons.setdefault(row, "run_secs: expected none, for status is not ok; found some")
    for row in _rows_where(pc.and_(none, pc.is_valid(times))):
        reasons.setdefault(
            row, "run_secs: expected null where there are no times, found an empty list"
        )
    values = times.flatten()
    bad = pc.invert(pc.and_(pc.is_finite(values), pc.greater(values, 0.0)).fill_null(False))
    owners = pc.list_parent_indices(times).filter(bad).to_pylist()
    for row in owners:
        reasons.setdefault(row, "run_secs: a time is not positive and finite")


def _check_finite(table: pa.Table, reasons: Reasons) -> None:
    for name in _FINITE:
        for row in _rows_where(pc.invert(pc.is_finite(table[name]))):
            reasons.setdefault(row, f"{name}: expected a finite number, found {table[name][row]}")


def _check_json(table: pa.Table, reasons: Reasons) -> None:
    for name in _JSON:
        _check_texts(table[name].combine_chunks(), name, name == "target", reasons)
    empty = pc.equal(table["program_format"], "none")
    programs = pc.if_else(empty, pa.scalar(None, pa.string()), table["program"])
    _check_texts(programs.combine_chunks(), "program", False, reasons)


def _check_texts(texts: pa.Array, name: str, as_object: bool, reasons: Reasons) -> None:
    encoded = texts.dictionary_encode()
    bad = [not _is_json(text, as_object) for text in encoded.dictionary.to_pylist()]
    if any(bad):
        wanted = "a JSON object" if as_object else "JSON"
        for row, code in enumerate(encoded.indices.to_pylist()):
            if code is not None and bad[code]:
                reasons.setdefault(
                    row, f"{name}: expected {wanted}, found {texts[row].as_py()[:60]!r}"
                )


def _is_json(text: str, as_object: bool) -> bool:
    try:
        value = orjson.loads(text)
    except ValueError:
        # orjson refuses NaN, which Python's json writes, and numbers of many digits.
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
    return not as_object or isinstance(value, dict)
