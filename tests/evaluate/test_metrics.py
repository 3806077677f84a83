"""Every metric on a case worked by hand, and the closed forms against all permutations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from tencost.evaluate import metrics

NAN = math.nan
# Four programs of one task: 2, 1, 4 and 8 seconds; the model ranks them 4 s, 2 s, 1 s, 8 s.
LATENCY = np.array([2.0, 1.0, 4.0, 8.0])
SCORE = np.array([0.7, 0.4, 0.9, -3.0])


def test_predicted_order_is_stable_and_puts_unscored_last() -> None:
    assert metrics.predicted_order(SCORE).tolist() == [2, 0, 1, 3]
    assert metrics.predicted_order(np.array([NAN, 1.0, 1.0, 2.0])).tolist() == [3, 1, 2, 0]


def test_labels() -> None:
    assert metrics.labels(LATENCY).tolist() == [0.5, 1.0, 0.25, 0.125]
    assert metrics.labels(np.array([NAN, 4.0, 2.0])).tolist() == [0.0, 0.5, 1.0]


def test_best_so_far() -> None:
    assert metrics.best_so_far(LATENCY, SCORE).tolist() == [4.0, 2.0, 1.0, 1.0]


def test_failed_program_never_wins() -> None:
    latency = np.array([NAN, 1.0, 4.0])
    score = np.array([9.0, 1.0, 2.0])
    # Trial 1 fails (the slowest working program stands in), trial 2 finds 4 s, trial 3 finds 1 s.
    assert metrics.best_so_far(latency, score).tolist() == [4.0, 4.0, 1.0]
    assert metrics.peak_score(latency, score, 1) == 0.0
    assert metrics.peak_score(latency, score, 3) == pytest.approx((0.0 + 0.25 + 1.0) / 3)


def test_expected_best_so_far_by_hand() -> None:
    # One of 1, 2, 4, 8: 15/4. Two: the six pairs have minima 1, 1, 1, 2, 2, 4. Three: 1, 1, 1, 2.
    assert metrics.expected_best_so_far(LATENCY) == pytest.approx([15 / 4, 11 / 6, 5 / 4, 1.0])


@given(
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5),
    st.integers(0, 2),
)
def test_expectations_equal_the_mean_over_all_orders(working: list[float], num_failed: int) -> None:
    latency = np.array(working + [NAN] * min(num_failed, 6 - len(working)))
    orders = list(itertools.permutations(range(len(latency))))
    scores = [-np.argsort(np.array(order)).astype(float) for order in orders]
    curves = np.mean([metrics.best_so_far(latency, score) for score in scores], axis=0)
    assert metrics.expected_best_so_far(latency) == pytest.approx(curves)
    for k in (1, 5):
        mean = np.mean([metrics.peak_score(latency, score, k) for score in scores])
        assert metrics.expected_peak_score(latency, k) == pytest.approx(mean)


def test_top_k_score_of_a_network() -> None:
    # Task a occurs twice with optimum 1 s, b once with optimum 3 s: L* = 5.
    best = np.array([[4.0, 2.0, 1.0], [3.0, 3.0, 3.0]])
    optimum, weight = np.array([1.0, 3.0]), np.array([2.0, 1.0])
    assert metrics.top_k_score(best, optimum, weight, 1) == pytest.approx(5 / 11)
    assert metrics.top_k_score(best, optimum, weight, 2) == pytest.approx(5 / 7)
    assert metrics.top_k_score(best, optimum, weight, 5) == 1.0


def test_mean_of_ratios_is_not_the_pooled_ratio() -> None:
    # Network m: L* = 1, L_1 = 2. Network n: L* = 9, L_1 = 10. TenSet: mean(0.5, 0.9); TLP: 10 / 12.
    best, optimum = np.array([[2.0], [10.0]]), np.array([1.0, 9.0])
    per_network = [metrics.top_k_score(best, optimum, np.eye(2)[index], 1) for index in (0, 1)]
    assert np.mean(per_network) == pytest.approx(0.7)
    assert metrics.top_k_score(best, optimum, np.ones(2), 1) == pytest.approx(10 / 12)


def test_top_k_score_of_many_resamples_at_once() -> None:
    best, optimum = np.array([[2.0], [10.0]]), np.array([1.0, 9.0])
    assert metrics.top_k_score(
        best, optimum, np.array([[1.0, 0.0], [1.0, 1.0]]), 1
    ) == pytest.approx([0.5, 10 / 12])


def test_peak_score() -> None:
    # Labels in predicted order: 0.25, 0.5, 1, 0.125; running maxima 0.25, 0.5, 1, 1.
    assert metrics.peak_score(LATENCY, SCORE, 1) == 0.25
    assert metrics.peak_score(LATENCY, SCORE, 2) == pytest.approx(0.375)
    assert metrics.peak_score(LATENCY, SCORE, 5) == pytest.approx((0.25 + 0.5 + 1 + 1) / 4)


def test_pairwise_accuracy() -> None:
    # Of the six pairs (2 s, 4 s), (1 s, 4 s) and (2 s, 1 s) are predicted the wrong way round.
    assert metrics.pairwise_accuracy(SCORE, metrics.labels(LATENCY)) == pytest.approx(3 / 6)
    assert metrics.pairwise_accuracy(np.array([1.0]), np.array([1.0])) == 0.5


def test_pairwise_accuracy_counts_a_tie_as_not_greater() -> None:
    assert metrics.pairwise_accuracy(np.zeros(2), np.array([0.5, 1.0])) == 1.0
    assert metrics.pairwise_accuracy(np.zeros(2), np.array([1.0, 0.5])) == 0.0
    assert metrics.pairwise_accuracy(np.array([2.0, 1.0]), np.ones(2)) == 0.0
    assert metrics.pairwise_accuracy(np.array([NAN, 1.0]), np.array([0.5, 1.0])) == 1.0


def test_kendall_tau() -> None:
    label = metrics.labels(LATENCY)
    assert metrics.kendall_tau(SCORE, label) == pytest.approx(0.0)  # 3 concordant, 3 discordant
    assert metrics.kendall_tau(label, label) == pytest.approx(1.0)
    assert metrics.kendall_tau(-label, label) == pytest.approx(-1.0)
    # One pair tied in the score: P = 2, Q = 0, T_p = 1: 2 / sqrt(3 * 2).
    assert metrics.kendall_tau(
        np.array([1.0, 1.0, 2.0]), np.array([0.1, 0.2, 0.3])
    ) == pytest.approx(2 / math.sqrt(6))


def test_kendall_tau_is_scipys() -> None:
    random = np.random.default_rng(0)
    for size, values in ((2, 3), (5, 2), (30, 4), (200, 1000)):
        for _ in range(20):
            score, label = random.integers(0, values, (2, size)).astype(np.float64)
            if len(set(score)) > 1 and len(set(label)) > 1:
                expected = kendalltau(score, label).statistic
                assert metrics.kendall_tau(score, label) == pytest.approx(expected, abs=1e-12)


def test_kendall_tau_where_there_is_nothing_to_know() -> None:
    assert metrics.kendall_tau(np.zeros(3), np.array([0.1, 0.2, 0.3])) == 0.0
    assert math.isnan(metrics.kendall_tau(np.arange(3.0), np.ones(3)))
    assert math.isnan(metrics.kendall_tau(np.ones(1), np.ones(1)))
    assert metrics.kendall_tau(np.array([NAN, 1.0]), np.array([0.2, 0.3])) == pytest.approx(1.0)


def test_rmse_and_r2() -> None:
    label, predicted = np.array([1.0, 0.5, 0.0]), np.array([0.5, 0.5, 0.5])
    assert metrics.rmse(predicted, label) == pytest.approx(math.sqrt(1 / 6))
    assert metrics.r2(predicted, label) == pytest.approx(0.0)
    assert metrics.r2(label, label) == 1.0
    assert metrics.r2(predicted, 1.0 - label) == pytest.approx(0.0)
    assert metrics.r2(np.array([1.0, 0.0, 0.5]), np.full(3, 0.5)) == 1.0  # no spread to explain
