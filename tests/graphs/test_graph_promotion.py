"""The promotion rule of graph models."""

from __future__ import annotations

import numpy as np

from tencost.register.networks.promotion import Errors, Opponent, difference, judge

FAMILY = np.repeat([0, 1], 50)


def errors(mean: float, seeds: int = 3) -> dict[str, Errors]:
    generator = np.random.default_rng(0)
    noise = generator.uniform(0.9, 1.1, (seeds, len(FAMILY)))
    return {"test": Errors(mean * noise, FAMILY)}


def other(mean: float, unseen: float) -> dict[str, Errors]:
    return {**errors(mean), "test_ood": errors(unseen)["test"]}


FLOOR = Opponent("constant", errors(0.8))


def test_a_better_model_is_promoted() -> None:
    assert judge(errors(0.02), [FLOOR], None).promote
    champion = Opponent("champion 1.0", errors(0.03))
    verdict = judge(errors(0.02), [FLOOR], champion)
    assert verdict.promote
    assert any("against champion 1.0" in reason for reason in verdict.reasons)


def test_each_check_refuses() -> None:
    champion = Opponent("champion 1.0", errors(0.02))
    assert not judge(errors(0.02, seeds=2), [FLOOR], None).promote
    assert not judge(errors(0.02), [], None).promote
    assert not judge(errors(0.9), [FLOOR], None).promote
    assert not judge(errors(0.021), [FLOOR], champion).promote
    assert not judge(errors(0.01), [FLOOR], champion, rolled_back="2026-01-01").promote
    for verdict in (judge(errors(0.02, seeds=2), [FLOOR], None), judge(errors(0.02), [], None)):
        assert len(verdict.objections) == 1


def test_families_never_learnt_may_lose_little() -> None:
    champion = Opponent("champion 1.0", other(0.03, 0.20))
    assert judge(other(0.02, 0.209), [FLOOR], champion).promote
    assert not judge(other(0.02, 0.211), [FLOOR], champion).promote
    assert judge(errors(0.02), [FLOOR], champion).promote, "nothing to compare"


def test_the_difference_is_of_means_over_families() -> None:
    family = np.array([0] * 9 + [1])
    a = Errors(np.array([[0.1] * 9 + [0.5]]), family)
    b = Errors(np.full((1, 10), 0.1), family)
    found = difference(a, b)
    assert abs(found.mean - 0.2) < 1e-12
    assert found.low <= found.mean <= found.high
