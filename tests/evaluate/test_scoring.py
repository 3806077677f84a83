"""Two networks of hand-worked tasks: the aggregation over tasks, networks and resamples."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tencost.evaluate import scoring
from tencost.evaluate.interval import bootstrap
from tencost.evaluate.lost_time import TaskLoss, decisive, task_losses
from tencost.evaluate.metrics import Coverage
from tencost.evaluate.truth import Truth, TruthTask

NAN = math.nan


@pytest.fixture
def truth() -> Truth:
    """Network m: tasks of 1, 2, 4 s (weight 2) and of 3 s; n: a task of 5, 10 s and a failure."""
    latency = np.array([1.0, 2.0, 4.0, 3.0, 5.0, 10.0, NAN])
    rows = [np.arange(0, 3), np.arange(3, 4), np.arange(4, 7)]
    tasks = (
        TruthTask("m", "w0", 2.0, rows[0]),
        TruthTask("m", "w1", 1.0, rows[1]),
        TruthTask("n", "w2", 1.0, rows[2]),
    )
    record_id = np.array([f"r{index}" for index in range(7)])
    coverage = {"m": Coverage(2, 2, 1.0, 4, 0), "n": Coverage(1, 2, 0.5, 3, 1)}
    return Truth(record_id, record_id, latency, tasks, coverage)


def test_hand_worked_scores(truth: Truth) -> None:
    # Predicted orders: w0: 2, 1, 4; w1: 3; w2: failure, 10, 5.
    raw = np.array([0.5, 0.9, 0.1, 0.0, 1.0, 2.0, 3.0])
    score = scoring.score_records(truth, raw, raw)
    m, n = score.networks["m"], score.networks["n"]
    assert m.top1 == m.pooled_top1 == pytest.approx(5 / 7)
    assert n.top1 == pytest.approx(5 / 10)
    assert score.overall.top1 == pytest.approx((5 / 7 + 1 / 2) / 2)
    assert score.overall.pooled_top1 == pytest.approx(10 / 17)
    assert score.overall.top5 == score.overall.pooled_top5 == 1.0
    # Peak@1: labels of the first program 0.5 (3 records), 1 (1 record), 0 (3 records).
    assert score.overall.peak1 == pytest.approx((3 * 0.5 + 1 * 1.0 + 0.0) / 7)
    # First choices: 2 s where 1 s is the best, the only one, and a failure, which counts as 10 s where 5 s is the best.
    assert score.overall.geo1 == pytest.approx((1 / 2 * 1 * 1 / 2) ** (1 / 3))
    assert (m.geo1, n.geo1) == pytest.approx((math.sqrt(1 / 2), 1 / 2))
    # Pairwise: w0 gets 2 of 3, w1 has one program (0.5), w2 0 of 3.
    assert score.overall.pairwise == pytest.approx((3 * 2 / 3 + 1 * 0.5 + 0.0) / 7)
    # Kendall: w0 1/3, w1 not defined, w2 -1.
    assert score.overall.tau == pytest.approx((3 * (1 / 3) + 3 * (-1)) / 6)
    assert score.overall.trials_1pct == pytest.approx((2 + 1 + 3) / 3)
    assert score.best.tolist() == [[2.0, 1.0, 1.0], [3.0, 3.0, 3.0], [10.0, 10.0, 5.0]]
    assert score.top_k.shape == (scoring.CURVE_STEPS,)
    assert score.top_k[0] == pytest.approx(score.overall.top1)
    assert score.top_k[-1] == 1.0


def test_first_choices_over_the_rules_by_hand(truth: Truth) -> None:
    raw = np.array([0.5, 0.9, 0.1, 0.0, 1.0, 2.0, 3.0])
    unknown = scoring.score_records(truth, raw, raw)
    assert math.isnan(unknown.overall.pick_rule)
    assert "pick_rule" not in scoring.over_tasks(truth, [unknown])
    # First choices take 2, 3 and 10 s, where the rules take 4, nobody knows what, and 5 s.
    timed = tuple(
        replace(task, rule_s=rule_s)
        for task, rule_s in zip(truth.tasks, (4.0, NAN, 5.0), strict=True)
    )
    partly = replace(truth, tasks=timed)
    score = scoring.score_records(partly, raw, raw)
    assert score.overall.pick_rule == pytest.approx(math.sqrt(2 / 4 * 10 / 5))
    assert score.networks["m"].pick_rule == pytest.approx(2 / 4)
    assert score.networks["n"].pick_rule == pytest.approx(10 / 5)
    interval = scoring.over_tasks(partly, [score])["pick_rule"]
    assert interval.low <= interval.mean <= interval.high
    assert interval.mean == pytest.approx(score.overall.pick_rule)
    # By rule alone: geo1 is above 1 where no recorded program is as fast.
    all_timed = tuple(
        replace(task, rule_s=rule_s)
        for task, rule_s in zip(truth.tasks, (2.0, 3.0, 4.0), strict=True)
    )
    rules = scoring.rules_score(replace(truth, tasks=all_timed))
    assert rules.overall.pick_rule == 1.0
    assert rules.overall.geo1 == pytest.approx((1 / 2 * 1 * 5 / 4) ** (1 / 3))
    assert rules.networks["m"].top1 == pytest.approx(5 / (2 * 2 + 3))
    assert math.isnan(rules.overall.search_score)
    assert math.isnan(rules.overall.pairwise)


def test_search_score_by_hand(truth: Truth) -> None:
    raw = np.array([0.5, 0.9, 0.1, 0.0, 1.0, 2.0, 3.0])
    score = scoring.score_records(truth, raw, raw)
    # m: random curve of w0 is 7/3, 4/3, 1, so R = 2·(7/3)+3, 2·(4/3)+3, 5; the median is 2·2+3 = 7,
    # so the clock stops at 5 + 0.05·2 = 5.1, at step 3, where nothing is left to gain.
    # S = 7, 5, 5, S* = 5.
    r1, r2 = 14 / 3 + 3, 8 / 3 + 3
    assert score.networks["m"].search_score == pytest.approx(
        ((r1 - 7) / (r1 - 5) + (r2 - 5) / (r2 - 5)) / 2
    )
    # n: one of 5, 10, failed (as 10): 25/3; two: 20/3; three: 5. S = 10, 10, 5; median 7.5.
    assert score.networks["n"].search_score == pytest.approx(
        ((25 / 3 - 10) / (25 / 3 - 5) + (20 / 3 - 10) / (20 / 3 - 5)) / 2
    )


def test_floor_and_oracle(truth: Truth) -> None:
    floor, best = scoring.random_floor(truth), scoring.oracle(truth)
    assert floor.overall.search_score == pytest.approx(0.0)
    assert floor.overall.pairwise == 0.5
    assert floor.overall.tau == 0.0
    assert math.isnan(floor.overall.rmse)
    # In random order w0 gives 1, 1/2 or 1/4 of the best speed and w2 1 or 1/2 or, for the failure, 1/2: a mean of logs.
    assert floor.networks["m"].geo1 == pytest.approx(math.sqrt((1 / 8) ** (1 / 3)))
    assert floor.networks["n"].geo1 == pytest.approx((1 / 4) ** (1 / 3))
    assert floor.networks["m"].top1 == pytest.approx(5 / (14 / 3 + 3))
    assert floor.overall.trials_1pct == pytest.approx((4 / 2 + 2 / 2 + 4 / 2) / 3)
    for name in (
        "geo1",
        "top1",
        "top5",
        "pooled_top1",
        "peak1",
        "search_score",
        "tau",
        "r2",
        "trials_1pct",
    ):
        assert getattr(best.overall, name) == pytest.approx(1.0), name
    assert best.overall.rmse == 0.0


def test_statistic_on_all_tasks_is_the_printed_figure(truth: Truth) -> None:
    generator = np.random.default_rng(0)
    seeds = [
        scoring.score_records(truth, generator.normal(size=7), generator.uniform(size=7))
        for _ in range(3)
    ]
    ones = np.ones((1, 3))
    for name in {*scoring.CURVE_METRICS, *scoring.HEADLINE}:
        figure = scoring.statistic(name, truth, seeds)(ones)
        assert figure == pytest.approx(np.mean([getattr(seed.overall, name) for seed in seeds])), (
            name
        )


def test_bootstrap_of_the_oracle_against_random_order(truth: Truth) -> None:
    best, floor = [scoring.oracle(truth)], [scoring.random_floor(truth)]
    upper, lower = (scoring.statistic("search_score", truth, seeds) for seeds in (best, floor))
    difference = bootstrap(
        lambda counts: upper(counts) - lower(counts), truth.stratum, num_resamples=200
    )
    assert difference.mean == pytest.approx(1.0)
    assert difference.low > 0.9


def test_headline_figures_have_an_interval_over_networks_and_tasks(truth: Truth) -> None:
    """Ratios: w0 1/2 and w1 1 in network m, w2 1/2 in n. Networks are drawn first: the ends are n twice (all 1/2), and
    m twice with w1 three times of four (2^(-1/4)); m twice with w1 four times is rarer than one in forty.
    """
    raw = np.array([0.5, 0.9, 0.1, 0.0, 1.0, 2.0, 3.0])
    found = scoring.over_tasks(truth, [scoring.score_records(truth, raw, raw)])
    assert tuple(found) == scoring.HEADLINE
    assert found["geo1"].mean == pytest.approx((1 / 4) ** (1 / 3))
    assert (found["geo1"].low, found["geo1"].high) == pytest.approx((1 / 2, 2 ** (-1 / 4)))
    for name, one in found.items():
        assert one.low <= one.mean <= one.high, name


def test_the_lost_time_of_each_task(truth: Truth) -> None:
    """First choices: 2 s where 1 s is the best, twice; the only one; a failure, which counts as the slowest."""
    raw = np.array([0.5, 0.9, 0.1, 0.0, 1.0, 2.0, 3.0])
    score = scoring.score_records(truth, raw, raw)
    first, second = task_losses(truth, [score], {("n", "w2"): "pool"})
    assert (first.network, first.task, second.task) == ("n", "pool", "w0")
    assert (first.lost_ms, second.lost_ms) == pytest.approx((5000, 2000))
    assert (first.share, second.share) == pytest.approx((5 / 7, 2 / 7))
    assert (first.network_share, second.network_share) == (1.0, 1.0)
    best = scoring.oracle(truth)
    assert task_losses(truth, [best], {}) == ()
    (half, _) = task_losses(truth, [score, best], {})
    assert half.lost_ms == pytest.approx(2500)


def test_what_decides_is_four_fifths_or_five_tasks() -> None:
    def shares(*values: float) -> list[TaskLoss]:
        return [
            TaskLoss(
                network="m",
                task="t",
                workload_id="w",
                weight=1.0,
                chosen_ms=1.0,
                best_ms=0.5,
                share=one,
                network_share=one,
            )
            for one in values
        ]

    assert [len(decisive(shares(*values))) for values in ([0.96, 0.04], [0.5, 0.3, 0.2], [])] == [
        1,
        2,
        0,
    ]
    assert len(decisive(shares(*[0.1] * 10))) == 5
