"""Searches for settings: what they leave in the parent run, and that they go on where they were stopped."""

from __future__ import annotations

import csv
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tencost.config import composition
from tencost.train import sweeps

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = """
# @package _global_
defaults:
  - override /model: xgb
  - override /hydra/sweeper: optuna
features:
  name: toy
  kind: trace
  relations: false
hydra:
  sweeper:
    study_name: small
    direction: maximize
    n_trials: 3
    sampler:
      seed: 0
    params:
      model.eta: tag(log, interval(0.03, 0.3))
      model.max_depth: range(2, 4)
"""
WORDS = [
    "experiment=small",
    "score_test=false",
    "model.reads=[toy]",
    "model.num_rounds=20",
    "model.num_models=1",
]


@pytest.fixture
def project(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "conf", toy_project / "conf")
    (toy_project / "conf" / "experiment" / "small.yaml").write_text(EXPERIMENT)
    (toy_project / "conf" / "dataset" / "toy.yaml").write_text("name: toy\nsource: toy\n")
    (toy_project / "conf" / "hardware" / "toy-1c.yaml").write_text(
        "name: toy-1c\ntarget: {kind: llvm}\n"
    )
    monkeypatch.chdir(toy_project)
    return toy_project


def words(*more: str) -> list[str]:
    return [*WORDS, "dataset=toy", "hardware=toy-1c", *more]


def run(*overrides: str) -> None:
    command = [sys.executable, "-m", "tencost.cli", "train", "-m", *words(*overrides)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the best is" in done.stderr


def parents(project: Path) -> list[Any]:
    from mlflow import MlflowClient

    from tencost.tracking.runs import EXPERIMENT, setup

    client = MlflowClient(tracking_uri=setup(project))
    experiment = client.get_experiment_by_name(EXPERIMENT)
    found = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    return [one for one in found if one.data.tags.get("tencost.stage") == "sweep"]


def trained(project: Path) -> int:
    with sqlite3.connect(project / "mlruns" / "mlflow.db") as database:
        [[count]] = database.execute("SELECT COUNT(*) FROM tags WHERE value = 'train'")
    database.close()
    return int(count)


@pytest.mark.slow
def test_the_parent_run_has_the_best_trial_and_a_second_command_goes_on(project: Path) -> None:
    run()
    [parent] = parents(project)
    assert trained(project) == 3
    folder = Path(parent.info.artifact_uri.removeprefix("file://"))
    with (folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    best = max(rows, key=lambda row: float(row["value"]))
    assert parent.data.params["best.trial"] == best["trial"]
    assert parent.data.params["best.model.eta"] == best["model.eta"]
    assert parent.data.metrics["search/best"] == float(best["value"])
    assert (folder / "search.png").stat().st_size > 5000
    run()
    assert trained(project) == 3, "a search that is over trains nothing"
    [journal] = (project / "mlruns" / "sweeps").glob("*/study.log")
    with journal.open("a") as file:
        file.write('{"op_code":4,"wor')  # as a kill leaves it
    run("hydra.sweeper.n_trials=4")
    assert trained(project) == 4, "one is missing"
    assert parents(project)[-1].data.tags["search"] == parent.data.tags["search"]


def test_another_question_is_another_search(project: Path) -> None:
    plan = sweeps.planned(words())
    assert plan is not None
    assert plan.trials == 3
    assert not plan.minimize
    others = [
        sweeps.planned(words("model.gamma=1")),
        sweeps.planned(words("model.gamma=interval(0,1)")),
        sweeps.planned(words("model.max_depth=3")),
    ]
    names = {plan.name, *(one.name for one in others if one is not None)}
    assert len(names) == 4
    same = sweeps.planned(words("hydra.sweeper.n_trials=9", "jobs=2"))
    assert same is not None
    assert same.name == plan.name
    assert sweeps.planned(["model=xgb,mlp"]) is None


@pytest.mark.ray
@pytest.mark.slow
def test_ray_tune_searches_the_same_space_and_goes_on(project: Path) -> None:
    pytest.importorskip("ray", reason="tencost[scale] is not installed")
    run("execution=ray", "jobs=1")
    [parent] = parents(project)
    assert trained(project) == 1, "the best settings, in full"
    found = float(parent.data.params["best.model.eta"])
    assert 0.03 <= found <= 0.3
    assert 2 <= int(parent.data.params["best.model.max_depth"]) <= 4
    folder = Path(parent.info.artifact_uri.removeprefix("file://"))
    with (folder / "trials.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3
    assert (folder / "search.png").stat().st_size > 5000
    run("execution=ray", "jobs=1")
    again = parents(project)[-1]
    assert float(again.data.params["best.model.eta"]) == found
    assert again.info.run_id != parent.info.run_id


def test_domains_of_hydras_words() -> None:
    pytest.importorskip("ray", reason="tencost[scale] is not installed")
    found = sweeps.domains(
        {
            "a": "interval(0.1,1)",
            "b": "range(2,4)",
            "c": "choice(x,y)",
            "d": "tag(log, interval(1,3))",
        }
    )
    assert (found["a"].lower, found["a"].upper) == (0.1, 1)
    assert found["b"].categories == [2, 3, 4]
    assert found["c"].categories == ["x", "y"]
    assert (found["d"].lower, found["d"].upper) == (1, 3)
    assert composition.sweeper(["experiment=search_xgb"])["n_trials"] == 12
