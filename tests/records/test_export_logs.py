"""A store's records as logs again: what was imported comes out as it went in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
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


def test_lines_of_several_devices_are_not_mixed(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither format has the device in a line: the fastest line would be any device's."""
    store = RecordStore(str(project / "data" / "store"))
    import_logs(find_logs([project / "logs"], "mine", "phone"), store)
    for kind, content in (("ansor", ANSOR), ("autotvm", AUTOTVM)):
        assert run(kind, "out/all.log") == 2
        message = capsys.readouterr().err
        assert "found 2 in " in message
        assert (
            "board, phone. Choose one with --hardware NAME, or write a file for each with --per-hardware"
            in message
        )
        assert not (project / "out").exists()
        assert run(kind, "out/all.log", "--per-hardware") == 0
        for device in ("board", "phone"):
            assert lines(project / "out" / f"all-{device}.log") == content
        assert run(kind, "out/all.log", "--per-hardware") == 2
        assert (
            "expected a place that is free, found the file out/all-board.log"
            in capsys.readouterr().err
        )
        shutil.rmtree(project / "out")


def test_measurements_without_a_line_of_their_own_are_counted(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = [ansor(0, 2e-3), ansor(0, 3e-3), ansor(1, 5e-3)]
    for number, line in enumerate(again):
        line["r"][3] += number + 1  # type: ignore[index]  # another time of day
    (project / "logs" / "c.json").write_text("".join(json.dumps(item) + "\n" for item in again))
    store = RecordStore(str(project / "data" / "store"))
    progress = import_logs(find_logs([project / "logs" / "c.json"], "mine", "board"), store)
    assert (progress.written, progress.again, progress.repeats) == (0, 3, 0)
    assert run("ansor", "a.json") == 0
    assert (
        "3 records\n3 further measurements of 2 programs have no line of their own"
        in capsys.readouterr().out
    )
    assert len(lines(project / "a.json")) == 3
    assert run("table", "a.parquet") == 0
    assert "further" not in capsys.readouterr().out


def test_rows_with_a_history_are_counted_by_measurement(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row of a table may hold several measurements; none of them was "measured before -2"."""
    again = [ansor(0, 2e-3), ansor(0, 3e-3)]
    for number, line in enumerate(again):
        line["r"][3] += number + 1  # type: ignore[index]
    (project / "logs" / "c.json").write_text("".join(json.dumps(item) + "\n" for item in again))
    import_logs(find_logs([project / "logs"], "mine", "board"), RecordStore("data/store"))
    assert run("table", "all.parquet") == 0
    other = RecordStore(str(project / "other"))
    logs = find_logs([project / "all.parquet"], "again", None)
    first, second = import_logs(logs, other), import_logs(logs, other)
    assert (first.written, first.again, first.repeats) == (5, 2, 0)
    assert (second.written, second.again, second.repeats) == (0, 0, 7)
    capsys.readouterr()
    cli.main(["records", "import", "all.parquet", "--store", "other"])
    told = capsys.readouterr().err
    assert "7 measurements that the store has or that were read twice" in told
    assert " -" not in told


def test_what_a_build_made_is_exported(project: Path) -> None:
    """After a pipeline there is a build and no live store."""
    shutil.copytree(project / "data" / "store", project / "data" / "records" / "built" / "store")
    shutil.rmtree(project / "data" / "store")
    assert run("table", "all.parquet") == 2
    for kind, name in (("table", "all.parquet"), ("rfc4304", "all.jsonl"), ("ansor", "a.json")):
        assert run(kind, name, "--build", "built") == 0
        assert (project / name).is_file()


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


@pytest.mark.parametrize("file", ["table.csv", "table.parquet", "rfc4304.json", "rfc4304.parquet"])
def test_a_full_disk_leaves_no_half_of_a_file(project: Path, file: str) -> None:
    """The same command has to work again, which refuses a place that is taken."""
    words = ["records", "export", Path(file).stem, file, "--store", "data/store"]
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from tencost import cli; resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
        f"cli.main({words})\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Make room" in done.stderr
    assert not Path(file).exists()
    cli.main(words)
    assert Path(file).stat().st_size > 500
