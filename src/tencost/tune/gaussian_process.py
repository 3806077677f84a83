"""Errors of the scores of measured programs, told of programs like them: a Gaussian process on decisions.

    value = score + mean of (label - score) nearby,   label = fastest latency of the task / latency, 0 for a failure

The registered model ranks a task's good programs alike; trees over hundreds of columns need hundreds of programs to
tell them apart. A Gaussian process with an exponential kernel on the few columns that the search decides
(:func:`tencost.tune.evolutionary_search.columns`) does it with some dozens. Its standard deviation is large where
nothing like a program was measured: a batch is picked one by one by value + EXPLORATION x deviation, where the
deviation counts what is already picked as measured (batch GP-UCB, Desautels et al., JMLR 15, 2014): no batch holds one
program many times.
"""

from __future__ import annotations

import numpy as np

from tencost.features.rows.ragged import FloatArray
from tencost.models.draft_model import Doubles

LENGTH = 1.0
"""Distance, in standard deviations of the columns (root mean square), at which programs know e^-1 of each other."""
NOISE = 0.2
"""Variance of what columns do not say, as a share of the variance of the errors."""
LEAST_SPREAD = 0.02
"""Errors of the scores are taken to spread at least so much."""
EXPLORATION = 0.5
"""Deviations that a program's value is raised by when a batch is picked."""
MAX_PROGRAMS = 256
"""The latest measured programs that are learnt from, which bounds the time of a fit."""


class GaussianProcess:
    """Corrections of scores near measured programs; made anew for each round.

    Args:
        columns: float32 [N, C] of measured programs, the latest last; N may be 0.
        errors: label - score of each, float64 [N].
    """

    def __init__(self, columns: FloatArray, errors: Doubles) -> None:
        self._columns = columns[-MAX_PROGRAMS:].astype(np.float64)
        errors = errors[-MAX_PROGRAMS:]
        self._middle, self._scale = np.zeros(columns.shape[1]), np.ones(columns.shape[1])
        self._spread, self._mean = LEAST_SPREAD, 0.0
        if len(errors):
            self._middle, scale = self._columns.mean(axis=0), self._columns.std(axis=0)
            self._scale = np.where(scale > 0, scale, 1.0)
            self._mean = float(errors.mean())
            self._spread = max(LEAST_SPREAD, float(errors.std()))
            kernel = self._kernel(self._columns, self._columns) + NOISE * np.eye(len(errors))
            self._factor = np.linalg.cholesky(kernel)
            self._weights = np.linalg.solve(kernel, errors - self._mean)

    def correction(self, columns: FloatArray) -> Doubles:
        """Return what to add to the scores of programs, float64 [M], of their columns, float32 [M, C]."""
        if len(self._columns) == 0:
            return np.zeros(len(columns))
        near: Doubles = self._kernel(columns.astype(np.float64), self._columns) @ self._weights
        return self._mean + near

    def pick(self, columns: FloatArray, values: Doubles, count: int) -> list[int]:
        """Return the positions of a batch, in the order of picking.

        Args:
            columns: float32 [M, C] of what can be picked.
            values: corrected scores, float64 [M].
            count: how many to pick.
        """
        points = columns.astype(np.float64)
        unknown = self._kernel(points, points)
        if len(self._columns):
            seen = np.linalg.solve(self._factor, self._kernel(self._columns, points))
            unknown -= seen.T @ seen
        picked: list[int] = []
        values = values.copy()
        for _ in range(min(count, len(values))):
            deviation = self._spread * np.sqrt(np.maximum(np.diagonal(unknown), 0.0))
            best = int(np.argmax(values + EXPLORATION * deviation))
            picked.append(best)
            values[best] = -np.inf
            share = unknown[best] / (unknown[best, best] + NOISE)
            unknown = unknown - np.outer(unknown[best], share)
        return picked

    def _kernel(self, ours: Doubles, theirs: Doubles) -> Doubles:
        """Return the exponential kernel, float64 [N, M]."""
        a, b = (ours - self._middle) / self._scale, (theirs - self._middle) / self._scale
        squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
        kernel: Doubles = np.exp(-np.sqrt(np.maximum(squares, 0.0) / a.shape[1]) / LENGTH)
        return kernel
