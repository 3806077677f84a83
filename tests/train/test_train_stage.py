from __future__ import annotations

import platform
import re
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pytest

import tencost
from tencost.config import Config, Pool, SplitConfig, SplitPolicy
from tencost.errors import ConfigError, SplitError, TrainError
from tencost.models.programs.bundle import load_bundle, training_digest
from tencost.models.programs.families.xgb import XgbConfig
from tencost.tracking.runs import logged_model, setup, training_run
from tencost.train import programs as stage
from tencost.train.data import Data
from tencost.train.programs import run

pytestmark = pytest.mark.usefixtures("undrawn_figures")  # test_curves.py draws them


@pytest.fixture
def xgb_config(toy_config: Config) -> Config:
    toy_config.model = XgbConfig(family="xgb", reads=["toy"], num_rounds=30)
    toy_config.model_name = "xgb"
    toy_config.seeds = [0, 3]
    return toy_config


def client_of(root: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=setup(root))


def runs_of(root: Path) -> list[str]:
    """Return the status of every MLflow run of a project."""
    client = client_of(root)
    every = [one.experiment_id for one in client.search_experiments()]
    return [one.info.status for one in client.search_runs(every)]


def test_bundles_run_file_and_mlflow(toy_project: Path, xgb_config: Config) -> None:
    result = run(xgb_config, toy_project)
    assert result.folder == toy_project / "data/models/toy/toy-1c/xgb-toy"
    assert sorted(path.name for path in result.folder.iterdir()) == ["run.json", "seed0", "seed3"]
    assert [path.name for path in result.folder.parent.iterdir()] == ["xgb-toy"]
    noted = orjson.loads((result.folder / "run.json").read_bytes())
    assert noted["seeds"] == [0, 3]
    assert noted["best_seed"] == result.best_seed
    assert result.valid["pairwise"] > 0.8
    assert result.valid_score == pytest.approx(
        np.mean([noted["valid"][seed]["choice"] for seed in ("0", "3")])
    )

    bundle = load_bundle(result.folder / "seed3", target_kind="llvm", tvm_version="0.27.0")
    assert bundle.info.seed == 3
    assert bundle.info.split == "by_network"
    assert len(bundle.info.dataset_hash) == len(bundle.info.split_hash) == 32
    test = Data(xgb_config, toy_project).samples(["toy-1c"], "test")
    scores = bundle.scores(test.features)
    assert np.corrcoef(scores, test.features.values[:, 0])[0, 1] > 0.8

    client = client_of(toy_project)
    assert training_run(client, "tencost", training_digest(result.folder)) == result.run_id
    mlflow_run = client.get_run(result.run_id)
    metrics = mlflow_run.data.metrics
    assert mlflow_run.info.status == "FINISHED"
    assert metrics["train/final_valid_pairwise"] == pytest.approx(result.valid["pairwise"])
    assert metrics["train/num_train"] == 24
    history = client.get_metric_history(result.run_id, "train/valid_pairwise")
    assert [point.step for point in history] == [10, 20, 30]
    names = {item.path for item in client.list_artifacts(result.run_id)}
    assert {"bundles", "config.yaml", "importance.json", "plots"} <= names
    assert [item.path for item in client.list_artifacts(result.run_id, "plots")] == [
        "plots/learning_curves.png"
    ]
    assert mlflow_run.inputs.dataset_inputs[0].dataset.name == "toy"


def test_the_logged_model_is_a_pyfunc(toy_project: Path, xgb_config: Config) -> None:
    import mlflow.pyfunc
    import pandas as pd

    result = run(xgb_config, toy_project)
    client = client_of(toy_project)
    logged = client.get_logged_model(logged_model(client, result.run_id))
    assert logged.status == "READY"
    assert logged.source_run_id == result.run_id
    assert logged.model_type == "xgb"
    assert {one.key: one.value for one in logged.metrics}[
        "train/final_valid_pairwise"
    ] == pytest.approx(result.valid["pairwise"])
    model = mlflow.pyfunc.load_model(logged.artifact_location)
    rows = np.array([[0.1, 0.5], [0.9, 0.5], [0.8, 0.5]], np.float32)
    frame = pd.DataFrame(rows, columns=["speed", "noise"]).assign(program=[7, 2, 2])
    found = model.predict(frame)
    assert found["program"].tolist() == [7, 2]
    assert found["score"].between(0, 1).all()
    bundle = load_bundle(result.folder / f"seed{result.best_seed}")
    from tencost.features.rows.ragged import Ragged

    expected = bundle.scores(Ragged(rows, np.array([0, 1, 3])))
    assert found["score"].tolist() == expected.tolist()
    assert model.metadata.signature.inputs.input_names() == ["program", "speed", "noise"]
    # Its example is the first programs of the validation part, as they were featurized.
    example = model.input_example
    valid = Data(xgb_config, toy_project).samples(["toy-1c"], "valid").features
    assert example["program"].tolist() == [0, 1]
    assert (example[["speed", "noise"]].to_numpy(np.float32) == valid.values[:2]).all()
    assert model.predict(example)["score"].tolist() == bundle.scores(valid)[:2].tolist()


