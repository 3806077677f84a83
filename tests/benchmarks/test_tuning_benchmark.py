"""The tables of benchmarks/tuning.py."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Point = tuple[float, float, float]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delitem(sys.modules, "tuning_table", raising=False)
    import tuning_table  # type: ignore[import-not-found]

    return tuning_table


def write(
    table: ModuleType, folder: Path, arms: dict[str, list[list[Point]]], seconds: float = 100.0
) -> None:
    """Write runs of 64 programs in so many seconds a task: (trial, seconds, latency) of their bests."""
    folder.mkdir()
    again = {}
    count = len(next(iter(arms.values())))
    for arm, tasks in arms.items():
        for place, points in enumerate(tasks):
            row = {"latency_s": 1.0, "trace": "[]", "args": "[]"}
            rows = [{"trial": n, "seconds": seconds * n / 64, **row} for n in range(1, 65)]
            frame = pl.DataFrame(rows, schema=table.SCHEMA)
            frame.write_parquet(folder / f"{place}-{arm}.parquet")
            again[f"{place}-{arm}"] = points
    (folder / "again.json").write_text(json.dumps(again))
    tasks_told = [[f"task{place}", 1 + place, 1e6] for place in range(count)]
    (folder / "settings.json").write_text(json.dumps({"programs": 64, "tasks": tasks_told}))


STOCK: list[list[Point]] = [[(3, 10, 5e-3), (50, 90, 1e-3)], [(1, 10, 2e-3)]]
OURS: list[list[Point]] = [[(4, 5, 1.005e-3), (8, 10, 0.9e-3)], [(2, 5, 3e-3)]]


def test_budget_over_what_reached_the_goal(table: ModuleType, tmp_path: Path) -> None:
    write(table, tmp_path / "net-0", {"stock": STOCK, "tencost": OURS})
    run = table.read_run(tmp_path / "net-0")
    assert run.lacks == []
    found = table.factors([run], "tencost", "stock")
    # The first task needs 8 of 64 programs (4 within 1 %) and 10 of 100 seconds; the second never gets there.
    assert found["programs"] == pytest.approx((8 * 1) ** 0.5)
    assert found["programs 1%"] == pytest.approx((16 * 1) ** 0.5)
    assert found["seconds"] == pytest.approx((10 * 1) ** 0.5)
    assert found["seconds 1%"] == pytest.approx((20 * 1) ** 0.5)
    assert found["latency"] == pytest.approx((0.9 * 1.5) ** 0.5)
    assert found["reached"] == "1, 1 of 2"
    assert run.latency_s("tencost") == pytest.approx(0.9e-3 + 2 * 3e-3)


def test_no_ratio_where_an_arm_missed_a_task(table: ModuleType, tmp_path: Path) -> None:
    write(table, tmp_path / "whole-0", {"stock": STOCK, "tencost": OURS})
    write(table, tmp_path / "lacking-0", {"stock": [STOCK[0], []], "tencost": OURS})
    said = table.report(tmp_path)
    assert "no ratios of lacking-0: stock has no program of task1" in said
    assert not [line for line in said.splitlines() if line.split()[:1] == ["lacking-0"]]
    assert [line for line in said.splitlines() if line.split()[:1] == ["whole-0"]]


def test_shares_are_ratios_of_factors(table: ModuleType, tmp_path: Path) -> None:
    slow: list[list[Point]] = [[(32, 50, 1e-3)], [(32, 50, 2e-3)]]
    fast: list[list[Point]] = [[(8, 25, 1e-3)], [(8, 25, 2e-3)]]
    arms = {"stock": STOCK, "tencost": fast, "no-starts": slow, "frozen": fast, "random": slow}
    write(table, tmp_path / "net-0", arms)
    said = table.report(tmp_path)
    assert "starting points  4.00 times fewer programs (tencost over no-starts)" in said
    assert "model  4.00 times fewer programs (frozen over random)" in said
    assert "learning  1.00 times fewer programs (tencost over frozen)" in said
    assert "draft" not in said


def test_what_the_model_alone_is_worth(table: ModuleType, tmp_path: Path) -> None:
    asked: list[list[Point]] = [[(2, 5, 1.01e-3), (9, 9, 1e-3)], [(4, 5, 3e-3)]]
    blind: list[list[Point]] = [[(8, 5, 1.5e-3), (32, 9, 1.02e-3)], [(1, 5, 2e-3)]]
    write(table, tmp_path / "net-0", {"frozen-no-starts": asked, "random-no-starts": blind})
    said = table.report(tmp_path)
    rows = [line.split() for line in said.splitlines() if line.strip().startswith("net-0")]
    # Task 0: 2 programs against 32; task 1: the model never gets there in its 64, chance did at once.
    assert [row[3:6] for row in rows] == [["2", "32", "16.000"], ["64", "1", "0.016"]]
    assert "geometric mean" in said


def test_arms_over_the_program_by_rule(table: ModuleType, tmp_path: Path) -> None:
    rule: list[list[Point]] = [[(1, 1, 1e-3)], [(1, 1, 4e-3)]]
    write(table, tmp_path / "net-0", {"tencost": OURS, "random": STOCK, "rule": rule})
    (text,) = table.over_rule([table.read_run(tmp_path / "net-0")])
    title, names, *rows = text.splitlines()
    assert title.startswith("over the program by rule, geometric mean of 2 tasks")
    columns = re.split(r" {2,}", names.strip())
    found = {row.split()[0]: dict(zip(columns, row.split(), strict=True)) for row in rows}
    assert found["tencost"]["1 programs"] == "-", "neither task has a program after one"
    assert float(found["tencost"]["5 s"]) == pytest.approx((1.005 * 0.75) ** 0.5, abs=1e-3)
    assert float(found["tencost"]["64 programs"]) == pytest.approx((0.9 * 0.75) ** 0.5, abs=1e-3)
    assert float(found["random"]["64 programs"]) == pytest.approx((1.0 * 0.5) ** 0.5, abs=1e-3)
