"""The limits that decide what is believed: a draft's guesses, a network's output, who is compared as a new best."""

from __future__ import annotations

import numpy as np
import pytest

from tencost.workers.evaluator import Best

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize(
    ("order", "correlation", "believed"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 1.0, True),
        ([6, 1, 5, 3, 0, 7, 8, 2, 4, 9], 0.33, True),
        ([2, 0, 6, 8, 7, 1, 5, 4, 9, 3], 0.28, False),
        ([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], -1.0, False),
    ],
)
def test_a_draft_is_believed_if_it_ranks_as_the_model_does(
    order: list[int], correlation: float, believed: bool
) -> None:
    from scipy import stats

    from tencost.models.draft_model import trusted

    guesses, scores = np.arange(10.0), np.array(order, float)
    assert float(stats.spearmanr(guesses, scores).statistic) == pytest.approx(correlation, abs=0.01)
    assert trusted(guesses, scores) is believed


def test_a_draft_without_differences_is_not_believed() -> None:
    from tencost.models.draft_model import trusted

    assert not trusted(np.ones(4), np.arange(4.0))
    assert not trusted(np.arange(4.0), np.ones(4))


@pytest.mark.parametrize(("off", "accepted"), [(0.5e-4, True), (2e-4, False), (0.05, False)])
def test_a_network_may_differ_from_pytorch_by_so_much(off: float, accepted: bool) -> None:
    from tencost.tune.deploy import output_agreement

    expected = np.linspace(-1.0, 2.0, 31)
    found = expected.copy()
    found[3] += off * 2.0
    assert output_agreement(found, expected).accepted is accepted


def test_subnormal_outputs_say_nothing_and_differ_by_nothing() -> None:
    """As of a deep network with weights drawn at random, whose values shrink from layer to layer."""
    from tencost.tune.deploy import output_agreement

    expected = np.linspace(-5e-40, 2e-40, 31).astype(np.float32)
    agreement = output_agreement(expected * np.float32(1.05), expected)
    assert not agreement.differs
    assert "at most 5e-40" in agreement.degenerate
    assert output_agreement(np.float32(1e20) * expected, expected).differs


@pytest.mark.parametrize(
    ("seconds", "new"),
    [
        ((1.0, 1.0, 9.0), True),  # only the median is shorter
        ((1.0, 3.5, 3.5), True),  # only the mean is
        ((1.0, 1.0, 1.0), True),
        ((3.0, 3.0, 3.0), True),  # as fast as the best one: it may be offered instead
        ((2.0, 4.0, 9.0), False),
    ],
)
def test_a_new_best_is_one_by_mean_or_by_median(seconds: tuple[float, ...], new: bool) -> None:
    """Databases offer a program for the one or the other, so that either has it compared."""
    assert Best().is_beaten_by(seconds)
    assert Best().after((3.0, 3.0, 3.0)).is_beaten_by(seconds) is new
