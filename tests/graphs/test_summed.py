"""Boosted trees on summed operators: learnt, saved, loaded, damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from made_graphs import chain, labelled, shuffled
from tencost.errors import BundleError, TrainError
from tencost.models.networks.families.summed import (
    COLUMNS,
    FAMILY,
    SummedConfig,
    SummedModel,
    summed_rows,
)

CONFIG = cast(SummedConfig, FAMILY.for_tests)


def trained(seed: int = 0) -> SummedModel:
    model = FAMILY.make(CONFIG, 2)
    model.fit(labelled(80, 1, missing=0.1), labelled(10, 2), seed=seed, report=lambda *_: None)
    assert isinstance(model, SummedModel)
    return model


def test_rows_are_sums() -> None:
    row = dict(zip(COLUMNS, summed_rows(chain([8, 16]))[0], strict=True))
    assert row["Conv2D.count"] == pytest.approx(np.log(3))
    work = 2 * 256 * 9 * (3 * 8 + 8 * 16)
    assert row["Conv2D.flop"] == row["conv_3.flop"] == pytest.approx(np.log1p(work))
    assert row["conv_1.count"] == row["MatMul.count"] == 0
    assert row["all.count"] == pytest.approx(np.log(8))


def test_it_learns() -> None:
    test = labelled(40, 3)
    error = np.abs(trained().predict(test.graphs) / test.latency_ms - 1)
    assert (np.median(error, axis=0) < 0.15).all()


def test_order_of_nodes_does_not_matter() -> None:
    one = labelled(1, 4).graphs
    model = trained()
    assert np.array_equal(model.predict(one), model.predict(shuffled(one, 0)))


def test_same_training_same_bytes_and_loads(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        trained().save(folder)
    names = sorted(path.name for path in first.iterdir())
    assert names == ["model_0.ubj", "model_1.ubj"]
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    loaded = FAMILY.make(CONFIG, 2)
    loaded.load(first)
    graphs = labelled(5, 5).graphs
    assert np.array_equal(loaded.predict(graphs), trained().predict(graphs))


def test_stops_early_where_validation_says_so(tmp_path: Path) -> None:
    config = replace(CONFIG, num_rounds=400, early_stopping_rounds=3, eta=0.9)
    model = FAMILY.make(config, 2)
    steps = []
    model.fit(labelled(40, 1), labelled(10, 2), seed=0, report=lambda _n, _v, s: steps.append(s))
    assert max(steps) < 390
    model.save(tmp_path)
    FAMILY.make(config, 2).load(tmp_path)


def test_a_missing_or_damaged_file_is_told(tmp_path: Path) -> None:
    trained().save(tmp_path)
    (tmp_path / "model_1.ubj").rename(tmp_path / "kept")
    with pytest.raises(BundleError, match="device 2 of 2"):
        FAMILY.make(CONFIG, 2).load(tmp_path)
    (tmp_path / "model_1.ubj").write_bytes((tmp_path / "kept").read_bytes()[:-40])
    with pytest.raises(BundleError, match=r"model_1\.ubj"):
        FAMILY.make(CONFIG, 2).load(tmp_path)


def test_a_device_without_labels_is_told() -> None:
    train = labelled(5, 1)
    train.latency_ms[:, 1] = np.nan
    with pytest.raises(TrainError, match="bound"):
        FAMILY.make(CONFIG, 2).fit(train, train, seed=0, report=lambda *_: None)
