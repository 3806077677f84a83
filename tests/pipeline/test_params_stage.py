"""The stage `params` of dvc.yaml: an edited list of params.yaml fails until `tencost params` wrote the items."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PARAMS = {
    "hardware": ["toy-1c"],
    "features": ["per_store"],
    "models": {"per_store": ["random", "xgb"]},
    "seeds": "0,1",
}
TRAIN = {
    "foreach": "${train}",
    "do": {"cmd": "echo ${item.seeds} > ${key}", "outs": ["${key}"]},
}
pytestmark = pytest.mark.slow


def run(root: Path, *words: str) -> tuple[int, str]:
    """Run a command of this installation; return its exit code and what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    names = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    done = subprocess.run(
        words, cwd=root, env={**os.environ, **names, "PATH": path, "DVC_NO_ANALYTICS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def edit(root: Path, old: str, new: str) -> None:
    path = root / "params.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose pipeline is up to date: the stage `params` of this project's dvc.yaml, and trainings."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    (tmp_path / "dvc.yaml").write_text(
        yaml.safe_dump({"stages": {"params": stages["params"], "train": TRAIN}}, sort_keys=False)
    )
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("{}\n")
    shutil.copytree(ROOT / "conf" / "model", tmp_path / "conf" / "model")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(PARAMS, sort_keys=False))
    for words in (
        ("tencost", "params"), ("git", "init", "-q"), ("dvc", "init", "-q"), ("dvc", "repro"),
        ("git", "add", "-A"), ("git", "commit", "-qm", "up to date"),
    ):  # fmt: skip
        code, printed = run(tmp_path, *words)
        assert code == 0, printed
    return tmp_path


def test_an_experiment_with_another_list_fails_and_says_what_to_run(project: Path) -> None:
    assert "up to date" in run(project, "dvc", "status")[1]
    code, printed = run(project, "dvc", "exp", "run", "-S", "seeds=0")
    assert code != 0
    assert "expected train to be what its lists say" in printed
    assert "Run `tencost params`, then the same command again" in printed
    assert "Running stage 'train" not in printed
    assert run(project, "tencost", "params")[0] == 0
    code, printed = run(project, "dvc", "exp", "run", "-S", "seeds=0")
    assert code == 0, printed
    assert (project / "xgb-per_store-toy-1c").read_text() == "0\n"


@pytest.mark.parametrize(
    ("old", "new", "group"),
    [
        ("- toy-1c", "- toy-1c\n- new-2c", "train"),
        ("- random\n", "", "train"),
        ("- xgb", "- blend", "train and blends"),
    ],
)
def test_an_edited_list_fails_before_anything_is_built(
    project: Path, old: str, new: str, group: str
) -> None:
    edit(project, old, new)
    code, printed = run(project, "dvc", "repro")
    assert code != 0
    assert f"expected {group} to be what its lists say" in printed
    assert "Running stage 'train" not in printed
    assert run(project, "tencost", "params")[0] == 0
    assert run(project, "dvc", "repro", "params")[0] == 0
    assert (
        run(project, "dvc", "status", "params")[1].strip() == "Data and pipelines are up to date."
    )
