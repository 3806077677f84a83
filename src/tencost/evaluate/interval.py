"""How sure a figure is: over a family's seeds, and over the tasks that two are compared on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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

    def text(self, form: str) -> str:
        """Return `0.812 ± 0.004`, numbers as in `form`; the mean alone without an interval; empty without either."""
        if math.isnan(self.mean):
            return ""
        mean = f"{self.mean:{form}}"
        if math.isnan(self.half_width):
            return mean
        return f"{mean} ± {self.half_width:{form.lstrip('+')}}"


def seed_interval(values: Sequence[float]) -> Interval:
    """Mean ± t_{0.975, S−1} · s / √S over S seeds (Student's t; s divides by S − 1)."""
    figures = np.array([figure for figure in values if not math.isnan(figure)], dtype=np.float64)
    count = len(figures)
    if count < 2:
        return Interval(float(figures[0]) if count else math.nan, math.nan, count)
    from scipy.special import stdtrit

    # As scipy.stats.t.ppf, without the half second that importing scipy.stats takes.
    quantile = float(stdtrit(count - 1, 0.5 + LEVEL / 2))
    half_width = quantile * float(figures.std(ddof=1)) / math.sqrt(count)
    return Interval(float(figures.mean()), half_width, count)


@dataclass(frozen=True)
class Difference:
    """Figure of A, or of A minus that of B on the same tasks, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    num_resamples: int


def interval_text(difference: Difference | Interval, form: str = "+.3f") -> str:
    """Return `+0.071 [-0.101, +0.175]`, numbers as in `form`; without an interval `+0.071 (no interval)`."""
    mean = f"{difference.mean:{form}}"
    if math.isnan(difference.low) and not math.isnan(difference.mean):
        return f"{mean} (no interval)"
    return f"{mean} [{difference.low:{form}}, {difference.high:{form}}]"


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
        names, cluster = np.unique(clusters, return_inverse=True)
        equal = np.full(len(names), 1.0 / len(names))
        times = generator.multinomial(len(names), equal, size=num_resamples)
    for network in np.unique(stratum):
        members = np.flatnonzero(stratum == network)
        share = np.full(len(members), 1.0 / len(members))
        draws = len(members) * times[:, cluster[members[0]]]
        counts[:, members] = generator.multinomial(draws, share)
    return counts


def bootstrap(
    statistic: Statistic,
    stratum: Ints,
    *,
    seed: int = 0,
    num_resamples: int = 2000,
    clusters: Ints | None = None,
) -> Difference:
    """statistic(tasks) on all tasks, with its 2.5 and 97.5 percentiles over resampled tasks.

    A statistic that is the difference of two figures makes a paired comparison: both see the same resamples, so what
    makes a task hard for both cancels.
    """
    counts = resample_tasks(stratum, num_resamples, seed, clusters=clusters)
    return _difference(statistic(np.ones((1, len(stratum)))), statistic(counts))


def seeded_bootstrap(
    a: Sequence[Statistic],
    b: Sequence[Statistic],
    stratum: Ints,
    *,
    num_resamples: int = 2000,
    clusters: Ints | None = None,
) -> Difference:
    """A minus b as `bootstrap`, of means over training seeds, with tasks and seeds both resampled.

    The seeds of a and of b are drawn apart: two trainings with the same seed have nothing in common. A side with one
    seed is taken as it is.

    Args:
        a: one statistic a seed.
        b: the same for the other side.
        stratum: int64 [T], the network of each task.
        num_resamples: B.
        clusters: see `resample_tasks`.
    """
    full = np.ones((1, len(stratum)))
    counts = resample_tasks(stratum, num_resamples, 0, clusters=clusters)
    generator = np.random.default_rng([0, 1])

    def drawn(seeds: Sequence[Statistic]) -> Floats:
        size = len(seeds)
        times = generator.multinomial(size, np.full(size, 1.0 / size), size=num_resamples)
        figures = [statistic(counts) for statistic in seeds]
        return np.asarray(np.einsum("bs,sb->b", times, figures) / size)

    means = [np.mean([statistic(full) for statistic in seeds], axis=0) for seeds in (a, b)]
    return _difference(means[0] - means[1], drawn(a) - drawn(b))


def _difference(full: Floats, resampled: Floats) -> Difference:
    tail = 100 * (1 - LEVEL) / 2
    if np.isnan(resampled).all():
        low = high = math.nan
    else:
        low, high = np.nanpercentile(resampled, [tail, 100 - tail]).tolist()
    return Difference(float(full[0]), low, high, len(resampled))
