"""Ratios of runs: found where they are, not found where there is only noise."""

from __future__ import annotations

import numpy as np
import pytest
from network_times import latencies

from tencost.records.network_times import ratios as network_ratios
from tencost.records.network_times.ratios import Floats, middle, ratio


def runs(number: int, middle_s: float, seed: int, between: float = 0.01) -> list[Floats]:
    return [
        np.asarray(latencies(middle_s, 1000 * seed + one, between=between)) for one in range(number)
    ]


def test_each_run_has_the_same_weight() -> None:
    long, short = np.full(1000, 1e-3), np.full(3, 2e-3)
    found = middle([long, short, short])
    assert (found.q1_s, found.median_s, found.q3_s) == (1e-3, 2e-3, 2e-3)
    one = middle([np.array([1.0, 2.0, 3.0])])
    assert (one.q1_s, one.median_s, one.q3_s) == pytest.approx((1.5, 2.0, 2.5))


def test_a_ratio_is_of_the_medians_and_lies_in_its_interval() -> None:
    found = ratio(runs(5, 2e-3, 1), runs(5, 1e-3, 2))
    assert found.value == pytest.approx(2.0, rel=0.03)
    assert found.low < found.value < found.high
    assert found.low > 1.9
    assert found.high < 2.1
    assert ratio(runs(5, 2e-3, 1), runs(5, 1e-3, 2)) == found  # the draws are seeded


def test_runs_without_noise_have_no_interval() -> None:
    flat = [np.full(5, 1e-3)] * 2
    found = ratio([2 * run for run in flat], flat)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_a_single_run_has_the_noise_of_the_other_sides_runs() -> None:
    quiet, noisy = (
        ratio(runs(1, 1e-3, 1, 0.0), runs(6, 1e-3, 2, between)) for between in (0.002, 0.1)
    )
    assert noisy.high - noisy.low > 5 * (quiet.high - quiet.low)
    assert quiet.runs_known
    alone = ratio(runs(1, 1e-3, 1), runs(1, 1e-3, 2))
    assert not alone.runs_known


def test_sides_that_are_not_alike_have_their_own_noise() -> None:
    def width(sides: tuple[list[Floats], list[Floats]], *, alike: bool) -> float:
        found = ratio(*sides, alike=alike)
        return found.high - found.low

    quiet, calm, noisy = (
        runs(6, 1e-3, at, between) for at, between in ((1, 0.002), (2, 0.002), (3, 0.1))
    )
    few = quiet[:2], noisy
    assert width(few, alike=False) < width(few, alike=True)  # two quiet runs, not two of twelve
    assert width((quiet, calm), alike=False) < 0.5 * width((quiet, noisy), alike=False)
    alone = quiet[:1], noisy  # without noise of its own
    assert width(alone, alike=False) == width(alone, alike=True)


def test_a_long_run_is_drawn_from_its_quantiles() -> None:
    long = [np.asarray(latencies(1e-3, 1, n=5000))]
    found = ratio(long, runs(3, 1e-3, 2))
    assert 0.9 < found.low < 1.0 < found.high < 1.1


@pytest.mark.parametrize("sides", [(1, 1), (2, 1), (5, 1), (2, 2), (10, 3)])
def test_noise_is_seldom_taken_for_a_difference(
    sides: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 pairs of the same thing: a fair 95 % interval would lie above 1 in 1.5 of them."""
    monkeypatch.setattr(network_ratios, "RESAMPLES", 500)
    before, since = sides
    above = found = 0
    for seed in range(60):
        old = runs(before, 1e-3, 3 * seed)
        same = ratio(runs(since, 1e-3, 3 * seed + 1), old)
        slower = ratio(runs(since, 1.3e-3, 3 * seed + 2), old)
        least = 1.05 if same.runs_known else 1.10
        above += same.low > least
        found += slower.low > least
    assert above == 0
    assert found >= 55
