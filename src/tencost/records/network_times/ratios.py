"""The ratio of two sides' run times with its confidence interval.

A run is one timing: some latencies taken one after the other on a host as it was then. Two kinds of noise come
together: latencies within a run, and runs among each other (another process, another day, another layout of memory),
which the latencies within a run do not show. So both are drawn in the bootstrap: in each of RESAMPLES draws a side's
runs are drawn with replacement, each run's latencies are, and each drawn run is moved by how far a run lies from the
middle of its own side: one of either side where both are the same thing, of the side itself where they are not (two
engines). Deviations of n runs are widened by the ratio of Student's t to the
normal quantile for n - 1 degrees of freedom, at most MOST_WIDENED, because few runs show too little of their noise.
A side of one run thus has the other side's noise between runs; where both have one run it is unknown, and `runs_known`
says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
RESAMPLES = 2000
MOST_LATENCIES = 201
"""Latencies of a run that are drawn from; of a longer one its quantiles stand for it."""
MOST_WIDENED = 3.0
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantiles of Student's t for 1 to 10 degrees of freedom: scipy is not among what the store needs."""
_NORMAL = 1.960

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Middle:
    """Median and quartiles of a side's latencies, seconds, each run with the same weight."""

    median_s: float
    q1_s: float
    q3_s: float


@dataclass(frozen=True)
class Ratio:
    """A side's median over another's, with its 95 % bootstrap interval.

    Attributes:
        value: above 1: the first side takes longer.
        low: 2.5 percentile.
        high: 97.5 percentile.
        runs_known: whether one of the sides has two runs, so that the noise between runs is known.
    """

    value: float
    low: float
    high: float
    runs_known: bool


def middle(runs: Sequence[Floats]) -> Middle:
    """Return median and quartiles of runs, float64 [latencies] in seconds each."""
    share = np.linspace(0.0, 1.0, 101)
    pooled = np.concatenate([np.quantile(run, share) for run in runs])
    q1, median, q3 = (float(value) for value in np.quantile(pooled, (0.25, 0.5, 0.75)))
    return Middle(median, q1, q3)


def ratio(
    first: Sequence[Floats], other: Sequence[Floats], *, alike: bool = True, seed: int = 0
) -> Ratio:
    """Return how many times as long the runs of `first` take as those of `other`.

    Args:
        first: float64 [latencies] in seconds, one for each run; at least one run.
        other: the same of the other side.
        alike: whether both sides' runs scatter alike.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    deviations = _deviations(first), _deviations(other)
    between = np.concatenate(deviations)
    each = [between if alike or not len(side) else side for side in deviations]
    value = middle(first).median_s / middle(other).median_s
    drawn = _noise(first, each[0], generator) - _noise(other, each[1], generator)
    tail = 100 * (1 - LEVEL) / 2
    low, high = (float(np.exp(end)) for end in np.percentile(drawn, [tail, 100 - tail]))
    return Ratio(value, value * low, value * high, bool(len(between)))


def _deviations(runs: Sequence[Floats]) -> Floats:
    """Return how far each run's median lies from the middle one, in logarithms, widened; none of a single run."""
    if len(runs) < 2:
        return np.zeros(0)
    medians = np.log([float(np.median(run)) for run in runs])
    free = len(runs) - 1
    student = _STUDENT[free - 1] if free <= len(_STUDENT) else _NORMAL
    return (
        (medians - np.median(medians))
        * math.sqrt(len(runs) / free)
        * min(student / _NORMAL, MOST_WIDENED)
    )


def _noise(runs: Sequence[Floats], between: Floats, generator: np.random.Generator) -> Floats:
    """Return by how much a side's median may be off, in logarithms, float64 [RESAMPLES]."""
    within = np.stack([_within(run, generator) for run in runs])
    picks = generator.integers(len(runs), size=(RESAMPLES, len(runs)))
    moved = within[picks, np.arange(RESAMPLES)[:, None]]
    if len(between):
        moved = moved + generator.choice(between, size=moved.shape)
    return np.asarray(np.median(moved, axis=1))


def _within(run: Floats, generator: np.random.Generator) -> Floats:
    """Return a run's median of drawn latencies over that of its own, in logarithms, float64 [RESAMPLES]."""
    if len(run) > MOST_LATENCIES:
        run = np.quantile(run, np.linspace(0.0, 1.0, MOST_LATENCIES))
    drawn = generator.choice(run, size=(RESAMPLES, len(run)))
    return np.asarray(np.log(np.median(drawn, axis=1) / np.median(run)))
