"""The additive model before its network bends it: what a unit of each amount costs in each kind, as one convex fit.

Latency is a sum of amounts (tencost.features.graph.tokens.AMOUNTS of each kind of kernel) times a cost each, and no
cost is negative: least squares under that constraint (Lawson & Hanson 1974) has one solution, sets most costs to
exactly 0, and does not depend on a seed. Errors are relative; weights that shrink with the error (iterated) make
outliers count nearly by their size, not its square. Where few families determine the cost of a kind, it stays near
the cost of the same amount in all kinds, which is fitted, too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]

_TOGETHER = 1e-3
"""Weight of the penalty that pulls the cost in one kind to the amount's cost in all kinds, against squared errors."""
_ROUNDS = 8
_SMALLEST_ERROR = 0.05
"""Relative error below which all graphs weigh the same."""
_LEAST_SHARE = 1e-4
"""A cost of 0 becomes this share of the cost that would explain all of the latency: its logarithm is taken later."""


def fit_base(sums: Floats, latency_ms: Floats) -> Floats:
    """Fit what each amount costs in each kind of kernel.

    Args:
        sums: float64 [G, kinds, amounts]; each graph's amounts, not negative.
        latency_ms: float64 [G]; positive and finite.

    Returns:
        Milliseconds a unit, float64 [kinds, amounts], positive.
    """
    count, kinds, amounts = sums.shape
    relative = sums / latency_ms[:, None, None]
    pooled = relative.sum(axis=1).mean(axis=0)
    unit = np.divide(1.0, pooled, out=np.ones(amounts), where=pooled > 0)
    kind, amount = np.nonzero(relative.max(axis=0) > 0)
    width = len(kind)
    columns = relative[:, kind, amount] * unit[amount]
    # Each row is the cost of an amount in one kind of kernel minus the amount's cost in all kinds.
    differences = np.zeros((width, width + amounts))
    differences[np.arange(width), np.arange(width)] = 1
    differences[np.arange(width), width + amount] = -1
    penalty = _TOGETHER * differences.T @ differences + 1e-8 * np.eye(width + amounts)
    weight = np.ones(count)
    for _ in range(_ROUNDS):
        normal = count * penalty
        normal[:width, :width] += (columns * weight[:, None]).T @ columns
        right = np.concatenate([weight @ columns, np.zeros(amounts)])
        root = np.linalg.cholesky(normal)
        solution, _ = nnls(root.T, np.linalg.solve(root, right), maxiter=100 * len(right))
        error = columns @ solution[:width] - 1
        weight = 1 / np.hypot(error, _SMALLEST_ERROR)
    cost = np.tile(solution[width:], (kinds, 1))
    cost[kind, amount] = solution[:width]
    base: Floats = np.maximum(cost, _LEAST_SHARE) * unit
    return base
