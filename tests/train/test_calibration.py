from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tencost.train.calibration import LOWEST_SCORE, Calibration, fit_calibration

calibrations = st.builds(Calibration, center=st.floats(-1e6, 1e6), scale=st.floats(1e-3, 1e6))
raw_scores = st.floats(-(2.0**40), 2.0**40, width=32)


def test_worked_by_hand() -> None:
    scores = Calibration(center=2.0, scale=4.0)(np.array([-2.0, 2.0, 6.0, 14.0]))
    assert scores.tolist() == [0.25, 0.5, 0.75, 0.875]


@given(calibrations, st.lists(st.floats(allow_nan=False, allow_infinity=True), min_size=2))
def test_order_is_never_reversed_and_range_is_kept(
    calibration: Calibration, raw: list[float]
) -> None:
    ordered = np.sort(np.asarray(raw))
    scores = calibration(ordered)
    assert (np.diff(scores) >= 0).all()
    assert (scores > LOWEST_SCORE).all()
    assert (scores <= 1).all()


@given(calibrations, raw_scores, raw_scores)
def test_order_is_strict_where_scores_differ(
    calibration: Calibration, one: float, other: float
) -> None:
    low, high = min(one, other), max(one, other)
    z = (np.array([low, high]) - calibration.center) / calibration.scale
    scores = calibration(np.array([low, high]))
    if z[1] - z[0] > 1e-15 * (1.0 + np.abs(z).max()) ** 2:
        assert scores[0] < scores[1]


@given(st.lists(st.floats(-1e4, 1e4), min_size=2, unique=True))
def test_realistic_scores_never_saturate(raw: list[float]) -> None:
    apart = np.unique(np.asarray(raw, np.float64).round(3))
    scores = Calibration(center=0.0, scale=1.0)(apart)
    assert len(np.unique(scores)) == len(apart)


def test_a_program_without_features_is_below_all_others() -> None:
    scores = Calibration()(np.array([np.nan, -1e300, -np.inf, 0.0]))
    assert scores[0] == LOWEST_SCORE
    assert (scores[1:] > LOWEST_SCORE).all()


def test_all_negative_scores_spread_over_the_range() -> None:
    rng = np.random.default_rng(0)
    label = rng.uniform(0, 1, 500).astype(np.float32)
    raw = 0.1 * np.log(label + 0.01) - 1e3
    scores = fit_calibration(raw, label)(raw)
    assert scores.std() > 0.1
    assert np.corrcoef(scores, label)[0, 1] > 0.9


def test_fit_is_deterministic_and_ignores_missing_scores() -> None:
    rng = np.random.default_rng(1)
    label = rng.uniform(0, 1, 100).astype(np.float32)
    raw = label + rng.normal(0, 0.1, 100)
    expected = fit_calibration(raw, label)
    with_missing = fit_calibration(np.append(raw, np.nan), np.append(label, np.float32(1.0)))
    assert fit_calibration(raw, label) == expected == with_missing


@pytest.mark.parametrize("raw", [[], [np.nan], [3.0, 3.0], [1e9, 1e9]])
def test_scores_that_say_nothing(raw: list[float]) -> None:
    values = np.asarray(raw, np.float64)
    calibration = fit_calibration(values, np.ones(len(values), np.float32))
    assert calibration.scale == 1.0
    found = calibration(values)
    assert ((found == 0.5) | np.isnan(values)).all()


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_must_be_positive(scale: float) -> None:
    with pytest.raises(AssertionError, match="scale must be positive"):
        Calibration(scale=scale)
