"""Metrics of latencies against their formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tencost.models.networks.bundle.latency_metrics import average, by_family, score


def test_formulas() -> None:
    measured = np.array([100.0, 100.0, 10.0, 50.0])
    predicted = np.array([104.0, 105.0, 11.0, 40.0])  # 4 %, 5 %, 10 %, 20 %
    found = score(predicted, measured)
    assert found.count == 4
    assert found.rmse == pytest.approx(math.sqrt((16 + 25 + 1 + 100) / 4))
    assert found.mape == pytest.approx((0.04 + 0.05 + 0.1 + 0.2) / 4)
    assert found.rmspe == pytest.approx(math.sqrt((0.04**2 + 0.05**2 + 0.1**2 + 0.2**2) / 4))
    assert (found.acc5, found.acc5_le) == (0.25, 0.5)
    assert (found.acc10, found.acc10_le) == (0.5, 0.75)


def test_graphs_without_a_latency_do_not_count() -> None:
    found = score(np.array([1.0, 7.0]), np.array([1.0, np.nan]))
    assert (found.count, found.mape) == (1, 0.0)
    nothing = score(np.array([7.0]), np.array([np.nan]))
    assert nothing.count == 0
    assert math.isnan(nothing.acc10)


def test_tau_is_of_the_order_within_a_family() -> None:
    family = np.array(["a", "a", "a", "b", "b", "b"])
    measured = np.array([1.0, 2.0, 3.0, 100.0, 200.0, 300.0])
    predicted = np.array(
        [3.0, 2.0, 1.0, 300.0, 200.0, 100.0]
    )  # right between families, wrong within
    found = by_family(family, predicted, measured)
    assert {name: one.tau for name, one in found.items()} == {"a": -1.0, "b": -1.0}
    assert average(list(found.values())).tau == -1.0
    assert score(np.ones(3), measured[:3]).tau == 0.0


def test_families_count_alike_whatever_their_size() -> None:
    family = np.array(["a"] * 9 + ["b"])
    measured = np.ones(10)
    predicted = np.array([1.0] * 9 + [2.0])
    found = average(list(by_family(family, predicted, measured).values()))
    assert (found.count, found.acc10) == (10, 0.5)
    assert found.mape == pytest.approx(0.5)


def test_a_family_without_latencies_is_left_out() -> None:
    found = by_family(np.array(["a", "b"]), np.ones(2), np.array([1.0, np.nan]))
    assert list(found) == ["a"]


def test_the_page_has_the_figures_that_the_pipeline_wrote() -> None:
    root = Path(__file__).resolve().parents[2]
    metrics = json.loads(
        (root / "graphs/data/reports/cg-sample-by_family/metrics.json").read_text()
    )
    page = (root / "docs" / "how-to" / "graphs.md").read_text()
    for device, models in metrics.items():
        shares = [
            f"{models[model][part]['acc10']['mean']:.3f}".removeprefix("0")
            for part in ("test", "test_ood")
            for model in ("additive", "summed")
        ]
        assert f"| {' | '.join([device, *shares])} |" in page
