from __future__ import annotations

import os
import signal
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tencost import signals
from tencost.config import Config, composition
from tencost.tracking.runs import (
    PARENT_VARIABLE,
    MetricPoint,
    flat_parameters,
    flatten,
    log_model,
    parent_run,
    run_name,
    setup,
    start_run,
)


def client_of(root: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=setup(root))


def test_a_run_says_what_it_is(toy_project: Path, toy_config: Config) -> None:
    with start_run(toy_config, toy_project, stage="train", tags={"more": "yes"}) as tracked:
        tracked.log_metrics({"train/a": 1.0, "train/missing": float("nan")}, step=2)
        tracked.log_points([MetricPoint("train/curve", float(step), step) for step in range(1200)])
        tracked.log_dataset("toy", "d" * 40, {"path": "data"}, {"num_train": 3})
    client = client_of(toy_project)
    run = client.get_run(tracked.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "xgb · toy · toy-1c"
    assert run.info.artifact_uri.startswith((toy_project / "mlruns" / "artifacts").as_uri())
    assert run.data.params["model.family"] == "random"
    assert run.data.params["hardware.target.kind"] == "llvm"
    assert run.data.tags["tencost.stage"] == "train"
    assert run.data.tags["features"] == "toy"
    assert run.data.tags["more"] == "yes"
    assert run.data.tags["version.tencost"]
    assert run.data.metrics == {"train/a": 1.0, "train/curve": 1199.0}
    assert len(client.get_metric_history(tracked.run_id, "train/curve")) == 1200
    dataset = run.inputs.dataset_inputs[0].dataset
    assert (dataset.name, dataset.digest) == ("toy", "d" * 36)
    config = Path(run.info.artifact_uri.removeprefix("file://")) / "config.yaml"
    assert "family: random" in config.read_text()


def test_a_run_that_is_interrupted_within_a_query_ends_as_killed(
    toy_project: Path, toy_config: Config
) -> None:
    """A query keeps SQLite's file locked until its rows are read, or the frame that asked is gone."""

    def interrupted_query() -> None:
        database = sqlite3.connect(toy_project / "mlruns" / "mlflow.db")
        cursor = database.execute("SELECT * FROM tags")
        cursor.fetchone()
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        start_run(toy_config, toy_project, stage="train") as tracked,
    ):
        interrupted_query()
    run = client_of(toy_project).get_run(tracked.run_id)
    assert run.info.status == "KILLED"
    assert run.data.tags["error"] == "KeyboardInterrupt: "


def test_metrics_of_a_model_name_the_dataset(
    toy_project: Path, toy_config: Config, tmp_path: Path
) -> None:
    """MLflow's page of models has a column of it, and finds models by it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "MLmodel").write_text("flavors: {}\n")
    with start_run(toy_config, toy_project, stage="train") as tracked:
        tracked.log_dataset("toy", "d" * 40, {"path": "data"}, {"num_train": 3})
        model_id = log_model(
            tracked.client, tracked.run_id, folder, name="toy", model_type="random"
        )
        tracked.log_metrics({"evaluate/top1": 0.5}, model_id=model_id)
    client = client_of(toy_project)
    (metric,) = client.get_logged_model(model_id).metrics
    assert (metric.dataset_name, metric.dataset_digest) == ("toy", "d" * 36)
    experiment = client.get_run(tracked.run_id).info.experiment_id
    above = "metrics.`evaluate/top1` > 0.4"
    models = client.search_logged_models(
        [experiment], datasets=[{"dataset_name": "toy"}], filter_string=above
    )
    assert [model.model_id for model in models] == [model_id]


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("broken"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_a_run_that_dies_is_not_left_running(
    toy_project: Path, toy_config: Config, error: BaseException, status: str
) -> None:
    def dies() -> None:
        with start_run(toy_config, toy_project, stage="train") as tracked:
            started.append(tracked.run_id)
            raise error

    started: list[str] = []
    with pytest.raises(type(error)):
        dies()
    run = client_of(toy_project).get_run(started[0])
    assert run.info.status == status
    assert run.data.tags["error"].startswith(type(error).__name__)


@pytest.mark.parametrize("stage", ["train", "sweep"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_while_it_starts_is_not_left_running(
    toy_project: Path, toy_config: Config, monkeypatch: pytest.MonkeyPatch, stage: str, number: int
) -> None:
    from mlflow import MlflowClient

    create = MlflowClient.create_run

    def created(*args: Any, **settings: Any) -> Any:
        run = create(*args, **settings)
        started.append(run.info.run_id)
        signal.raise_signal(number)  # the store has the run, the command does not know its id yet
        return run

    started: list[str] = []
    monkeypatch.delenv(PARENT_VARIABLE, raising=False)
    monkeypatch.setattr(MlflowClient, "create_run", created)
    start = (
        partial(start_run, toy_config, toy_project, stage="train")
        if stage == "train"
        else partial(parent_run, toy_project, "sweep model=random")
    )
    with pytest.raises(KeyboardInterrupt), signals.listening(), start():
        pytest.fail("the block was begun")
    assert client_of(toy_project).get_run(started[0]).info.status == "KILLED"
    assert PARENT_VARIABLE not in os.environ


def test_a_database_whose_making_was_interrupted_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow takes seconds for its tables, and refuses a file that has some of them: Ctrl-C came to a first command."""
    from mlflow.store.db import utils

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    make_tables = utils._initialize_tables

    def interrupted(engine: Any) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("create table experiments (experiment_id integer)")
        raise KeyboardInterrupt

    for name in (
        "mlflow.store.db.utils",
        "mlflow.store.tracking.sqlalchemy_store.mlflow.store.db.utils",
    ):
        monkeypatch.setattr(f"{name}._initialize_tables", interrupted)
    with pytest.raises(KeyboardInterrupt):
        setup(tmp_path)
    assert not (tmp_path / "mlruns" / "mlflow.db").exists()
    monkeypatch.setattr("mlflow.store.db.utils._initialize_tables", make_tables)
    assert client_of(tmp_path).get_experiment_by_name("tencost") is not None
    assert [path.name for path in (tmp_path / "mlruns").glob("*.db")] == ["mlflow.db"]


