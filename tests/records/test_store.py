"""The record store: idempotent, partitioned, safe with two writers, checked on open."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tencost.errors import RecordError
from tencost.records.ids import canonical_target
from tencost.records.schema import (
    SCHEMA,
    SCHEMA_VERSION,
    NetworkWeight,
    Provenance,
    Record,
    Source,
    provenance_from_json,
    to_arrow,
)
from tencost.records.status import Status
from tencost.records.store import RecordStore

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
        "from test_store import record; from tencost.records.store import RecordStore; "
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
    with pytest.raises(RecordError, match=r"found none. Build it: tencost records"):
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
    with pytest.raises(RecordError, match="expected a record store of schema version 1"):
        RecordStore(foreign)
    write_deltalake(
        newer, to_arrow([record(1)]), name="tencost-records", description="schema_version=2"
    )
    with pytest.raises(RecordError, match="found 2 in the table 'tencost-records'"):
        RecordStore(newer)
    RecordStore(broken).write([record(1)])
    log = next((tmp_path / "broken" / "_delta_log").glob("*0.json"))
    log.write_text("{")
    with pytest.raises(RecordError, match="that can be opened"):
        RecordStore(broken)


def test_golden_columns() -> None:
    """The stored schema: a change here needs another SCHEMA_VERSION and a new golden file."""
    golden = (GOLDEN / f"schema-{SCHEMA_VERSION}.txt").read_text()
    assert f"{SCHEMA.to_string(show_schema_metadata=False)}\n" == golden


def test_provenance_keeps_unknown_keys() -> None:
    found = provenance_from_json({"hw_model": "m", "rack": 3, "additional_info": {"host": "x"}})
    assert found == Provenance(hw_model="m", additional_info={"host": "x", "rack": 3})
