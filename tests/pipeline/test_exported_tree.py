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
        archive.extractall(tmp_path)  # our own; Debian's Python 3.11.2 has no filters
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


def test_the_pipeline_of_networks_runs_without_git(tree: Path) -> None:
    words = ["-m", "tencost.cli", "pipeline", "graphs/dvc.yaml:fetch", "--", "--dry"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tencost fetch dataset=cg-sample" in done.stdout + done.stderr
    assert "no_scm" in (tree / "graphs" / ".dvc" / "config.local").read_text()


def test_the_root_speaks_of_its_own_pipeline_only(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_no_git(tree)
    allow_no_git(tree / "graphs")
    for words in (("status",), ("dag",), ("stage", "list"), ("metrics", "show")):
        done = dvc(*words)
        assert "cg-sample" not in done.stdout + done.stderr, words
    monkeypatch.chdir(tree / "graphs")
    assert "register@myriad-vpu" in dvc("stage", "list").stdout


def test_compiled_sources_are_no_change_of_a_folder(tree: Path) -> None:
    """DVC hashes all files of a folder outside its project: `graphs/src` makes the sources part of it."""
    project = tree / "graphs"
    assert (project / "src").is_symlink()
    deps = {line.strip() for line in (project / "dvc.yaml").read_text().splitlines()}
    assert not [line for line in deps if line.startswith("- ../src")]
    assert "__pycache__" in (project / ".dvcignore").read_text().splitlines()


def test_a_repository_above_keeps_dvc_with_git(tree: Path) -> None:
    nested = tree / "graphs"
    (tree / ".git").write_text("gitdir: elsewhere")
    allow_no_git(nested)
    assert not (nested / ".dvc" / "config.local").exists()
