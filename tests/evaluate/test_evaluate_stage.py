"""The stage on a small project with real bundles, Delta store and MLflow; its report and what it refuses."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
from rich.console import Console

from tencost.errors import ConfigError, FeatureError, SplitError, TrainError
from tencost.evaluate import report, stage
from tencost.evaluate.leaderboard import TEST
from tencost.evaluate.program_board import ProgramBoard
from tencost.evaluate.scoring import HEADLINE
from tencost.models.programs.families.random import RandomConfig
from tencost.models.programs.families.xgb import XgbConfig
from tencost.store.tables import RULE_TIMES, load_records
from tencost.train.data import Data

Train = Callable[..., Path]


@pytest.fixture
def runs(toy_project: Path) -> Callable[[str], str]:
    """Make finished MLflow runs by name."""
    from mlflow import MlflowClient

    from tencost.tracking import runs as tracking

    uri = tracking.setup(toy_project)
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name("tencost")
    assert experiment is not None

    def make(name: str) -> str:
        run = client.create_run(experiment.experiment_id, run_name=name)
        client.set_terminated(run.info.run_id)
        return str(run.info.run_id)

    return make


@pytest.fixture
def trained(train_toy: Train, runs: Callable[[str], str]) -> dict[str, str]:
    """Two models: a reference that knows nothing and trees that see how fast a program is."""
    names = {"random": runs("random"), "xgb": runs("xgb")}
    train_toy(
        "random",
        RandomConfig(family="random", reads=["toy"], reference=True),
        run_id=names["random"],
    )
    trees = XgbConfig(family="xgb", reads=["toy"], num_rounds=30)
    train_toy("xgb", trees, run_id=names["xgb"])
    return names


def figures(project: Path, run_id: str) -> tuple[dict[str, float], list[str]]:
    from mlflow import MlflowClient

    uri = f"sqlite:///{project / 'mlruns' / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    listed = [item.path for item in client.list_artifacts(run_id, "plots")]
    return client.get_run(run_id).data.metrics, listed


def test_evaluate(toy_project: Path, toy_config: Any, trained: dict[str, str]) -> None:
    board = stage.run(toy_config, toy_project)
    assert [row.model for row in board.rows] == ["xgb-toy", "random-toy", "random_floor", "oracle"]
    trees, random, floor, oracle = board.rows
    assert trees.seeds == (0, 1)
    assert trees.mean("top1") > 0.9
    assert trees.mean("search_score") > random.mean("search_score")
    assert floor.mean("search_score") == pytest.approx(0.0)
    assert oracle.mean("top1") == 1.0
    coverage = board.coverage["held_out"]
    assert (coverage.tasks_scored, coverage.tasks, coverage.programs, coverage.failed) == (
        2,
        3,
        24,
        1,
    )
    assert coverage.flop_share == pytest.approx(3 / 4)
    bare = replace(coverage, tasks_scored=0, programs=0)
    told = report.program_board_markdown(
        replace(board, coverage={**board.coverage, "a": bare, "b": bare})
    )
    assert told.count("coverage ") == len(board.coverage)
    assert "not measured: a, b" in told
    assert [gain.opponent for gain in board.gains] == ["random-toy"]
    assert len(trees.valid_pairwise) == 2
    assert board.winner() == trees

    folder = toy_project / "data" / "reports" / "toy" / "toy-1c"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "metrics.json",
        "models.json",
        "leaderboard.json",
        "leaderboard.md",
        "predictions.parquet",
        "plots",
    }
    drawn = {path.name for path in (folder / "plots").iterdir()}
    assert {
        "leaderboard.png",
        "top_k.png",
        "top_k.csv",
        "search.png",
        "search-held_out.csv",
    } <= drawn
    assert {"predicted-xgb-toy.png", "predicted-xgb-toy.csv", "importance-xgb-toy.png"} <= drawn
    predictions = pl.read_parquet(folder / "predictions.parquet")
    assert predictions.columns == ["record_id", "model", "seed", "raw", "score", "latency_s"]
    assert len(predictions) == 24 * 2 * 2
    assert orjson.loads((folder / "metrics.json").read_bytes()) == {
        "model": "xgb-toy",
        **{name: round(trees.mean(name), 6) for name in HEADLINE},
    }
    metrics = orjson.loads((folder / "models.json").read_bytes())
    assert metrics["xgb-toy"]["top1"]["mean"] == round(trees.mean("top1"), 6)
    assert "ci95" not in metrics["random_floor"]["top1"]
    assert "rmse" not in metrics["random_floor"]

    logged, plots = figures(toy_project, trained["xgb"])
    assert logged["evaluate/top1"] == pytest.approx(trees.mean("top1"))
    assert logged["evaluate/top1/held_out"] == pytest.approx(trees.networks["held_out"]["top1"])
    assert "plots/predicted-xgb-toy.png" in plots
    assert "plots/predicted-random-toy.png" not in plots


def test_first_choices_are_compared_with_the_rules_where_those_were_timed(
    toy_project: Path, toy_config: Any, trained: dict[str, str]
) -> None:
    assert trained
    plain = stage.run(toy_config, toy_project)
    records = toy_project / "data" / "records" / "toy"
    measured = load_records(records).drop_nulls("latency_s")
    by_rule = measured.group_by("hardware", "workload_id").agg(pl.col("latency_s").min() * 2)
    file = records / RULE_TIMES
    by_rule.with_columns(rules=pl.lit("0123456789ab")).write_parquet(file)
    try:
        board = stage.run(toy_config, toy_project)
    finally:
        file.unlink()
    names = [row.model for row in board.rows]
    assert names == ["xgb-toy", "random-toy", "random_floor", "by_rule", "oracle"]
    trees, _, floor, rules, oracle = board.rows
    assert rules.mean("pick_rule") == 1.0
    assert rules.mean("geo1") == pytest.approx(1 / 2)
    assert oracle.mean("pick_rule") == pytest.approx(1 / 2)
    assert floor.mean("pick_rule") == pytest.approx(rules.mean("geo1") / floor.mean("geo1"))
    assert board.best("pick_rule") == trees.mean("pick_rule") < floor.mean("pick_rule")
    assert trees.tasks["pick_rule"].low <= trees.mean("pick_rule")
    assert "pick/rule" in report.program_board_markdown(board)
    assert "pick/rule" not in report.program_board_markdown(plain)
    assert trees.mean("geo1") == plain.rows[0].mean("geo1"), "nothing else changes"


def test_the_same_models_give_the_same_report(
    toy_project: Path, toy_config: Any, trained: dict[str, str]
) -> None:
    folder = toy_project / "data" / "reports" / "toy" / "toy-1c"
    stage.run(toy_config, toy_project)
    first = {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    stage.run(toy_config, toy_project)
    for path, content in first.items():
        assert path.read_bytes() == content, path.name


def test_score_run(toy_project: Path, toy_config: Any, trained: dict[str, str]) -> None:
    folder = toy_project / "data" / "models" / "toy" / "toy-1c" / "xgb-toy"
    row = stage.score_run(Data(toy_config, toy_project), folder)
    logged, plots = figures(toy_project, trained["xgb"])
    assert logged["evaluate/search_score"] == pytest.approx(row.mean("search_score"))
    assert "plots/importance-xgb-toy.png" in plots
    assert not (toy_project / "data" / "reports").exists()


def test_models_may_lie_outside_the_project(
    toy_project: Path,
    toy_config: Any,
    trained: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "models"
    (toy_project / toy_config.paths.models).rename(elsewhere)
    config = replace(toy_config, paths=replace(toy_config.paths, models=str(elsewhere)))
    board = stage.run(config, toy_project)
    (row,) = (row for row in board.rows if row.model == "xgb-toy")
    assert Path(row.folder) == elsewhere / "toy" / "toy-1c" / "xgb-toy"
    assert stage.score_run(Data(config, toy_project), Path(row.folder)).model == "xgb-toy"


def test_a_model_from_elsewhere_is_in_the_report_only(
    toy_project: Path, toy_config: Any, train_toy: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train_toy("random", RandomConfig(family="random", reads=["toy"]), seeds=(0,))
    board = stage.run(toy_config, toy_project)
    assert math.isnan(board.rows[0].metrics["top1"].half_width)
    assert "is not in this MLflow store" in " ".join(capsys.readouterr().err.split())


def test_what_cannot_be_evaluated(toy_project: Path, toy_config: Any, train_toy: Train) -> None:
    with pytest.raises(TrainError, match=r"expected trained models in .*toy-1c, found none"):
        stage.run(toy_config, toy_project)
    floor = RandomConfig(family="random", reads=["toy"])
    folder = train_toy("random", floor, seeds=(0,), split_hash="0" * 32)
    for call in (
        lambda: stage.run(toy_config, toy_project),
        lambda: stage.score_run(Data(toy_config, toy_project), folder),
    ):
        with pytest.raises(SplitError, match="random-toy was trained on another state"):
            call()
    train_toy("random", floor, seeds=(0,))
    toy_config.split.test = ["nothing"]
    with pytest.raises(SplitError, match="in the test part of the split, found none for nothing"):
        stage.run(toy_config, toy_project)
    toy_config.split.test = ["held_out"]
    spec = toy_project / "data" / "features" / "toy" / "toy" / "spec.json"
    spec.write_text(spec.read_text().replace("noise", "loud"))
    with pytest.raises(FeatureError, match="not those that the random model was trained on"):
        stage.score_run(Data(toy_config, toy_project), folder)


def test_leaderboard_survives_the_round_trip_and_is_printed(
    toy_project: Path, toy_config: Any, trained: dict[str, str]
) -> None:
    board = stage.run(toy_config, toy_project)
    reports = toy_project / "data" / "reports"
    loaded = ProgramBoard.load(reports / "toy" / "toy-1c" / "leaderboard.json")
    assert [row.model for row in loaded.rows] == [row.model for row in board.rows]
    assert loaded.rows[0].mean("tau") == pytest.approx(board.rows[0].mean("tau"), abs=1e-6)
    assert math.isnan(loaded.rows[2].mean("rmse"))
    assert loaded.metrics() == board.metrics()
    output = io.StringIO()
    report.print_leaderboards(reports, Console(file=output))
    for word in (
        "xgb",
        "random (ref)",
        "random floor",
        "oracle",
        "top-5",
        "2 of 3 tasks",
        "75% of",
    ):
        assert word in output.getvalue(), word
    of_one = io.StringIO()
    report.print_leaderboards(reports, Console(file=of_one), hardware="toy-1c")
    assert of_one.getvalue() == output.getvalue()
    with pytest.raises(ConfigError, match=r"--hardware toy-2c: expected one that has .*: toy-1c"):
        report.print_leaderboards(reports, Console(file=of_one), hardware="toy-2c")
    text = report.program_board_markdown(loaded)
    assert "| xgb | toy | 2 | **" in text
    assert "| oracle |  |  | 1.000 |" in text
    narrow = io.StringIO()
    report.print_program_board(loaded, Console(file=narrow, width=80, force_terminal=True))
    assert "top-1" in narrow.getvalue()
    assert "peak@5" not in narrow.getvalue()


def test_a_task_that_decides_the_score_is_seen(
    toy_project: Path, toy_config: Any, train_toy: Train
) -> None:
    """The shares are those of the first choices in predictions.parquet; a board without them still loads."""
    train_toy("random", RandomConfig(family="random", reads=["toy"]), seeds=(0, 1))
    board = stage.run(toy_config, toy_project)
    folder = toy_project / "data" / "reports" / "toy" / "toy-1c"
    workload = Data(toy_config, toy_project).records.select("record_id", "workload_id")
    predictions = pl.read_parquet(folder / "predictions.parquet").join(workload, on="record_id")
    lost: dict[str, float] = {}
    for weight, name in ((1, "w0"), (2, "w1")):
        of_task = predictions.filter(pl.col("workload_id") == name)
        latency = of_task["latency_s"].drop_nulls().to_numpy()
        chosen = [
            float(seed.sort("raw", descending=True)["latency_s"].fill_null(latency.max())[0])
            for _, seed in of_task.group_by("seed")
        ]
        lost[name] = weight * (sum(chosen) / 2 - float(latency.min()))
    largest = max(lost, key=lost.__getitem__)
    assert [one.workload_id for one in board.losses] == sorted(
        lost, key=lost.__getitem__, reverse=True
    )
    assert board.losses[0].share == pytest.approx(lost[largest] / sum(lost.values()))
    assert board.losses[0].lost_ms == pytest.approx(1e3 * lost[largest])
    assert sum(one.network_share for one in board.losses) == pytest.approx(1.0)

    share = f"{board.losses[0].share:.0%}"
    output = io.StringIO()
    report.print_leaderboards(toy_project / "data" / "reports", Console(file=output))
    assert f"held_out task{largest[1]} x {board.losses[0].weight:g} {share}" in output.getvalue()
    text = (folder / "leaderboard.md").read_text()
    assert f"| held_out | task{largest[1]} |" in text
    assert pl.read_csv(folder / "plots" / "lost_time.csv")["share"].sum() == pytest.approx(1.0)

    file = folder / "leaderboard.json"
    values = orjson.loads(file.read_bytes())
    assert ProgramBoard.load(file).losses[0].share == pytest.approx(board.losses[0].share, abs=1e-6)
    del values["losses"]
    file.write_bytes(orjson.dumps(values))
    old = ProgramBoard.load(file)
    assert old.losses == ()
    assert {model: parts[TEST] for model, parts in old.metrics().items()} == orjson.loads(
        (folder / "models.json").read_bytes()
    )
    assert "lost time" not in report.program_board_markdown(old)


def test_no_leaderboard(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected leaderboards below"):
        report.print_leaderboards(tmp_path)
    with pytest.raises(ConfigError, match=r"found none\. Make it: tencost evaluate"):
        ProgramBoard.load(tmp_path / "leaderboard.json")
    (tmp_path / "leaderboard.json").write_text('{"format_version": 99}')
    with pytest.raises(ConfigError, match="expected format_version 2, found 99"):
        ProgramBoard.load(tmp_path / "leaderboard.json")
