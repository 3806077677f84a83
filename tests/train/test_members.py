"""A blend takes members that were trained already, where training again would repeat them, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tencost.config import Config
from tencost.models.programs.bundle import load_bundle
from tencost.models.programs.families.blend import BlendConfig, BlendRanker
from tencost.models.programs.families.mlp import MlpConfig
from tencost.models.programs.families.xgb import XgbConfig
from tencost.train import programs as stage
from tencost.train.data import Data
from tencost.train.fit import members, seeds

pytestmark = pytest.mark.usefixtures("undrawn_figures")
XGB = XgbConfig(family="xgb", reads=["toy"], num_rounds=10, num_models=2)
MLP = MlpConfig(family="mlp", reads=["toy"], hidden=8, epochs=3)


@pytest.fixture
def project(toy_project: Path) -> Path:
    """The toy project with its training side in two networks, so that there are two folds."""
    path = toy_project / "data" / "records" / "toy" / "tasks.parquet"
    table = pl.read_parquet(path)
    other = pl.when(pl.col("workload_id") == "w3").then(pl.lit("other"))
    table.with_columns(network=other.otherwise(pl.col("network"))).write_parquet(path)
    return toy_project


Train = Callable[..., Path]


@pytest.fixture
def train(project: Path, toy_config: Config) -> Train:
    """Train a model of the toy project and return its folder."""

    def run(model: Any, name: str, seeds: tuple[int, ...] = (3, 4)) -> Path:
        toy_config.model, toy_config.model_name = model, name
        toy_config.seeds, toy_config.jobs = list(seeds), 1
        return stage.run(toy_config, project).folder

    return run


def blend(**other: Any) -> BlendConfig:
    trees = {"family": "xgb", "num_rounds": 10, "num_models": 2, **other}
    network = {"family": "mlp", "hidden": 8, "epochs": 3}
    return BlendConfig(family="blend", reads=["toy"], members=[trees, network])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The families of what blends train themselves."""
    found: list[str] = []

    def noted(job: Any, *others: Any) -> Any:
        found.append(job.config.family)
        return seeds.train_seeds(job, *others)

    monkeypatch.setattr(members, "train_seeds", noted)
    return found


def test_a_blend_of_trained_members_is_the_same_to_the_letter(
    train: Train, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    alone = contents(train(blend(), "blend"))
    assert trained == ["xgb", "mlp"]
    assert {"folds.parquet", "seed3/m0-model_1.ubj", "seed4/m1-network_0.safetensors"} <= set(alone)
    train(XGB, "xgb")
    train(MLP, "mlp", (3, 4, 5))
    trained.clear()
    capsys.readouterr()
    assert contents(train(blend(), "blend")) == alone
    assert trained == []
    assert "xgb-toy, mlp-toy as trained before" in " ".join(capsys.readouterr().err.split())


def test_a_blend_is_what_it_is_when_it_is_fitted_at_once(
    train: Train, project: Path, toy_config: Config
) -> None:
    bundle = load_bundle(train(blend(), "blend") / "seed4")
    whole = BlendRanker(blend(), bundle.info.feature_spec)
    data = Data(toy_config, project)
    learn, watch = data.samples(["toy-1c"], "train"), data.samples(["toy-1c"], "valid")
    whole.fit(learn, watch, seed=4, log=lambda *_: None)
    assert whole.predict(watch.features).tolist() == bundle.ranker.predict(watch.features).tolist()


def _other_rounds(folder: Path) -> BlendConfig:
    return blend(num_rounds=11)


def _other_programs(folder: Path) -> BlendConfig:
    return _edited(folder / "run.json", programs=[23, 12])


def _other_folds(folder: Path) -> BlendConfig:
    return _edited(folder / "run.json", folds=[["other"], ["seen"]])


def _older_release(folder: Path) -> BlendConfig:
    values = json.loads((folder / "run.json").read_text())
    return _edited(folder / "run.json", **dict.fromkeys(set(values) - {"folds", "seeds"}))


def _other_records(folder: Path) -> BlendConfig:
    return _edited(folder / "seed4" / "bundle.json", dataset_hash="0" * 32)


def _other_versions(folder: Path) -> BlendConfig:
    return _edited(folder / "seed4" / "bundle.json", versions={"xgboost": "0.1"})


def _damaged(folder: Path) -> BlendConfig:
    path = folder / "seed3" / "model_1.ubj"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    return blend()


def _damaged_folds(folder: Path) -> BlendConfig:
    (folder / "folds.parquet").write_bytes(b"PAR1")
    return blend()


def _no_folds(folder: Path) -> BlendConfig:
    (folder / "folds.parquet").unlink()
    return blend()


def _no_run_file(folder: Path) -> BlendConfig:
    (folder / "run.json").write_text("{")
    return blend()


def _edited(path: Path, **values: Any) -> BlendConfig:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return blend()


@pytest.mark.parametrize(
    "change",
    [
        _other_rounds,
        _other_programs,
        _other_folds,
        _older_release,
        _other_records,
        _other_versions,
        _damaged,
        _damaged_folds,
        _no_folds,
        _no_run_file,
    ],
)
def test_a_member_that_may_differ_is_trained(
    train: Train, trained: list[str], change: Callable[[Path], BlendConfig]
) -> None:
    train(MLP, "mlp")
    config = change(train(XGB, "xgb"))
    train(config, "blend")
    assert trained == ["xgb"]


def test_members_of_other_code_or_without_their_run_are_trained(
    train: Train, trained: list[str], toy_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(MLP, "mlp")
    monkeypatch.setattr("tencost.train.stage.code_digest", lambda: "0" * 32)
    train(XGB, "xgb")
    train(blend(), "blend")
    assert trained == ["xgb"]
    trained.clear()
    toy_config.experiment_name = "another"
    train(blend(), "blend")
    assert trained == ["xgb", "mlp"]


def test_other_seeds_are_trained(train: Train, trained: list[str]) -> None:
    train(XGB, "xgb", (4, 3))  # the folds are tried with the first seed
    train(MLP, "mlp", (3,))
    train(blend(), "blend")
    assert trained == ["xgb", "mlp"]


def test_where_a_family_may_be_used_does_not_count(train: Train, trained: list[str]) -> None:
    train(replace(XGB, reads=["toy", "per_store"]), "xgb")
    train(MLP, "mlp")
    train(blend(), "blend")
    assert trained == []
