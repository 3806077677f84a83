"""A tree that `git archive` wrote, as the Docker image holds one: no .git there and above it."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tencost.config.pipeline import allow_no_git

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    ".dvc",
    ".dvcignore",
    "conf",
    "datasets",
    "dvc.lock",
    "dvc.yaml",
    "graphs",
    "params.yaml",
    "src",
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    packed = subprocess.run(
        ["git", "archive", "HEAD", *FILES], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip(f"no checkout of git: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dvc(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dvc", *words], capture_output=True, text=True, check=False
    )


def test_the_pipeline_and_dvc_run_without_git(tree: Path) -> None:
    (tree / ".dvc" / "config.local").write_text("[core]\n    analytics = false\n")
    assert "is not a git repository" in dvc("status", "fetch").stderr
    # In a process of its own: DVC remembers what it read of a folder.
    words = ["-m", "tencost.cli", "pipeline", "--", "--dry", "fetch"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    settings = (tree / ".dvc" / "config.local").read_text()
    assert "no_scm = true" in settings.lower()
    assert "analytics" in settings, "what was there stays"
    status = dvc("status", "fetch")
    assert status.returncode == 0, status.stderr


def test_a_repository_above_keeps_dvc_with_git(tree: Path) -> None:
    nested = tree / "graphs"
    (nested / ".dvc").mkdir()
    (tree / ".git").write_text("gitdir: elsewhere")
    allow_no_git(nested)
    assert not (nested / ".dvc" / "config.local").exists()
