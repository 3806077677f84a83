from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tencost.models.programs.bundle.calibration import LOWEST_SCORE, Calibration, fit_calibration

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


@pytest.mark.parametrize("raw", [[0.1] * 3, [1e8 / 7] * 13, [0.0, 1e-14]])
def test_differences_of_rounding_say_nothing(raw: list[float]) -> None:
    """The standard deviation of thirteen times the same number may be 4e-9."""
    values = np.asarray(raw)
    calibration = fit_calibration(values, np.linspace(0, 1, len(values), dtype=np.float32))
    assert calibration.scale == 1.0
    np.testing.assert_allclose(calibration(values), 0.5, atol=1e-8)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_must_be_positive(scale: float) -> None:
    with pytest.raises(AssertionError, match="scale must be positive"):
        Calibration(scale=scale)


def test_without_a_fit_zero_is_the_middle_and_float32_is_taken() -> None:
    found = Calibration()(np.array([0.0, 1.0, -1.0], np.float32))
    assert found.tolist() == [0.5, 0.75, 0.25]
    assert found.dtype == np.float64
    fine = Calibration(scale=1e-12)(np.array([1.0, 1.5], np.float32))
    assert fine[0] < fine[1], "computed in double precision"


@pytest.mark.parametrize("quantile", [0.05, 0.10, 0.5, 0.95])
@pytest.mark.parametrize("step", [0, 3, 8, 16])
def test_a_fit_finds_the_map_that_made_the_labels(quantile: float, step: int) -> None:
    """Centers are quantiles from 5 to 95 % in steps of 5 %, scales 0.05 to 5 deviations, eight to a factor of ten."""
    raw = np.random.default_rng(0).normal(3.0, 2.0, 301)
    true = Calibration(
        center=float(np.quantile(raw, quantile)), scale=float(raw.std() * 0.05 * 10 ** (step / 8))
    )
    found = fit_calibration(raw, true(raw).astype(np.float32))
    assert found.center == pytest.approx(true.center, abs=1e-9)
    assert found.scale == pytest.approx(true.scale, rel=1e-9)


def test_a_fit_is_one_of_least_squares() -> None:
    """A few labels far off pull less than they would on the largest error."""
    raw = np.linspace(-3.0, 3.0, 400)
    true = Calibration(center=float(np.quantile(raw, 0.3)), scale=float(raw.std() * 0.5))
    label = true(raw)
    label[::40] = 1.0
    found = fit_calibration(raw, label.astype(np.float32))

    def error(one: Calibration) -> float:
        return float(np.mean((one(raw) - label) ** 2))

    for factor in (10 ** (1 / 8), 10 ** (-1 / 8)):
        assert error(found) <= error(Calibration(center=found.center, scale=found.scale * factor))
    for center in np.quantile(raw, np.linspace(0.05, 0.95, 19)):
        assert error(found) <= error(Calibration(center=float(center), scale=found.scale))


def test_a_fit_to_many_scores_looks_at_all_of_their_range() -> None:
    raw = np.linspace(-1.0, 1.0, 30_000)
    true = Calibration(center=float(np.quantile(raw, 0.9)), scale=float(raw.std() * 0.05))
    found = fit_calibration(raw, true(raw).astype(np.float32))
    assert found.center == pytest.approx(true.center, abs=1e-3)
    assert found.scale == pytest.approx(true.scale, rel=1e-3)
