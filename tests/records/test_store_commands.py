"""`tencost records quarantine` and `compact`, and the table of modules beside a store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tencost import cli
from tencost.records.logs import find_logs, import_logs
from tencost.store.modules import modules_uri, read_modules, write_modules
from tencost.store.record_store import RecordStore

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
    assert read_modules(uri).height == 0
    modules = [("a", "{}", "one", "1"), ("b", "{}", "two", "2"), ("a", "{}", "one", "1")]
    assert write_modules(uri, modules) == 2
    assert write_modules(uri, [*modules, ("c", "[]", "three", "3")]) == 1
    assert sorted(read_modules(uri)["workload_id"]) == ["a", "b", "c"]
    assert modules_uri(uri + "/") == modules_uri(uri)
