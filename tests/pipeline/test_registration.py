"""`tencost pipeline` registers evaluated models that the registry lacks: real DVC with a remote, real MLflow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

import toy_project as toy
from tencost.models.programs.families.random import RandomConfig
from tencost.models.programs.families.xgb import XgbConfig

ROOT = Path(__file__).resolve().parents[2]
MODEL = "tencost-toy-1c"
STAGE = "register@toy-1c"
WORDS = "dataset=toy split=by_network hardware=${item} rule.refit=false"
REPORT = "data/reports/toy/${item}"
STAGES = {
    "evaluate": {
        "foreach": ["toy-1c"],
        "do": {
            "cmd": f"tencost evaluate {WORDS.removesuffix(' rule.refit=false')}",
            "deps": ["data/records", "data/features", "data/splits", "data/models"],
            "outs": [f"{REPORT}/{name}" for name in ("leaderboard.json", "predictions.parquet")],
        },
    },
    "register": {
        "foreach": ["toy-1c"],
        "do": {
            "cmd": f"tencost register {WORDS}",
            "deps": ["data/models", f"{REPORT}/leaderboard.json", f"{REPORT}/predictions.parquet"],
            "outs": [{"mlruns/registered/toy/${item}.json": {"cache": False, "persist": True}}],
        },
    },
}
CONF = {
    "dataset/toy": {"name": "toy", "source": "toy"},
    "hardware/toy-1c": {"name": "toy-1c", "target": {"kind": "llvm"}},
    "features/toy": {"name": "toy", "kind": "trace"},
    "split/by_network": {"policy": "by_network", "test": ["held_out"]},
}
pytestmark = pytest.mark.slow


def run(root: Path, *words: str) -> str:
    """Run a command of this installation in a project; return what it printed."""
    quiet = {"DVC_NO_ANALYTICS": "1", "XDG_CACHE_HOME": str(root.parent / "cache")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **quiet, "PATH": path}
    environment.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=root, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def versions(root: Path) -> int:
    """Return how many versions the registry of a project has."""
    if not (root / "mlruns" / "mlflow.db").is_file():
        return 0
    uri = f"sqlite:///{root / 'mlruns' / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    return len(client.search_model_versions(f"name = '{MODEL}'"))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, mlflow_database: Path) -> Path:
    """The files that git has of a project whose pipeline ran elsewhere; a DVC remote holds its data."""
    folder = tmp_path_factory.mktemp("registration")
    root = folder / "project"
    root.mkdir()
    toy.make_toy_project(root, mlflow_database)
    toy.train_toy(root, "random", RandomConfig(family="random", reads=["toy"], reference=True))
    toy.train_toy(root, "xgb", XgbConfig(family="xgb", reads=["toy"], num_rounds=5))
    shutil.copytree(ROOT / "conf", root / "conf")
    for name, values in CONF.items():
        (root / "conf" / f"{name}.yaml").write_text(yaml.safe_dump(values))
    (root / "params.yaml").write_text(
        "hardware: []\nfeatures: []\nmodels: {}\ntrain: {}\nblends: {}\n"
    )
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": STAGES}))
    run(root, "dvc", "init", "--no-scm")
    run(root, "dvc", "remote", "add", "--default", "shared", str(folder / "remote"))
    run(root, "dvc", "add", *STAGES["evaluate"]["do"]["deps"])  # type: ignore[index]
    run(root, "tencost.cli", "pipeline")
    assert versions(root) == 1
    run(root, "dvc", "push")
    shutil.rmtree(root / ".dvc" / "cache")
    shutil.rmtree(root / "mlruns")
    for deps in STAGES["evaluate"]["do"]["deps"]:  # type: ignore[index]
        shutil.rmtree(root / deps)
    shutil.rmtree(root / "data" / "reports")
    return root


@pytest.mark.parametrize("option", ["--pull", "--allow-missing"])
def test_a_clone_registers_what_was_evaluated_elsewhere(
    clone: Path, tmp_path: Path, option: str
) -> None:
    root = tmp_path / "clone"
    shutil.copytree(clone, root)
    assert "Running stage" not in run(root, "dvc", "repro", option)
    assert versions(root) == 0, "DVC alone skips what it may not miss"
    if option == "--allow-missing":
        told = run(root, "tencost.cli", "pipeline", "--", option)
        assert "and its files are not here: dvc pull, then tencost pipeline" in told
        run(root, "dvc", "pull", "--allow-missing")
    printed = run(root, "tencost.cli", "pipeline", "--", option)
    assert f"{STAGE}: the registry lacks the model that was evaluated" in printed
    assert "Running stage 'evaluate" not in printed
    assert versions(root) == 1
    assert "up to date" in run(root, "dvc", "status")


def test_a_registry_that_lost_the_model_gets_it_again(clone: Path, tmp_path: Path) -> None:
    root = tmp_path / "clone"
    shutil.copytree(clone, root)
    run(root, "dvc", "pull", "--allow-missing")
    run(root, "tencost.cli", "pipeline")
    assert versions(root) == 1
    lock = (root / "dvc.lock").read_bytes()
    assert "lacks" not in run(root, "tencost.cli", "pipeline")
    (root / "mlruns" / "mlflow.db").unlink()
    assert "up to date" in run(root, "dvc", "repro"), "the mark is there"
    assert "lacks" not in run(root, "tencost.cli", "pipeline", "--", "--dry")
    assert f"{STAGE}: the registry lacks" in run(root, "tencost.cli", "pipeline", STAGE)
    assert versions(root) == 1
    assert (root / "dvc.lock").read_bytes() == lock
