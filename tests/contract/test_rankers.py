"""One contract for every model family: what train, evaluate, register and tune may rely on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tencost.config import ModelConfig
from tencost.config.parts import FAMILIES
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.bundle import BundleInfo, load_bundle, plain_config, save_bundle
from tencost.models.programs.bundle.calibration import LOWEST_SCORE, Calibration, fit_calibration
from tencost.models.programs.ranker import Ranker, Samples, make_ranker
from tencost.models.programs.ranker.losses import RankingMetrics

COLUMNS = ("speed", "noise", "other", "kind", "constant")
SPEC = FeatureSpec(name="toy", kind="trace", columns=COLUMNS, options={"max_steps": 8})
CONFIGS: dict[str, ModelConfig] = {
    name: family.for_tests for name, family in FAMILIES.all().items()
}
EMPTY = 3
"""A program of every part that has no rows."""


def make_samples(seed: int, num_groups: int, size: int = 20) -> Samples:
    """Groups whose programs are fast where the first column is large, whatever the group's scale."""
    rng = np.random.default_rng(seed)
    blocks, label, group = [], [], []
    for index in range(num_groups):
        for _ in range(size):
            speed = rng.uniform(-1, 1)
            rows = rng.uniform(0, 1, (rng.integers(1, 12), len(COLUMNS))).astype(np.float32)
            rows[:, 0] = 3 * speed + rng.normal(0, 0.1, len(rows))
            rows[:, 3:] = index % 3, 1.0
            blocks.append(rows)
            label.append(np.exp(2 * speed - 2))
            group.append(index)
    blocks[EMPTY] = np.zeros((0, len(COLUMNS)), np.float32)
    values = np.asarray(label, np.float32)
    ids = np.asarray([f"r{number}" for number in range(len(values))])
    features = Ragged.from_blocks(blocks, len(COLUMNS))
    return Samples(features, values, np.asarray(group), 1e-3 / values.astype(np.float64), ids)


@dataclass(frozen=True)
class Trained:
    ranker: Ranker
    points: list[tuple[str, float, int]]


TRAIN, VALID, TEST = make_samples(0, 8), make_samples(1, 3), make_samples(2, 6)


def train(family: str, seed: int = 0) -> Trained:
    ranker = make_ranker(CONFIGS[family], SPEC)
    points: list[tuple[str, float, int]] = []
    ranker.fit(TRAIN, VALID, seed=seed, log=lambda *point: points.append(point))
    return Trained(ranker, points)


@pytest.fixture(scope="module")
def trained() -> Callable[[str], Trained]:
    """Train each family once for all tests of this module."""
    cache: dict[str, Trained] = {}

    def get(family: str) -> Trained:
        if family not in cache:
            cache[family] = train(family)
        return cache[family]

    return get


def info_for(family: str, **changes: Any) -> BundleInfo:
    values: dict[str, Any] = {
        "family": family,
        "model_config": plain_config(CONFIGS[family]),
        "feature_spec": SPEC,
        "hardware": "toy-1c",
        "target_kind": "llvm",
        "label": "fastest / latency",
        "calibration": Calibration(),
        "tvm_range": ("0.27.0", "0.28.0"),
        "dataset": "toy",
        "dataset_hash": "d" * 32,
        "split": "by_task",
        "split_hash": "5" * 32,
        "seed": 0,
    }
    return BundleInfo(**{**values, **changes})


every_family = pytest.mark.parametrize("family", FAMILIES.names())


@every_family
def test_it_is_a_ranker(family: str, trained: Callable[[str], Trained]) -> None:
    ranker = trained(family).ranker
    assert isinstance(ranker, Ranker)
    assert ranker.family == family


@every_family
def test_it_learns_an_order(family: str, trained: Callable[[str], Trained]) -> None:
    scores = trained(family).ranker.predict(TEST.features)
    found = RankingMetrics(TEST.label, TEST.group)(np.nan_to_num(scores, nan=-np.inf))
    if family == "random":
        assert 0.4 < found["pairwise"] < 0.6
    else:
        assert found["pairwise"] > 0.8, found
        assert found["top1"] > 0.8, found


@every_family
def test_it_logs_curves_of_the_validation_split(
    family: str, trained: Callable[[str], Trained]
) -> None:
    points = trained(family).points
    names = {name.removesuffix("_member0") for name, _, _ in points}
    if family != "random":
        assert {"train/valid_pairwise", "train/valid_top1", "train/valid_top5"} <= names
    steps = [step for name, _, step in points if name == "train/valid_pairwise"]
    assert steps == sorted(set(steps))


@every_family
def test_same_seed_same_scores(family: str, trained: Callable[[str], Trained]) -> None:
    again = train(family).ranker.predict(TEST.features)
    assert np.array_equal(trained(family).ranker.predict(TEST.features), again, equal_nan=True)


@pytest.mark.parametrize("family", ["random", "xgb", "mlp", "tlp", "tvm_mlp", "blend"])
def test_another_seed_another_model(family: str, trained: Callable[[str], Trained]) -> None:
    other = train(family, seed=1).ranker.predict(TEST.features)
    assert not np.array_equal(trained(family).ranker.predict(TEST.features), other, equal_nan=True)


