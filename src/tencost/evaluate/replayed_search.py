"""Replayed search: what a tuner measuring recorded programs in predicted order would reach.

Nothing is compiled or run: the records of a task stand for its search space, the model's scores
decide in which order they are "measured". Legend: n programs of a task, T tasks, K steps, ... any
leading dimensions (bootstrap resamples).
"""

from __future__ import annotations

import numpy as np

from tencost.evaluate.metrics import Floats, Ints, predicted_order

CUTOFF_SHARE = 0.95
"""Share of the way from median to optimum that random search has gone when the clock stops."""


def trials_within(latency_s: Floats, score: Floats, tolerance: float) -> int:
    """Least k with latency[π(k)] ≤ (1 + tolerance) · min(latency), π = argsort(-score).

    One task, at least 1, lower is better.
    """
    ordered = latency_s[predicted_order(score)]
    good = ordered <= (1.0 + tolerance) * np.nanmin(latency_s)  # NaN compares as not good
    return int(np.argmax(good)) + 1


def expected_trials_within(latency_s: Floats, tolerance: float) -> float:
    """E[trials] under random order, exact: (n + 1) / (m + 1), m programs within the tolerance."""
    num_good = int(np.count_nonzero(latency_s <= (1.0 + tolerance) * np.nanmin(latency_s)))
    return (len(latency_s) + 1) / (num_good + 1)


def trials_at_step(num_programs: Ints, num_steps: int) -> Ints:
    """Σ_t min(k, n_t), k = 1..num_steps: trials spent once every task has measured k programs."""
    steps = np.arange(1, num_steps + 1)
    return np.minimum(steps[:, None], num_programs[None, :]).sum(axis=1).astype(np.int64)


def cutoff_step(random_curve: Floats, optimum_s: float, median_s: float) -> int:
    """Least k with R_k ≤ S* + (1 − CUTOFF_SHARE) · (median − S*): where the comparison ends.

    From autotuning_methodology (FGCS 2024); R is the curve of random search, as `curve` of `search_score`.
    """
    reached = random_curve <= optimum_s + (1.0 - CUTOFF_SHARE) * (median_s - optimum_s)
    return int(np.argmax(reached)) + 1 if reached.any() else len(random_curve)


def search_score(curve: Floats, random_curve: Floats, optimum_s: Floats, num_steps: int) -> Floats:
    """Mean over k = 1..cutoff of (R_k − S_k) / (R_k − S*): one network, higher is better.

    0 is as good as random order (R is its exact expectation), 1 is the optimum at the first trial,
    below 0 is worse than random. The numerator and denominator are (strategy − random) and (optimum
    − random) of the paper for times.

    Args:
        curve: float64 [..., K], S_k = Σ_t w_t · b_{t,k}: latency of the network once every task has measured k
            programs, seconds.
        random_curve: float64 [..., K], its expectation under random order, seconds.
        optimum_s: float64 [...], sum of the best recorded programs, seconds.
        num_steps: the cut-off, see `cutoff_step`.

    Returns:
        float64 [...]; NaN where random order is at the optimum from the first step on (nothing to
        search).
    """
    room = random_curve[..., :num_steps] - optimum_s[..., None]
    gain = random_curve[..., :num_steps] - curve[..., :num_steps]
    open_ = room > 1e-12 * optimum_s[..., None]
    share = np.divide(gain, room, out=np.zeros_like(gain), where=open_)
    count = open_.sum(axis=-1)
    return np.where(count > 0, share.sum(axis=-1) / np.maximum(count, 1), np.nan)
