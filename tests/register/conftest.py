"""A registry in a temporary SQLite file, and small bundles of the random family to put into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.bundle import BundleInfo, plain_config, save_bundle
from tencost.models.programs.bundle.calibration import Calibration
from tencost.models.programs.families.random import RandomConfig
from tencost.models.programs.ranker import make_ranker
from tencost.register import registry

MakeBundle = Callable[..., Path]
Register = Callable[..., registry.Version]


@pytest.fixture
def project(tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's root with a registry, and no other registry in the environment."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = tmp_path / "project"
    (root / "mlruns" / "artifacts").mkdir(parents=True)
    (root / "mlruns" / "mlflow.db").write_bytes(mlflow_database.read_bytes())
    return root


@pytest.fixture
def uri(project: Path) -> str:
    return f"sqlite:///{project / 'mlruns' / 'mlflow.db'}"


@pytest.fixture
def client(uri: str) -> Any:
    return registry.connect(uri)


@pytest.fixture
def run_id(client: Any, project: Path) -> str:
    """A finished training run."""
    location = (project / "mlruns" / "artifacts").as_uri()
    experiment = client.create_experiment("tencost", artifact_location=location)
    run = client.create_run(experiment)
    client.set_terminated(run.info.run_id)
    return str(run.info.run_id)


@pytest.fixture
def register(client: Any, run_id: str) -> Register:
    """Register a bundle, as champion if that is asked for; returns its version."""

    def register(bundle: Path, *, champion: bool = False) -> registry.Version:
        version, _ = registry.register_offer(
            client, registry.bundle_offer(bundle, "a toy"), run_id=run_id, description=""
        )
        if champion:
            registry.promote(client, version)
        return version

    return register


@pytest.fixture
def registered(register: Register, make_bundle: MakeBundle) -> Path:
    """A bundle that is version 1 and champion."""
    bundle = make_bundle()
    register(bundle, champion=True)
    return bundle


@pytest.fixture
def make_bundle(tmp_path: Path) -> MakeBundle:
    def make(name: str = "bundle", center: float = 0.0, **changes: Any) -> Path:
        spec = FeatureSpec(name="toy", kind="per_store", columns=("a", "b"))
        config = RandomConfig(family="random", reads=["toy"])
        values: dict[str, Any] = {
            "family": "random",
            "model_config": plain_config(config),
            "feature_spec": spec,
            "hardware": "toy-1c",
            "target_kind": "llvm",
            "label": "fastest / latency",
            "calibration": Calibration(center=center),
            "tvm_range": ("0.27.0", "0.28.0"),
            "dataset": "toy",
            "dataset_hash": "d" * 32,
            "split": "by_network",
            "split_hash": "5" * 32,
            "seed": 0,
        }
        folder = tmp_path / name
        save_bundle(folder, make_ranker(config, spec), BundleInfo(**{**values, **changes}))
        return folder

    return make
