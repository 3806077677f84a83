"""Whether a draft is believed: its guesses and the scores of the same candidates."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tencost.models.draft_model import trusted


def pair(correlation: float, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Return guesses and scores whose rank correlation is `correlation` to a hundredth."""
    rng = np.random.default_rng(0)
    scores, noise = rng.permutation(count) / count, rng.permutation(count) / count
    shares = np.linspace(0, 1, 2001)
    mixed = [share * scores + (1 - share) * noise for share in shares]
    best = min(mixed, key=lambda one: abs(stats.spearmanr(one, scores).statistic - correlation))
    return best, scores


@pytest.mark.parametrize(
    ("correlation", "is_trusted"), [(0.9, True), (0.32, True), (0.28, False), (0.05, False)]
)
def test_a_draft_is_trusted_from_a_rank_correlation_of_0_3_on(
    correlation: float, is_trusted: bool
) -> None:
    guesses, scores = pair(correlation)
    assert stats.spearmanr(guesses, scores).statistic == pytest.approx(correlation, abs=0.01)
    assert trusted(guesses, scores) is is_trusted
    assert not trusted(-guesses, scores)


def test_a_draft_that_says_nothing_is_not_trusted() -> None:
    scores = np.linspace(0.1, 0.9, 20)
    assert not trusted(np.full(20, 0.5), scores)
    assert not trusted(scores, np.full(20, 0.5))
