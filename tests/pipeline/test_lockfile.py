"""dvc.lock that was damaged: what DVC itself refuses is not kept, and is put back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tencost.config import lockfile

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
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".dvc" / "tmp").mkdir(parents=True)
    (tmp_path / "dvc.lock").write_text(LOCK)
    lockfile.keep(tmp_path)
    return tmp_path


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_lock_is_put_back(project: Path, damage: str) -> None:
    (project / "dvc.lock").write_bytes(DAMAGED[damage].encode("latin-1"))
    lockfile.keep(project)  # as the next stage does: the sound copy stays
    assert lockfile.mend(project) == {"dvc.lock": "the copy that the last stage kept"}
    assert (project / "dvc.lock").read_text() == LOCK


def test_a_sound_lock_stays(project: Path) -> None:
    more = LOCK.replace("154041", "154042")
    (project / "dvc.lock").write_text(more)
    assert lockfile.mend(project) == {}
    lockfile.keep(project)
    (project / "dvc.lock").unlink()
    assert lockfile.mend(project) == {}, "none is a project whose stages have not run"
    (project / "dvc.lock").write_text("")
    assert lockfile.mend(project)
    assert (project / "dvc.lock").read_text() == more


def test_without_a_copy_all_stages_are_checked_anew(tmp_path: Path) -> None:
    (tmp_path / "dvc.lock").write_text(DAMAGED["cut off"])
    assert lockfile.mend(tmp_path) == {"dvc.lock": "nowhere: all stages are checked anew"}
    assert not (tmp_path / "dvc.lock").exists()
