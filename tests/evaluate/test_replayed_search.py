"""Replayed search on cases worked by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tencost.evaluate import metrics
from tencost.evaluate import replayed_search as search

NAN = math.nan
LATENCY = np.array([2.0, 1.0, 4.0, 1.04])
SCORE = np.array([0.9, 0.1, 0.8, 0.5])  # measured in the order 2, 4, 1.04, 1


def test_trials_within() -> None:
    assert search.trials_within(LATENCY, SCORE, 0.01) == 4
    assert search.trials_within(LATENCY, SCORE, 0.05) == 3
    assert search.trials_within(LATENCY, SCORE, 1.0) == 1
    assert search.trials_within(np.array([NAN, 1.0]), np.array([1.0, 0.0]), 0.1) == 2


def test_expected_trials_within() -> None:
    assert search.expected_trials_within(LATENCY, 0.01) == 5 / 2
    assert search.expected_trials_within(LATENCY, 0.05) == 5 / 3
    assert search.expected_trials_within(np.array([NAN, 1.0]), 0.1) == 1.5


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=5), st.floats(0.0, 0.5))
def test_expected_trials_equal_the_mean_over_all_orders(
    latency: list[float], tolerance: float
) -> None:
    orders = itertools.permutations(range(len(latency)))
    values = np.array(latency)
    trials = [
        search.trials_within(values, -np.argsort(np.array(order)).astype(float), tolerance)
        for order in orders
    ]
    assert search.expected_trials_within(values, tolerance) == pytest.approx(np.mean(trials))


def test_trials_at_step() -> None:
    assert search.trials_at_step(np.array([3, 1]), 3).tolist() == [2, 3, 4]


def test_cutoff_step() -> None:
    curve = np.array([10.0, 6.0, 2.4, 2.0])
    assert search.cutoff_step(curve, 2.0, 10.0) == 3  # 2 + 0.05 * 8 = 2.4
    assert search.cutoff_step(curve, 1.0, 2.0) == 4  # never reached: the whole curve


def test_search_score() -> None:
    optimum = np.array(1.0)
    random_curve = np.array([5.0, 3.0, 2.0])
    assert search.search_score(random_curve, random_curve, optimum, 3) == 0.0
    assert search.search_score(np.ones(3), random_curve, optimum, 3) == 1.0
    # (5-3)/4 = 0.5, (3-3)/2 = 0, (2-1)/1 = 1.
    assert search.search_score(
        np.array([3.0, 3.0, 1.0]), random_curve, optimum, 3
    ) == pytest.approx(0.5)
    assert search.search_score(
        np.array([3.0, 3.0, 1.0]), random_curve, optimum, 2
    ) == pytest.approx(0.25)
    assert search.search_score(np.array([9.0, 3.0, 1.0]), random_curve, optimum, 1) == -1.0
    assert math.isnan(search.search_score(np.ones(2), np.ones(2), optimum, 2))


@given(st.lists(st.floats(0.5, 20.0), min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_the_oracle_scores_one_and_the_mean_order_zero(
    latency: list[float], random: object
) -> None:
    values = np.array(latency)
    random_curve = metrics.expected_best_so_far(values)
    oracle = metrics.best_so_far(values, -values)
    score = search.search_score(oracle, random_curve, np.asarray(values.min()), len(values))
    assert math.isnan(score) or score == pytest.approx(1.0)
