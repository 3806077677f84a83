"""Questions to a store: never across hardware or targets, never with what is in quarantine, worked by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tencost.errors import RecordError
from tencost.records import query
from tencost.store.record_store import RecordStore
from tencost.store.schema import SCHEMA, NetworkWeight, Provenance, Record, Source, to_arrow
from tencost.store.status import Status

AVX2 = {"kind": "llvm", "mcpu": "core-avx2"}
TAGGED = {"kind": "llvm", "mcpu": "core-avx2", "tag": ""}
AVX512 = {"kind": "llvm", "mcpu": "skylake-avx512"}
W1, W2, W3 = "1" * 32, "2" * 32, "23" * 16


def record(
    number: int,
    run_secs: Sequence[float] = (1e-3,),
    *,
    hardware: str = "a",
    target: dict[str, Any] = AVX2,
    workload: str = W1,
    task: str = "matmul",
    timestamp: float | None = None,
    program: int | None = None,
) -> Record:
    failed = not run_secs
    return Record(
        record_id=f"{hardware}-{number:04}",
        program_id=f"p{number if program is None else program}",
        workload_id=workload,
        task_name=task,
        networks=(NetworkWeight("net", 2),),
        hardware=hardware,
        target=target,
        program_format="metaschedule_trace",
        program=f"[[],[{number}]]",
        run_secs=tuple(run_secs),
        status=Status.run_error if failed else Status.ok,
        error="crashed" if failed else "",
        source=Source("set", "file", number),
        provenance=Provenance(timestamp=timestamp),
    )


def quarantined(*records: Record) -> pa.Table:
    """Return records as rows that are in quarantine."""
    table = to_arrow(records)
    column = SCHEMA.get_field_index("quarantine")
    reasons = pa.array(["too fast"] * len(records), pa.string())
    return table.set_column(column, SCHEMA.field(column), reasons)


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(str(tmp_path / "store"))


def ids(frame: pl.DataFrame) -> list[str]:
    return list(frame["record_id"])


def test_best_stays_on_its_hardware_and_target(store: RecordStore) -> None:
    store.write(
        [
            record(1, (3e-3, 1e-3, 2e-3)),
            record(2, ()),
            record(3, (1e-3,), target=TAGGED),
            record(4, (4e-3,)),
            record(5, (1e-6,), target=AVX512),
            record(6, (1e-7,), hardware="b"),
            record(7, (5e-3,), workload=W2, task="add"),
        ]
    )
    store.write_table(quarantined(record(8, (1e-9,))))
    found = query.best(store, hardware="a", target=AVX2, workload=W1, n=2)
    assert ids(found) == ["a-0003", "a-0001"]
    assert found["rank"].to_list() == [1, 2]
    assert found["latency_s"].to_list() == [1e-3, 2e-3]
    assert found["mean_s"].to_list() == pytest.approx([1e-3, 2e-3])
    assert found["spread"].to_list() == [None, pytest.approx(0.5)]
    assert found["num_runs"].to_list() == [1, 3]
    assert {json.dumps(json.loads(text)) for text in found["target"]} == {json.dumps(AVX2)}
    assert found.select("dataset", "file", "line").row(0) == ("set", "file", 3)

    every = query.best(store, hardware="a", target="llvm -mcpu=core-avx2", n=2, columns=["program"])
    assert ids(every) == ["a-0007", "a-0003", "a-0001"]
    assert every["rank"].to_list() == [1, 1, 2]
    assert every["program"].to_list() == ["[[],[7]]", "[[],[3]]", "[[],[1]]"]
    assert every.drop("program").columns == found.columns
    assert query.best(store, hardware="a", target=AVX512, n=5)["record_id"].to_list() == ["a-0005"]


def test_best_of_equals_is_the_smaller_id(store: RecordStore) -> None:
    store.write([record(2), record(1), record(3)])
    for workload in (None, W1):
        found = query.best(store, hardware="a", target=AVX2, workload=workload, n=2)
        assert ids(found) == ["a-0001", "a-0002"]


def test_best_without_a_measured_program_is_empty(store: RecordStore) -> None:
    store.write([record(1, ())])
    assert query.best(store, hardware="a", target=AVX2).is_empty()
    assert query.best(store, hardware="a", target=AVX2, workload=W1).is_empty()
    assert query.best(store, hardware="a", target=AVX2, workload="nothing").is_empty()


@pytest.mark.parametrize("workload", [None, W1])
def test_best_refuses_what_is_not_there(store: RecordStore, workload: str | None) -> None:
    store.write([record(1), record(2, hardware="b", target=AVX512)])
    with pytest.raises(RecordError, match=r"expected records of c in .* found only a, b"):
        query.best(store, hardware="c", target=AVX2, workload=workload)
    with pytest.raises(RecordError, match=r"for the target .*avx512.* found only .*core-avx2"):
        query.best(store, hardware="a", target=AVX512, workload=workload)
    with pytest.raises(RecordError, match="expected a target as JSON or as text"):
        query.best(store, hardware="a", target="-mcpu=x", workload=workload)
    with pytest.raises(RecordError, match="n of at least 1, found 0"):
        query.best(store, hardware="a", target=AVX2, workload=workload, n=0)
    with pytest.raises(RecordError, match="columns of the record schema, found speed"):
        query.best(store, hardware="a", target=AVX2, workload=workload, columns=["speed"])


@pytest.mark.parametrize("name", ["it's", "a b", "ä/ö", "100%"])
def test_odd_names(store: RecordStore, name: str) -> None:
    store.write([record(1, hardware=name), record(2, (1e-9,), hardware="plain")])
    assert ids(query.best(store, hardware=name, target=AVX2)) == [f"{name}-0001"]
    assert len(query.history(store, W1, hardware=name, target=AVX2)) == 1
    assert query.only_target(store, name) == query.canonical(AVX2)


def test_history(store: RecordStore) -> None:
    store.write(
        [
            record(1, (4e-3,), timestamp=110.0),
            record(2, (), timestamp=100.0),
            record(3, (5e-3,), timestamp=120.0),
            record(4, (1e-3,), timestamp=130.0),
            record(5, (9e-3,)),
            record(6, (1e-9,), timestamp=99.0, target=AVX512),
            record(7, (1e-9,), timestamp=99.0, workload=W2),
        ]
    )
    store.write_table(quarantined(record(8, (1e-9,), timestamp=98.0)))
    found = query.history(store, W1, hardware="a", target=AVX2)
    assert ids(found) == ["a-0005", "a-0002", "a-0001", "a-0003", "a-0004"]
    assert found["trial"].to_list() == [1, 2, 3, 4, 5]
    assert found["elapsed_s"].to_list() == [None, 0, 10, 20, 30]
    assert found["latency_s"].to_list() == [9e-3, None, 4e-3, 5e-3, 1e-3]
    assert found["best_s"].to_list() == [9e-3, 9e-3, 4e-3, 4e-3, 1e-3]
    assert found["improved"].to_list() == [True, False, True, False, True]


def test_history_of_failures_has_no_best(store: RecordStore) -> None:
    store.write([record(1, ()), record(2, ()), record(3, (1e-3,))])
    found = query.history(store, W1, hardware="a", target=AVX2)
    assert found["best_s"].to_list() == [None, None, 1e-3]
    assert found["improved"].to_list() == [False, False, True]


def test_new_since_a_version(store: RecordStore) -> None:
    store.write([record(1), record(2)])
    before = query.current_version(store)
    store.write([record(2), record(3, hardware="b"), record(4, ())])
    store.write_table(quarantined(record(5)))
    assert ids(query.new(store, before)) == ["a-0004", "b-0003"]
    assert ids(query.new(store, before, hardware="b")) == ["b-0003"]
    assert query.new(store, before, columns=["program"])["program"].to_list() == [
        "[[],[4]]",
        "[[],[3]]",
    ]
    assert ids(query.new(store, None)) == ["a-0001", "a-0002", "a-0004", "b-0003"]
    assert query.new(store, query.current_version(store)).is_empty()
    earlier = RecordStore(store.uri, before)
    assert ids(query.new(earlier, None)) == ["a-0001", "a-0002"]
    with pytest.raises(RecordError, match="found since=99"):
        query.new(store, 99)


def version_of(store: RecordStore) -> int:
    version = query.current_version(store)
    assert version is not None
    return version


def test_compaction_brings_nothing_up_and_a_release_does(store: RecordStore) -> None:
    for number in range(4):
        store.write([record(number)])
    store.write_table(quarantined(record(7)))
    before = version_of(store)
    store.compact(full=True)
    assert version_of(store) > before
    assert query.new(store, before).is_empty()
    store.write([record(8)])
    store.compact(full=True)
    assert ids(query.new(store, before)) == ["a-0008"]
    assert store.release(["a-0007"]) == 1
    assert ids(query.new(store, before)) == ["a-0007", "a-0008"]


def test_what_is_new_since_a_vacuumed_version_cannot_be_told(store: RecordStore) -> None:
    for number in range(3):
        store.write([record(number)])
    before = query.current_version(store)
    store.compact(full=True)
    store.vacuum(hours=0)
    with pytest.raises(RecordError, match=rf"files of version {before} of .* found some gone"):
        query.new(store, before)
    assert len(query.new(store, None)) == 3


def test_compare_two_hardware(store: RecordStore) -> None:
    times_a = [1e-3, 2e-3, 3e-3, 4e-3]
    times_b = [2e-3, 1e-3, 6e-3, 8e-3]
    rows = [record(index, (value,)) for index, value in enumerate(times_a)]
    rows += [
        record(index, (value,), hardware="b", target=AVX512) for index, value in enumerate(times_b)
    ]
    rows += [
        record(10, (1e-9,), target=AVX512),  # another target of a
        record(11, (), hardware="b", target=AVX512),
        record(12, (7e-3,), workload=W2, task="only a"),
        record(13, (2e-3,), workload=W3, task="two"),
        record(14, (1e-3,), workload=W3, task="two"),
        record(13, (1e-3,), workload=W3, task="two", hardware="b", target=AVX512),
        record(14, (4e-3,), workload=W3, task="two", hardware="b", target=AVX512),
    ]
    store.write(rows)
    found = query.compare(store, hardware=("a", "b"), target=(AVX2, AVX512))
    both, lone, two = found.to_dicts()
    assert (both["num_ok_a"], both["num_ok_b"], both["num_shared"]) == (4, 4, 4)
    assert (both["best_a_s"], both["best_b_s"]) == (1e-3, 1e-3)
    assert both["ratio"] == pytest.approx(1.0)
    # Ranks 1 2 3 4 against 2 1 3 4: 1 - 6 * 2 / (4 * 15).
    assert both["spearman"] == pytest.approx(0.8)
    assert (lone["task_name"], lone["num_ok_b"], lone["best_b_s"]) == ("only a", 0, None)
    assert (lone["ratio"], lone["num_shared"], lone["spearman"]) == (None, 0, None)
    assert (two["num_shared"], two["spearman"]) == (2, None)
    assert two["ratio"] == pytest.approx(1.0)
    only = query.compare(store, hardware=("a", "b"), target=(AVX2, AVX512), workload=W1)
    assert only.to_dicts() == [both]


def test_compare_of_equal_times_has_no_order(store: RecordStore) -> None:
    store.write([record(index, (index + 1.0,)) for index in range(3)])
    store.write([record(index, (1.0,), hardware="b") for index in range(3)])
    (row,) = query.compare(store, hardware=("a", "b"), target=(AVX2, AVX2)).to_dicts()
    assert (row["num_shared"], row["spearman"]) == (3, None)


def test_statistics(store: RecordStore) -> None:
    store.write(
        [
            record(1, (1e-3, 3e-3)),
            record(2, (4e-3,), target=TAGGED),
            record(3, ()),
            record(4, (6e-3,), workload=W2),
            record(1, (1e-3,), hardware="b"),
            record(5, (1e-9,), target=AVX512),
        ]
    )
    store.write_table(quarantined(record(9, (1e-9,))))
    a, b = query.statistics(store).to_dicts()
    assert (a["hardware"], a["program_format"]) == ("a", "metaschedule_trace")
    assert (a["records"], a["ok"], a["quarantined"], a["programs"], a["workloads"]) == (
        5,
        4,
        1,
        5,
        2,
    )
    assert a["spread"] == pytest.approx(2**0.5 / 2)
    assert (b["records"], b["quarantined"], b["spread"]) == (1, 0, None)
    assert "best_s" not in a

    rows = query.statistics(store, by=["workload"], hardware="a").to_dicts()
    found = {(row["workload_id"], row["target"]): row for row in rows}
    first = found[W1, query.canonical(AVX2)]
    assert (first["records"], first["ok"], first["quarantined"]) == (3, 2, 1)
    assert (first["best_s"], first["median_s"], first["task_name"]) == (2e-3, 3e-3, "matmul")
    assert found[W1, query.canonical(AVX512)]["best_s"] == 1e-9
    assert len(found) == 3

    by_status = query.statistics(store, by=["status", "dataset"])
    assert by_status.select("status", "dataset", "records").rows() == [
        ("ok", "set", 5),
        ("run_error", "set", 1),
    ]
    with pytest.raises(RecordError, match=r"groups by some of hardware, .* found colour"):
        query.statistics(store, by=["colour"])


def test_sql_reads_without_quarantine(store: RecordStore) -> None:
    store.write([record(1, (1e-3, 2e-3, 9e-3)), record(2, ()), record(3, hardware="b")])
    store.write_table(quarantined(record(4)))
    text = (
        "SELECT hardware, count(*) AS n, min(latency_s) AS best FROM {} GROUP BY ALL ORDER BY ALL"
    )
    assert query.sql(store.uri, text.format("records")).rows() == [("a", 2, 2e-3), ("b", 1, 1e-3)]
    assert query.sql(store, text.format("all_records"))["n"].to_list() == [3, 1]
    described = query.sql(store, "DESCRIBE records")["column_name"].to_list()
    assert described == [*SCHEMA.names, "latency_s"]
    last = version_of(store)
    earlier = RecordStore(store.uri, last - 1)
    assert query.sql(earlier, text.format("all_records"))["n"].to_list() == [2, 1]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("status = 'ok'", 2),
        ("status <> 'ok'", 1),
        ("status IN ('ok', 'run_error')", 3),
        ("task_name LIKE 'mat%'", 3),
        ("record_id BETWEEN 'a-0002' AND 'b'", 1),
        ("hardware > 'a'", 1),
        ("source.file = 'file' AND source.line = 2", 1),
        ("error IS NULL", 2),
        ("list_contains(run_secs, 0.001)", 2),
        ("networks[1].weight = 2", 3),
        ("json_extract_string(target, '$.mcpu') = 'core-avx2'", 3),
    ],
)
def test_sql_filters(store: RecordStore, condition: str, expected: int) -> None:
    """Comparisons of every kind, most of which are handed on to the reader of the files."""
    store.write([record(1), record(2, ()), record(3, hardware="b")])
    found = query.sql(store, f"SELECT count(*) AS n FROM records WHERE {condition}")
    assert found["n"].item() == expected


def test_sql_reads_only_what_is_asked_for(store: RecordStore) -> None:
    store.write([record(1), record(2, hardware="b")])
    text = "SELECT min(latency_s) FROM records WHERE hardware = 'a' AND workload_id = 'w'"
    plan = query.sql(store, f"EXPLAIN {text}")["explain_value"].item()
    scans = plan.upper().split("ARROW SCAN")[1:]
    assert len(scans) == 1  # of a, none of b
    assert "\"WORKLOAD_ID\" = 'W'" in scans[0]
    assert "RUN_SECS" in scans[0]
    assert "PROGRAM" not in scans[0]


@pytest.mark.parametrize(
    "text",
    [
        "DROP VIEW records",
        "CREATE TABLE x AS SELECT 1",
        "INSERT INTO stored VALUES (1)",
        "DELETE FROM records",
        "COPY records TO '{folder}/out.csv'",
        "ATTACH '{folder}/x.db'",
        "SET threads = 1",
        "INSTALL httpfs",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
    ],
)
def test_sql_changes_nothing(store: RecordStore, tmp_path: Path, text: str) -> None:
    store.write([record(1)])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(RecordError, match="expected one SELECT, found"):
        query.sql(store, text.format(folder=tmp_path))
    assert sorted(tmp_path.iterdir()) == before
    assert len(store.read()) == 1


def test_sql_sees_nothing_but_the_store(store: RecordStore, tmp_path: Path) -> None:
    store.write([record(1)])
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    frame = pl.DataFrame({"a": [1]})
    assert len(frame) == 1
    for text in (f"SELECT * FROM '{secret}'", f"SELECT * FROM read_csv('{secret}')", "FROM frame"):
        with pytest.raises(RecordError, match="expected a query that"):
            query.sql(store, text)


def test_sql_errors_name_the_tables(store: RecordStore) -> None:
    store.write([record(1)])
    with pytest.raises(RecordError, match=r'(?s)"speed" not found.*Tables: records, all_records'):
        query.sql(store, "SELECT speed FROM records")
    with pytest.raises(RecordError, match="expected a query in SQL, found 'SELEC"):
        query.sql(store, "SELEC 1")
    with pytest.raises(RecordError, match="expected a record store at"):
        query.sql(f"{store.uri}-not-there", "SELECT 1")


def test_find_workload(store: RecordStore) -> None:
    store.write(
        [
            record(1),
            record(2, workload=W2, task="conv"),
            record(3, workload=W3, task="conv"),
            record(4, workload=W3, task="other name", hardware="b"),
        ]
    )
    assert query.find_workload(store, W2) == W2
    assert query.find_workload(store, "1") == W1
    assert query.find_workload(store, "matmul") == W1
    assert query.find_workload(store, "tir.matmul") == W1
    assert query.find_workload(store, "other name") == W3
    assert query.find_workload(store, "2", hardware="b") == W3
    with pytest.raises(RecordError, match=rf"one workload for 'conv'.* found 2: {W2} \(conv\), "):
        query.find_workload(store, "conv")
    with pytest.raises(RecordError, match=r"one workload for '2'.* found 2: "):
        query.find_workload(store, "2")
    with pytest.raises(RecordError, match=rf"found 'matmull'. Alike: {W1} \(matmul\)"):
        query.find_workload(store, "matmull")
    with pytest.raises(RecordError, match=r"found ''. There are: "):
        query.find_workload(store, "")


def test_only_target(store: RecordStore) -> None:
    store.write([record(1), record(2, target=TAGGED), record(3, hardware="b")])
    assert query.only_target(store, "a") == query.canonical(AVX2)
    store.write([record(4, target=AVX512)])
    with pytest.raises(RecordError, match=r"records for 2 targets, .*core-avx2.*avx512"):
        query.only_target(store, "a")


def test_a_store_of_the_first_schema(tmp_path: Path) -> None:
    """Columns that came later are null: nothing is in quarantine, also after the store has grown."""
    uri = str(tmp_path / "old")
    first = [name for name in SCHEMA.names if name not in ("wall_s", "foreign", "quarantine")]
    write_deltalake(
        uri,
        to_arrow([record(1), record(2, ())]).select(first),
        partition_by=["hardware"],
        name="tencost-records",
        description="schema_version=1",
    )
    store = RecordStore(uri)
    assert ids(query.best(store, hardware="a", target=AVX2)) == ["a-0001"]
    assert query.sql(store, "SELECT wall_s, quarantine FROM records").rows() == [(None, None)] * 2
    assert ids(query.new(store, None)) == ["a-0001", "a-0002"]
    store.write_table(quarantined(record(3)))
    store.write([record(4, (1e-4,))])
    assert ids(query.best(store, hardware="a", target=AVX2, n=9)) == ["a-0004", "a-0001"]
    assert ids(query.new(store, 0)) == ["a-0004"]
    (row,) = query.statistics(store).to_dicts()
    assert (row["records"], row["quarantined"]) == (3, 1)


def test_a_program_that_was_measured_again_is_new(store: RecordStore) -> None:
    store.write([record(1, (), timestamp=1.0), record(2, timestamp=1.0)])
    version = store.version
    store.write([record(1, (2e-3,), timestamp=2.0), record(2, timestamp=1.0)])
    assert ids(query.new(store, version)) == ["a-0001"]
    assert query.new(store, store.version).is_empty()
