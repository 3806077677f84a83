"""A made-up device and another one: programs of both, a model of the first, what may be labelled on the second."""

from __future__ import annotations

from typing import Any

import numpy as np

from tencost.adapt.fitting import SourceModel
from tencost.adapt.pool import LabelPool
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.bundle import BundleInfo, plain_config
from tencost.models.programs.bundle.calibration import Calibration
from tencost.models.programs.families.corrected import spread_within
from tencost.models.programs.families.xgb import XgbConfig, XgbRanker
from tencost.models.programs.ranker import Samples
from tencost.models.programs.ranker.labels import speed_labels

SPEC = FeatureSpec(name="toy", kind="ansor_tiles", columns=("a", "b", "task"))
CONFIG = XgbConfig(family="xgb", num_rounds=60, num_models=1)
PER_TASK = 16


def programs(seed: int, tasks: int, second: float) -> tuple[Ragged, Any, Any]:
    """Rows, seconds and tasks: `a` makes a program fast everywhere, `b` as much as the hardware says."""
    rng = np.random.default_rng(seed)
    size = tasks * PER_TASK
    group = np.repeat(np.arange(tasks), PER_TASK).astype(np.int64)
    rows = rng.uniform(-1, 1, (size, 3)).astype(np.float32)
    rows[:, 2] = (group % 7) / 7
    seconds = 1e-3 * (1 + group) * np.exp(-rows[:, 0] - second * rows[:, 1])
    return Ragged(rows, np.arange(size + 1)), seconds, group


def samples(seed: int, tasks: int, second: float) -> Samples:
    features, seconds, group = programs(seed, tasks, second)
    label, _ = speed_labels(seconds, group)
    return Samples(features, label, group, seconds, np.asarray([f"r{i}" for i in group]))


def made_source() -> SourceModel:
    """Return a model of a hardware on which `b` counts nothing."""
    ranker = XgbRanker(CONFIG, SPEC)
    known = samples(0, 30, second=0.0)
    ranker.fit(known, known, seed=0, log=lambda *_: None)
    info = BundleInfo(
        family="xgb",
        model_config=plain_config(CONFIG),
        feature_spec=SPEC,
        hardware="old",
        target_kind="llvm",
        label="",
        calibration=Calibration(),
        tvm_range=("0.27.0", "0.28.0"),
        dataset="toy",
        dataset_hash="",
        split="by_task",
        split_hash="",
        seed=0,
    )
    return SourceModel(ranker, info, spread_within(ranker.predict(known.features), known.group))


def made_pool(source: SourceModel) -> LabelPool:
    """Return programs of a hardware on which `b` counts twice as much as `a`."""
    features, seconds, group = programs(1, 40, second=2.0)
    names = np.asarray([f"p{i}" for i in range(len(group))])
    score = source.ranker.predict(features)
    spread = spread_within(score, group)
    return LabelPool(
        names, np.asarray([f"w{i}" for i in group]), group, features, score, seconds, spread
    )
