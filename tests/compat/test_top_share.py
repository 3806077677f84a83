"""How many of the fastest are among the highest scores: the right end, and ties shared out."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tencost.compat.counters.top_share import top_share


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def test_the_right_end() -> None:
    """TVM's own counts the lowest of both: a model that is wrong throughout would be right."""
    speed = np.arange(64.0)
    assert top_share(speed, speed, 32) == 1.0
    assert top_share(-speed, speed, 32) == 0.0
    assert top_share(np.exp(speed), speed, 32) == 1.0


def test_by_hand() -> None:
    assert top_share(array(3, 9, 1, 8), array(10, 40, 30, 20), 2) == 0.5
    assert top_share(array(3, 9, 1, 8), array(10, 40, 30, 20), 1) == 1.0
    assert top_share(array(3, 9, 1, 8), array(10, 40, 30, 20), 4) == 1.0


@pytest.mark.parametrize(("size", "k"), [(64, 32), (128, 32), (10, 5)])
def test_one_score_for_all_is_chance(size: int, k: int) -> None:
    speed = np.random.default_rng(0).uniform(size=size)
    assert top_share(np.zeros(size), speed, k) == pytest.approx(k / size)


def test_without_a_score_comes_last() -> None:
    assert top_share(array(np.nan, 1, 2), array(3, 1, 2), 1) == 0.0
    assert top_share(array(np.nan, -np.inf, 2), array(3, 1, 2), 1) == 0.0
    assert top_share(array(np.nan, np.nan), array(3, 1), 1) == 0.5


def test_all_failed_is_chance() -> None:
    assert top_share(array(1, 2, 3, 4), np.zeros(4), 2) == pytest.approx(0.5)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=5).flatmap(
        lambda pairs: st.tuples(st.just(pairs), st.integers(1, len(pairs)))
    )
)
def test_ties_count_as_if_broken_at_random(drawn: tuple[list[tuple[int, int]], int]) -> None:
    """The mean over all orders in which ties of scores and of speeds, apart, can be broken."""
    pairs, k = drawn
    score, speed = (array(*values) for values in zip(*pairs, strict=True))
    shares = []
    orders = [np.array(order) for order in permutations(range(len(pairs)))]
    for by_score in orders:
        best = set(by_score[np.argsort(-score[by_score], kind="stable")][:k].tolist())
        for by_speed in orders:
            fastest = set(by_speed[np.argsort(-speed[by_speed], kind="stable")][:k].tolist())
            shares.append(len(best & fastest) / k)
    assert top_share(score, speed, k) == pytest.approx(np.mean(shares))
