from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.families.random import RandomConfig
from tencost.models.programs.families.xgb import XgbConfig
from tencost.models.programs.ranker import Samples
from tencost.train.data.folds import FoldSamples
from tencost.train.fit import seeds

SPEC = FeatureSpec(name="tiles", kind="tiles", columns=("a", "b"), options={})


def samples(size: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(size, 2)).astype(np.float32)
    label = np.clip(0.5 + values[:, 0] / 4, 0.1, 1.0).astype(np.float32)
    ids = np.array([f"{seed}-{at}" for at in range(size)])
    rows = Ragged(values, np.arange(size + 1))
    return Samples(rows, label, np.arange(size) // 10, 1e-3 / label.astype(np.float64), ids)


TRAIN, VALID = samples(40, 0), samples(20, 1)
FOLD = FoldSamples(np.arange(40) < 20, np.arange(20) < 10)
JOB = seeds.SeedJob(XgbConfig(family="xgb", num_rounds=5), SPEC, TRAIN, VALID, (FOLD,))


def test_many_programs_are_trained_in_workers_from_the_first_seed_on_and_to_the_same_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, tried_here = seeds.train_seeds(JOB, [0, 1], 1, "here")

    def trained_here(*_: object) -> None:
        raise AssertionError("trained in this process")

    monkeypatch.setattr(seeds, "MANY_PROGRAMS", len(TRAIN))
    monkeypatch.setattr(seeds, "_fit", trained_here)
    found, tried = seeds.train_seeds(JOB, [0, 1], 2, "in workers")

    assert [one.seed for one in found] == [0, 1]
    for one, same in zip(found, here, strict=True):
        scores = one.ranker.predict(VALID.features)
        assert np.array_equal(scores, same.ranker.predict(VALID.features))
        assert (one.points, one.valid) == (same.points, same.valid)
    assert np.array_equal(tried[0].train, tried_here[0].train)


@pytest.mark.parametrize(
    ("job", "jobs"),
    [
        (JOB, 1),
        (replace(JOB, config=RandomConfig(family="random")), 2),
        (replace(JOB, train=samples(30, 0), folds=()), 2),
    ],
    ids=["one job", "nothing to learn", "few programs"],
)
def test_no_worker_is_started_where_none_saves_time(
    job: seeds.SeedJob, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(seeds, "MANY_PROGRAMS", len(TRAIN))
    monkeypatch.setattr(seeds, "open_workers", started)
    found, _ = seeds.train_seeds(job, [0, 1], jobs, "here")
    assert [one.seed for one in found] == [0, 1]
