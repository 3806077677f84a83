"""A project, or a part of it, that this account may not write: one sentence and exit 2, before any work is done."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tencost.errors import refusal

ROOT = Path(__file__).resolve().parents[2]
TRAIN = [
    "score_test=false", "model=xgb", "features.name=toy", "features.kind=trace", "features.relations=false",
    "model.reads=[toy]", "model.num_rounds=4", "model.num_models=1", "dataset=toy", "hardware=toy-1c", "seeds=[0]",
]  # fmt: skip
TUNE = ["network=bert_tiny", "hardware=local"]


@pytest.fixture
def project(toy_project: Path) -> Iterator[Path]:
    shutil.copytree(ROOT / "conf", toy_project / "conf")
    (toy_project / "conf" / "dataset" / "toy.yaml").write_text("name: toy\nsource: toy\n")
    (toy_project / "conf" / "hardware" / "toy-1c.yaml").write_text(
        "name: toy-1c\ntarget: {kind: llvm}\n"
    )
    yield toy_project
    for folder in [toy_project, *(path for path in toy_project.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)


def without_rights() -> list[str]:
    """Return the words before a command that make permissions bind for root, too."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and setpriv, which takes that right, is not here")
    return ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]


def refused(project: Path, *words: str) -> str:
    """Run a command that has to end with 2; return the line that says why."""
    done = subprocess.run(
        [*without_rights(), sys.executable, "-m", "tencost.cli", *words],
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("tencost: ")]
    return line


def protect(folder: Path) -> None:
    """Take the right to write from a folder and all below it."""
    for path in sorted([folder, *folder.rglob("*")], reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["train", *TRAIN], "data"),
        (["train", "-m", *TRAIN, "model.eta=0.1,0.2"], "mlruns"),
        (["tune", *TUNE], "tuned"),
        (["fetch"], "data/raw"),
        (["ui"], "mlruns"),
    ],
    ids=["train", "sweep", "tune", "fetch", "ui"],
)
def test_a_project_that_cannot_be_written(project: Path, words: list[str], place: str) -> None:
    protect(project)
    line = refused(project, *words)
    assert line.startswith(f"tencost: cannot write {project / place}")
    assert "Permission denied. Give this account the right" in line


@pytest.mark.slow
def test_bundles_without_a_place_are_not_trained(project: Path) -> None:
    protect(project / "data")
    assert f"{project}/data" in refused(project, "train", *TRAIN)
    with sqlite3.connect(project / "mlruns" / "mlflow.db") as database:
        [[runs]] = database.execute("SELECT COUNT(*) FROM runs")
    database.close()
    assert runs == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", ["mlruns/mlflow.db", "mlruns/artifacts"])
def test_mlflow_without_the_right_to_write(project: Path, place: str) -> None:
    (project / "mlruns" / ".lock").touch()
    protect(project / place)
    assert f"cannot write {project / place}" in refused(project, "train", *TRAIN)


@pytest.mark.slow
def test_a_file_in_a_folders_place(project: Path) -> None:
    (project / "data" / "models").write_text("")
    line = refused(project, "train", *TRAIN)
    assert f"cannot write {project}/data/models" in line
    assert "A file lies where a folder is expected" in line


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "cannot write a file: No space left"),
        (
            shutil.Error(
                [("a", "b/c", "[Errno 28] No space left on device: 'b/c'")]
            ),  # of copytree
            "cannot write b/c: No space left on device. Make room",
        ),
        (OSError("No space left on device (os error 28)"), "Make room on its disk"),
        (PermissionError(errno.EPERM, "Operation not permitted"), None),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), None),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), None),
    ],
)
def test_what_the_system_refuses(error: OSError, words: str | None) -> None:
    sentence = refusal(error)
    assert (sentence is None) if words is None else (sentence is not None and words in sentence)


def test_what_may_not_be_read_is_not_called_unwritable(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("")
    path.chmod(0o200)
    if os.access(path, os.R_OK):
        pytest.skip("root may read everything")
    sentence = refusal(PermissionError(errno.EACCES, "Permission denied", str(path)))
    assert sentence is not None
    assert sentence.startswith(f"cannot read {path}")
