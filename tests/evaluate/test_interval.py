"""Intervals over seeds and over tasks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tencost.evaluate.interval import bootstrap, resample_tasks, seed_interval


def test_seed_interval_by_hand() -> None:
    # s = 1, t(0.975, 2) = 4.302653, half width = t / sqrt(3).
    interval = seed_interval([1.0, 2.0, 3.0])
    assert interval.mean == 2.0
    assert interval.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert (interval.low, interval.high) == (2.0 - interval.half_width, 2.0 + interval.half_width)
    assert interval.num_seeds == 3


def test_one_seed_has_no_interval_and_undefined_figures_are_left_out() -> None:
    assert seed_interval([0.5]).mean == 0.5
    assert math.isnan(seed_interval([0.5]).half_width)
    assert seed_interval([1.0, math.nan, 3.0]).mean == 2.0
    assert seed_interval([math.nan]).num_seeds == 0


def test_resampling_keeps_the_size_of_each_network_and_follows_the_seed() -> None:
    stratum = np.array([0, 0, 0, 1])
    counts = resample_tasks(stratum, 50, seed=7)
    assert counts.shape == (50, 4)
    assert (counts[:, :3].sum(axis=1) == 3).all()
    assert (counts[:, 3] == 1).all()
    assert (resample_tasks(stratum, 50, seed=7) == counts).all()
    assert (resample_tasks(stratum, 50, seed=8) != counts).any()


def test_networks_are_drawn_before_their_tasks() -> None:
    """Two networks on two hardware: a network that is drawn brings its tasks of both."""
    stratum = np.array([0, 0, 1, 2, 2, 3])  # a on x (2 tasks), b on x, a on y (2), b on y
    network = np.array([0, 0, 1, 0, 0, 1])
    counts = resample_tasks(stratum, 400, seed=7, clusters=network)
    times_a = counts[:, :2].sum(axis=1) / 2
    assert set(times_a) == {0.0, 1.0, 2.0}
    assert (counts[:, 3:5].sum(axis=1) / 2 == times_a).all()
    assert (counts[:, 2] == 2 - times_a).all()
    assert (counts[:, 5] == 2 - times_a).all()
    assert times_a.mean() == pytest.approx(1.0, abs=0.15)


def test_a_paired_bootstrap() -> None:
    stratum = np.zeros(4, np.int64)
    gain = np.array([1.0, 2.0, 3.0, 4.0])

    def a(counts: np.ndarray) -> np.ndarray:
        return counts @ (gain + 100.0) / counts.sum(axis=1)

    def b(counts: np.ndarray) -> np.ndarray:
        return counts @ np.full(4, 100.0) / counts.sum(axis=1)

    difference = bootstrap(lambda counts: a(counts) - b(counts), stratum, num_resamples=4000)
    assert difference.mean == pytest.approx(2.5)
    # Mean of 4 draws from 1..4: sd = sqrt(1.25 / 4) = 0.56; the interval is about ± 1.1.
    assert difference.low == pytest.approx(1.5, abs=0.26)
    assert difference.high == pytest.approx(3.5, abs=0.26)
    same = bootstrap(lambda counts: a(counts) - a(counts), stratum)
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