def test_training_again_gives_the_same_model(toy_project: Path, xgb_config: Config) -> None:
    first = run(xgb_config, toy_project)
    written = {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()}
    assert len(written) > 4
    again = run(xgb_config, toy_project)
    assert {
        path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()
    } == written
    assert again.run_id != first.run_id
    assert (
        training_run(client_of(toy_project), "tencost", training_digest(again.folder))
        == again.run_id
    )


def test_a_family_that_does_not_read_the_features(toy_project: Path, xgb_config: Config) -> None:
    xgb_config.model.reads = ["per_store", "tiles"]
    with pytest.raises(
        ConfigError, match=r"model=xgb cannot .* features=toy: .* reads per_store, tiles"
    ):
        run(xgb_config, toy_project)


@pytest.mark.parametrize("seeds", [[], [1, 1]])
def test_seeds_must_differ(toy_project: Path, xgb_config: Config, seeds: list[int]) -> None:
    xgb_config.seeds = seeds
    with pytest.raises(ConfigError, match="seeds must be different whole numbers"):
        run(xgb_config, toy_project)


def test_a_hardware_without_records(toy_project: Path, xgb_config: Config) -> None:
    xgb_config.hardware.name = "elsewhere"
    with pytest.raises(TrainError, match="expected records of elsewhere in the train part"):
        run(xgb_config, toy_project)
    assert runs_of(toy_project) == []


def test_a_test_part_of_failures_is_refused_before_training(
    toy_project: Path, xgb_config: Config
) -> None:
    data = Data(xgb_config, toy_project)
    failed = pl.col("record_id").is_in(data.split.filter(part="test")["record_id"].to_list())
    data.records = data.records.with_columns(
        status=pl.when(failed).then(pl.lit("run_error")).otherwise("status"),
        latency_s=pl.when(failed).then(None).otherwise("latency_s"),
    )
    with pytest.raises(SplitError, match=r"with a time in the test part .* none among 24 records"):
        run(xgb_config, toy_project, data)
    assert runs_of(toy_project) == []
    assert not (toy_project / "data" / "models").exists()


def test_a_validation_part_that_ranks_nothing_is_refused_before_training(
    toy_project: Path, xgb_config: Config
) -> None:
    data = Data(xgb_config, toy_project)
    watched = data.split.filter(part="valid")["record_id"].to_list()[1:]
    data.split = data.split.filter(~pl.col("record_id").is_in(watched))
    with pytest.raises(TrainError, match="a validation group with at least two programs of toy-1c"):
        run(xgb_config, toy_project, data)
    assert runs_of(toy_project) == []


def test_pooled_training_validates_where_it_can(toy_project: Path, xgb_config: Config) -> None:
    xgb_config.hardware.name = "elsewhere"
    xgb_config.model.pool = Pool.all
    xgb_config.split = SplitConfig(policy=SplitPolicy.by_hardware, test=["elsewhere"])
    result = run(xgb_config, toy_project)
    assert load_bundle(result.folder / "seed0").info.hardware == "elsewhere"


def test_a_failure_while_writing_leaves_the_older_model(
    toy_project: Path, xgb_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(xgb_config, toy_project)
    noted = (first.folder / "run.json").read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(stage, "save_bundle", fail)
    with pytest.raises(OSError, match="disk full"):
        run(xgb_config, toy_project)
    assert (first.folder / "run.json").read_bytes() == noted
    assert [path.name for path in first.folder.parent.iterdir()] == ["xgb-toy"]


def test_a_run_tells_neither_the_host_s_name_nor_its_paths(
    toy_project: Path, xgb_config: Config
) -> None:
    result = run(xgb_config, toy_project)
    told = [str(toy_project), str(Path(tencost.__file__).parent), f"{tempfile.gettempdir()}/"]
    files = [path for path in (toy_project / "mlruns" / "artifacts").rglob("*") if path.is_file()]
    assert any(path.name == "MLmodel" for path in files)
    for path in files:
        content = path.read_bytes()
        assert not [one for one in told if one.encode() in content], path
    with sqlite3.connect(toy_project / "mlruns" / "mlflow.db") as database:
        for table in ("params", "tags", "datasets", "inputs"):
            text = str(database.execute(f"SELECT * FROM {table}").fetchall())
            assert not [one for one in told if one in text], table
    database.close()
    tags = client_of(toy_project).get_run(result.run_id).data.tags
    assert tags["host"].endswith("CPUs")
    words = {word for value in tags.values() for word in re.split(r"[\s,]+", value)}
    assert platform.node() not in words
