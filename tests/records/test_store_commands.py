"""`tencost records quarantine` and `compact`, and the table of modules beside a store."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tencost import cli
from tencost.records.door import faults
from tencost.records.logs import find_logs, import_logs
from tencost.store.modules import modules_uri, stored_modules, write_modules
from tencost.store.record_store import RecordStore
from tencost.store.schema import SCHEMA

CONF = Path(__file__).resolve().parents[2] / "conf"


def line(number: int, cost: float) -> str:
    task = ['["relu_layer", 8, 8]', "cuda", [80, 16, 64, 49152, 2147483647, 1024, 8, 32], "", 0, []]
    steps = [["SP", 1, 0, 64, [number + 1], 1]]
    return json.dumps({"i": [task, [[], steps]], "r": [[cost], 0, 1.0, 1637575039], "v": "v0.6"})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose store has eleven records and one that is quarantined."""
    shutil.copytree(CONF, tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log.json"
    log.write_text("\n".join([*(line(n, 1e-3) for n in range(11)), line(50, 1e-7)]))
    import_logs(find_logs([log], "mine", "board"), RecordStore(str(tmp_path / "data" / "store")))
    return tmp_path


def run(*words: str) -> int:
    try:
        cli.main(["records", *words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def heights(project: Path) -> tuple[int, int]:
    store = RecordStore(str(project / "data" / "store"))
    return store.read().height, store.read(quarantined=True).height


def test_a_quarantined_record_is_listed_and_released(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert heights(project) == (11, 12)
    assert run("quarantine") == 0
    assert "1 quarantined records" in capsys.readouterr().out
    assert run("quarantine", "--release", "nonsense") == 2
    assert "nonsense" in capsys.readouterr().err
    assert run("quarantine", "--release", "all") == 0
    assert "released 1" in capsys.readouterr().out
    assert heights(project) == (12, 12)


def test_compacting_changes_no_record(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = RecordStore(str(project / "data" / "store")).read(quarantined=True)
    assert run("compact") == 0
    assert capsys.readouterr().out
    assert RecordStore(str(project / "data" / "store")).read(quarantined=True).equals(before)


def test_a_store_that_is_not_there_is_said_so(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("quarantine", "--store", str(project / "nowhere")) == 2
    assert "nowhere" in capsys.readouterr().err


def test_modules_are_kept_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "store")
    assert stored_modules(uri).height == 0
    modules = [("a", "{}", "one", "1"), ("b", "{}", "two", "2"), ("a", "{}", "one", "1")]
    assert write_modules(uri, modules) == 2
    assert write_modules(uri, [*modules, ("c", "[]", "three", "3")]) == 1
    assert sorted(stored_modules(uri)["workload_id"]) == ["a", "b", "c"]
    assert modules_uri(uri + "/") == modules_uri(uri)


def test_a_dataset_is_renamed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = RecordStore(str(project / "data" / "store")).read(quarantined=True)
    assert run("rename", "--dataset", "mine", "ours", "--dry-run") == 0
    assert "would be renamed: 12 records of the dataset mine to ours" in capsys.readouterr().out
    after = RecordStore(str(project / "data" / "store")).read(quarantined=True)
    assert after.equals(before)
    assert run("rename", "--dataset", "mine", "ours") == 0
    assert "renamed: 12 records of the dataset mine to ours" in capsys.readouterr().out
    after = RecordStore(str(project / "data" / "store")).read(quarantined=True)
    assert set(after["source"].struct.field("dataset")) == {"ours"}
    assert after.drop("source").equals(before.drop("source"))
    assert run("rename", "--dataset", "mine", "ours") == 2
    assert "found none" in capsys.readouterr().err
    assert run("rename") == 2
    assert "found neither" in capsys.readouterr().err


def test_records_of_a_condition_are_deleted(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("delete", "--where", "quarantine IS NOT NULL -- only those")
    assert run(*where, "--dry-run") == 0
    assert "would be deleted: 1 records of board (1)" in capsys.readouterr().out
    assert heights(project) == (11, 12)
    assert run(*where) == 0
    assert "deleted: 1 records of board (1)" in capsys.readouterr().out
    assert heights(project) == (11, 11)
    assert run(*where) == 2
    assert "found none" in capsys.readouterr().err
    for condition in ("nonsense = 1", "true) --", "true); DROP TABLE records; --"):
        assert run("delete", "--where", condition) == 2
        assert "expected" in capsys.readouterr().err
        assert heights(project) == (11, 11)
    assert run("delete", "--where", "true", "--hardware", "board") == 2
    assert "found both" in capsys.readouterr().err


def test_a_vacuum_deletes_what_no_recent_version_has(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = project / "data" / "store"
    assert run("delete", "--where", "quarantine IS NOT NULL") == 0
    files = sorted(store.rglob("hardware=*/*.parquet"))
    assert len(files) == 2
    assert run("vacuum") == 0
    assert "deleted: 0 files" in capsys.readouterr().out
    for file in files:
        os.utime(file, (0, 0))
    killed = files[0].with_name("left-by-a-killed-writer.parquet")
    killed.write_bytes(b"")
    os.utime(killed, (0, 0))
    assert run("vacuum", "--dry-run") == 0
    assert "would be deleted: 1 files" in capsys.readouterr().out
    assert killed.exists()
    assert run("vacuum") == 0
    assert "deleted: 1 files" in capsys.readouterr().out
    assert not killed.exists()
    assert heights(project) == (11, 11)


def test_what_has_a_fault_is_kept_apart_until_it_is_mended(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the door of a store that several people write to."""
    shared = ("--store", str(project / "shared"), "--dataset", "mine")
    log, rows = project / "log.json", project / "data" / "rejects" / "mine-apart.parquet"
    assert run("import", str(log), *shared, "--hardware", "board", "--gate", "apart") == 0
    assert "12: hardware 12" in capsys.readouterr().err
    assert pq.read_table(rows).num_rows == 12
    (project / "conf" / "hardware" / "board.yaml").write_text(
        (project / "conf" / "hardware" / "v100.yaml").read_text().replace("v100", "board")
    )
    again = project / "again.parquet"
    rows.rename(again)
    assert run("import", str(again), *shared, "--gate", "apart") == 0
    assert "1: times 1" in capsys.readouterr().err
    told = [json.loads(text) for text in rows.with_suffix(".jsonl").read_text().splitlines()]
    assert [item["hardware"] for item in told] == ["board"]
    assert "would be the best of its workload" in told[0]["reason"]
    store = RecordStore(str(project / "shared"))
    assert store.read(quarantined=True).height == store.read().height == 11
    # Nobody need be told twice that a quarantined row is one.
    assert run("import", str(rows), *shared, "--gate", "quarantine") == 0
    assert RecordStore(str(project / "shared")).read(quarantined=True).height == 12


def test_faults_are_told_apart(project: Path) -> None:
    store = RecordStore(str(project / "data" / "store"))
    rows = store.read(quarantined=False).to_arrow().cast(SCHEMA).to_pylist()
    rows = [row | {"hardware": "v100"} for row in rows]
    rows[0]["program_id"] = None
    rows[1]["status"] = "fine"
    rows[2]["run_secs"] = None
    rows[3]["run_secs"] = [-1.0]
    rows[4]["run_secs"] = [float("nan")]
    rows[5]["status"] = "run_error"
    rows[6]["record_id"] = rows[7]["record_id"]
    rows[8]["quarantine"] = "too fast"
    rows[9]["hardware"] = "v-100"
    rows += [rows[10] | {"hardware": "local-4c"}, rows[10] | {"hardware": "epyc-avx2-16c"}]
    found, kinds = faults(pa.Table.from_pylist(rows, schema=SCHEMA))
    assert kinds == [*["schema"] * 6, "ids", "ids", "times", "hardware", None, "hardware", None]
    assert found.null_count() == 2
