"""The record store: idempotent, partitioned, safe with two writers, checked on open."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Schema
from hypothesis import given, settings
from hypothesis import strategies as st

from tencost.errors import RecordError
from tencost.store import compaction, layout
from tencost.store.delta import READABLE
from tencost.store.ids import canonical_target
from tencost.store.layout import DataFile, Folder, data_files, latency
from tencost.store.record_store import RecordStore
from tencost.store.rewriting import Rewriting
from tencost.store.schema import (
    ADDED,
    SCHEMA,
    SCHEMA_VERSION,
    NetworkWeight,
    Provenance,
    Record,
    Source,
    provenance_from_json,
    to_arrow,
)
from tencost.store.status import Status

GOLDEN = Path(__file__).parent / "golden"
AVX2 = {"kind": "llvm", "mcpu": "core-avx2"}


def record(number: int, hardware: str = "a", run_secs: tuple[float, ...] = (1e-3, 3e-3)) -> Record:
    failed = not run_secs
    return Record(
        record_id=f"{hardware}-{number:04}",
        program_id=f"p{number}",
        workload_id="w",
        task_name="matmul",
        networks=(NetworkWeight("net", 2),),
        hardware=hardware,
        target=AVX2,
        program_format="metaschedule_trace",
        program="[[],[]]",
        run_secs=run_secs,
        status=Status.run_error if failed else Status.ok,
        error="crashed" if failed else "",
        source=Source("set", "file", number),
        provenance=Provenance(engine_version="0.27", additional_info={"host": "x"}),
        extra={"raw_run_secs": "[1e10]"} if failed else None,
    )


def test_write_and_read(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    assert not store.exists()
    assert store.hardware() == []
    assert store.write([record(1), record(2, run_secs=()), record(3, "b", (5e-3,))]) == 3
    assert store.exists()
    assert store.hardware() == ["a", "b"]
    assert sorted(path.name for path in (tmp_path / "store").glob("hardware=*")) == [
        "hardware=a",
        "hardware=b",
    ]
    first, failed, single = store.read().to_dicts()
    assert first["run_secs"] == [1e-3, 3e-3]
    assert first["networks"] == [{"network": "net", "weight": 2}]
    assert first["source"] == {"dataset": "set", "file": "file", "line": 1}
    assert first["execution_elapsed_ms_mean"] == pytest.approx(2.0)
    assert first["execution_elapsed_ms_std"] == pytest.approx(2**0.5)
    assert first["schema_version"] == SCHEMA_VERSION
    assert json.loads(first["target"]) == AVX2
    assert failed["run_secs"] is None
    assert failed["execution_elapsed_ms_mean"] is None
    assert (failed["status"], failed["error"]) == ("run_error", "crashed")
    assert json.loads(failed["additional_info"]) == {"host": "x", "raw_run_secs": "[1e10]"}
    assert single["execution_elapsed_ms_std"] is None
    assert store.read("b", ["record_id"]).to_dicts() == [{"record_id": "b-0003"}]


def test_the_same_record_twice_is_one_row(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    assert store.write([record(1), record(1), record(2)]) == 2
    assert store.write([record(2), record(3), record(1, "b")]) == 2
    assert store.write([record(1), record(2)]) == 0
    assert store.write([]) == 0
    assert len(store.read()) == 4


@pytest.mark.parametrize("name", ["it's", "a b", "ä/ö", "100%"])
def test_odd_hardware_names(tmp_path: Path, name: str) -> None:
    store = RecordStore(str(tmp_path / "store"))
    assert store.write([record(1, name), record(2, "plain")]) == 2
    assert store.write([record(1, name)]) == 0
    assert store.hardware() == sorted([name, "plain"])
    assert store.read(name)["record_id"].to_list() == [f"{name}-0001"]


def test_writers_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    """Overlapping writes from several threads, the creation of the table included."""
    uri = str(tmp_path / "store")

    def write(writer: int) -> int:
        mine = [record(number) for number in range(writer, writer + 6)]
        return sum(RecordStore(uri).write(mine[part : part + 3]) for part in (0, 3))

    with ThreadPoolExecutor(4) as pool:
        written = list(pool.map(write, range(4)))
    ids = RecordStore(uri).read()["record_id"].to_list()
    assert ids == [f"a-{number:04}" for number in range(9)]
    assert sum(written) == 9


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "from test_store import record; from tencost.store.record_store import RecordStore; "
        "[RecordStore(sys.argv[2]).write([record(n), record(n + 1)]) for n in range(5)]"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path / "store")]
    jobs = [subprocess.Popen(command) for _ in range(2)]
    assert [job.wait(120) for job in jobs] == [0, 0]
    ids = RecordStore(str(tmp_path / "store")).read()["record_id"].to_list()
    assert ids == [f"a-{number:04}" for number in range(6)]


def test_lookup_names_hardware_and_target(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    other = {"kind": "llvm", "mcpu": "sapphirerapids"}
    store.write(
        [
            record(1, run_secs=(3e-3,)),
            record(2, run_secs=()),
            record(3, run_secs=(1e-3,)),
            replace(record(4, run_secs=(1e-4,)), target=other),
            record(5, "b", run_secs=(1e-5,)),
        ]
    )
    wanted = canonical_target({**AVX2, "tag": ""})
    found = store.lookup("w", hardware="a", target=wanted, columns=["record_id"])
    assert found["record_id"].to_list() == ["a-0003", "a-0001", "a-0002"]
    assert store.lookup("v", hardware="a", target=wanted).is_empty()
    assert store.lookup("w", hardware="a", target=canonical_target({"kind": "cuda"})).is_empty()


def test_errors_name_what_is_there(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    with pytest.raises(
        RecordError, match=r"found none. Import logs into it: tencost records import LOGS"
    ):
        store.read()
    store.write([record(1)])
    with pytest.raises(RecordError, match=r"expected records of b, c in .* found only a"):
        store.read(["a", "b", "c"])
    with pytest.raises(RecordError, match=r"found speed\. Valid: record_id"):
        store.read(columns=["speed"])
    with pytest.raises(RecordError, match="expected the columns of the record schema"):
        store.write_table(pa.table({"record_id": ["x"]}))


def test_other_tables_are_refused(tmp_path: Path) -> None:
    foreign, newer, broken = (str(tmp_path / name) for name in ("foreign", "newer", "broken"))
    write_deltalake(foreign, pa.table({"x": [1]}))
    with pytest.raises(
        RecordError, match="expected a record store of schema version 1 or 2 or 3 or 4"
    ):
        RecordStore(foreign)
    write_deltalake(
        newer, to_arrow([record(1)]), name="tencost-records", description="schema_version=5"
    )
    with pytest.raises(RecordError, match=r"version 4 or earlier .* found 5: a newer tencost"):
        RecordStore(newer)
    RecordStore(broken).write([record(1)])
    log = next((tmp_path / "broken" / "_delta_log").glob("*0.json"))
    log.write_text("{")
    with pytest.raises(RecordError, match="that can be opened"):
        RecordStore(broken)


def golden(tmp_path: Path, version: str) -> RecordStore:
    """A copy of the golden store of a schema version (golden/make_store.py wrote it)."""
    folder = tmp_path / f"store-{version}"
    shutil.copytree(GOLDEN / f"store-{version}", folder)
    return RecordStore(str(folder))


@pytest.mark.parametrize("version", READABLE)
def test_golden_stores_are_read(tmp_path: Path, version: str) -> None:
    store = golden(tmp_path, version)
    assert store.hardware() == ["a", "b", "ä b"]
    frame = store.read()
    assert frame.columns == SCHEMA.names
    assert [int(text, 16) for text in frame["record_id"]] == [1, 3, 4, 2, 5]
    assert frame["run_secs"].to_list() == [[3e-3, 1e-3], [1e-3], None, [4e-3], [5e-3]]
    assert frame["schema_version"].to_list() == [version] * 5
    assert set(frame["generator"]) == {"unknown"}
    for name in (name for names in ADDED.values() for name in names if name != "generator"):
        assert frame[name].null_count() == 5, name
    found = store.best(f"{1:032x}", hardware="a", target=AVX2, n=9)
    assert [int(text, 16) for text in found["record_id"]] == [3, 1]
    assert store.lookup(f"{1:032x}", hardware="ä b", target=AVX2)["run_secs"].to_list() == [[5e-3]]


@pytest.mark.parametrize("version", READABLE)
def test_golden_stores_are_written_to(tmp_path: Path, version: str) -> None:
    store = golden(tmp_path, version)
    before = store.read()
    again = to_arrow([record(1)]).to_pylist()[0] | {"wall_s": 2.5, "quarantine": "too fast"}
    stored = before.row(0, named=True)
    rows = [again, stored | {"networks": None, "wall_s": 1.0}]
    assert store.write_table(pa.Table.from_pylist(rows, schema=SCHEMA)) == 1
    after = store.read(quarantined=True)
    assert len(after) == 6
    assert store.read().equals(before)
    (new,) = after.filter(after["record_id"] == "a-0001").to_dicts()
    assert (new["wall_s"], new["quarantine"]) == (2.5, "too fast")
    table = DeltaTable(store.uri)
    assert table.metadata().description == f"schema_version={SCHEMA_VERSION}"
    assert [field.name for field in table.schema().fields] == SCHEMA.names
    assert store.compact(full=True).after == 6
    assert store.read().equals(before)
    assert RecordStore(store.uri, version=2).read().equals(before)


def test_two_writers_upgrade_at_once(tmp_path: Path) -> None:
    uri = golden(tmp_path, "1").uri

    def write(writer: int) -> int:
        return RecordStore(uri).write([record(writer), record(9)])

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, range(4))) == 5
    assert len(RecordStore(uri).read()) == 10


def test_an_upgrade_that_was_killed_is_finished(tmp_path: Path) -> None:
    store = golden(tmp_path, "1")
    columns = Schema.from_arrow(pa.schema([SCHEMA.field(name) for name in ADDED["2"]])).fields
    DeltaTable(store.uri).alter.add_columns(columns)
    assert len(store.read()) == 5
    assert store.write([record(1)]) == 1
    assert RecordStore(store.uri).read("a").height == 4


def test_quarantined_records_are_left_out_until_released(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    rows = to_arrow([record(1), record(2, run_secs=(1e-6,)), record(3, "b")]).to_pylist()
    rows[1]["quarantine"] = "1000 times faster than the best"
    store.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
    ids = ["record_id"]
    assert store.read(columns=ids)["record_id"].to_list() == ["a-0001", "b-0003"]
    assert len(store.read("a", ids, quarantined=True)) == 2
    for find in (store.best, store.lookup):
        assert find("w", hardware="a", target=AVX2, columns=ids).item() == "a-0001"
        kept = find("w", hardware="a", target=AVX2, columns=ids, quarantined=True)
        assert kept["record_id"][0] == "a-0002"
    assert store.release(["a-0001", "a-0002", "x"]) == 1
    assert store.release(["a-0002"]) == 0
    assert store.best("w", hardware="a", target=AVX2, columns=ids).item() == "a-0002"
    assert len(store.read()) == 3


def test_best_never_crosses_hardware_or_target(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    other = {"kind": "llvm", "mcpu": "sapphirerapids"}
    store.write(
        [
            record(1, run_secs=(3e-3,)),
            record(2, run_secs=()),
            record(3, run_secs=(1e-3, 1e-3, 9e-3)),
            replace(record(4, run_secs=(1e-4,)), target=other),
            record(5, "b", run_secs=(1e-5,)),
            replace(record(6, run_secs=(1e-6,)), workload_id="v"),
            record(7, run_secs=(1e-3,)),
        ]
    )

    def ids(**keywords: Any) -> list[str]:
        return store.best("w", columns=["record_id"], **keywords)["record_id"].to_list()

    assert ids(hardware="a", target=AVX2) == ["a-0003"]
    assert ids(hardware="a", target={**AVX2, "tag": ""}, n=2) == ["a-0003", "a-0007"]
    assert ids(hardware="a", target=canonical_target(AVX2), n=9) == ["a-0003", "a-0007", "a-0001"]
    assert ids(hardware="a", target='{"mcpu": "sapphirerapids", "kind": "llvm"}') == ["a-0004"]
    assert ids(hardware="b", target=AVX2) == ["b-0005"]
    assert ids(hardware="b", target=other) == []
    whole = store.best("w", hardware="a", target=AVX2)
    assert whole.columns == SCHEMA.names
    assert whole["run_secs"].to_list() == [[1e-3, 1e-3, 9e-3]]
    assert store.best("u", hardware="a", target=AVX2).columns == SCHEMA.names
    with pytest.raises(RecordError, match=r"expected records of c in .* found only a, b"):
        ids(hardware="c", target=AVX2)
    with pytest.raises(RecordError, match="expected a target as a JSON object, found"):
        ids(hardware="a", target="[1]")


def test_versions_can_be_read_and_not_changed(tmp_path: Path) -> None:
    uri = str(tmp_path / "store")
    store = RecordStore(uri)
    assert store.version is None
    with pytest.raises(RecordError, match=r"found none\. Import logs into it"):
        RecordStore(uri, version=0)
    store.write([record(1)])
    first = store.version
    store.write([record(2, run_secs=(1e-6,))])
    assert first is not None
    assert store.version == first + 1
    past = RecordStore(uri, version=first)
    assert past.version == first
    assert past.read(columns=["record_id"])["record_id"].to_list() == ["a-0001"]
    assert past.best("w", hardware="a", target=AVX2)["record_id"].item() == "a-0001"
    with pytest.raises(RecordError, match=f"found it opened at version {first}"):
        past.write([record(3)])
    with pytest.raises(RecordError, match="version 99, found none that can be opened"):
        RecordStore(uri, version=99)


def test_compaction_keeps_rows_versions_and_order(tmp_path: Path) -> None:
    uri = str(tmp_path / "store")
    store = RecordStore(uri)
    for number in range(6):
        one = replace(record(number, run_secs=((9 - number) * 1e-3,)), workload_id=f"w{number % 3}")
        store.write([one, record(number, "b")])
    before, version = store.read(), store.version
    done = store.compact()
    assert (len(done.replaced), len(done.added), done.after) == (12, 2, 12)
    assert store.read().equals(before)
    assert store.compact() == Rewriting()
    assert store.version == (version or 0) + 2
    files = [file for file in data_files(DeltaTable(uri)) if file.hardware == "a"]
    assert [(file.lowest, file.highest, file.rows) for file in files] == [("w0", "w2", 6)]
    stored = pq.read_table(tmp_path / "store" / files[0].path)
    assert stored["workload_id"].to_pylist() == ["w0", "w0", "w1", "w1", "w2", "w2"]
    assert RecordStore(uri, version=version).read().equals(before)
    assert store.vacuum(0) == 12
    assert store.read().equals(before)


def test_vacuum_leaves_what_a_running_writer_has_written(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    store.write([record(1)])
    pending = Folder(store.uri).write(to_arrow([record(2)]))
    assert store.vacuum(1) == 0
    assert (tmp_path / "store" / pending[0].path).is_file()
    assert store.vacuum(0) == 1
    assert len(store.read()) == 1


def test_a_store_made_anew_is_seen_by_who_knew_the_old_one(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    store.write([record(1)])
    assert store.best("w", hardware="a", target=AVX2)["record_id"].item() == "a-0001"
    shutil.rmtree(store.uri)
    RecordStore(store.uri).write([record(2)])
    assert store.best("w", hardware="a", target=AVX2)["record_id"].item() == "a-0002"


def test_files_through_delta_lakes_storage(tmp_path: Path) -> None:
    """How files are written to an object store, shown on a folder."""
    RecordStore(str(tmp_path / "store")).write([record(1)])
    folder = Folder(str(tmp_path / "store"))
    folder.local = None
    (added,) = folder.write(to_arrow([record(2), record(3)]))
    assert added.size == (tmp_path / "store" / added.path).stat().st_size
    rows = folder.scan([DataFile(added.path, "a")]).select("record_id", "hardware").collect()
    assert rows.to_dicts() == [
        {"record_id": "a-0002", "hardware": "a"},
        {"record_id": "a-0003", "hardware": "a"},
    ]


@settings(max_examples=15, deadline=None)
@given(data=st.data(), groups=st.integers(1, 4), n=st.integers(1, 7), compacted=st.booleans())
def test_best_is_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    groups: int,
    n: int,
    compacted: bool,
) -> None:
    """Row groups of a few rows, files of a few groups: skipping any of them changes no answer."""
    row = st.tuples(
        st.integers(0, 3),
        st.sampled_from([AVX2, {"kind": "llvm"}]),
        st.lists(st.sampled_from([1e-3, 2e-3, 3e-3, 5e-3]), max_size=3),
        st.booleans(),
    )
    made = data.draw(st.lists(row, min_size=1, max_size=40))
    rows = []
    for number, (workload, target, times, kept) in enumerate(made):
        one = replace(record(number, run_secs=tuple(times)), workload_id=f"w{workload}")
        rows += to_arrow([replace(one, target=target)]).to_pylist()
        rows[-1]["quarantine"] = None if kept else "bad"
    store = RecordStore(str(tmp_path_factory.mktemp("best") / "store"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "GROUP_ROWS", (1, 3))
        patch.setattr(layout, "FILE_GROUPS", groups)
        for first in range(0, len(rows), 15):
            store.write_table(pa.Table.from_pylist(rows[first : first + 15], schema=SCHEMA))
        if compacted:
            patch.setattr(compaction, "RANGE_BYTES", 2000)
            store.compact(full=True)
    assert len(store.read(quarantined=True)) == len(rows)
    for wanted in ("w0", "w3"):
        scan = store.read("a").filter(
            (pl.col("workload_id") == wanted) & (pl.col("target") == canonical_target(AVX2))
        )
        scan = scan.with_columns(t=latency()).sort(["t", "record_id"], nulls_last=True)
        expected = scan.drop_nulls("t").head(n).drop("t")
        assert store.best(wanted, hardware="a", target=AVX2, n=n).equals(expected)
        assert store.lookup(wanted, hardware="a", target=AVX2).equals(scan.drop("t"))


def test_golden_columns() -> None:
    """The stored schema: a change here needs another SCHEMA_VERSION and a new golden file."""
    golden = (GOLDEN / f"schema-{SCHEMA_VERSION}.txt").read_text()
    assert f"{SCHEMA.to_string(show_schema_metadata=False)}\n" == golden


def test_provenance_keeps_unknown_keys() -> None:
    found = provenance_from_json({"hw_model": "m", "rack": 3, "additional_info": {"host": "x"}})
    assert found == Provenance(hw_model="m", additional_info={"host": "x", "rack": 3})


def measured(
    number: int, timestamp: float | None, run_secs: tuple[float, ...], file: str = "file"
) -> Record:
    """A measurement of the record of that number."""
    return replace(
        record(number, run_secs=run_secs),
        provenance=Provenance(timestamp=timestamp, additional_info={"file": file}),
        source=Source("set", file, number),
    )


def only_row(store: RecordStore) -> dict[str, Any]:
    (row,) = store.read().to_dicts()
    return row


@pytest.mark.parametrize(
    "batches", [[(0, 1, 2)], [(0,), (1,), (2,)], [(2,), (0, 1)], [(1, 2), (0,)]]
)
def test_ok_replaces_a_failure_and_all_measurements_count(
    tmp_path: Path, batches: list[tuple[int, ...]]
) -> None:
    """Whatever is written first, and with what: one row, its latency the median over all runs."""
    found = [measured(1, 5.0, ()), measured(1, 6.0, (9e-3, 3e-3)), measured(1, 7.0, (1e-3,) * 3)]
    store = RecordStore(str(tmp_path / "store"))
    for batch in batches:
        assert store.write([found[number] for number in batch]) == len(batch)
    for batch in batches:
        assert store.write([found[number] for number in batch]) == 0
    row = only_row(store)
    assert (row["status"], row["error"], row["timestamp"]) == ("ok", None, 6.0)
    assert row["run_secs"] == [9e-3, 3e-3, 1e-3, 1e-3, 1e-3]
    assert row["execution_elapsed_ms_mean"] == pytest.approx(3.0)
    assert [item["timestamp"] for item in row["measurements"]] == [5.0, 6.0, 7.0]
    assert [item["status"] for item in row["measurements"]] == ["run_error", "ok", "ok"]
    best = store.best("w", hardware="a", target=AVX2).with_columns(t=latency())
    assert best["t"].to_list() == [1e-3]


def test_of_failures_alone_the_latest_is_told(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    later = replace(measured(1, 6.0, ()), status=Status.build_timeout, error="slow")
    assert store.write([later, measured(1, 5.0, ())]) == 2
    row = only_row(store)
    assert (row["status"], row["error"], row["run_secs"]) == ("build_timeout", "slow", None)
    assert len(row["measurements"]) == 2


def test_one_measurement_is_known_without_its_time_stamp_or_place(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    assert store.write([measured(1, 5.0, (1e-3, 2e-3))]) == 1
    assert store.write([measured(1, 5.0, (1e-3, 2e-3), "elsewhere")]) == 0
    assert store.write([measured(1, None, (1e-3, 2e-3))]) == 0
    assert only_row(store)["measurements"] is None
    assert store.write([measured(1, None, (1e-3, 2.1e-3))]) == 1
    assert store.write([measured(1, 8.0, (1e-3, 2e-3))]) == 1
    assert [item["timestamp"] for item in only_row(store)["measurements"]] == [None, 5.0, 8.0]


def test_other_rows_stay_as_they_are_where_one_is_measured_again(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    store.write([*(record(number) for number in range(20)), record(3, "b")])
    version, before = store.version, store.read()
    assert store.write([measured(7, 9.0, (1e-4,)), measured(30, 9.0, (1e-4,))]) == 2
    after = store.read()
    assert after.height == 22
    untouched = after.filter(~pl.col("record_id").is_in(["a-0007", "a-0030"]))
    assert untouched.equals(before.filter(pl.col("record_id") != "a-0007"))
    assert RecordStore(store.uri, version=version).read().equals(before)


def test_a_quarantined_measurement_counts_only_once_released(tmp_path: Path) -> None:
    store = RecordStore(str(tmp_path / "store"))
    store.write([measured(1, 5.0, (2e-3,))])
    (forged,) = to_arrow([measured(1, 6.0, (1e-9,))]).to_pylist()
    forged["quarantine"] = "too fast"
    assert store.write_table(pa.Table.from_pylist([forged], schema=SCHEMA)) == 1
    assert only_row(store)["run_secs"] == [2e-3]
    assert store.release(["a-0001"]) == 1
    assert only_row(store)["run_secs"] == [2e-3, 1e-9]
    assert store.release(["a-0001"]) == 0


def test_writers_at_once_keep_all_measurements_of_a_program(tmp_path: Path) -> None:
    uri = str(tmp_path / "store")

    def write(writer: int) -> int:
        times = [1e-3 * (1 + writer), 1e-4 * (1 + writer)]
        return sum(RecordStore(uri).write([measured(1, 1.0, (time,))]) for time in times)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, range(4))) == 8
    assert len(only_row(RecordStore(uri))["measurements"]) == 8
