"""Files and folders appear whole or not at all, whatever kills their writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tencost.writing import append_line, scratch_beside, whole_file, whole_folder

KILL = "import os, signal, sys; from pathlib import Path; from tencost.writing import *; place = Path(sys.argv[1])\n"
DIE = "os.kill(os.getpid(), signal.SIGKILL)"


def killed(code: str, place: Path) -> None:
    """Run code in a process that ends with its own kill -9."""
    done = subprocess.run([sys.executable, "-c", KILL + code, str(place)], check=False)
    assert done.returncode == -signal.SIGKILL


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_replaces_an_older_one(tmp_path: Path, durable: bool) -> None:
    place = tmp_path / "deep" / "table.csv"
    for text in ("old", "new"):
        with whole_file(place, durable=durable) as path:
            assert path.suffix == ".csv"
            path.write_text(text)
            assert place.exists() == (text == "new")
        assert place.read_text() == text
    assert names(place.parent) == ["table.csv"]


def test_a_folder_replaces_an_older_one(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "report"
    for text in ("old", "new"):
        with whole_folder(place) as folder:
            (folder / f"{text}.txt").write_text(text)
        assert names(place) == [f"{text}.txt"]
    assert names(place.parent) == ["report"]


def test_an_error_leaves_the_old(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    (tmp_path / "file").write_text("old")

    def half_a_file() -> None:
        with whole_file(tmp_path / "file") as path:
            path.write_text("half")
            raise ZeroDivisionError

    def half_a_folder() -> None:
        with whole_folder(tmp_path / "folder") as folder:
            (folder / "half").touch()
            raise ZeroDivisionError

    for write in (half_a_file, half_a_folder):
        with pytest.raises(ZeroDivisionError):
            write()
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "file"):
        pass  # nothing was written
    assert names(tmp_path) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path / "folder") == ["old"]


def test_a_kill_half_way_leaves_the_old(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    (tmp_path / "file").write_text("old")
    killed(f"with whole_file(place) as path:\n  path.write_text('half'); {DIE}", tmp_path / "file")
    killed(f"with whole_folder(place) as it:\n  (it / 'half').touch(); {DIE}", tmp_path / "folder")
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path / "folder") == ["old"]
    left = [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]
    assert len(left) == 2
    with whole_file(tmp_path / "file") as path:
        path.write_text("new")
    with whole_folder(tmp_path / "folder"):
        pass
    assert names(tmp_path) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "new"
    assert names(tmp_path / "folder") == []


def test_a_kill_between_the_renames_loses_nothing(tmp_path: Path) -> None:
    """The old folder was moved away, the new one is not there yet; the next writer puts the old one back."""
    place = tmp_path / "folder"
    place.mkdir()
    (place / "old").touch()
    killed(
        f"rename = Path.rename\ndef once(self, to):\n  rename(self, to); {DIE}\n"
        "Path.rename = once\nwith whole_folder(place): pass",
        place,
    )
    assert not place.exists()
    with pytest.raises(ZeroDivisionError), whole_folder(place):
        raise ZeroDivisionError
    assert names(tmp_path) == ["folder"]
    assert names(place) == ["old"]


def test_what_running_writers_have_is_left(tmp_path: Path) -> None:
    place = tmp_path / "file"
    other = tmp_path / f".file.{os.getppid()}-0.partial"
    mine_of_another_life = tmp_path / f".file.{os.getpid()}-0.partial"
    for left in (other, mine_of_another_life):
        left.mkdir()
    with scratch_beside(place) as first, scratch_beside(place) as second:
        assert first.is_dir()
        assert second.is_dir()
        assert other.is_dir()
        assert not mine_of_another_life.exists()


def test_threads_write_one_place(tmp_path: Path) -> None:
    def write(number: int) -> None:
        with whole_file(tmp_path / "file") as path:
            path.write_text(str(number) * 1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(8)))
    assert len(set((tmp_path / "file").read_text())) == 1
    assert names(tmp_path) == ["file"]


def test_a_line_is_added_behind_one_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lines.jsonl"
    append_line(path, "first")
    assert path.read_bytes() == b"first\n"
    with path.open("ab") as file:
        file.write(b"half")
    append_line(path, "second")
    append_line(path, "third")
    assert path.read_bytes() == b"first\nhalf\nsecond\nthird\n"
