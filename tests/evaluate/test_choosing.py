"""The choice by networks left out: hand-worked composites, and the stage that takes them from `train`'s scores."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest

from tencost.evaluate import report, stage
from tencost.evaluate.choosing import METRICS, choices
from tencost.evaluate.program_board import ProgramBoard, ProgramRow, by_validation, regret
from tencost.models.programs.families.random import RandomConfig
from tencost.models.programs.families.xgb import XgbConfig


def figures(*values: float) -> dict[str, dict[str, float]]:
    """The same value of every metric, fold by fold; a fold without one was not tried."""
    return {
        f"net{at}": dict.fromkeys(METRICS, value)
        for at, value in enumerate(values)
        if not math.isnan(value)
    }


def test_an_advantage_counts_by_how_much_the_folds_agree_on_it() -> None:
    """a is .1 above b on both folds but for .01, which is the spread: sqrt(4 * .005^2 / 1 degree of freedom)."""
    found = choices({"a": figures(0.7, 0.5), "b": figures(0.61, 0.39)})
    assert found["a"].composite == pytest.approx(0.05 / 0.01)
    assert found["b"].composite == pytest.approx(-0.05 / 0.01)
    assert found["a"].folds["net0"]["geo1"] == 0.7


def test_a_family_that_was_tried_on_an_easy_fold_alone_gains_nothing_by_it() -> None:
    found = choices(
        {
            "slow": figures(0.85),
            "good": figures(0.9, 0.5, 0.41),
            "bad": figures(0.8, 0.4, 0.29),
        }
    )
    assert found["good"].composite > found["slow"].composite > found["bad"].composite
    assert found["slow"].composite == pytest.approx(0.0, abs=0.2)


def test_who_was_not_tried_cannot_be_compared() -> None:
    assert choices({"a": figures(0.7, 0.5), "b": {}}) == {}
    assert choices({}) == {}
    equal = choices({"a": figures(0.7), "b": figures(0.7)})
    assert [one.composite for one in equal.values()] == pytest.approx([0.0, 0.0])
    unknown = {"net0": dict.fromkeys(METRICS, math.nan)}
    assert choices({"a": unknown, "b": unknown})["a"].composite == 0.0


def test_the_winner_is_the_best_on_networks_left_out(toy_project: Path, toy_config: Any) -> None:
    """Random order that is lucky on the validation part does not win, and what the choice costs is told."""
    from tencost.train import programs as training

    path = toy_project / "data" / "records" / "toy" / "tasks.parquet"
    table = pl.read_parquet(path)
    other = pl.when(pl.col("workload_id") == "w3").then(pl.lit("other"))
    table.with_columns(network=other.otherwise(pl.col("network"))).write_parquet(path)
    for name, family in (
        ("random", RandomConfig(family="random", reads=["toy"])),
        ("xgb", XgbConfig(family="xgb", reads=["toy"], num_rounds=30, min_child_weight=0.01)),
    ):
        toy_config.model, toy_config.model_name = family, name
        training.run(toy_config, toy_project)
    board = stage.run(toy_config, toy_project)
    trees = next(row for row in board.rows if row.model == "xgb-toy")
    floor = next(row for row in board.rows if row.model == "random-toy")
    assert trees.choice is not None
    assert floor.choice is not None
    assert set(trees.choice.folds) == {"seen", "other"}
    assert trees.choice.folds["other"]["pairwise"] > 0.7
    lucky = ProgramBoard(
        **{
            **vars(board),
            "rows": tuple(
                ProgramRow(**{**vars(row), "valid_pairwise": (float(row.model == "random-toy"),)})
                for row in board.rows
            ),
        }
    )
    winner, before = lucky.winner(), by_validation(lucky)
    assert winner is not None
    assert before is not None
    assert (winner.model, before.model) == ("xgb-toy", "random-toy")
    assert floor.choice is not None
    fewer = replace(floor.choice, composite=9.0, folds={"seen": floor.choice.folds["seen"]})
    rows = tuple(replace(row, choice=fewer) if row == floor else row for row in board.rows)
    assert replace(board, rows=rows).winner() == trees, "a fold less, and it does not win"
    assert regret(lucky, winner)["geo1"] == 0.0
    assert regret(lucky, before)["geo1"] == pytest.approx(trees.mean("geo1") - floor.mean("geo1"))
    text = report.program_board_markdown(lucky)
    assert "chosen by leaving networks of the training side out" in text
    assert "regret, the best candidate minus the one chosen: xgb-toy: geo1 0.000" in text

    folder = toy_project / "data" / "reports" / "toy" / "toy-1c" / "leaderboard.json"
    loaded = ProgramBoard.load(folder)
    assert loaded.winner() == next(row for row in loaded.rows if row.model == "xgb-toy")
    values = orjson.loads(folder.read_bytes())
    for row in values["rows"]:
        for name in ("choice", "tasks"):
            del row[name]
    del values["left_out"]
    folder.write_bytes(orjson.dumps(values))
    old = ProgramBoard.load(folder)
    assert old.winner() == by_validation(old)
    assert "chosen by pairwise on the validation part" in report.program_board_markdown(old)
