"""Searches for settings: what they leave in the parent run, and that they go on where they were stopped."""

from __future__ import annotations

import csv
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import RandomSampler

from tencost import cli
from tencost.errors import ConfigError
from tencost.train import sweeps
from tencost.workers.parallel.search import opened

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
      model.subsample: 0.9
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


@pytest.fixture
def run(project: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Search with further words, in this process."""

    def search(*overrides: str) -> None:
        cli.main(["train", "-m", *words(*overrides)])
        assert "the best is" in capsys.readouterr().err

    return search


def parents(project: Path) -> list[Any]:
    from mlflow import MlflowClient

    from tencost.tracking.runs import EXPERIMENT, setup

    client = MlflowClient(tracking_uri=setup(project))
    experiment = client.get_experiment_by_name(EXPERIMENT)
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    return [run for run in runs if run.data.tags.get("tencost.stage") == "sweep"]


def trained(project: Path) -> int:
    if not (project / "mlruns" / "mlflow.db").is_file():
        return 0
    with sqlite3.connect(project / "mlruns" / "mlflow.db") as database:
        [[count]] = database.execute("SELECT COUNT(*) FROM tags WHERE value = 'train'")
    database.close()
    return int(count)


@pytest.mark.slow
def test_the_parent_run_has_the_best_trial_and_a_second_command_goes_on(
    project: Path, run: Callable[..., None]
) -> None:
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


@pytest.mark.slow
def test_an_interrupted_search_goes_on(project: Path, run: Callable[..., None]) -> None:
    more = words("hydra.sweeper.n_trials=2", "model.num_rounds=300")
    command = [sys.executable, "-m", "tencost.cli", "train", "-m", *more]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while trained(project) < 2:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert "run the command again to continue" in process.communicate()[1]
    assert process.returncode == 130
    [parent] = parents(project)
    assert (parent.info.status, parent.data.params["best.trial"]) == ("KILLED", "0")
    run(*more[len(words()) :])
    search, _ = sweeps.planned(more)
    assert search is not None
    with opened(search) as study:
        ended, first, again = study.trials
    assert [trial.state.name for trial in (ended, first, again)] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert first.params == again.params
    assert trained(project) == 3


def test_another_question_is_another_search(project: Path) -> None:
    def search(*more: str) -> Any:
        return sweeps.planned(words(*more))[0]

    plain = search()
    assert (plain.trials, plain.maximize, plain.pruner, plain.jobs) == (3, True, None, 1)
    others = ("model.gamma=1", "model.gamma=interval(0,1)", "model.max_depth=3", "execution=ray")
    assert len({plain.name, *(search(word).name for word in others)}) == 5
    assert search("hydra.sweeper.n_trials=9", "jobs=2").name == plain.name
    assert sweeps.planned(["model=xgb,mlp"])[0] is None
    stored = search("hydra.sweeper.storage=sqlite:///study.db")
    assert (stored.name, stored.storage) == ("small", "sqlite:///study.db")


def test_samplers_and_pruners_are_chosen_by_hydras_words(project: Path) -> None:
    search, rest = sweeps.planned(
        words(
            "hydra/sweeper/sampler=random",
            "hydra/sweeper/pruner=halving",
            "hydra.sweeper.pruner.reduction_factor=3",
        )
    )
    assert search is not None
    assert isinstance(search.sampler(0), RandomSampler)
    assert isinstance(search.pruner, SuccessiveHalvingPruner)
    assert (search.pruner._min_resource, search.pruner._reduction_factor) == (4, 3)
    assert set(search.space) == {"model.eta", "model.max_depth"}
    assert "model.subsample=0.9" in rest


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("hydra.sweeper.direction=up", "must be minimize or maximize, found up"),
        ("hydra/sweeper/sampler=guess", "must be one of tpe, .*found 'guess'"),
        ("hydra.sweeper.sampler.luck=1", "unexpected keyword argument 'luck'"),
        ("model.gamma=glob(*)", "expected choices, a range or an interval"),
        ("+hydra.sweeper.search_space.a.type=int", "found search_space"),
    ],
)
def test_words_that_are_refused(project: Path, word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweeps.planned(words(word))


def test_whole_networks_have_no_trials_that_report(project: Path) -> None:
    with pytest.raises(ConfigError, match="expected a search without a pruner"):
        sweeps.run("graphs train", words("hydra/sweeper/pruner=median"), lambda *_: 0.0)


@pytest.mark.ray
@pytest.mark.slow
def test_on_ray_trials_are_pruned_and_the_best_is_trained(
    project: Path, run: Callable[..., None]
) -> None:
    pytest.importorskip("ray", reason="tencost[scale] is not installed")
    run("execution=ray", "jobs=1")
    [parent] = parents(project)
    assert trained(project) == 1, "the best settings, in full"
    eta = float(parent.data.params["best.model.eta"])
    assert 0.03 <= eta <= 0.3
    assert 2 <= int(parent.data.params["best.model.max_depth"]) <= 4
    folder = Path(parent.info.artifact_uri.removeprefix("file://"))
    with (folder / "trials.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3
    assert (folder / "search.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("interval(0.1,1)", FloatDistribution(0.1, 1)),
        ("tag(log, interval(1,3))", FloatDistribution(1, 3, log=True)),
        ("tag(log, int(interval(1,8)))", IntDistribution(1, 8, log=True)),
        ("range(2,4)", IntDistribution(2, 4)),
        ("range(2,8,step=2)", IntDistribution(2, 8, step=2)),
        ("range(0,1,0.25)", FloatDistribution(0, 1, step=0.25)),
        ("shuffle(range(1,4))", CategoricalDistribution([1, 2, 3])),
        ("choice(x,y)", CategoricalDistribution(["x", "y"])),
        ("1,2.5,true", CategoricalDistribution([1, 2.5, True])),
        ("7", None),
    ],
)
def test_distributions_of_hydras_words(text: str, expected: BaseDistribution | None) -> None:
    """Ranges include their end."""
    assert sweeps.distribution("a", text) == expected
