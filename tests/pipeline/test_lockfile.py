"""dvc.lock that was damaged: what DVC itself refuses is not kept, and is put back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tencost.config import lockfile
from tencost.errors import ConfigError

LOCK = """\
schema: '2.0'
stages:
  fetch:
    cmd: tencost fetch
    outs:
    - path: data/raw
      md5: 8ae0a0ea5f4c5e2d3b7d8b39f2c63e43.dir
      size: 154041
      nfiles: 12
"""
DAMAGED = {
    "a key's letter": LOCK.replace("size", "siiize"),
    "a key of a stage": LOCK.replace("outs", "ouzs"),
    "a digest that is a number": LOCK.replace("8ae0a0ea5f4c5e2d3b7d8b39f2c63e43.dir", "12"),
    "a key twice": LOCK.replace("      nfiles", "      size"),
    "cut off": LOCK[:60],
    "empty": "",
    "no stage": "schema: '2.0'\nstages: {}\n",
    "a list": "- 1\n",
    "another encoding": "\N{LATIN SMALL LETTER E WITH ACUTE}",
    "brackets without end": "[" * 20_000,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    (tmp_path / "dvc.lock").write_text(LOCK)
    lockfile.copy_lockfiles(tmp_path)
    return tmp_path


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_lock_is_put_back(project: Path, damage: str) -> None:
    (project / "dvc.lock").write_bytes(DAMAGED[damage].encode("latin-1"))
    lockfile.copy_lockfiles(project)  # as the next stage does: the sound copy stays
    assert lockfile.mend_lockfiles(project) == {"dvc.lock": "the copy that the last stage kept"}
    assert (project / "dvc.lock").read_text() == LOCK


def test_the_lock_of_the_project_inside_is_kept_beside_it(project: Path) -> None:
    inner = project / "graphs"
    (inner / ".dvc" / "tmp").mkdir(parents=True)
    (inner / "dvc.lock").write_text(LOCK)
    lockfile.copy_lockfiles(project)
    assert (inner / ".dvc" / "tmp" / "dvc.lock.kept").read_text() == LOCK
    (inner / "dvc.lock").write_text(LOCK[:60])
    _used(inner, _gone())
    assert lockfile.mend_lockfiles(project) == {
        "graphs/dvc.lock": "the copy that the last stage kept"
    }
    assert (inner / "dvc.lock").read_text() == LOCK
    assert lockfile.release(project)
    assert not lockfile.release(project)


def test_a_sound_lock_stays(project: Path) -> None:
    more = LOCK.replace("154041", "154042")
    (project / "dvc.lock").write_text(more)
    assert lockfile.mend_lockfiles(project) == {}
    lockfile.copy_lockfiles(project)
    (project / "dvc.lock").unlink()
    assert lockfile.mend_lockfiles(project) == {}, "none is a project whose stages have not run"
    (project / "dvc.lock").write_text("")
    assert lockfile.mend_lockfiles(project)
    assert (project / "dvc.lock").read_text() == more


def test_without_a_copy_all_stages_are_checked_anew(tmp_path: Path) -> None:
    (tmp_path / "dvc.lock").write_text(DAMAGED["cut off"])
    assert lockfile.mend_lockfiles(tmp_path) == {"dvc.lock": "nowhere: all stages are checked anew"}
    assert not (tmp_path / "dvc.lock").exists()


def _used(project: Path, number: int) -> Path:
    path = project / ".dvc" / "tmp" / "rwlock"
    info = {"pid": number, "cmd": "dvc repro"}
    path.write_text(json.dumps({"write": {"data/raw": info}, "read": {"conf": [info]}}))
    return path


@pytest.mark.parametrize("cut", [0, 1, 20, 60, None])
def test_a_damaged_list_of_used_paths_is_removed(project: Path, cut: int | None) -> None:
    path = _used(project, os.getpid())
    path.write_bytes(b"[" * 100_000 if cut is None else path.read_bytes()[:cut])
    assert lockfile.release(project)
    assert not path.exists()
    assert not lockfile.release(project)


def test_what_a_running_command_uses_stays(project: Path) -> None:
    path = _used(project, os.getpid())
    before = path.read_bytes()
    assert not lockfile.release(project)
    assert path.read_bytes() == before


def _gone() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.mark.parametrize("what", ["gone", "a later process", "a zombie"])
def test_what_a_killed_command_used_is_released(project: Path, what: str) -> None:
    child: subprocess.Popen[bytes] | None = None
    if what == "gone":
        path = _used(project, _gone())
    elif what == "a zombie":
        child = subprocess.Popen([sys.executable, "-c", ""])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        path = _used(project, child.pid)
    else:
        path = _used(project, os.getpid())
        os.utime(path, (1e9, 1e9))  # older than the process that has the number now
    assert lockfile.release(project)
    found: dict[str, Any] = json.loads(path.read_text())
    assert found == {"write": {}, "read": {}}
    if child is not None:
        child.wait()


@pytest.mark.parametrize("number", [-5, 0, 10**30])
def test_a_number_that_no_process_has_holds_nothing(project: Path, number: int) -> None:
    used = project / ".dvc" / "tmp" / "rwlock"
    holds = {"write": {"/a": {"pid": number, "cmd": "dvc repro"}}, "read": {}}
    used.write_text(json.dumps(holds))
    assert lockfile.release(project)
    assert json.loads(used.read_text())["write"] == {}


def test_a_folder_in_the_locks_place_is_told(project: Path) -> None:
    (project / "dvc.lock").unlink()
    (project / "dvc.lock").mkdir()
    with pytest.raises(ConfigError, match="found a folder"):
        lockfile.mend_lockfiles(project)


def test_without_git_all_stages_are_checked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dvc.lock").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert lockfile.mend_lockfiles(tmp_path) == {"dvc.lock": "nowhere: all stages are checked anew"}
