"""How well latencies are predicted.

Of graphs that have a latency, with p predicted and m measured, both in milliseconds:

    rmse            sqrt(mean((p - m)^2)), ms
    mape            mean(|p - m| / m)
    rmspe           sqrt(mean((|p - m| / m)^2))
    acc5, acc10     share with |p - m| / m < .05, < .10, as the CG benchmark counts
    acc5_le, acc10_le   the same with <=, as nn-Meter counts
    tau             Kendall's tau-b between p and m; of several families, the mean of the tau within each

CG's runner prints a row a family and their means (`id avg`, `ood avg`): `average`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GraphScore:
    """The metrics of some graphs on one device; NaN where there is none (tau of one graph)."""

    count: int
    rmse: float
    mape: float
    rmspe: float
    acc5: float
    acc10: float
    acc5_le: float
    acc10_le: float
    tau: float

    def metrics(self) -> dict[str, float]:
        """Return all but the count, by name."""
        values = asdict(self)
        values.pop("count")
        return values


METRICS = tuple(item.name for item in fields(GraphScore) if item.name != "count")


def score(predicted_ms: Array, measured_ms: Array) -> GraphScore:
    """Score predictions; graphs without a latency (NaN) do not count.

    Args:
        predicted_ms: float64 [G].
        measured_ms: float64 [G], positive or NaN.
    """
    measured = np.isfinite(measured_ms)
    p, m = predicted_ms[measured], measured_ms[measured]
    if not len(m):
        return GraphScore(0, *(math.nan for _ in METRICS))
    error = np.abs(p - m) / m
    return GraphScore(
        count=len(m),
        rmse=float(np.sqrt(np.mean((p - m) ** 2))),
        mape=float(error.mean()),
        rmspe=float(np.sqrt(np.mean(error**2))),
        acc5=float((error < 0.05).mean()),
        acc10=float((error < 0.10).mean()),
        acc5_le=float((error <= 0.05).mean()),
        acc10_le=float((error <= 0.10).mean()),
        tau=_tau(p, m),
    )


def by_family(
    family: NDArray[np.str_], predicted_ms: Array, measured_ms: Array
) -> dict[str, GraphScore]:
    """Score each family that has latencies, by name, sorted."""
    scores = {
        str(name): score(predicted_ms[family == name], measured_ms[family == name])
        for name in np.unique(family)
    }
    return {name: score for name, score in scores.items() if score.count}


def average(scores: Sequence[GraphScore]) -> GraphScore:
    """Return the mean of each metric over families, each family counting the same, NaN left out."""

    def mean(name: str) -> float:
        values = [value for score in scores if not math.isnan(value := getattr(score, name))]
        return float(np.mean(values)) if values else math.nan

    return GraphScore(sum(score.count for score in scores), *(mean(name) for name in METRICS))


def _tau(predicted: Array, measured: Array) -> float:
    from scipy.stats import kendalltau

    if len(measured) < 2 or np.ptp(measured) == 0:
        return math.nan
    if np.ptp(predicted) == 0:
        return 0.0  # all alike: says nothing about the order
    return float(kendalltau(predicted, measured).statistic)
