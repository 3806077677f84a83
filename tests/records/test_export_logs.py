"""A store's records as logs again: what was imported comes out as it went in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tencost import cli
from tencost.records.logs import find_logs, import_logs
from tencost.store.record_store import RecordStore

CONF = Path(__file__).resolve().parents[2] / "conf"
GOLDEN = Path(__file__).parent / "golden"
HW = [80, 16, 64, 49152, 2147483647, 1024, 8, 32]


def ansor(number: int, cost: float = 1e-3, error: int = 0) -> dict[str, object]:
    task = ['["relu_layer", 8, 8]', "cuda -keys=cuda,gpu", HW, "", 0, []]
    state = [[], [["SP", 1, 0, 64, [number + 1], 1]]]
    return {"i": [task, state], "r": [[cost], error, 1.5, 1637575039], "v": "v0.6"}


def autotvm(number: int) -> dict[str, object]:
    tensors = [["TENSOR", [64, 64], "float32"]] * 2
    return {
        "input": ["cuda -keys=cuda,gpu", "dense.gpu", [*tensors, None, "float32"], {}],
        "config": {"index": number, "code_hash": None, "entity": [["tile_x", "sp", [-1, number]]]},
        "result": [[2e-3], 0, 3.5, 1649992289.5],
        "version": 0.2,
        "tvm_version": "0.8.0",
    }


ANSOR = [ansor(0), ansor(1), ansor(2, 1e10, 6)]
AUTOTVM = [autotvm(1), autotvm(2)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(CONF, tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for name, found in (("a.json", ANSOR), ("b.log", AUTOTVM)):
        (tmp_path / "logs" / name).write_text("".join(json.dumps(item) + "\n" for item in found))
    store = RecordStore(str(tmp_path / "data" / "store"))
    import_logs(find_logs([tmp_path / "logs"], "mine", "board"), store)
    return tmp_path


def run(*words: str) -> int:
    try:
        cli.main(["records", "export", *words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_come_out_as_they_went_in(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ansor", "out/a.json", "--hardware", "board") == 0
    assert run("autotvm", "out/b.log", "--dataset", "mine") == 0
    assert lines(project / "out" / "a.json") == ANSOR
    assert lines(project / "out" / "b.log") == AUTOTVM
    assert "3 records" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("table", "out.parquet"),
        ("table", "out.csv"),
        ("rfc4304", "out.jsonl", "--layout", "columns"),
        ("rfc4304", "out.json"),
        ("tenset", "folder"),
    ],
)
def test_every_format_can_be_imported_again(project: Path, words: tuple[str, ...]) -> None:
    assert run(*words) == 0
    other = RecordStore(str(project / "other"))
    progress = import_logs(find_logs([project / words[1]], "again", None), other)
    expected = len(ANSOR) if words[0] == "tenset" else len(ANSOR) + len(AUTOTVM)
    assert progress.records.total() == expected
    assert other.hardware() == ["board"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "expected `tencost records export` and one of metaschedule, ansor"),
        (("pdf", "x"), "found 'pdf'"),
        (("ansor",), "found none"),
        (("ansor", "logs/a.json"), "free"),
        (("ansor", "x", "--hardware", "moon"), "moon"),
        (("ansor", "x", "--dataset", "theirs"), "found none"),
        (("rfc4304", "x.jsonl", "version=7"), "'7' is not one of"),
        (("rfc4304", "x.jsonl", "--layout", "rows"), "'rows' is not one of"),
        (("table", "x.pdf"), ".parquet"),
    ],
)
def test_mistakes_say_what_is_expected(
    project: Path, words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.is_dir()
    assert run(*words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["columns", "json"])
@pytest.mark.parametrize("name", ["out.jsonl", "out.json", "out.parquet"])
def test_every_record_comes_back_from_rfc4304_as_one_row(
    project: Path, name: str, layout: str
) -> None:
    """Many programs of a workload within a second, failures, a program that was measured again."""
    many = [ansor(number, 1e-3 / (3 + number)) for number in range(40)]
    many += [ansor(7, 1 / 3e4), ansor(8, 1e10, 6)]
    (project / "logs" / "c.json").write_text("".join(json.dumps(item) + "\n" for item in many))
    store = RecordStore(str(project / "data" / "store"))
    import_logs(find_logs([project / "logs"], "mine", "board"), store)
    import_logs(find_logs([GOLDEN], "golden", "cpu"), store)
    before = store.read().drop("source")
    assert before["measurements"].drop_nulls().len() > 1
    assert run("rfc4304", name, "--layout", layout) == 0
    logs = find_logs([project / name], "again", None)
    progress = import_logs(logs, store)
    assert (progress.written, progress.again) == (0, 0)
    assert progress.records.total() == before.height
    fresh = RecordStore(str(project / "fresh"))
    assert import_logs(logs, fresh).written == before.height
    known = [
        "record_id",
        "program_id",
        "workload_id",
        "hardware",
        "target",
        "networks",
        "timestamp",
    ]
    known += ["status", "error", "run_secs", "program_format", "program", "measurements", "foreign"]
    order = ["hardware", "record_id"]
    assert fresh.read().sort(order).select(known).equals(before.sort(order).select(known))
