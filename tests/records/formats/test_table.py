"""The store's own tables: Parquet and CSV there and back, older versions, broken rows, wrong columns."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tencost.errors import RecordError
from tencost.records.formats.table import TencostTableFormat, write_file
from tencost.records.reading.opening import read_head
from tencost.records.reading.protocol import About, Reject
from tencost.store.record_store import RecordStore
from tencost.store.schema import (
    ADDED,
    PROGRAM_FORMATS,
    SCHEMA,
    NetworkWeight,
    Provenance,
    Record,
    Source,
    to_arrow,
)
from tencost.store.status import Status

SUFFIXES = ("parquet", "csv")
NEW = [name for group in ADDED.values() for name in group]


def record(number: int, run_secs: tuple[float, ...] = (1e-3, 3e-3), **more: Any) -> Record:
    failed = not run_secs
    values: dict[str, Any] = {
        "record_id": f"r{number}",
        "program_id": f"p{number}",
        "workload_id": "w",
        "task_name": "matmul",
        "networks": (NetworkWeight("net", 2),),
        "hardware": "xeon",
        "target": {"kind": "llvm", "mcpu": "core-avx2"},
        "program_format": "metaschedule_trace",
        "program": "[[],[]]",
        "run_secs": run_secs,
        "status": Status.run_error if failed else Status.ok,
        "error": 'line one\n"line two", \r\n' if failed else "",
        "source": Source("set", "file", number),
        "provenance": Provenance(timestamp=0.1 + number, additional_info={"host": 'ü, "x"'}),
        **more,
    }
    return Record(**values)


TABLE = to_arrow([record(0), record(1, ()), record(2, (0.5,)), record(3)])


def read(path: Path, batch: int = 100) -> tuple[pa.Table, list[Reject]]:
    batches = list(TencostTableFormat().read(path, About("other", "log", "other"), batch))
    tables = [item.records for item in batches] or [SCHEMA.empty_table()]
    assert all(table.schema.equals(SCHEMA) for table in tables)
    return pa.concat_tables(tables), [reject for item in batches for reject in item.rejects]


def write(folder: Path, table: pa.Table, suffix: str) -> Path:
    """Write a table of any columns as the format does."""
    path = folder / f"table.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
        return path
    for name in ("networks", "run_secs", "source", "measurements"):
        if name in table.column_names and pa.types.is_nested(table[name].type):
            texts = [
                None if value is None else json.dumps(value) for value in table[name].to_pylist()
            ]
            table = table.set_column(
                table.schema.get_field_index(name), name, pa.array(texts, pa.string())
            )
    pacsv.write_csv(table, path)
    return path


def changed(name: str, values: dict[int, Any], kind: pa.DataType | None = None) -> pa.Table:
    """Return TABLE with other values in some rows of a column."""
    column = TABLE[name].to_pylist()
    for row, value in values.items():
        column[row] = value
    field = pa.field(name, kind or SCHEMA.field(name).type)
    return TABLE.set_column(SCHEMA.get_field_index(name), field, pa.array(column, field.type))


# There and back.

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NAME = TEXT.filter(bool)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
FINITE32 = st.floats(allow_nan=False, allow_infinity=False, width=32)
INT64 = st.integers(-(2**63), 2**63 - 1)
JSON_TEXT = st.dictionaries(TEXT, FINITE | TEXT | st.none(), max_size=2).map(json.dumps)
COMMON: dict[str, st.SearchStrategy[Any]] = {
    "record_id": NAME,
    "program_id": NAME,
    "workload_id": NAME,
    "task_name": TEXT,
    "networks": st.none()
    | st.lists(
        st.fixed_dictionaries({"network": st.none() | TEXT, "weight": st.none() | INT64}),
        max_size=2,
    ),
    "hardware": NAME,
    "timestamp": st.none() | FINITE,
    "schema_version": st.sampled_from(["1", "2", "3"]),
    "additional_info": st.none() | JSON_TEXT,
    "workload": TEXT,
    "workload_args": st.none() | JSON_TEXT,
    "engine": TEXT,
    "engine_version": st.none() | TEXT,
    "engine_config": st.none() | JSON_TEXT,
    "target": JSON_TEXT,
    "build_config": st.none() | JSON_TEXT,
    "env_name": st.none() | TEXT,
    "hw_model": st.none() | TEXT,
    "runtime_config": st.none() | JSON_TEXT,
    "execution_config": st.none() | JSON_TEXT,
    "execution_elapsed_ms_mean": st.none() | FINITE32,
    "execution_elapsed_ms_std": st.none() | FINITE32,
    "error": st.none() | TEXT,
    "source": st.none()
    | st.fixed_dictionaries({"dataset": st.none() | TEXT, "file": TEXT, "line": st.none() | INT64}),
    "wall_s": st.none() | FINITE,
    "foreign": st.none() | JSON_TEXT,
    "quarantine": st.none() | TEXT,
    "measurements": st.none()
    | st.lists(
        st.fixed_dictionaries(
            {
                "timestamp": st.none() | FINITE,
                "status": st.just("ok"),
                "error": st.none(),
                "run_secs": st.lists(st.floats(1e-9, 1e8), min_size=1, max_size=3),
                "wall_s": st.none() | FINITE,
                "quarantine": st.none() | TEXT,
                "dataset": st.none() | TEXT,
                "file": st.none() | TEXT,
                "line": st.none() | INT64,
            }
        ),
        min_size=2,
        max_size=3,
    ),
}
OUTCOMES: dict[bool, dict[str, st.SearchStrategy[Any]]] = {
    True: {
        "run_secs": st.lists(
            st.floats(0, exclude_min=True, allow_infinity=False), min_size=1, max_size=3
        ),
        "status": st.just("ok"),
    },
    False: {
        "run_secs": st.none(),
        "status": st.sampled_from([item.value for item in Status if item is not Status.ok]),
    },
}
PROGRAMS = st.just(("none", "")) | st.tuples(st.sampled_from(PROGRAM_FORMATS), JSON_TEXT)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    outcome = OUTCOMES[draw(st.booleans())]
    found: dict[str, Any] = draw(st.fixed_dictionaries({**COMMON, **outcome}))
    found["program_format"], found["program"] = draw(PROGRAMS)
    return found


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=40)
@given(st.lists(rows(), max_size=4))
def test_any_records_come_back_as_they_were(
    tmp_path: Path, suffix: str, values: list[dict[str, Any]]
) -> None:
    table = pa.Table.from_pylist(values, schema=SCHEMA)
    path = tmp_path / f"table.{suffix}"
    assert write_file(table, path) == len(values)
    found, rejects = read(path, 2)
    assert rejects == []
    assert found.equals(table)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_polars_frame_is_written_as_the_table_it_is(tmp_path: Path, suffix: str) -> None:
    write_file(pl.from_arrow(TABLE), tmp_path / f"frame.{suffix}")
    assert read(tmp_path / f"frame.{suffix}")[0].equals(TABLE)


def test_parquet_of_polars_is_read(tmp_path: Path) -> None:
    frame = pl.from_arrow(TABLE)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(tmp_path / "frame.parquet")
    assert read(tmp_path / "frame.parquet")[0].equals(TABLE)


def test_parquet_is_written_with_zstandard(tmp_path: Path) -> None:
    write_file(TABLE, tmp_path / "table.parquet")
    group = pq.ParquetFile(tmp_path / "table.parquet").metadata.row_group(0)
    assert {group.column(index).compression for index in range(group.num_columns)} == {"ZSTD"}


def test_csv_has_lists_and_structs_as_json_text(tmp_path: Path) -> None:
    write_file(TABLE, tmp_path / "table.csv")
    frame = pl.read_csv(tmp_path / "table.csv")
    assert json.loads(frame["run_secs"][0]) == [1e-3, 3e-3]
    assert json.loads(frame["source"][2]) == {"dataset": "set", "file": "file", "line": 2}
    assert frame["timestamp"][0] == 0.1
    assert frame["run_secs"][1] is None


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_compressed_tables_are_read(tmp_path: Path, suffix: str) -> None:
    write_file(TABLE, tmp_path / f"table.{suffix}")
    path = tmp_path / "table.gz"
    path.write_bytes(gzip.compress((tmp_path / f"table.{suffix}").read_bytes()))
    assert TencostTableFormat().recognizes(path, read_head(path))
    assert read(path)[0].equals(TABLE)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_columns_in_another_order(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, TABLE.select(SCHEMA.names[::-1]), suffix)
    assert TencostTableFormat().recognizes(path, read_head(path))
    assert read(path)[0].equals(TABLE)


def test_a_csv_of_spreadsheets_is_read(tmp_path: Path) -> None:
    write_file(TABLE, tmp_path / "table.csv")
    path = tmp_path / "marked.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (tmp_path / "table.csv").read_bytes() + b"\n\n")
    assert TencostTableFormat().recognizes(path, read_head(path))
    assert read(path)[0].equals(TABLE)


# Versions and columns.


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_of_version_1_has_null_in_the_new_columns(tmp_path: Path, suffix: str) -> None:
    old = changed("schema_version", dict.fromkeys(range(4), "1")).drop_columns(NEW)
    found, rejects = read(write(tmp_path, old, suffix))
    assert not rejects
    assert found.drop_columns(NEW).to_pylist() == old.to_pylist()
    assert all(found[name].null_count == 4 for name in NEW)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop_columns(["engine", "hardware"]), "without hardware, engine"),
        (lambda table: table.append_column("latency_s", pa.array([1.0] * 4)), "unknown: latency_s"),
        (lambda table: table.append_column("hardware", table["hardware"]), "twice: hardware"),
    ],
)
def test_wrong_columns_are_named(
    tmp_path: Path, suffix: str, change: Callable[[pa.Table], pa.Table], said: str
) -> None:
    path = write(tmp_path, change(TABLE), suffix)
    assert TencostTableFormat().recognizes(path, read_head(path))
    with pytest.raises(RecordError, match=said):
        read(path)


def test_a_column_of_another_type_is_named(tmp_path: Path) -> None:
    for name, kind in (("timestamp", pa.struct([("x", pa.int64())])), ("run_secs", pa.float64())):
        table = TABLE.set_column(SCHEMA.get_field_index(name), name, pa.nulls(4, kind))
        with pytest.raises(RecordError, match=f"column {name} of type .* found {kind}"):
            read(write(tmp_path, table, "parquet"))


def test_writing_refuses_other_columns_and_names(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="without hardware"):
        write_file(TABLE.drop_columns(["hardware"]), tmp_path / "a.csv")
    with pytest.raises(RecordError, match=r"\.parquet or \.csv"):
        write_file(TABLE, tmp_path / "a.json")


def test_other_tables_are_not_taken_for_ours(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"workload": ["a"], "engine": ["b"], "hardware": ["c"]}), tmp_path / "a.parquet"
    )
    for path, head in (
        (tmp_path / "a.parquet", b"PAR1"),
        (tmp_path / "none", b"workload_id,status\n"),
        (tmp_path / "none", b'{"record_id": 1, "program_id": 2, "workload_id": 3, "status": 4}'),
        (tmp_path / "none", b""),
    ):
        assert not TencostTableFormat().recognizes(path, head)


def test_the_files_of_a_store_are_no_tables(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    store.write_table(TABLE)
    files = list((tmp_path / "store").rglob("*.parquet"))
    assert files
    assert not any(TencostTableFormat().recognizes(path, read_head(path)) for path in files)


# Broken rows.


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("record_id", None, "record_id: missing"),
        ("hardware", "", "hardware: empty"),
        ("status", "fine", "status: expected one of ok, "),
        ("status", "run_error", "run_secs: expected none"),
        ("run_secs", None, "run_secs: expected times"),
        ("run_secs", [], "run_secs: expected times"),
        ("run_secs", [1.0, 0.0], "run_secs: a time is not positive"),
        ("run_secs", [-1.0], "run_secs: a time is not positive"),
        ("run_secs", [None], "run_secs: a time is not positive"),
        ("program_format", "pickle", "program_format: expected one of"),
        ("schema_version", "5", "schema_version: expected one of 1, 2, 3, 4"),
        ("target", "llvm", "target: expected a JSON object"),
        ("target", "[1]", "target: expected a JSON object"),
        ("foreign", "{", "foreign: expected JSON"),
        ("program", "[[],[]", "program: expected JSON"),
        ("timestamp", math.nan, "timestamp: expected a finite number"),
        ("wall_s", math.inf, "wall_s: expected a finite number"),
    ],
)
def test_a_row_with_a_broken_value_is_a_reject(
    tmp_path: Path, suffix: str, name: str, value: Any, said: str
) -> None:
    field = pa.field(name, SCHEMA.field(name).type)
    table = changed(name, {2: value}).cast(
        pa.schema([field if item.name == name else item for item in SCHEMA])
    )
    found, rejects = read(write(tmp_path, table, suffix), 3)
    assert found.equals(TABLE.filter(pa.array([True, True, False, True])))
    assert [item.reason.startswith(said) for item in rejects] == [True], rejects
    # In the CSV, the error text of row 1 is on three lines, below the header.
    assert rejects[0].line == (3 if suffix == "parquet" else 6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run_secs", "[0.1"),
        ("run_secs", '["a"]'),
        ("run_secs", "0.5"),
        ("networks", '[{"network": "a", "weight": "b"}]'),
        ("source", '{"line": 1.5}'),
        ("source", '{"line": 1, "column": 2}'),
        ("measurements", '[{"status": "ok"}]'),
        ("measurements", '[{"status": "run_error", "run_secs": [1.0]}]'),
        ("measurements", '[{"status": "fine"}]'),
        ("measurements", '[{"status": "ok", "run_secs": [0.0]}]'),
        ("run_secs", "[true]"),
        ("timestamp", "yesterday"),
        ("execution_elapsed_ms_mean", "1,5"),
        ("wall_s", "1e999"),
    ],
)
def test_a_cell_that_does_not_convert_is_a_reject(tmp_path: Path, name: str, value: str) -> None:
    kind = SCHEMA.field(name).type
    texts = [
        None if item is None else json.dumps(item) if pa.types.is_nested(kind) else str(item)
        for item in TABLE[name].to_pylist()
    ]
    texts[2] = value
    table = TABLE.set_column(SCHEMA.get_field_index(name), name, pa.array(texts, pa.string()))
    for suffix in SUFFIXES:
        found, rejects = read(write(tmp_path, table, suffix))
        assert found["record_id"].to_pylist() == ["r0", "r1", "r3"]
        assert [item.reason.startswith(f"{name}: ") for item in rejects] == [True]


def csv_lines(folder: Path) -> list[bytes]:
    write_file(to_arrow([record(number) for number in range(6)]), folder / "table.csv")
    return (folder / "table.csv").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda line: line[: len(line) // 2] + b"\n",
        lambda line: line.replace(b'"', b"", 1),
        lambda line: b'"' + line,
        lambda line: line[:-1] + b",1\n",
        lambda line: b"garbage\n",
        lambda line: b'"\n',
        lambda line: b"\xff\xfe" + line,
        lambda line: line.replace(b'"w"', b'"w\r"x"'),
    ],
)
def test_a_broken_line_costs_nobody_else(
    tmp_path: Path, break_it: Callable[[bytes], bytes]
) -> None:
    lines = csv_lines(tmp_path)
    lines[3] = break_it(lines[3])
    (tmp_path / "broken.csv").write_bytes(b"".join(lines))
    for batch in (2, 100):
        found, rejects = read(tmp_path / "broken.csv", batch)
        assert found["record_id"].to_pylist() == ["r0", "r1", "r3", "r4", "r5"]
        assert [item.line for item in rejects] == [4]


def test_truncated_files_keep_what_came_before(tmp_path: Path) -> None:
    table = to_arrow([record(number) for number in range(2000)])
    write_file(table, tmp_path / "table.csv")
    data = gzip.compress((tmp_path / "table.csv").read_bytes(), mtime=0)
    (tmp_path / "cut.csv.gz").write_bytes(data[: len(data) // 2])
    found, rejects = read(tmp_path / "cut.csv.gz")
    assert 500 < found.num_rows < 2000
    assert found.equals(table.slice(0, found.num_rows))
    assert [item.line for item in rejects] == [found.num_rows + 2]
    write_file(table, tmp_path / "table.parquet")
    data = (tmp_path / "table.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[: len(data) // 2])
    found, rejects = read(tmp_path / "cut.parquet")
    assert (found.num_rows, len(rejects), rejects[0].line) == (0, 1, 0)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_batches_hold_no_more_rows_than_asked(tmp_path: Path, suffix: str) -> None:
    write_file(TABLE, tmp_path / f"table.{suffix}")
    sizes = [
        item.records.num_rows
        for item in TencostTableFormat().read(
            tmp_path / f"table.{suffix}", About("set", "log", None), 3
        )
    ]
    assert sizes == [3, 1]


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=100)
@given(st.data())
def test_mutated_csv_neither_crashes_nor_invents(tmp_path: Path, data: st.DataObject) -> None:
    lines = csv_lines(tmp_path)
    text = b"".join(lines[1:])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 20)))
        text = text[:start] + data.draw(st.text('",\n\r{[1e\0ü', max_size=4)).encode() + text[end:]
    (tmp_path / "mutated.csv").write_bytes(lines[0] + text)
    found, rejects = read(tmp_path / "mutated.csv")
    known = {name.encode() for name in found["record_id"].to_pylist()}
    assert found.num_rows <= text.count(b"\n") + 1
    assert all(name.replace(b'"', b'""') in text for name in known)
    assert found.num_rows + len(rejects) > 0


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=100)
@given(st.data())
def test_mutated_parquet_neither_crashes_nor_hangs(tmp_path: Path, data: st.DataObject) -> None:
    write_file(TABLE, tmp_path / "table.parquet")
    content = bytearray((tmp_path / "table.parquet").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "mutated.parquet").write_bytes(content)
    try:
        found, _ = read(tmp_path / "mutated.parquet")
    except RecordError:
        return
    assert found.num_rows <= 4
