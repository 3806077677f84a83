"""Makes the golden files beside it; run it for a new format version only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tencost.features.rows.spec import FeatureSpec
from tencost.models.neural.weights import write_weights
from tencost.models.programs.bundle import BundleInfo, plain_config, save_bundle
from tencost.models.programs.bundle.calibration import Calibration
from tencost.models.programs.families.random import RandomConfig
from tencost.models.programs.ranker import make_ranker

HERE = Path(__file__).parent
WEIGHTS = {
    "bias": np.array([0.5], np.float32),
    "layer": np.array([[1.0, -2.0], [3.0, 4.5]], np.float32),
}
SPEC = FeatureSpec(
    name="toy",
    kind="trace",
    columns=("speed", "noise", "device_log2_cores"),
    options={"max_steps": 8},
    device_columns=("device_log2_cores",),
)


def make() -> None:
    """Write weights.safetensors and bundle/."""
    write_weights(HERE / "weights.safetensors", WEIGHTS)
    config = RandomConfig(family="random", reads=["toy"])
    info = BundleInfo(
        family="random",
        model_config=plain_config(config),
        feature_spec=SPEC,
        hardware="toy-1c",
        target_kind="llvm",
        label="fastest / latency",
        calibration=Calibration(center=0.25, scale=2.0),
        tvm_range=("0.27.0", "0.28.0"),
        dataset="toy",
        dataset_hash="d" * 32,
        split="by_network",
        split_hash="5" * 32,
        seed=0,
        device={"device_log2_cores": 1.0},
        versions={"tencost": "0.1.0", "tvm": "0.27.0.post1"},
        metrics={"valid_pairwise": 0.5},
    )
    save_bundle(HERE / "bundle", make_ranker(config, SPEC), info)


if __name__ == "__main__":
    make()
