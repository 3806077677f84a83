"""Where outputs of whole networks are: below graphs/ where that is a DVC project, else in data/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tencost.config import graph_outputs
from tencost.config.composition import compose
from tencost.config.folders import Folders
from tencost.config.schema import PathsConfig
from tencost.evaluate.networks import report
from tencost.evaluate.networks.board import GraphBoard

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("")
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "dvc.yaml").write_text("stages: {}\n")
    return tmp_path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_defaults_are_below_graphs_and_chosen_paths_stay(project: Path) -> None:
    paths = PathsConfig(models="elsewhere")
    moved = graph_outputs.graph_paths(paths, project)
    assert moved.graphs == "graphs/data/graphs"
    assert moved.reports == "graphs/data/reports"
    assert moved.models == "elsewhere"
    assert moved.registry == paths.registry


def test_a_project_without_the_pipeline_keeps_data(tmp_path: Path) -> None:
    paths = PathsConfig()
    (tmp_path / "data" / "graphs" / "mine").mkdir(parents=True)
    assert graph_outputs.graph_paths(paths, tmp_path) == paths
    assert graph_outputs.old_outputs(tmp_path) == []
    assert graph_outputs.graph_mark(tmp_path, "mine", "cortex-a76") is None


def test_every_output_of_the_pipeline_is_where_the_commands_write() -> None:
    text = (ROOT / "graphs" / "dvc.yaml").read_text()
    paths = graph_outputs.graph_paths(PathsConfig(), ROOT)
    places = tuple(
        str(getattr(paths, name)).removeprefix("graphs/")
        for name in ("raw", "graphs", "models", "reports")
    )
    for name, stage in yaml.safe_load(text)["stages"].items():
        body = stage.get("do", stage)
        for out in (*body.get("outs", ()), *body.get("metrics", ())):
            path = out if isinstance(out, str) else next(iter(out))
            assert path.startswith((*places, "data/registered")), name


def test_the_printed_command_moves_old_outputs(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = project / "data"
    old = {
        "raw/cg-sample/a.csv": "raw",
        "graphs/cg-sample/nodes": "tables",
        "graphs/cg-sample-splits/by_family/parts": "parts",
        "models/cg-sample/by_family/additive/seed0/bundle.json": "bundle",
        "searches/cg-sample/by_family/gin/best.json": "best",
        "reports/cg-sample-by_family/metrics.json": "old metrics",
        "reports/cg-sample-by_family/devices/x/graph_leaderboard.json": "board",
    }
    programs = {"models/tencost-epyc/x/seed0": "1", "reports/tencost-epyc/x/metrics.json": "2"}
    for name, text in (old | programs).items():
        _write(data / name, text)
    metrics = project / "graphs/data/reports/cg-sample-by_family/metrics.json"
    _write(metrics, "metrics")  # git has put it there
    graph_outputs.report_old_outputs(project)
    printed = capsys.readouterr().err
    assert "data/graphs" in printed
    command = printed.splitlines()[-1].split()
    assert command[0] == "python"
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=project, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert "data/graphs -> graphs/data/graphs" in done.stdout
    for name, text in old.items():
        assert not (data / name).exists()
        if not name.endswith("metrics.json"):
            assert (project / "graphs" / "data" / name).read_text() == text
    assert metrics.read_text() == "metrics"
    for name, text in programs.items():
        assert (data / name).read_text() == text
    assert graph_outputs.old_outputs(project) == []


def test_words_are_as_seen_from_the_project_inside(project: Path) -> None:
    words = ("graphs/dvc.yaml:train@additive", "--dry")
    inner = (project / "graphs", ("dvc.yaml:train@additive", "--dry"))
    assert graph_outputs.pipeline_words(project, words) == inner
    assert graph_outputs.pipeline_words(project, ("records",)) == (project, ("records",))


def test_the_stages_write_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "graphs")
    config, root = compose(["dataset=cg-sample", "graph_split=by_family", "paths.models=elsewhere"])
    folders = Folders(config, root)
    assert folders.graphs == ROOT / "graphs/data/graphs/cg-sample"
    assert folders.metrics == ROOT / "graphs/data/reports/cg-sample-by_family/metrics.json"
    assert folders.models == ROOT / "elsewhere/cg-sample/by_family"


def test_the_leaderboard_has_reports_of_the_old_place(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("data/reports/a", "data/reports/b", "graphs/data/reports/b"):
        _write(project / place / "devices" / "x" / GraphBoard.FILE, place)
    printed: list[str] = []
    monkeypatch.setattr(GraphBoard, "load", lambda path: path.read_text())
    monkeypatch.setattr(report, "print_graph_board", lambda board, console: printed.append(board))
    assert report.print_boards(project, PathsConfig()) == 2
    assert printed == ["data/reports/a", "graphs/data/reports/b"]
