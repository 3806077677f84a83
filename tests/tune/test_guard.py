"""Who ranks the next round: rank correlations in, an arm out."""

from __future__ import annotations

import pytest

from tencost.tune.guard import DECAY, EXPLORE, FULL, MARGIN, Arm, Guard


def noted(
    guard: Guard, registered: float | None, residual: float | None, scratch: float | None
) -> Arm:
    return guard.note({Arm.registered: registered, Arm.residual: residual, Arm.scratch: scratch})


def test_the_residual_is_first_and_nobody_has_credit() -> None:
    guard = Guard()
    assert guard.in_charge is Arm.residual
    assert [guard.credit(arm) for arm in Arm] == [0.0, 0.0, 0.0]


def test_an_inverted_model_costs_one_round() -> None:
    assert noted(Guard(), -0.8, -0.8, None) is Arm.scratch


def test_noise_does_not_change_hands() -> None:
    guard = Guard()
    for difference in (0.9, -0.9, 0.5, -0.5):
        assert noted(guard, 0.3, 0.3, 0.3 + MARGIN * difference) is Arm.residual


def test_a_better_arm_takes_over_and_a_better_one_takes_back() -> None:
    guard = Guard()
    assert noted(guard, 0.1, 0.1, 0.5) is Arm.scratch
    assert noted(guard, 0.9, 0.9, 0.1) is not Arm.scratch


def test_credit_is_a_mean_in_which_the_latest_counts_most() -> None:
    guard = Guard()
    noted(guard, 0.0, 0.0, 1.0)
    noted(guard, 0.0, 0.0, 0.0)
    assert guard.credit(Arm.scratch) == pytest.approx(DECAY / (1 + DECAY))


def test_rounds_without_a_correlation_count_for_nothing() -> None:
    guard = Guard()
    noted(guard, None, 0.4, None)
    noted(guard, None, None, None)
    assert guard.credit(Arm.residual) == pytest.approx(0.4)
    assert guard.in_charge is Arm.residual


def test_now_and_then_another_arm_has_its_turn() -> None:
    guard = Guard()
    arms = [noted(guard, 0.2, 0.6, 0.4) for _ in range(2 * EXPLORE)]
    assert [number for number, arm in enumerate(arms, start=1) if arm is not Arm.residual] == [
        EXPLORE,
        2 * EXPLORE,
    ]
    assert arms[EXPLORE - 1] is Arm.scratch


def test_without_other_arms_nothing_is_explored() -> None:
    guard = Guard()
    assert {noted(guard, None, 0.1, None) for _ in range(2 * EXPLORE)} == {Arm.residual}


def test_a_small_batch_counts_in_proportion() -> None:
    small, full = Guard(), Guard()
    for _ in range(4):
        small.note({Arm.scratch: 0.5}, FULL // 4)
    full.note({Arm.scratch: 0.5})
    small.note({Arm.scratch: -0.5})
    full.note({Arm.scratch: -0.5})
    assert full.credit(Arm.scratch) == pytest.approx((DECAY * 0.5 - 0.5) / (DECAY + 1))
    weight = sum(DECAY ** (n / 4) for n in range(4)) / 4
    assert small.credit(Arm.scratch) == pytest.approx(
        (DECAY * 0.5 * weight - 0.5) / (DECAY * weight + 1)
    )
    assert small.rounds == full.rounds == 2.0
    assert small.note({Arm.scratch: 1.0}, 0) is small.in_charge


def test_what_it_takes_to_take_over() -> None:
    """In figures: 0.1 of credit, and more than that."""
    assert noted(Guard(), 0.0, 0.3, 0.35) is Arm.residual
    assert noted(Guard(), 0.0, 0.0, 0.1) is Arm.residual
    assert noted(Guard(), 0.0, 0.3, 0.45) is Arm.scratch


def test_how_much_and_how_often() -> None:
    """In figures: a round later a correlation weighs 0.7; 16 programs are a round; every eighth explores."""
    guard = Guard()
    guard.note({Arm.scratch: 1.0}, 16)
    guard.note({Arm.scratch: 0.0}, 16)
    assert guard.credit(Arm.scratch) == pytest.approx(0.7 / 1.7)
    assert guard.rounds == 2.0
    guard.note({Arm.scratch: 0.0}, 64)
    assert guard.rounds == 3.0, "a larger batch is one round, too"
    guard = Guard()
    arms = [noted(guard, None, 0.6, 0.4) for _ in range(17)]
    assert [number for number, arm in enumerate(arms, 1) if arm is Arm.scratch] == [8, 16]