@every_family
def test_a_score_does_not_depend_on_the_batch(
    family: str, trained: Callable[[str], Trained]
) -> None:
    ranker = trained(family).ranker
    together = ranker.predict(TEST.features)
    alone = [ranker.predict(TEST.features.take(np.array([index])))[0] for index in range(len(TEST))]
    assert np.array_equal(together, np.asarray(alone), equal_nan=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(TEST))
    shuffled = np.empty(len(TEST))
    shuffled[order] = ranker.predict(TEST.features.take(order))
    assert np.array_equal(together, shuffled, equal_nan=True)
    some = rng.choice(len(TEST), 31, replace=True)
    assert np.array_equal(ranker.predict(TEST.features.take(some)), together[some], equal_nan=True)


@every_family
def test_a_program_without_rows_has_no_raw_score(
    family: str, trained: Callable[[str], Trained]
) -> None:
    ranker = trained(family).ranker
    scores = ranker.predict(TEST.features)
    assert np.isnan(scores[EMPTY])
    assert np.isfinite(np.delete(scores, EMPTY)).all()
    assert np.isnan(ranker.predict(TEST.features.take(np.array([EMPTY, EMPTY])))).all()
    assert ranker.predict(TEST.features.take(np.zeros(0, np.int64))).shape == (0,)


@every_family
def test_a_generation_of_2560_candidates(family: str, trained: Callable[[str], Trained]) -> None:
    features = TEST.features.take(np.resize(np.arange(len(TEST)), 2560))
    start = time.perf_counter()
    scores = trained(family).ranker.predict(features)
    assert scores.shape == (2560,)
    assert scores.dtype == np.float64
    assert time.perf_counter() - start < 20, "a generation must be scored in well under a second"


@every_family
def test_saved_and_loaded_it_scores_the_same(
    family: str, trained: Callable[[str], Trained], tmp_path: Path
) -> None:
    ranker = trained(family).ranker
    ranker.save(tmp_path)
    loaded = make_ranker(CONFIGS[family], SPEC)
    loaded.load(tmp_path)
    expected = ranker.predict(TEST.features)
    assert np.array_equal(loaded.predict(TEST.features), expected, equal_nan=True)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".ubj", ".safetensors", ".json"}
    assert loaded.importance() == pytest.approx(ranker.importance())


@every_family
def test_importance_is_of_columns_and_sums_to_one(
    family: str, trained: Callable[[str], Trained]
) -> None:
    importance = trained(family).ranker.importance()
    if family in ("xgb", "tvm_xgb", "blend"):
        assert sum(importance.values()) == pytest.approx(1.0)
        assert "speed" in next(iter(importance))
    else:
        assert importance == {}


@every_family
@pytest.mark.parametrize("shift", [0.0, -1e6])
def test_a_bundle_serves_positive_scores_in_the_same_order(
    family: str, shift: float, trained: Callable[[str], Trained], tmp_path: Path
) -> None:
    """Negative scores would be clamped to 0 by MetaSchedule: no ranker, however negative, may produce them."""
    ranker = trained(family).ranker
    raw = ranker.predict(TEST.features) + shift
    calibration = fit_calibration(ranker.predict(VALID.features) + shift, VALID.label)
    shifted = Calibration(center=calibration.center - shift, scale=calibration.scale)
    save_bundle(tmp_path / "bundle", ranker, info_for(family, calibration=shifted))
    scores = load_bundle(tmp_path / "bundle").scores(TEST.features)
    finite = np.isfinite(raw)
    assert scores[EMPTY] == LOWEST_SCORE
    assert (scores > 0).all()
    assert (scores <= 1).all()
    assert (scores[finite] > LOWEST_SCORE).all()
    order = np.argsort(ranker.predict(TEST.features)[finite], kind="stable")
    assert (np.diff(scores[finite][order]) >= 0).all()
    direct = calibration(raw)[finite]
    assert (np.diff(direct[np.argsort(raw[finite], kind="stable")]) >= 0).all()
    assert len(np.unique(direct)) == len(np.unique(raw[finite]))


SERVE = """
import sys
from pathlib import Path

BLOCKED = {"torch", "pytorch_lightning", "lightning", "mlflow", "polars", "pyarrow", "deltalake", "dvc", "tvm", "onnx"}

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not part of what production tuning installs")

sys.meta_path.insert(0, Block())
import numpy as np
from tencost.features.rows.ragged import Ragged
from tencost.models.programs.bundle import load_bundle

root = Path(sys.argv[1])
data = np.load(root / "features.npz")
features = Ragged(data["values"], data["offsets"])
for folder in sorted(path for path in root.iterdir() if path.is_dir()):
    np.save(root / f"{folder.name}.npy", load_bundle(folder).scores(features))
"""


def test_bundles_are_served_without_torch_mlflow_or_polars(
    trained: Callable[[str], Trained], tmp_path: Path
) -> None:
    np.savez(tmp_path / "features.npz", values=TEST.features.values, offsets=TEST.features.offsets)
    for family in FAMILIES.names():
        save_bundle(tmp_path / family, trained(family).ranker, info_for(family))
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for family in FAMILIES.names():
        expected = load_bundle(tmp_path / family).scores(TEST.features)
        assert np.array_equal(np.load(tmp_path / f"{family}.npy"), expected)
