"""How many of the k fastest of n programs are among the k that score highest: tvm_oraa's and MetaSchedule's top-k.

TVM's own counts the lowest predictions against the lowest throughputs, the wrong end of both. Here the highest count,
and ties are shared out: of programs that tie for the last places each counts in proportion, so that a model that scores
all alike gets k / n, what guessing gets on average.
"""

from __future__ import annotations

import numpy as np

from tencost.evaluate.metrics import Floats


def top_share(score: Floats, speed: Floats, k: int) -> float:
    """Return the share of the k fastest programs that are among the k with the highest scores.

    Args:
        score: float64 [n], higher is predicted faster; NaN comes last.
        speed: float64 [n], throughput or any label that grows with it; 0 of a failed program.
        k: at least 1, at most n.

    Returns:
        in [0, 1], higher is better; k / n is chance. With ties the expected share where they are broken at random.
    """
    assert 1 <= k <= len(score) == len(speed), f"k = {k} of {len(score)} programs"
    return float(_membership(score, k) @ _membership(speed, k)) / k


def _membership(values: Floats, k: int) -> Floats:
    """Return how much of each value is among the k highest, float64 [n]; sums to k."""
    filled = np.where(np.isnan(values), -np.inf, values)
    least = np.partition(filled, len(filled) - k)[len(filled) - k]
    above, level = filled > least, filled == least
    return np.where(above, 1.0, np.where(level, (k - above.sum()) / level.sum(), 0.0))
