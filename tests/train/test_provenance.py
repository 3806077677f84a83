from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import polars as pl
import pytest
import xgboost

from tencost import __version__
from tencost.tracking import provenance
from tencost.tracking.provenance import (
    DEFAULT_TVM_RANGE,
    content_hash,
    dvc_hash,
    git_state,
    installed_versions,
    tvm_range,
)


def git(root: Path, *arguments: str) -> None:
    settings = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *settings, *arguments], cwd=root, check=True, capture_output=True)


def test_git_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path).commit is None
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    clean = git_state(tmp_path)
    assert clean.commit is not None
    assert len(clean.commit) == 40
    assert not clean.dirty
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path).dirty


@pytest.mark.parametrize(
    ("name", "dirty"),
    [
        ("conf/hardware/mine.yaml", True),
        ("src/tencost/new.py", True),
        ("params.yaml", True),
        ("graphs/dvc.yaml", True),
        ("graphs/dvc.lock", False),
        ("dvc.lock", False),
        ("data/reports/toy/metrics.json", False),
        ("graphs/data/reports/toy-by_graph/metrics.json", False),
        ("report.html", False),
        ("conf/hardware/ignored.tmp", False),
    ],
)
def test_a_file_that_git_does_not_know(tmp_path: Path, name: str, dirty: bool) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "status.showUntrackedFiles", "no")
    (tmp_path / ".gitignore").write_text("*.tmp\n")
    git(tmp_path, "add", ".gitignore")
    git(tmp_path, "commit", "-q", "-m", "one")
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("new: 1\n")
    assert git_state(tmp_path).dirty is dirty


def test_the_lock_of_another_pipeline_is_no_change_of_ours(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "dvc.lock").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / "graphs" / "dvc.lock").write_text("two")
    assert not git_state(tmp_path).dirty


def test_content_hash_ignores_the_order_of_rows_and_columns() -> None:
    table = pl.DataFrame({"a": ["x", "y"], "b": [1.5, None]})
    same = table.reverse().select("b", "a")
    assert content_hash(table) == content_hash(same)
    assert content_hash(table) != content_hash(table.with_columns(b=pl.lit(1.5)))
    assert len(content_hash(table)) == 32


def test_dvc_hash(tmp_path: Path) -> None:
    assert dvc_hash(tmp_path, "data/records/toy") is None
    (tmp_path / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  records:\n    outs:\n    - path: data/records/toy\n      md5: abc.dir\n"
    )
    assert dvc_hash(tmp_path, "data/records/toy") == "abc"
    assert dvc_hash(tmp_path, "data/records/other") is None


def test_the_version_is_that_of_the_code_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where tencost is a folder on the path that nobody installed."""

    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(provenance, "version", missing)
    python = "{}.{}".format(*sys.version_info)
    expected = {"python": python, "tencost": __version__, "xgboost": xgboost.__version__}
    assert installed_versions() == expected


def test_the_xgboost_that_runs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package xgboost, installed after xgboost-cpu, replaces its module and leaves its metadata."""
    monkeypatch.setattr(xgboost, "__version__", "2.1.4")
    assert installed_versions()["xgboost"] == "2.1.4"


def test_versions() -> None:
    found = installed_versions()
    assert {"python", "numpy", "tencost"} <= set(found)
    assert tvm_range("0.27.0.post1") == ("0.27.0", "0.28.0")
    assert tvm_range("1.3.2+cuda") == ("1.3.0", "1.4.0")
    assert tvm_range(None) == DEFAULT_TVM_RANGE
