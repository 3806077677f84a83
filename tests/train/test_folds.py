"""Networks left out in turn: who is with whom, and that nothing of a fold is learnt from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pytest

from tencost.features.rows.ragged import Ragged
from tencost.models.programs.ranker import Samples
from tencost.train.data.folds import (
    FILE,
    divide_networks,
    fold_programs,
    samples_without_folds,
    without,
)


def tasks(*pairs: tuple[str, str]) -> pl.DataFrame:
    return pl.DataFrame(list(pairs), schema=["network", "workload_id"], orient="row")


def test_variants_stay_together_and_folds_are_even() -> None:
    table = tasks(
        *(("resnet", f"r{n}") for n in range(4)),
        *(("resnet-b4", f"r{n}") for n in range(2, 6)),
        *(("bert", f"b{n}") for n in range(3)),
        *(("gpt", f"g{n}") for n in range(2)),
        ("gpt", "b0"),
        ("unmeasured", "u0"),
    )
    known = table["workload_id"].unique().to_list()
    known.remove("u0")
    folds = divide_networks(table, known, 2)
    assert [fold.networks for fold in folds] == [("resnet", "resnet-b4"), ("bert", "gpt")]
    assert folds[0].workloads == {f"r{n}" for n in range(6)}
    assert folds == divide_networks(table.reverse(), known[::-1], 2)
    three = divide_networks(table, known, 5)
    assert [fold.networks for fold in three] == [("resnet", "resnet-b4"), ("bert",), ("gpt",)]
    assert "b0" in three[1].workloads & three[2].workloads  # left out with each of the two
    assert (
        divide_networks(table, known, 1)
        == divide_networks(table, ["g0"], 5)
        == divide_networks(table, [], 5)
        == ()
    )


def samples(workloads: list[int]) -> Samples:
    count = len(workloads)
    return Samples(
        Ragged.from_blocks([np.full((1, 2), one, np.float32) for one in workloads], 2),
        np.ones(count, np.float32),
        np.asarray(workloads, np.int64),
        np.ones(count),
        np.array([f"{workload}-{at}" for at, workload in enumerate(workloads)]),
    )


def test_what_is_left_out_is_not_learnt_from() -> None:
    train, valid = samples([0, 0, 1, 2, 2]), samples([3, 3])
    ids = [*train.record_id, *valid.record_id]
    records = pl.DataFrame({"record_id": ids, "workload_id": [f"w{one[0]}" for one in ids]})
    folds = divide_networks(
        tasks(("a", "w0"), ("a", "w1"), ("b", "w3"), ("b", "w1"), ("c", "w2")),
        ["w0", "w1", "w2", "w3"],
        3,
    )
    assert [fold.networks for fold in folds] == [("a",), ("b",), ("c",)]
    first, second, third = samples_without_folds(folds, records, train, valid)
    learn, watch = without(train, valid, first)
    assert learn.record_id.tolist() == ["2-3", "2-4"]
    assert learn.group.tolist() == [0, 0]
    assert watch.record_id.tolist() == valid.record_id.tolist()
    assert [len(part) for part in fold_programs(train, valid, first)] == [3, 0]
    learn, watch = without(train, valid, second)  # takes the whole validation part
    assert learn.record_id.tolist() == watch.record_id.tolist() == ["0-0", "0-1", "2-3", "2-4"]
    assert [len(part) for part in fold_programs(train, valid, second)] == [1, 2]
    assert third.train.tolist() == [False, False, False, True, True]
    everything = divide_networks(
        tasks(("a", "w0"), ("a", "w1"), ("a", "w2"), ("b", "w3")), ["w0", "w1", "w2", "w3"], 2
    )
    whole, _ = samples_without_folds(everything, records, train, valid)
    assert not whole.train.any()  # nothing would be left to learn from


@pytest.fixture
def two_networks(toy_project: Path) -> Path:
    """The toy project with its training side in two networks: w2 and w4 in one, w3 in the other."""
    path = toy_project / "data" / "records" / "toy" / "tasks.parquet"
    table = pl.read_parquet(path)
    other = pl.when(pl.col("workload_id") == "w3").then(pl.lit("other"))
    table.with_columns(network=other.otherwise(pl.col("network"))).write_parquet(path)
    return toy_project


def test_train_writes_what_models_without_a_fold_say_of_it(
    two_networks: Path, toy_config: Any
) -> None:
    from tencost.models.programs.families.xgb import XgbConfig
    from tencost.models.programs.ranker import make_ranker
    from tencost.train import programs as stage
    from tencost.train.data import Data

    toy_config.model = XgbConfig(family="xgb", reads=["toy"], num_rounds=20)
    toy_config.seeds = [3, 4]
    result = stage.run(toy_config, two_networks)
    assert orjson.loads((result.folder / "run.json").read_bytes())["folds"] == [["seen"], ["other"]]
    data = Data(toy_config, two_networks)
    scores = pl.read_parquet(result.folder / FILE).join(
        data.records.select("record_id", "workload_id", "program_id"), on="record_id"
    )
    found = {key[0]: set(part["workload_id"]) for key, part in scores.group_by("fold")}
    assert found == {0: {"w2", "w4"}, 1: {"w3"}}
    learn = data.samples(["toy-1c"], "train")
    only = learn.take(np.flatnonzero(np.isin(learn.record_id, scores.filter(fold=1)["record_id"])))
    ranker = make_ranker(toy_config.model, data.features("toy").spec)
    ranker.fit(only, only, seed=3, log=lambda name, value, step: None)
    first = scores.filter(fold=0)
    expected = ranker.predict(data.features("toy").select(first["program_id"].to_list()))
    assert first["raw"].to_list() == expected.tolist()

    toy_config.folds = 0
    again = stage.run(toy_config, two_networks)
    assert not (again.folder / FILE).exists()
