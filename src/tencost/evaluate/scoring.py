"""From scores of records to a model's figures: every metric of one order of programs.

A `Truth` says what was measured; `score_records` compares one model's scores with it;
`random_floor` and `oracle` are the two ends of the scale. All three give the same `Metrics`, for
all networks together and for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from tencost.evaluate import metrics
from tencost.evaluate import replayed_search as search
from tencost.evaluate.interval import Difference, Statistic, bootstrap
from tencost.evaluate.metrics import Floats
from tencost.evaluate.truth import Truth

CURVE_STEPS = 32
"""Length of the top-k curves."""
CURVE_METRICS = ("top1", "top5", "pooled_top1", "pooled_top5", "search_score")
"""Metrics made from the best-so-far curves alone."""
HEADINGS = {
    "geo1": "geo1",
    "top1": "top-1",
    "top5": "top-5",
    "pairwise": "pairwise",
    "search_score": "search score",
}
"""Headline metric -> heading."""
HEADLINE = tuple(HEADINGS)
"""What a leaderboard says first, each with an interval over tasks and one over seeds."""
TOLERANCES = {"trials_1pct": 0.01, "trials_5pct": 0.05, "trials_10pct": 0.10}
"""Metric -> how far above the best recorded program of a task a program may be."""


@dataclass(frozen=True)
class Metrics:
    """The figures of one order of programs.

    Unless said otherwise in [0, 1] and higher is better; NaN where not defined.

    "All networks" is the mean over networks for top1, top5 and search_score, the sum over networks
    for the pooled ones, a mean over tasks weighted by records for peak, pairwise, tau, rmse and r2
    (TenSet), a plain mean over tasks for trials and a geometric one for geo1 and pick_rule. For a single network
    pooled and plain top-k are the same.
    """

    geo1: float
    top1: float
    top5: float
    pooled_top1: float
    pooled_top5: float
    peak1: float
    peak5: float
    pairwise: float
    tau: float
    """In [-1, 1]."""
    rmse: float
    """Lower is better."""
    r2: float
    """At most 1."""
    trials_1pct: float
    """Trials per task until within 1 % of its best recorded program; lower is better."""
    trials_5pct: float
    """The same for 5 %."""
    trials_10pct: float
    """The same for 10 %."""
    search_score: float
    """0 is random order, 1 the optimum at once, may be negative."""
    pick_rule: float
    """Latency of the program ranked first over that of the task as the rules schedule it, with nothing measured;
    above 0, lower is better, 1 is the rules. Over the tasks that were timed by rule."""


METRIC_NAMES = tuple(field.name for field in fields(Metrics))


@dataclass(frozen=True)
class SeedScore:
    """Everything about one model trained with one seed (or the floor, or the oracle).

    Attributes:
        overall: figures of all networks together.
        networks: figures of each network.
        best: float64 [T, K], best latency of each task by step, seconds.
        log_speed: float64 [T], log(fastest latency / latency of the first choice) of each task; of the floor, its
            expectation.
        pairwise: float64 [T], pairwise accuracy of each task.
        top_k: float64 [CURVE_STEPS], mean over networks of top-k for k = 1..CURVE_STEPS.
    """

    overall: Metrics
    networks: dict[str, Metrics]
    best: Floats
    log_speed: Floats
    pairwise: Floats
    top_k: Floats


def score_records(truth: Truth, raw: Floats, score: Floats) -> SeedScore:
    """Compare a model's scores of the truth's records with what was measured.

    Args:
        truth: what was measured.
        raw: float64 [N], decides the order, higher is predicted faster; NaN comes last.
        score: float64 [N], the calibrated score in (0, 1], compared with the label for RMSE and R².
    """
    per_task: dict[str, list[float]] = {}
    curves = []
    for task, latency in zip(truth.tasks, truth.latencies, strict=True):
        task_raw, task_score = raw[task.rows], score[task.rows]
        label = metrics.labels(latency)
        counted = ~np.isnan(latency) & ~np.isnan(task_score)
        scored, measured = task_score[counted], label[counted]
        figures = {
            "log_speed": metrics.log_speed(latency, task_raw),
            "peak1": metrics.peak_score(latency, task_raw, 1),
            "peak5": metrics.peak_score(latency, task_raw, 5),
            "pairwise": metrics.pairwise_accuracy(task_raw, label),
            "tau": metrics.kendall_tau(task_raw, label),
            "rmse": metrics.rmse(scored, measured) if len(scored) else math.nan,
            "r2": metrics.r2(scored, measured) if len(scored) else math.nan,
        }
        for name, tolerance in TOLERANCES.items():
            figures[name] = float(search.trials_within(latency, task_raw, tolerance))
        for name, figure in figures.items():
            per_task.setdefault(name, []).append(figure)
        curves.append(metrics.best_so_far(latency, task_raw))
    arrays = {name: np.array(figures) for name, figures in per_task.items()}
    return _summarize(truth, truth.stack(curves), arrays)


def random_floor(truth: Truth) -> SeedScore:
    """Return what uniformly random order is expected to reach, exact; RMSE and R² are NaN."""
    expected: dict[str, Callable[[Floats], float]] = {
        "log_speed": metrics.expected_log_speed,
        "peak1": lambda latency: metrics.expected_peak_score(latency, 1),
        "peak5": lambda latency: metrics.expected_peak_score(latency, 5),
        "pairwise": lambda _: 0.5,
        "tau": lambda _: 0.0,
        "rmse": lambda _: math.nan,
        "r2": lambda _: math.nan,
        **{
            name: partial(search.expected_trials_within, tolerance=tolerance)
            for name, tolerance in TOLERANCES.items()
        },
    }
    per_task = {
        name: np.array([figure(latency) for latency in truth.latencies])
        for name, figure in expected.items()
    }
    return _summarize(truth, truth.random_best, per_task)


def rules_score(truth: Truth) -> SeedScore:
    """Return what the program by rule reaches with nothing measured; what needs an order of programs is NaN."""
    undefined = np.full(len(truth.tasks), math.nan)
    per_task = dict.fromkeys(("peak1", "peak5", "pairwise", "tau", "rmse", "r2"), undefined)
    per_task |= dict.fromkeys(TOLERANCES, undefined)
    per_task["log_speed"] = np.log(truth.optimum_s / truth.rule_s)
    best = np.broadcast_to(truth.rule_s[:, np.newaxis], truth.random_best.shape)
    score = _summarize(truth, best, per_task)
    measured_more = dict.fromkeys(("top5", "pooled_top5", "search_score"), math.nan)
    networks = {name: replace(of, **measured_more) for name, of in score.networks.items()}
    return replace(score, overall=replace(score.overall, **measured_more), networks=networks)


def oracle(truth: Truth) -> SeedScore:
    """What the perfect order reaches."""
    label = np.full(len(truth.record_id), math.nan)
    for task, latency in zip(truth.tasks, truth.latencies, strict=True):
        label[task.rows] = metrics.labels(latency)
    return score_records(truth, label, label)


def statistic(name: str, truth: Truth, seeds: Sequence[SeedScore]) -> Statistic:
    """Return a figure, averaged over seeds, as a function of how often each task is counted.

    Args:
        name: one of CURVE_METRICS or HEADLINE.
        truth: the tasks.
        seeds: the model's seeds.
    """

    def of(seed: SeedScore, counts: Floats) -> Floats:
        if name == "geo1":
            return metrics.geo1(seed.log_speed, counts)
        if name == "pick_rule":
            return _pick_rule(truth, seed.log_speed, counts)
        if name == "pairwise":
            records = counts * truth.num_programs
            return np.asarray((records @ seed.pairwise) / records.sum(axis=-1))
        return _overall(name, truth, seed.best, counts)

    def figure(counts: Floats) -> Floats:
        return np.mean([of(seed, counts) for seed in seeds], axis=0)

    return figure


def over_tasks(truth: Truth, seeds: Sequence[SeedScore]) -> dict[str, Difference]:
    """Return each HEADLINE figure, mean over seeds, with its 95 % bootstrap interval over networks and their tasks."""
    return {
        name: bootstrap(statistic(name, truth, seeds), truth.stratum, clusters=truth.network)
        for name in (*HEADLINE, "pick_rule")
        if name != "pick_rule" or not np.isnan(truth.rule_s).all()
    }


def _pick_rule(truth: Truth, log_speed: Floats, counts: Floats) -> Floats:
    """exp( Σ_t c_t · log(latency_t[π(1)] / rule_t) / Σ_t c_t ), π = argsort(-score), over the tasks timed by rule."""
    log_ratio = np.log(truth.optimum_s / truth.rule_s) - log_speed
    timed = counts * ~np.isnan(log_ratio)
    with np.errstate(invalid="ignore"):  # none of these tasks was timed
        return np.asarray(np.exp((timed @ np.nan_to_num(log_ratio)) / timed.sum(axis=-1)))


def _overall(name: str, truth: Truth, best: Floats, counts: Floats) -> Floats:
    """One figure of all networks from best-so-far curves, float64 [...]; counts [..., T]: how often a task is drawn.

    A network that a bootstrap drew twice counts twice, one that it did not draw does not count.
    """
    weight = counts * truth.weight
    if name.startswith("pooled_top"):
        k = int(name.removeprefix("pooled_top"))
        return metrics.top_k_score(best, truth.optimum_s, weight, k)
    times = np.stack(
        [counts[..., truth.stratum == index].mean(axis=-1) for index in range(len(truth.networks))]
    )
    return _mean(_by_network(name, truth, best, weight), times)


def _by_network(name: str, truth: Truth, best: Floats, weight: Floats) -> Floats:
    """The same for each network, float64 [M, ...]; one without weight has the figure of all its tasks."""
    figures = []
    for index in range(len(truth.networks)):
        of = truth.stratum == index
        network_weight, optimum_s = weight[..., of], truth.optimum_s[of]
        absent = network_weight.sum(axis=-1, keepdims=True) == 0
        network_weight = np.where(absent, truth.weight[of], network_weight)
        if name == "search_score":
            curve = np.asarray(network_weight @ best[of])
            random_curve = np.asarray(network_weight @ truth.random_best[of])
            total = np.asarray(network_weight @ optimum_s)
            figures.append(
                search.search_score(curve, random_curve, total, int(truth.cutoffs[index]))
            )
        else:
            k = int(name.removeprefix("top"))
            figures.append(metrics.top_k_score(best[of], optimum_s, network_weight, k))
    return np.stack(figures)


def _mean(figures: Floats, times: Floats) -> Floats:
    """Mean over the first axis of what is defined, each counted so many times; NaN where nothing is."""
    counted = np.where(np.isnan(figures), 0.0, times)
    count = counted.sum(axis=0)
    total = (np.nan_to_num(figures) * counted).sum(axis=0)
    return np.asarray(np.where(count > 0, total / np.where(count > 0, count, 1.0), np.nan))


def _summarize(truth: Truth, best: Floats, per_task: dict[str, Floats]) -> SeedScore:
    """Aggregate figures of tasks (see `Metrics` for how) over all networks and over each."""
    weight = truth.weight
    once = np.ones(len(truth.tasks))
    overall = {name: float(_overall(name, truth, best, once)) for name in CURVE_METRICS}
    each = {
        name: _by_network(name.removeprefix("pooled_"), truth, best, weight)
        for name in CURVE_METRICS
    }
    by_network = {}
    for index, network in enumerate(truth.networks):
        curve_figures = {name: float(figures[index]) for name, figures in each.items()}
        means = _task_means(truth, per_task, truth.stratum == index)
        by_network[network] = Metrics(**curve_figures, **means)
    every = np.ones(len(truth.tasks), dtype=np.bool_)
    top_k = [float(_overall(f"top{k}", truth, best, once)) for k in range(1, CURVE_STEPS + 1)]
    return SeedScore(
        Metrics(**overall, **_task_means(truth, per_task, every)),
        by_network,
        best,
        per_task["log_speed"],
        per_task["pairwise"],
        np.array(top_k),
    )


def _task_means(
    truth: Truth, per_task: dict[str, Floats], of: npt.NDArray[np.bool_]
) -> dict[str, float]:
    count = truth.num_programs[of].astype(np.float64)
    means = {
        name: _weighted_mean(per_task[name][of], count)
        for name in ("peak1", "peak5", "pairwise", "tau", "r2")
    }
    means["geo1"] = float(metrics.geo1(per_task["log_speed"][of], np.ones(len(count))))
    means["pick_rule"] = float(_pick_rule(truth, per_task["log_speed"], of.astype(np.float64)))
    means["rmse"] = math.sqrt(_weighted_mean(per_task["rmse"][of] ** 2, count))
    return means | {name: float(per_task[name][of].mean()) for name in TOLERANCES}


def _weighted_mean(figures: Floats, weight: Floats) -> float:
    defined = ~np.isnan(figures)
    if not defined.any():
        return math.nan
    return float(figures[defined] @ weight[defined] / weight[defined].sum())
