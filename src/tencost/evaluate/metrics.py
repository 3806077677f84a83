"""How good an order of programs is: the field's metrics, per task first, then per network.

Legend: n programs of one task (a workload of a network on one hardware), T tasks, K steps.

Conventions that hold for every function here:

- ``latency_s`` is float64 seconds, lower is faster; NaN marks a failed program. A failed program
  never wins: while programs are ordered its latency is infinite, its label is 0, and it is left out
  of every mean of latencies or errors.
- ``score`` is float64 without a unit, higher is predicted faster; NaN (a program that could not be
  scored) comes last.
- Programs with equal scores keep the order they are given in. The evaluation gives them in the
  order of their record ids, which are content hashes, so a model that cannot tell two programs
  apart is neither rewarded nor punished.
- A task whose programs all failed has no optimum and is not scored: it lowers the coverage instead.

The formulas are those of TenSet (``metric.py``, ``eval_model_on_dataset.py``) and TLP
(``tlp_eval.py``); where we differ, the docstring says so. MAPE is left out on purpose: with
failures labelled near 0 it measures nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def predicted_order(score: Floats) -> Ints:
    """Return the order a tuner would measure in: argsort(-score), stable, NaN last; int64 [n]."""
    return np.argsort(-np.where(np.isnan(score), -np.inf, score), kind="stable").astype(np.int64)


def labels(latency_s: Floats) -> Floats:
    """y_i = min(latency) / latency_i, 0 for a failed program: one task.

    Returns:
        float64 [n] in [0, 1], higher is faster; the fastest program has 1.
    """
    fastest = np.nanmin(latency_s)
    return np.where(np.isnan(latency_s), 0.0, fastest / latency_s)


def best_so_far(latency_s: Floats, score: Floats) -> Floats:
    """b_k = min(latency[π(1..k)]), π = argsort(-score): the best after k trials, one task.

    While all k programs failed, b_k is the task's slowest working program: the task then runs, but
    nothing was gained. (TenSet's clamp of the label at 1e-5 makes it 100,000 times the best
    instead, and one such task decides the score of a whole network.)

    Returns:
        float64 [n], seconds, never increasing, lower is better.
    """
    ordered = latency_s[predicted_order(score)]
    running = np.minimum.accumulate(np.where(np.isnan(ordered), np.inf, ordered))
    return np.minimum(running, np.nanmax(latency_s))


def expected_best_so_far(latency_s: Floats) -> Floats:
    """E[b_k] under a uniformly random order of one task, exact: Σ_i x_(i) · C(n−i, k−1) / C(n, k).

    x_(1) ≤ … ≤ x_(n) are the sorted latencies; a failed program counts as the slowest working one,
    as in `best_so_far`.

    Returns:
        float64 [n], seconds: element k−1 is the expectation after k trials.
    """
    return _expected_best(np.sort(np.where(np.isnan(latency_s), np.nanmax(latency_s), latency_s)))


def _expected_best(values: Floats) -> Floats:
    """Expected best of k values drawn without replacement, k = 1..n; best value first."""
    n = len(values)
    # Σ_i x_i P(best = i) = Σ_i gap_i P(best ≥ i), and P(best ≥ 1) = 1
    gaps = np.diff(values, prepend=0.0)
    remaining = np.arange(n, 0, -1, dtype=np.float64)  # values at or after position i
    none_before = np.ones(n)  # P(all k draws are at or after position i)
    expected = np.empty(n)
    for drawn in range(n):
        none_before = none_before * np.maximum(remaining - drawn, 0.0) / (n - drawn)
        expected[drawn] = none_before @ gaps
    return expected


def top_k_score(best: Floats, optimum_s: Floats, weight: Floats, k: int) -> Floats:
    """top-k(m) = L*(m) / L_k(m), L* = Σ_t w_t min(latency_t), L_k = Σ_t w_t b_{t,k}: one network m.

    The share of the best recorded network latency that measuring only the k best-ranked programs of
    each task reaches. Higher is better, 1 is the oracle. TenSet's average is the mean of it over
    networks; TLP's is that of the tasks of all networks as if they were one, Σ_m L*(m) / Σ_m L_k(m), so that slow
    networks weigh more.

    Args:
        best: float64 [T, K], `best_so_far` of each task, rows padded with their last value.
        optimum_s: float64 [T], the fastest recorded program of each task, seconds.
        weight: float64 [..., T], how often each task occurs in the network (times how often it was
            resampled).
        k: programs measured per task; beyond K nothing changes any more.

    Returns:
        float64 [...], one score per leading index of `weight`.
    """
    column = best[:, min(k, best.shape[1]) - 1]
    return np.asarray((weight @ optimum_s) / (weight @ column))


def log_speed(latency_s: Floats, score: Floats) -> float:
    """log( min(latency) / latency[π(1)] ), π = argsort(-score): one task, at most 0, higher is better.

    The first choice counts as in `best_so_far`: one that failed is as slow as the slowest working program.
    """
    return float(np.log(np.nanmin(latency_s) / best_so_far(latency_s, score)[0]))


def expected_log_speed(latency_s: Floats) -> float:
    """E[log_speed] under a uniformly random order of one task, exact."""
    fastest, slowest = np.nanmin(latency_s), np.nanmax(latency_s)
    return float(np.log(fastest / np.where(np.isnan(latency_s), slowest, latency_s)).mean())


def geo1(log_speeds: Floats, count: Floats) -> Floats:
    """exp( Σ_t c_t · log_speed_t / Σ_t c_t ): geometric mean over tasks of best latency / latency of the first choice.

    Higher is better, 1 is the oracle. Every task counts the same, a slow one no more than a fast one: what a sum of
    latencies hides.

    Args:
        log_speeds: float64 [T], `log_speed` of each task.
        count: float64 [..., T], how often each task is counted.

    Returns:
        float64 [...].
    """
    return np.asarray(np.exp((count @ log_speeds) / count.sum(axis=-1)))


def peak_score(latency_s: Floats, score: Floats, k: int) -> float:
    """mean_{i=1..k} ( max_{j≤i} y[π(j)] ) / max(y), π = argsort(-score): one task.

    The mean of the curve of best labels, not its end. Higher is better. A task with fewer than k
    programs uses all.
    """
    curve = np.maximum.accumulate(labels(latency_s)[predicted_order(score)])
    return float(curve[:k].mean())


def expected_peak_score(latency_s: Floats, k: int) -> float:
    """E[peak_score@k] under a uniformly random order of one task, exact."""
    return float(_expected_best(np.sort(labels(latency_s))[::-1])[:k].mean())


def pairwise_accuracy(score: Floats, label: Floats) -> float:
    """(# pairs i<j with [p_i > p_j] == [y_i > y_j]) / (n(n−1)/2); 0.5 if n ≤ 1: one task.

    Higher is better. TenSet's formula to the letter: a tie is "not greater" on its side, so pairs
    with equal labels are not skipped, and a pair with equal scores is right half of the time.
    Failed programs take part with label 0.
    """
    n = len(score)
    if n <= 1:
        return 0.5
    p = np.where(np.isnan(score), -np.inf, score)
    agree = (p[:, None] > p[None, :]) == (label[:, None] > label[None, :])
    return float(np.count_nonzero(np.triu(agree, 1)) / (n * (n - 1) / 2))


def kendall_tau(score: Floats, label: Floats) -> float:
    """τ_b = (P − Q) / sqrt((P + Q + T_p)(P + Q + T_y)): one task, in [−1, 1], higher is better.

    P and Q count concordant and discordant pairs, T_p and T_y pairs tied only in score or label.
    Constant scores know nothing: 0. Constant labels leave nothing to know: NaN, which no mean
    counts.
    """
    if len(label) < 2 or np.all(label == label[0]):
        return float("nan")
    p = np.where(np.isnan(score), -np.inf, score)
    if np.all(p == p[0]):
        return 0.0
    # All pairs at once, each twice: for tasks of dozens of programs a tenth of the time of scipy's sorting.
    of_score, of_label = (
        (values[:, None] > values).astype(np.int8) - (values[:, None] < values).astype(np.int8)
        for values in (p, label)
    )
    ordered = math.sqrt(np.count_nonzero(of_score)) * math.sqrt(np.count_nonzero(of_label))
    return float((of_score * of_label).sum(dtype=np.int64) / ordered)


def rmse(predicted: Floats, label: Floats) -> float:
    """sqrt(mean((p − y)²)): one task, calibrated score against label, lower is better.

    Several tasks together: sqrt(Σ_t n_t · RMSE_t² / Σ_t n_t).
    """
    return float(np.sqrt(np.mean((predicted - label) ** 2)))


def r2(predicted: Floats, label: Floats) -> float:
    """1 − Σ(y − p)² / Σ(y − mean y)²; 1 if the denominator is below 1e-6: one task.

    Higher is better, may be negative. Calibrated score against label. A ranking model can be an
    excellent tuner with a very bad R².
    """
    total = float(np.sum((label - label.mean()) ** 2))
    if total < 1e-6:
        return 1.0
    return 1.0 - float(np.sum((label - predicted) ** 2)) / total


@dataclass(frozen=True)
class Coverage:
    """How much of a network the scores of its tasks speak for.

    Attributes:
        tasks_scored: distinct workloads of the network with at least one working program in the
            part evaluated.
        tasks: distinct workloads of the network.
        flop_share: Σ w·flop over the scored tasks / Σ w·flop over all tasks, in [0, 1]; NaN if no
            task has FLOPs.
        programs: records evaluated, failed ones included.
        failed: how many of them failed.
    """

    tasks_scored: int
    tasks: int
    flop_share: float
    programs: int
    failed: int
