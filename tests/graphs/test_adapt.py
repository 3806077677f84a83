"""Corrections from a handful of labels: five do no harm, a hundred bend, none change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from made_graphs import chain
from tencost.adapt.graph_correction import cost_shares, fit_correction
from tencost.errors import TrainError
from tencost.networks.graph.graph_set import concatenate
from tencost.networks.graph.operators import OPERATOR_CODES


def family(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return predictions, labels that are off by what a feature says, and features (two more say nothing)."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(count, 4))
    features[:, 3] = 7.0
    predicted = np.exp(random.normal(3, 0.4, size=count))
    labels = predicted * 1.4 * np.exp(0.15 * features[:, 0] + 0.02 * random.normal(size=count))
    return predicted, labels, features


def error(predicted: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(np.abs(predicted / labels - 1)))


@pytest.mark.parametrize("count", [1, 5, 20, 100])
def test_more_labels_help(count: int) -> None:
    predicted, labels, features = family(500, 0)
    some = slice(0, count)
    correction = fit_correction(predicted[some], labels[some], [features[some]])
    corrected = correction.apply(predicted[count:], [features[count:]])
    allowed = {1: 0.25, 5: 0.18, 20: 0.08, 100: 0.03}[count]
    assert error(corrected, labels[count:]) < allowed < error(predicted[count:], labels[count:])


def test_five_labels_do_not_harm_a_good_model() -> None:
    """Labels scatter by 3 %, and twenty features say nothing."""
    within = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        predicted = np.exp(random.normal(3, 0.4, size=500))
        labels = predicted * np.exp(0.03 * random.normal(size=500))
        features = random.normal(size=(500, 20))
        correction = fit_correction(predicted[:5], labels[:5], [features[:5]])
        corrected = correction.apply(predicted[5:], [features[5:]])
        within.append(np.mean(np.abs(corrected / labels[5:] - 1) < 0.1))
    assert min(within) > 0.85
    assert np.mean(within) > 0.95


def test_no_labels_change_nothing() -> None:
    predicted, labels, features = family(10, 0)
    for count, hidden in ((0, labels[:0]), (10, np.full(10, np.nan))):
        correction = fit_correction(predicted[:count], hidden, [features[:count]])
        assert np.array_equal(correction.apply(predicted, [features]), predicted)


def test_without_features_scale_and_slope_are_learnt() -> None:
    random = np.random.default_rng(0)
    predicted = np.exp(random.normal(3, 0.5, size=200))
    labels = 0.3 * predicted**1.3
    correction = fit_correction(predicted[:20], labels[:20])
    assert error(correction.apply(predicted), labels) < 0.05


def test_the_block_that_tells_more_is_found() -> None:
    predicted, labels, features = family(500, 0)
    nothing = np.random.default_rng(1).normal(size=(500, 30))
    some, rest = slice(0, 40), slice(40, None)
    correction = fit_correction(predicted[some], labels[some], [nothing[some], features[some]])
    corrected = correction.apply(predicted[rest], [nothing[rest], features[rest]])
    assert error(corrected, labels[rest]) < 0.05


def test_shares_of_cost_sum_to_one() -> None:
    graphs = concatenate([chain([8, 16]), chain([4])])
    shares = cost_shares(graphs, np.arange(1.0, len(graphs.operator) + 1))
    assert np.allclose(shares.sum(axis=1), 1)
    convolutions = (2 + 5) / np.arange(1, 8).sum()
    assert shares[0, OPERATOR_CODES["Conv2D"] * 10 + 3] == pytest.approx(convolutions)


def test_missing_labels_are_left_out() -> None:
    predicted, labels, features = family(40, 0)
    labels[::2] = np.nan
    known = slice(1, None, 2)
    expected = fit_correction(predicted[known], labels[known], [features[known]])
    found = fit_correction(predicted, labels, [features])
    assert np.array_equal(found.apply(predicted, [features]), expected.apply(predicted, [features]))


def test_labels_that_are_no_latencies_are_told() -> None:
    with pytest.raises(TrainError, match="labels in milliseconds"):
        fit_correction(np.ones(2), np.array([1.0, -2.0]))


def test_outliers_do_not_move_what_is_learnt_of_the_others() -> None:
    """One label in seven is half as slow again."""
    errors = []
    for seed in range(5):
        predicted, labels, features = family(500, seed)
        spoilt = labels[:21].copy()
        spoilt[::7] *= 1.5
        correction = fit_correction(predicted[:21], spoilt, [features[:21]])
        errors.append(error(correction.apply(predicted[21:], [features[21:]]), labels[21:]))
    assert np.mean(errors) < 0.05
