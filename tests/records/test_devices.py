"""Whose records they are: what a record names, what a folder was said to be, what is left to a default."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tencost import cli
from tencost.errors import RecordError
from tencost.records.devices import parse_devices
from tencost.records.logs import find_logs, import_logs
from tencost.store.record_store import RecordStore

CONF = Path(__file__).resolve().parents[2] / "conf"
KEY = '["matmul_layer", 64, 64, 64]'


def ansor_line(number: int, target: str) -> str:
    task = [KEY, target, [80, 16, 64, 49152, 2147483647, 1024, 8, 32], "", 0, []]
    state = [[], [["SP", 2, 0, 64, [number + 1], 1]]]
    return json.dumps({"i": [task, state], "r": [[1e-3], 0, 1.5, 1637575039], "v": "v0.6"}) + "\n"


def log(path: Path, *targets: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(ansor_line(number, target) for number, target in enumerate(targets)))
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(CONF, tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_cli(*words: str) -> int:
    try:
        cli.main(["records", *words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def counts(project: Path) -> dict[str, int]:
    frame = RecordStore(str(project / "data" / "store")).read(columns=["hardware"])
    return dict(frame["hardware"].value_counts().iter_rows())


@pytest.mark.parametrize("word", ["--hardware=adreno", "hardware=adreno"])
def test_a_default_overwrites_no_device_that_a_record_names(
    word: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phones = [f"opencl -model=phone{number:02}" for number in range(44)]
    log(project / "logs" / "a.json", *phones, "opencl -device=mali", "opencl -model=unknown")
    assert run_cli("import", "logs", word) == 0
    assert counts(project) == {"adreno": 2, **{f"phone{number:02}": 1 for number in range(44)}}
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "44 targets name another device than adreno: phone00, phone01, phone02, phone03 and 40 more"
        in told
    )
    assert "rename --hardware phone00 adreno" in told


def test_one_target_names_another_device(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(project / "logs" / "a.json", "opencl -model=phone00")
    assert run_cli("import", "logs", "--hardware", "adreno") == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "1 target names another device than adreno: phone00." in shown


def test_what_agrees_is_not_warned_about(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(project / "logs" / "a.json", "cuda -model=v100", "cuda", "cuda -arch=sm_70")
    assert run_cli("import", "logs", "--hardware", "v100") == 0
    assert counts(project) == {"v100": 3}
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "targets", [("cuda", "llvm -mcpu=core-avx2"), ("opencl -device=mali", "opencl -device=adreno")]
)
def test_one_device_for_targets_of_two_kinds_is_warned_about(
    targets: tuple[str, str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(project / "logs" / "a.json", *targets)
    assert run_cli("import", "logs", "--hardware", "v100") == 0
    assert "2 targets of 2 kinds name no device, and all were given v100" in capsys.readouterr().err


def test_a_folder_has_its_own_device(project: Path) -> None:
    log(project / "logs" / "a" / "x.json", "opencl")
    log(project / "logs" / "a" / "deep" / "y.json", "opencl", "opencl -model=own")
    log(project / "logs" / "ab" / "z.json", "opencl")
    log(project / "logs" / "c" / "measure_records" / "folder" / "w.json", "opencl")
    log(project / "logs" / "b.json", "opencl")
    words = ["a=one", "logs/a/deep=two", "logs/b.json=three", "rest"]
    options = [word for item in words for word in ("--hardware", item)]
    assert run_cli("import", "logs", *options) == 0
    assert counts(project) == {"one": 1, "two": 1, "own": 1, "three": 1, "rest": 1, "folder": 1}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["one", "two"], "found one and two"),
        (["a=one", "a=two"], "expected one hardware of a"),
        (["=one"], "expected FOLDER=NAME"),
        (["nowhere=one"], "expected a log in nowhere"),
        (["a=on/e"], "hardware must be letters"),
    ],
)
def test_mistakes_are_one_clear_message(
    words: list[str], told: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(project / "logs" / "a" / "x.json", "opencl")
    options = [word for item in words for word in ("--hardware", item)]
    assert run_cli("import", "logs", *options) == 2
    assert told in capsys.readouterr().err


def test_the_same_folder_said_twice_is_said_once() -> None:
    assert parse_devices(["a/=one", "a=one", "x", "x"]).folders == {"a": "one"}
    with pytest.raises(RecordError):
        parse_devices(["a=one", "a/=two"])


def test_a_renamed_record_is_the_one_that_the_right_name_gives(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing the log again under the right name adds nothing; what was there under it is not there twice."""
    log(project / "logs" / "a.json", "opencl", "opencl -device=mali", "opencl -x=1")
    golden = Path(__file__).parent / "golden"
    for path in golden.glob("database_*.json"):
        shutil.copy(path, project / "logs")
    shutil.copy(project / "logs" / "a.json", project / "b.json")
    assert run_cli("import", "logs", "--hardware", "wrong") == 0
    (project / "b.json").write_text(ansor_line(0, "opencl"))
    assert run_cli("import", "b.json", "--hardware", "right") == 0
    before = counts(project)
    store = RecordStore(str(project / "data" / "store"))
    version = store.version
    capsys.readouterr()
    assert run_cli("rename", "--hardware", "wrong", "right", "--dry-run") == 0
    assert (
        f"would be renamed: {before['wrong'] - 1} records of wrong to right; 1 more"
        in capsys.readouterr().out
    )
    assert (counts(project), store.version) == (before, version)
    assert run_cli("rename", "--hardware", "wrong", "right") == 0
    assert counts(project) == {"right": before["wrong"]}
    again = import_logs(find_logs([project / "logs"], "again", "right"), store, jobs=1)
    assert (again.written, again.records.total()) == (0, before["wrong"])
    assert counts(project) == {"right": before["wrong"]}
    assert RecordStore(store.uri, version=version).hardware() == ["right", "wrong"]


