"""Every `tencost records` command at a store that TENCOST_STORE names on an object store; DVC with the same one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_store_commands import CONF, line, run

from servers import BUCKET
from tencost.store.record_store import RecordStore

pytestmark = pytest.mark.slow


@pytest.fixture
def project(as_writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A project whose live store is shared, and a log beside it; returns the store's address."""
    shutil.copytree(CONF, tmp_path / "conf")
    (tmp_path / "log.json").write_text("\n".join(line(n, 1e-3) for n in range(11)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENCOST_STORE", as_writer)
    return as_writer


def test_every_command(project: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("import", "log.json", "--hardware", "v100", "--dataset", "mine") == 0
    told = capsys.readouterr().err
    assert "11 (s3://" in " ".join(told.split())
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in told
    assert run("import", "log.json", "--hardware", "v100", "--dataset", "mine") == 0
    assert run("import", "log.json", "--hardware", "somebodys", "--dataset", "theirs") == 0
    assert "kept apart" in capsys.readouterr().err
    assert run("query", "stats", "--json") == 0
    (stats,) = json.loads(capsys.readouterr().out)
    assert (stats["hardware"], stats["records"]) == ("v100", 11)
    assert run("query", "best", "--hardware", "v100", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert run("query", "sql", "SELECT count(*) AS n FROM records", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 11}]
    assert run("query", "new", "--since", "0") == 0
    assert run("quarantine") == 0
    assert run("rename", "--hardware", "v100", "k80", "--dry-run") == 0
    assert run("rename", "--hardware", "v100", "k80") == 0
    assert "renamed: 11 records of v100 to k80" in capsys.readouterr().out
    assert run("rename", "--dataset", "mine", "ours") == 0
    assert run("delete", "--where", "source.line < 3", "--dry-run") == 0
    assert run("delete", "--where", "source.line < 3") == 0
    told = capsys.readouterr().out
    assert "deleted: 2 records of k80 (2)" in told
    assert run("compact") == 0
    assert run("vacuum") == 0
    assert "deleted: 0 files" in capsys.readouterr().out
    assert run("export", "ansor", "out.json") == 0
    assert len(Path("out.json").read_text().splitlines()) == 9
    assert RecordStore(project).read().height == 9


def dvc(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DVC_NO_ANALYTICS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_colleague_pulls_what_was_pushed(as_writer: str, tmp_path: Path) -> None:
    pytest.importorskip("dvc_s3", reason="tencost[s3] is not installed")
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], cwd=mine, check=True)
    dvc(mine, "init", "-q")
    address = as_writer.removesuffix("/store") + "/dvc"
    dvc(mine, "remote", "add", "-d", "lab", address)
    models = mine / "data" / "models"
    models.mkdir(parents=True)
    (models / "model.ubj").write_bytes(bytes(range(256)) * 64)
    dvc(mine, "add", "data/models")
    dvc(mine, "push")
    subprocess.run([*git, "add", "-A"], cwd=mine, check=True)
    subprocess.run([*git, "commit", "-qm", "models"], cwd=mine, check=True)
    subprocess.run(["git", "clone", "-q", str(mine), str(theirs)], check=True)
    assert not (theirs / "data" / "models").exists()
    dvc(theirs, "pull")
    pulled = (theirs / "data" / "models" / "model.ubj").read_bytes()
    assert pulled == (models / "model.ubj").read_bytes()
    config = (theirs / ".dvc" / "config").read_text()
    assert f"s3://{BUCKET}" in config
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in config
