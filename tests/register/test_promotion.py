"""The promotion rule as a truth table."""

from __future__ import annotations

import pytest

from tencost.evaluate.interval import Difference
from tencost.register.promotion import Comparison, Rule, judge

REQUIRED = ("random", "tvm_xgb", "tvm_mlp")


def difference(mean: float) -> Difference:
    return Difference(mean, mean - 0.02, mean + 0.02, 2000)


def against(
    opponent: str, search: float, top1: float, top5: float, predict_ms: float | None = None
) -> Comparison:
    return Comparison(
        opponent=opponent,
        family=opponent.split("-")[0],
        search_score=difference(search),
        top1=difference(top1),
        top5=difference(top5),
        predict_ms=predict_ms,
    )


BEATEN = tuple(against(f"{name}-per_store", 0.1, 0.1, 0.1) for name in REQUIRED)


@pytest.mark.parametrize(
    ("champion", "predict_ms", "promote", "word"),
    [
        (None, 10.0, True, ""),
        (None, 1001.0, False, "limit 1000 ms"),
        (against("v1", 0.01, 0.05, 0.05, 10.0), 10.0, True, ""),
        (against("v1", 0.01, -0.009, -0.009, 10.0), 10.0, True, ""),  # within the margin
        (against("v1", 0.01, -0.011, 0.0, 10.0), 10.0, False, "top-1 -0.011"),
        (against("v1", 0.01, 0.0, -0.011, 10.0), 10.0, False, "top-5 -0.011"),
        (
            against("v1", 0.0, 0.05, 0.05, 10.0),
            10.0,
            False,
            "search score +0.000",
        ),  # equal is not better
        (against("v1", -0.01, 0.5, 0.5, 10.0), 10.0, False, "search score -0.010"),
        (against("v1", 0.01, 0.0, 0.0, 30.0), 89.0, True, ""),
        (against("v1", 0.01, 0.0, 0.0, 30.0), 91.0, False, "3.0 times the champion's"),
        (against("v1", 0.01, 0.0, 0.0, 1.0), 49.0, True, ""),  # too fast to matter
        (against("v1", 0.01, 0.0, 0.0, None), 91.0, True, ""),
    ],
)
def test_truth_table(
    champion: Comparison | None, predict_ms: float, promote: bool, word: str
) -> None:
    verdict = judge(predict_ms, BEATEN, champion, required=REQUIRED)
    assert verdict.promote is promote
    against_it = [reason for reason in verdict.reasons if reason.startswith("no: ")]
    assert bool(against_it) is not promote
    assert not word or any(word in reason for reason in against_it)


@pytest.mark.parametrize("metric", ["search", "top1", "top5"])
@pytest.mark.parametrize("name", REQUIRED)
def test_every_reference_must_be_beaten_on_every_metric(name: str, metric: str) -> None:
    gains = {"search": 0.1, "top1": 0.1, "top5": 0.1, metric: 0.0}
    others = tuple(item for item in BEATEN if not item.opponent.startswith(f"{name}-"))
    verdict = judge(10.0, (*others, against(f"{name}-per_store", **gains)), None, required=REQUIRED)
    assert not verdict.promote
    assert sum(reason.startswith("no: ") for reason in verdict.reasons) == 1


def test_a_reference_that_was_not_evaluated_forbids_the_promotion() -> None:
    verdict = judge(10.0, BEATEN[:2], None, required=REQUIRED)
    assert not verdict.promote
    assert "no: tvm_mlp: not evaluated, so not known to be beaten" in verdict.reasons


def test_the_interval_is_told_and_does_not_block() -> None:
    close = tuple(against(f"{name}-per_store", 0.01, 0.01, 0.01) for name in REQUIRED)
    verdict = judge(10.0, close, None, required=REQUIRED)
    assert verdict.promote
    assert (
        "search score +0.010 [-0.010, +0.030] against random-per_store, interval contains 0"
        in " ".join(verdict.reasons)
    )
    assert verdict.comparisons == close


def test_margins_are_the_rules() -> None:
    champion = against("v1", 0.01, -0.05, 0.0)
    assert judge(10.0, BEATEN, champion, rule=Rule(margin=0.1)).promote
    assert not judge(10.0, BEATEN, champion, rule=Rule(margin=0.01)).promote