def test_records_are_deleted_by_device_and_file(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(project / "logs" / "deep" / "a.json", "opencl", "opencl -x=1")
    log(project / "logs" / "b.json", "opencl -x=2", "opencl -model=other")
    assert run_cli("import", "logs", "--hardware", "board") == 0
    assert run_cli("delete", "--hardware", "board", "--source", "a.json", "--dry-run") == 0
    assert "would be deleted: 2 records of board from a.json" in capsys.readouterr().out
    assert counts(project) == {"board": 3, "other": 1}
    assert run_cli("delete", "--hardware", "board", "--source", "a.json") == 0
    assert counts(project) == {"board": 1, "other": 1}
    assert run_cli("delete", "--hardware", "board", "--source", "a.json") == 2
    assert "from the file a.json" in capsys.readouterr().err
    assert run_cli("delete", "--hardware", "board") == 0
    assert counts(project) == {"other": 1}
    again = import_logs(
        find_logs([project / "logs"], "logs", "board"),
        RecordStore(str(project / "data" / "store")),
        jobs=1,
    )
    assert again.written == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rename", "--hardware", "moon", "mars"], "expected records of moon"),
        (["rename", "--hardware", "board", "board"], "found the same"),
        (["rename", "--hardware", "board", "a/b"], "hardware must be letters"),
        (["rename"], "OLD NEW"),
        (["delete", "--hardware", "moon"], "expected records of moon"),
        (["delete"], "expected --hardware (and --source), or --where, found neither"),
        (["delete", "--hardware", "board", "--store", "nowhere"], "found none"),
    ],
)
def test_changes_that_cannot_be_are_one_clear_message(
    words: list[str], told: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(project / "logs" / "a.json", "opencl")
    assert run_cli("import", "logs", "--hardware", "board") == 0
    assert run_cli(*words) == 2
    assert told in capsys.readouterr().err
    assert not (project / "nowhere").exists()
    assert counts(project) == {"board": 1}
