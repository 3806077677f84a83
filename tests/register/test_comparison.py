"""The interval of a comparison: over tasks, and over the training seeds of both sides."""

from __future__ import annotations

import numpy as np
import pytest

from tencost.evaluate.interval import Statistic, bootstrap, seeded_bootstrap
from tencost.evaluate.metrics import Floats

STRATUM = np.zeros(20, np.int64)
TASKS = np.random.default_rng(3).normal(0.5, 0.2, len(STRATUM))


def seed(shift: float) -> Statistic:
    def figure(counts: Floats) -> Floats:
        return np.asarray(counts @ TASKS / counts.sum(axis=-1) + shift)

    return figure


def test_one_seed_a_side_is_the_paired_bootstrap() -> None:
    def other(counts: Floats) -> Floats:
        return np.asarray(counts @ TASKS**2 / counts.sum(axis=-1))

    paired = bootstrap(lambda counts: seed(0.1)(counts) - other(counts), STRATUM)
    assert seeded_bootstrap([seed(0.1)], [other], STRATUM) == paired


def test_seeds_widen_the_interval_and_leave_the_mean() -> None:
    shifts = (-0.2, -0.1, 0.0, 0.1, 0.2)
    found = seeded_bootstrap([seed(0.3 + one) for one in shifts], [seed(0.0)], STRATUM)
    assert found.mean == pytest.approx(0.3)
    # Tasks cancel, so what is left is the mean of 5 draws: standard error sqrt(0.02 / 5) = 0.063.
    assert found.low == pytest.approx(0.3 - 1.96 * 0.063, abs=0.02)
    assert found.high == pytest.approx(0.3 + 1.96 * 0.063, abs=0.02)
    both = seeded_bootstrap(
        [seed(0.3 + one) for one in shifts], [seed(one) for one in shifts], STRATUM
    )
    assert both.high - both.low > 1.2 * (found.high - found.low)
    equal = seeded_bootstrap([seed(0.3)] * 5, [seed(0.0)] * 5, STRATUM)
    assert (equal.low, equal.high) == pytest.approx((0.3, 0.3))
