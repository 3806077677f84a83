"""Nearest neighbours: those of scipy's tree, whatever is scored beside a program, and none of what is no number."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import cKDTree

from tencost.errors import FeatureError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.families.knn import KnnConfig, KnnRanker, _nearest
from tencost.models.programs.ranker import Samples

COLUMNS = tuple("abcdef")
SPEC = FeatureSpec(name="toy", kind="trace", columns=COLUMNS, options={"max_steps": 8})


def samples(rows: np.ndarray, label: np.ndarray) -> Samples:
    features = Ragged.from_blocks([row[None] for row in rows], len(COLUMNS))
    ids = np.asarray([f"r{number}" for number in range(len(rows))])
    group = np.arange(len(rows)) % 5
    return Samples(features, label.astype(np.float32), group, 1e-3 / label.astype(np.float64), ids)


def test_they_are_the_tree_s() -> None:
    rng = np.random.default_rng(0)
    others = rng.normal(size=(3000, 40)).astype(np.float32)
    rows = rng.normal(size=(200, 40)).astype(np.float32)
    _, near = cKDTree(others).query(rows, k=10)
    assert [set(places) for places in _nearest(rows, others, 10)] == [set(row) for row in near]


def test_of_equally_near_ones_the_first_count_alone_and_in_a_batch() -> None:
    rng = np.random.default_rng(1)
    others = np.repeat(np.log2(rng.integers(1, 512, (300, 40))).astype(np.float32), 15, axis=0)
    others = others[rng.permutation(len(others))]
    rows = others[rng.integers(0, len(others), 300)]
    together = [set(places) for places in _nearest(rows, others, 10)]
    alone = [set(_nearest(row[None], others, 10)[0]) for row in rows]
    assert together == alone
    equal = [np.flatnonzero((others == row).all(axis=1))[:10] for row in rows]
    assert together == [set(places) for places in equal]


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_is_near_nothing(wrong: float) -> None:
    rng = np.random.default_rng(2)
    rows, label = rng.normal(size=(60, len(COLUMNS))).astype(np.float32), rng.uniform(0.1, 1, 60)
    ranker = KnnRanker(KnnConfig(family="knn"), SPEC)
    good = samples(rows, label)
    ranker.fit(good, good, seed=0, log=lambda *_: None)
    rows[7, 2] = wrong
    with pytest.raises(FeatureError, match="found 1 programs with others"):
        ranker.predict(samples(rows, label).features)
    with pytest.raises(FeatureError, match="expected finite numbers in the rows of 60 programs"):
        ranker.fit(samples(rows, label), good, seed=0, log=lambda *_: None)
