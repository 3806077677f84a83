"""`tencost pipeline` says how much there is to do and which stage it is at: a real pipeline of DVC, of two commands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tencost.cli.main import main
from tencost.cli.pipeline import Progress, _repro, minutes, plan, read_seconds

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")

PIPELINE = """
stages:
  first:
    cmd: echo 1 > first
    deps: [source]
    outs: [first]
    meta: {seconds: 120}
  second:
    cmd: cat first > second
    deps: [first]
    outs: [second]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from dvc.repo import Repo

    Repo.init(str(tmp_path), no_scm=True)
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    (tmp_path / "source").write_text("0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder: Path) -> int:
    planned = plan(folder)
    assert planned is not None
    with Progress(folder, planned) as progress:
        code = _repro(())
        progress.end_stage()
    return code


def test_it_counts_and_learns_how_long_stages_take(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    planned = plan(project)
    assert planned is not None
    assert planned.stages == {"first": 120, "second": None}
    assert run(project) == 0
    lines = capfd.readouterr().err.splitlines()
    assert "2 of 2 stages are out of date" in lines, "of the second nobody knows how long it takes"
    told = [re.sub(r"\d+ s so", "N s so", line) for line in lines if line.startswith("[")]
    assert told == ["[1/2] first: N s so far", "[2/2] second: N s so far"]
    timed = read_seconds(project)
    assert set(timed) == {"first", "second"}

    assert run(project) == 0
    assert "0 of 2 stages are out of date" in capfd.readouterr().err
    (project / "source").write_text("another")
    planned = plan(project)
    assert planned is not None
    assert planned.stages == timed, "the second follows the first"


def test_a_pipeline_that_dvc_refuses_is_left_to_dvc(project: Path) -> None:
    (project / "dvc.yaml").write_text("stages: [")
    assert plan(project) is None


def test_durations_are_for_people() -> None:
    assert [minutes(seconds) for seconds in (0.2, 89, 90, 601)] == [
        "0 s",
        "89 s",
        "2 min",
        "10 min",
    ]


def test_stages_run_this_installation_wherever_its_scripts_are(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `.venv/bin/tencost pipeline`, in an environment that nobody has activated."""
    (project / "conf").mkdir()
    (project / "conf" / "config.yaml").write_text("defaults: []\n")
    (project / "params.yaml").write_text("hardware: []\nfeatures: []\nmodels: {}\n")
    (project / "dvc.yaml").write_text(
        "stages: {one: {cmd: command -v tencost > where, outs: [where]}}\n"
    )
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(SystemExit) as ended:
        main(["pipeline"])
    assert ended.value.code == 0
    assert (project / "where").read_text().strip() == str(Path(sys.executable).parent / "tencost")
