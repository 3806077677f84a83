"""Bundles of every family to score candidates with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tencost.config import FAMILY_CONFIGS, FeatureKind, FeaturesConfig
from tencost.train.ranker import FAMILIES

SMALL: dict[str, dict[str, Any]] = {
    "xgb": {"num_rounds": 8, "num_threads": 1},
    "mlp": {"epochs": 1, "hidden": 8},
    "tlp": {"epochs": 1, "hidden": 8, "heads": 2},
    "random": {},
    "tvm_xgb": {"num_rounds": 4, "num_threads": 1},
    "tvm_mlp": {"epochs": 1},
    "blend": {
        "members": [
            {"family": "xgb", "reads": ["per_store"], "num_rounds": 4, "num_threads": 1},
            {"family": "random", "reads": ["per_store"]},
        ]
    },
}
"""Settings that train in a second."""


@pytest.fixture(scope="session")
def make_bundle(
    tmp_path_factory: pytest.TempPathFactory, context: Any, candidates: list[Any]
) -> Callable[[str], Path]:
    """Train a family on the candidates (the label is made up from the number of rows' sums) and save its bundle."""
    from tencost.features.extractor import make_extractor, spec_for
    from tencost.features.ragged import Ragged
    from tencost.train.bundle import BundleInfo, plain_config, save_bundle
    from tencost.train.calibration import fit_calibration
    from tencost.train.ranker import Samples, make_ranker

    folder = tmp_path_factory.mktemp("bundles")

    def make(family: str) -> Path:
        path = folder / family
        if path.exists():
            return path
        kind = FeatureKind.trace if family == "tlp" else FeatureKind.per_store
        spec = spec_for(FeaturesConfig(name=kind.value, kind=kind))
        rows: Ragged = make_extractor(spec, {}).extract(context, candidates)
        label = np.random.default_rng(0).uniform(0.1, 1.0, len(rows)).astype(np.float32)
        label[[0, -1]] = 1.0
        names = np.array([str(index) for index in range(len(rows))])
        group = np.repeat(np.arange(2), len(rows) // 2)
        samples = Samples(rows, label, group, 1e-3 / label.astype(np.float64), names)
        config = FAMILY_CONFIGS[family](family=family, reads=[kind.value], **SMALL[family])
        ranker = make_ranker(config, spec)
        ranker.fit(samples, samples, seed=0, log=lambda *_: None)
        info = BundleInfo(
            family=family,
            model_config=plain_config(config),
            feature_spec=spec,
            hardware="test",
            target_kind="llvm",
            label="made up",
            calibration=fit_calibration(ranker.predict(rows), label),
            tvm_range=("0.27.0", "0.28.0"),
            dataset="test",
            dataset_hash="0",
            split="test",
            split_hash="0",
            seed=0,
        )
        save_bundle(path, ranker, info)
        return path

    return make


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)
