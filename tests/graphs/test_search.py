"""The search for settings of a graph neural network: real trials, on made-up networks."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import orjson
import psutil
import pytest
import yaml
from mlflow import MlflowClient
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from made_up_graphs import networks
from process_words import words_of
from tencost.cli.main import main
from tencost.config.composition import compose
from tencost.errors import ConfigError, TrainError
from tencost.records.network_graphs.formats import cg
from tencost.tracking import runs as tracking
from tencost.train.networks import search as tune
from tencost.train.networks.search import Space

ROOT = Path(__file__).resolve().parents[2]
SMALL = Space(
    batch_size=(16, 32),
    hidden=(1, 3),
    layers=(1, 3),
    learning_rate=(1e-3, 1e-2),
    dropout=(0.0, 0.1),
    mlp_layers=(1, 3),
)
OWN = ("dataset=mine", "graph_split=by_graph", "graph_model=gin")
QUICK = ("graph_model.epochs=4", "graph_model.num_threads=1")


def test_the_space_fits_the_model_and_the_data() -> None:
    space = Space().distributions(heads=4, graphs=200)
    assert space["batch_size"] == CategoricalDistribution([64, 128])
    assert space["hidden"] == CategoricalDistribution([68, 136, 204, 272])
    assert space["layers"] == IntDistribution(2, 6)
    assert space["learning_rate"] == FloatDistribution(1e-4, 1e-2)
    widths = Space().distributions(heads=1, graphs=5000)["hidden"]
    assert widths == CategoricalDistribution([*range(68, 340, 34)])
    smallest = Space().distributions(heads=1, graphs=10)["batch_size"]
    assert smallest == CategoricalDistribution([64])


@pytest.fixture(autouse=True)
def others() -> None:
    """Note the processes that tests before this one have started and left, as Python's resource tracker."""
    OTHERS[:] = psutil.Process().children(recursive=True)


OTHERS: list[psutil.Process] = []


def left() -> list[str]:
    """Return the commands of processes that this test has started and that are still there; not of Python's tracker."""
    started = set(psutil.Process().children(recursive=True)) - set(OTHERS)
    trackers = {process for process in started if "resource_tracker" in words_of(process)}
    _, alive = psutil.wait_procs(started - trackers, timeout=20)
    return [words_of(process) for process in alive]


def runs_of(cfg: Any, root: Path, query: str = "") -> list[Any]:
    """Return the runs of the configured experiment, none where there is none yet."""
    client = MlflowClient(tracking_uri=tracking.setup(root))
    experiment = client.get_experiment_by_name(cfg.experiment_name)
    if experiment is None:
        return []
    return list(client.search_runs([experiment.experiment_id], query))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Path:
    """A project whose dataset `mine` is read and divided."""
    root = tmp_path_factory.mktemp("search") / "project"
    copytree(ROOT / "conf", root / "conf")
    (root / "mlruns").mkdir()
    copy(mlflow_database, root / "mlruns" / "mlflow.db")
    (root / "conf" / "dataset" / "mine.yaml").write_text("name: mine\nsource: networks\n")
    cg.write(root / "data" / "raw" / "mine", networks(20))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        main(["graphs", "records", "dataset=mine"])
        fractions = ("graph_split.valid_fraction=0.2", "graph_split.test_fraction=0.2")
        main(["graphs", "splits", "dataset=mine", "graph_split=by_graph", *fractions])
    return root


@pytest.fixture
def inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return project


BY_FAMILY = [
    "graph_split=by_family",
    "graph_split.test_families=[wide]",
    "graph_split.valid_fraction=0.2",
]
KILLED = [
    *("dataset=mine", "graph_model=gin", "graph_model.epochs=150", "graph_model.num_threads=1"),
    *BY_FAMILY,
]