def test_runs_of_a_sweep_are_nested(
    toy_project: Path, toy_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PARENT_VARIABLE, raising=False)
    with parent_run(toy_project, "sweep model=random") as parent:
        assert os.environ[PARENT_VARIABLE] == parent
        with start_run(toy_config, toy_project, stage="train") as child:
            pass
    assert PARENT_VARIABLE not in os.environ
    client = client_of(toy_project)
    assert client.get_run(child.run_id).data.tags["mlflow.parentRunId"] == parent
    assert client.get_run(parent).info.status == "FINISHED"


def test_the_environment_chooses_the_store(
    toy_project: Path, tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(mlflow_database.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{other}")
    assert setup(toy_project) == f"sqlite:///{other}"


def test_parameters_are_those_that_the_stage_uses(toy_config: Config) -> None:
    train = flat_parameters(toy_config, "train", Path())
    assert train["split.test"] == "held_out"
    assert train["model.pool"] == "own"
    assert train["seeds"] == "0"
    assert not any(name.startswith("tuner.") for name in train)


def test_what_conf_defines_is_no_parameter_but_what_differs_from_it_is() -> None:
    root = Path(__file__).resolve().parents[2]
    words = ["hardware=epyc-avx2-1c", "split=by_task", "model=xgb"]
    defined = flat_parameters(composition.compose(words)[0], "train", root)
    others = {name for name in defined if not name.startswith("model.")}
    assert others == {"dataset.name", "hardware.name", "features.name", "split.name", "seeds"}
    assert "model.reads" not in defined
    changed = flat_parameters(
        composition.compose([*words, "split.test_fraction=0.3", "hardware.cores=1"])[0],
        "train",
        root,
    )
    assert set(changed) - set(defined) == {"split.test_fraction"}
    assert changed["split.test_fraction"] == "0.3"


def test_a_blend_has_one_parameter_for_each_field_of_its_members() -> None:
    root = Path(__file__).resolve().parents[2]
    cfg = composition.compose(["model=blend", "model.members.trees.eta=0.05"])[0]
    found = flat_parameters(cfg, "train", root)
    assert "model.members" not in found
    assert found["model.members.xgb.eta"] == "0.05"
    assert found["model.members.mlp.epochs"] == "40"
    assert not any("{" in value for value in found.values())


@pytest.mark.parametrize(
    ("items", "names"),
    [
        ([{"family": "a", "x": 1}, {"family": "b", "x": 2}], {"m.a.x": "1", "m.b.x": "2"}),
        ([{"family": "a", "x": 1}, {"family": "a", "x": 2}], {"m.0.x": "1", "m.1.x": "2"}),
        ([{"x": {"y": True}}, {}], {"m.0.x.y": "True", "m.1": "{}"}),
        ([1, 2], {"m": "1,2"}),
        ([], {"m": ""}),
    ],
)
def test_a_list_of_settings_is_opened(items: list[Any], names: dict[str, str]) -> None:
    flat: dict[str, str] = {}
    flatten("m", items, flat)
    assert {key: value for key, value in flat.items() if not key.endswith("family")} == names


def test_pooled_models_are_named_so(toy_config: Config) -> None:
    from tencost.config import Pool

    toy_config.model.pool = Pool.all
    assert run_name(toy_config) == "xgb · toy · toy-1c · all hardware"
