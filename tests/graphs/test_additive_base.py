"""Prices of amounts: found exactly where the data tell them, never negative, borrowed where they do not."""

from __future__ import annotations

import numpy as np

from tencost.models.networks.additive.base import fit_base

PRICES = np.array([[1.0, 0.2], [4.0, 0.0], [0.5, 0.1]])


def networks(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return sums of two amounts of three kinds, and what they cost."""
    sums = np.random.default_rng(seed).gamma(1.0, 3.0, size=(count, 3, 2))
    return sums, (sums * PRICES).sum(axis=(1, 2))


def test_prices_are_recovered() -> None:
    found = fit_base(*networks(400))
    assert np.abs(found - PRICES).max() < 0.15
    assert (found > 0).all()


def test_outliers_hardly_count() -> None:
    sums, latency = networks(400)
    latency[::20] *= 3
    assert np.abs(fit_base(sums, latency) - PRICES).max() < 0.3


def test_a_kind_that_nobody_has_costs_what_others_do() -> None:
    sums, _ = networks(400)
    sums[:, 1] = 0
    found = fit_base(sums, (sums * PRICES).sum(axis=(1, 2)))
    assert PRICES[2, 0] * 0.9 < found[1, 0] < PRICES[0, 0] * 1.1


def test_units_do_not_matter() -> None:
    sums, latency = networks(400)
    units = np.array([1e6, 1e-3])
    assert np.allclose(fit_base(sums * units, latency) * units, fit_base(sums, latency), rtol=1e-3)


def test_an_amount_that_nobody_has() -> None:
    sums, latency = networks(50)
    sums[:, :, 1] = 0
    found = fit_base(sums, (sums * PRICES).sum(axis=(1, 2)))
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert fit_base(sums[:1], latency[:1]).shape == (3, 2)