@pytest.fixture(scope="module")
def killed(project: Path) -> list[psutil.Process]:
    """A search is killed in its first trial; return the processes that it leaves, which are still there then."""
    code = (
        "import sys; from pathlib import Path; from tencost.config.composition import compose; "
        "from tencost.train.networks import search as tune; from test_search import SMALL; "
        "tune.run(*compose(sys.argv[1:]), trials=2, cpus=1, space=SMALL)"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        main(["graphs", "splits", "dataset=mine", *BY_FAMILY])
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{Path(__file__).parent}"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *KILLED],
        cwd=project,
        env=environment,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    started = psutil.Process(process.pid)
    try:
        while not [*project.glob("data/searches/mine/by_family/gin/search/*/training.ckpt")]:
            assert process.poll() is None
            time.sleep(0.2)
    finally:
        children = started.children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert children
    return children


@pytest.mark.slow
def test_a_search_whose_process_was_killed_goes_on(
    inside: Path, killed: list[psutil.Process]
) -> None:
    _, alive = psutil.wait_procs(killed, timeout=60)
    assert alive == [], "workers end with the process that started them"
    cfg, root = compose(KILLED)
    best = tune.run(cfg, root, trials=2, cpus=1, space=SMALL, resume=True)
    assert best.mape < 1.0
    assert left() == []
    assert not [*inside.glob("data/searches/mine/by_family/gin/search/*/training.ckpt")]
    runs = runs_of(cfg, root, "tags.split = 'by_family'")
    (first,) = [run for run in runs if run.info.status == "KILLED"]
    (again,) = [
        run for run in runs if run.info.run_name == first.info.run_name and run is not first
    ]
    assert len(runs) == 3
    client = MlflowClient(tracking_uri=tracking.setup(root))
    epochs = [point.step for point in client.get_metric_history(again.info.run_id, "valid/mape")]
    assert min(epochs) > 1  # it went on, it did not begin anew
    settings = [
        {name: run.data.params[f"model.{name}"] for name in SMALL.distributions(1, 60)}
        for run in (first, again)
    ]
    assert settings[0] == settings[1]


@pytest.mark.slow
def test_a_search(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg, root = compose([*OWN, *QUICK])
    before = {run.info.run_id for run in runs_of(cfg, root)}
    best = tune.run(cfg, root, trials=3, cpus=2, space=SMALL)
    assert left() == []
    folder = inside / "data" / "searches" / "mine" / "by_graph" / "gin"
    assert orjson.loads((folder / "best.json").read_bytes())["settings"] == best.settings
    assert set(best.settings) == set(SMALL.distributions(1, 60))
    assert best.settings["batch_size"] in SMALL.batch_size
    assert best.settings["hidden"] in (34, 68)

    runs = [run for run in runs_of(cfg, root) if run.info.run_id not in before]
    (parent,) = [run for run in runs if run.data.tags["tencost.stage"] == "sweep"]
    trials = [run for run in runs if run.data.tags["tencost.stage"] == "graphs tune"]
    assert len(trials) == 3
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {parent.info.run_id}
    assert parent.data.metrics["valid/mape"] == pytest.approx(best.mape)
    assert min(run.data.metrics["valid/mape"] for run in trials) == pytest.approx(best.mape)
    widths = {run.data.params["model.hidden"] for run in trials}
    assert str(best.settings["hidden"]) in widths

    (line,) = capsys.readouterr().out.splitlines()
    words = shlex.split(line)
    assert words[:3] == ["tencost", "graphs", "train"]
    main(words[1:])
    chosen = yaml.safe_load((inside / "conf" / "model" / "gin.yaml").read_text())
    trained = inside / "data" / "models" / "mine" / "by_graph" / "gin" / "seed0" / "gnn.json"
    settings = orjson.loads(trained.read_bytes())["settings"]
    assert settings["hidden"] == best.settings["hidden"]
    assert settings["convolution"] == chosen["convolution"]

    with pytest.raises(ConfigError, match=r"found another one \(trials changed\)"):
        tune.run(cfg, root, trials=4, cpus=2, space=SMALL, resume=True)


@pytest.mark.slow
def test_where_every_trial_fails(inside: Path) -> None:
    split = (
        "graph_split.policy=by_graph",
        "graph_split.families=[thin]",
        "graph_split.test_families=[]",
    )
    words = [
        "dataset=mine",
        "graph_split=cg",
        *split,
        "graph_split.test_fraction=0.3",
        "graph_split.valid_fraction=0.3",
    ]
    main(["graphs", "splits", *words])  # none of them has a latency on the second device
    cfg, root = compose([*words, "graph_model=gin", *QUICK])
    with pytest.raises(
        TrainError, match=r"found 1 that failed: .*latency on myriad-vpu, found none"
    ):
        tune.run(cfg, root, trials=1, cpus=1, space=SMALL)
    runs = runs_of(cfg, root, "tags.split = 'cg'")
    assert [run.info.status for run in runs] == ["FAILED"]
    assert "latency on myriad-vpu" in runs[0].data.tags["error"]
    assert left() == []


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (("graph_model=summed",), {}, "expected a model of the family gnn, found summed"),
        (("graph_model=gcn",), {"resume": True}, "expected an interrupted search in .*/gcn"),
    ],
)
def test_what_cannot_be_searched(
    inside: Path, words: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    cfg, root = compose([*OWN[:2], *words])
    with pytest.raises(ConfigError, match=message):
        tune.run(cfg, root, **options)
