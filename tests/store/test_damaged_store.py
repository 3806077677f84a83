"""A file of the store that is damaged or gone: one message that names the store, whoever reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tencost import cli
from tencost.config.parts import LOG_FORMATS
from tencost.errors import RecordError
from tencost.store.record_store import RecordStore


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    (tmp_path / "ansor.json").write_text(LOG_FORMATS.load("ansor").example["ansor.json"])
    words = ["--hardware", "board", "--store", str(tmp_path / "store"), "--jobs", "1"]
    cli.main(["records", "import", str(tmp_path / "ansor.json"), *words])
    capsys.readouterr()
    return tmp_path / "store"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def swap(path: Path) -> None:
    path.write_bytes(b"PAR1" + path.read_bytes()[4:-40] + b"\x80" * 40)


DAMAGES: list[Callable[[Path], None]] = [cut, swap, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "words",
    [
        ["query", "best", "--hardware", "i7"],
        ["query", "stats"],
        ["query", "sql", "SELECT run_secs FROM records"],
        ["export", "table", "out.parquet"],
        ["rename", "--hardware", "i7", "i9"],
        ["import", "ansor.json", "--jobs", "1"],
        ["quarantine"],
    ],
    ids=lambda words: words[0],
)
def test_a_damaged_file_is_one_message(
    store: Path,
    words: list[str],
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(store.parent)
    (part,) = store.glob("hardware=*/*.parquet")
    damage(part)
    with pytest.raises(SystemExit) as stop:
        cli.main(["records", *words, "--store", str(store)])
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert told.lstrip().startswith("tencost: ")
    assert str(store) in told


def test_a_damaged_log_is_told_in_a_line(store: Path) -> None:
    (store / "_delta_log" / "00000000000000000000.json").write_text("{")
    with pytest.raises(RecordError) as error:
        RecordStore(str(store)).read()
    assert len(str(error.value).splitlines()) == 1


def test_damaged_modules_are_told_in_a_line(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := store.parent / "golden").mkdir()
    for name, text in LOG_FORMATS.load("metaschedule").example.items():
        (folder / name).write_text(text)
    words = ["records", "import", str(folder), "--hardware", "x", "--store", str(store)]
    cli.main(words)
    log = store.with_name("store-modules") / "_delta_log" / "00000000000000000000.json"
    log.write_text("{")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main(words)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
