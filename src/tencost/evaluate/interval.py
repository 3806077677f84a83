"""How sure a figure is: over a family's seeds, and over the tasks that two are compared on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from tencost.evaluate.metrics import Floats, Ints

LEVEL = 0.95
"""Coverage of every interval that is printed or used by the promotion rule."""

Statistic = Callable[[Floats], Floats]
"""Task multiplicities float64 [B, T] in, one figure per resample float64 [B] out."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % interval.

    Attributes:
        mean: mean over the seeds for which the figure is defined; NaN if there is none.
        half_width: mean ± half_width is the interval; NaN with fewer than two seeds.
        num_seeds: figures averaged.
    """

    mean: float
    half_width: float
    num_seeds: int

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half_width


def seed_interval(values: Sequence[float]) -> Interval:
    """Mean ± t_{0.975, S−1} · s / √S over S seeds (Student's t; s divides by S − 1)."""
    known = np.array([value for value in values if not math.isnan(value)], dtype=np.float64)
    if len(known) == 0:
        return Interval(math.nan, math.nan, 0)
    mean = float(known.mean())
    if len(known) == 1:
        return Interval(mean, math.nan, 1)
    quantile = float(student_t.ppf(0.5 + LEVEL / 2, len(known) - 1))
    return Interval(mean, quantile * float(known.std(ddof=1)) / math.sqrt(len(known)), len(known))


@dataclass(frozen=True)
class Difference:
    """Figure of A, or of A minus that of B on the same tasks, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    num_resamples: int


def resample_tasks(
    stratum: Ints, num_resamples: int, seed: int, *, clusters: Ints | None = None
) -> Floats:
    """Draw tasks with replacement inside each stratum: every network that is drawn keeps its number of tasks.

    Args:
        stratum: int64 [T], the network of each task.
        num_resamples: B.
        seed: of the draw; the same seed gives the same resamples, which is what makes a comparison
            paired.
        clusters: int64 [T], what is drawn with replacement first, as many as there are; each holds whole strata. The
            interval is then one over other networks, not over other tasks of the same ones: the tasks of a network
            that is drawn twice are drawn twice, those of one that is not drawn are not. None: nothing is.

    Returns:
        float64 [B, T]: how often each task was drawn.
    """
    generator = np.random.default_rng(seed)
    counts = np.zeros((num_resamples, len(stratum)))
    times = np.ones((num_resamples, 1), dtype=np.int64)
    cluster = np.zeros(len(stratum), dtype=np.int64)
    if clusters is not None:
        values, cluster = np.unique(clusters, return_inverse=True)
        equal = np.full(len(values), 1.0 / len(values))
        times = generator.multinomial(len(values), equal, size=num_resamples)
    for value in np.unique(stratum):
        members = np.flatnonzero(stratum == value)
        share = np.full(len(members), 1.0 / len(members))
        draws = len(members) * times[:, cluster[members[0]]]
        counts[:, members] = generator.multinomial(draws, share)
    return counts


def bootstrap(
    a: Statistic,
    stratum: Ints,
    *,
    seed: int = 0,
    num_resamples: int = 2000,
    clusters: Ints | None = None,
) -> Difference:
    """a(tasks) on all tasks, with its 2.5 and 97.5 percentiles over resampled tasks: the difference to nothing."""
    counts = resample_tasks(stratum, num_resamples, seed, clusters=clusters)
    return _difference(a(np.ones((1, len(stratum)))), a(counts))


def paired_bootstrap(
    a: Statistic,
    b: Statistic,
    stratum: Ints,
    *,
    seed: int = 0,
    num_resamples: int = 2000,
    clusters: Ints | None = None,
) -> Difference:
    """a(tasks) − b(tasks) on all tasks, with its 2.5 and 97.5 percentiles over resampled tasks.

    Both statistics see the same resamples, so what makes a task hard for both cancels.
    """
    full = np.ones((1, len(stratum)))
    counts = resample_tasks(stratum, num_resamples, seed, clusters=clusters)
    return _difference(a(full) - b(full), a(counts) - b(counts))


def seeded_bootstrap(
    a: Sequence[Statistic],
    b: Sequence[Statistic],
    stratum: Ints,
    *,
    seed: int = 0,
    num_resamples: int = 2000,
    clusters: Ints | None = None,
) -> Difference:
    """As `paired_bootstrap`, of means over training seeds, with tasks and seeds both resampled.

    The seeds of a and of b are drawn apart: two trainings with the same seed have nothing in common. A side with one
    seed is taken as it is.

    Args:
        a: one statistic a seed.
        b: the same for the other side.
        stratum: int64 [T], the network of each task.
        seed: of the draws.
        num_resamples: B.
        clusters: see `resample_tasks`.
    """
    full = np.ones((1, len(stratum)))
    counts = resample_tasks(stratum, num_resamples, seed, clusters=clusters)
    generator = np.random.default_rng([seed, 1])

    def drawn(seeds: Sequence[Statistic]) -> Floats:
        size = len(seeds)
        times = generator.multinomial(size, np.full(size, 1.0 / size), size=num_resamples)
        return np.asarray(sum(times[:, k] * one(counts) for k, one in enumerate(seeds)) / size)

    means = [np.mean([one(full) for one in seeds], axis=0) for seeds in (a, b)]
    return _difference(means[0] - means[1], drawn(a) - drawn(b))


def _difference(full: Floats, resampled: Floats) -> Difference:
    tail = 100 * (1 - LEVEL) / 2
    if np.isnan(resampled).all():
        low = high = math.nan
    else:
        low, high = (float(value) for value in np.nanpercentile(resampled, [tail, 100 - tail]))
    return Difference(float(full[0]), low, high, len(resampled))
