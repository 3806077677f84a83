from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tencost.models.programs.ranker.losses import OBJECTIVES, Lists, RankingLoss, RankingMetrics

LABEL = np.array([1.0, 0.5, 0.25, 1.0, 0.1], np.float32)
GROUP = np.array([0, 0, 0, 1, 1])


def test_pairwise_gradient_worked_by_hand() -> None:
    gradient, hessian = RankingLoss("pairwise", LABEL, GROUP)(np.zeros(5))
    # Group 0: pairs (0,1) .5, (0,2) .75, (1,2) .25, each wrong with probability 1/2, over 3 programs.
    expected = [-(0.5 + 0.75) / 6, (0.5 - 0.25) / 6, (0.75 + 0.25) / 6]
    assert gradient[:3] == pytest.approx(expected)
    assert gradient[3:] == pytest.approx([-0.9 / 4, 0.9 / 4])
    assert hessian[3:] == pytest.approx([0.9 / 8, 0.9 / 8])


def test_listwise_gradient_worked_by_hand() -> None:
    loss = RankingLoss("listwise", LABEL[3:], GROUP[3:] - 1, temperature=1.0)
    gradient, _ = loss(np.zeros(2))
    wanted = 1 / (1 + math.exp(-0.9))
    assert gradient == pytest.approx([2 * (0.5 - wanted), 2 * (wanted - 0.5)])


def test_regression_gradient() -> None:
    gradient, hessian = RankingLoss("regression", LABEL, GROUP)(np.zeros(5))
    assert gradient == pytest.approx(-LABEL.astype(np.float64))
    assert (hessian == 1).all()


def test_lambdarank_cares_most_about_the_top() -> None:
    label = np.array([1.0, 0.9, 0.2, 0.1], np.float32)
    gradient, _ = RankingLoss("lambdarank", label, np.zeros(4, np.int64))(np.array([3.0, 4, 1, 2]))
    assert abs(gradient[0]) > abs(gradient[2])


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_groups_do_not_touch_each_other(objective: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 3, 20)
    label, scores = rng.uniform(0, 1, 20).astype(np.float32), rng.normal(0, 1, 20)
    gradient, hessian = RankingLoss(objective, label, group)(scores)
    for index in np.unique(group):
        inside = group == index
        alone = RankingLoss(objective, label[inside], np.zeros(inside.sum(), np.int64))
        own_gradient, own_hessian = alone(scores[inside])
        assert gradient[inside] == pytest.approx(own_gradient, abs=1e-12)
        assert hessian[inside] == pytest.approx(own_hessian, abs=1e-12)
        if objective != "regression":
            assert gradient[inside].sum() == pytest.approx(0.0, abs=1e-9)
    assert (hessian > 0).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_descent_orders_the_programs(objective: str) -> None:
    rng = np.random.default_rng(0)
    label, group = rng.uniform(0, 1, 30).astype(np.float32), np.repeat([0, 1], 15)
    loss, scores = RankingLoss(objective, label, group), np.zeros(30)
    for _ in range(600):
        scores -= 0.5 * loss(scores)[0]
    assert RankingMetrics(label, group)(scores)["pairwise"] > 0.9


def test_long_groups_are_cut_into_lists_that_cover_each_program_once() -> None:
    group = np.repeat([0, 1], [1000, 3])
    lists = Lists.from_groups(group, seed=1, limit=256)
    assert lists.mask.sum(axis=1).max() <= 256
    assert sorted(lists.index[lists.mask].tolist()) == list(range(1003))
    for row, mask in zip(lists.index, lists.mask, strict=True):
        assert len(set(group[row[mask]].tolist())) == 1
    assert np.array_equal(Lists.from_groups(group, seed=1, limit=256).index, lists.index)


def test_metrics_worked_by_hand() -> None:
    found = RankingMetrics(LABEL, GROUP)(np.array([1.0, 3.0, 2.0, 5.0, 4.0]))
    # Group 0 is ordered 1, 2, 0: one pair of three right, top1 = .5. Group 1 is right.
    assert found["pairwise"] == pytest.approx((1 / 3 + 1) / 2)
    assert found["top1"] == pytest.approx((0.5 + 1) / 2)
    assert found["top5"] == 1.0
    top3 = ((0.5 + 0.25 + 1) / 3 + 0.55) / 2
    assert found["choice"] == pytest.approx(found["pairwise"] + (top3 + 1) / 4)


def test_ties_count_half_and_missing_scores_come_last() -> None:
    assert RankingMetrics(LABEL, GROUP)(np.zeros(5))["pairwise"] == 0.5
    last = RankingMetrics(LABEL[3:], GROUP[3:])(np.array([-np.inf, -np.inf]))
    assert last["pairwise"] == 0.5


def test_nothing_to_compare() -> None:
    assert RankingMetrics(LABEL[:2], np.array([0, 1]))(np.zeros(2)) == {}
    assert RankingMetrics(LABEL[:0], GROUP[:0])(np.zeros(0)) == {}


@pytest.mark.parametrize("objective", ["pairwise", "lambdarank"])
@pytest.mark.parametrize("longest", [3, 9, 56, 128, 150])
def test_lists_of_several_lengths_add_up_to_the_bits_of_lists_padded_to_the_longest(
    objective: str, longest: int
) -> None:
    rng = np.random.default_rng(longest)
    sizes = [longest, *rng.integers(1, longest + 1, 40)]
    group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    label = rng.uniform(0, 1, len(group)).astype(np.float32)
    scores = rng.normal(0, 2, len(group))

    gradient, hessian = RankingLoss(objective, label, group, power=0.5)(scores)

    lists = Lists.from_groups(group)
    gains, guess = lists.gather(label, np.nan), lists.gather(scores, 0.0)
    ahead = gains[:, :, None] - gains[:, None, :]
    weight = np.where(ahead > 0, np.abs(ahead) ** 0.5, 0.0) / lists.mask.sum(axis=1)[:, None, None]
    if objective == "lambdarank":
        padded = np.where(lists.mask, -guess, np.inf)
        ranks = np.argsort(np.argsort(padded, axis=1, kind="stable"), axis=1, kind="stable")
        discount = 1.0 / np.log2(2.0 + ranks)
        weight = weight * np.abs(discount[:, :, None] - discount[:, None, :]) * 4.0
    wrong = 1.0 / (1.0 + np.exp(np.clip(guess[:, :, None] - guess[:, None, :], -50.0, 50.0)))
    pull = weight * wrong
    curve = (1.0 - wrong) * pull
    whole = pull.sum(axis=1) - pull.sum(axis=2), curve.sum(axis=1) + curve.sum(axis=2)
    assert np.array_equal(gradient, lists.scatter(whole[0], len(group)))
    assert np.array_equal(hessian, np.maximum(lists.scatter(whole[1], len(group)), 1e-6))


@given(seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_pairwise_accuracy_is_counted_pair_by_pair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(4), [1, 2, 5, 9])
    label = (rng.integers(1, 5, len(group)) / 4).astype(np.float32)
    scores = rng.choice([-np.inf, 0.0, 1.0, 2.0], len(group))

    shares = []
    for one in np.unique(group):
        members = np.flatnonzero(group == one)
        pairs = [(a, b) for a in members for b in members if a < b and label[a] != label[b]]
        points = [
            0.5
            if scores[a] == scores[b]
            else float((scores[a] > scores[b]) == (label[a] > label[b]))
            for a, b in pairs
        ]
        shares += [np.mean(points)] if pairs else []
    found = RankingMetrics(label, group)(scores)["pairwise"]
    assert found == pytest.approx(np.mean(shares) if shares else 0.5, abs=1e-12)
