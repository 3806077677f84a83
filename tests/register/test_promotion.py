"""The promotion rule as a truth table: what is measured, and what may then object."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from tencost.evaluate.interval import Difference
from tencost.register.promotion import (
    Challenger,
    Comparison,
    ProgramVerdict,
    PromotionRule,
    judge_ranker,
)

REQUIRED = ("random", "tvm_xgb", "tvm_mlp")
NAN = math.nan


def difference(mean: float) -> Difference:
    return Difference(mean, mean - 0.02, mean + 0.02, 2000)


def reference(
    name: str, geo1: float = 0.1, top1: float = 0.1, top5: float = 0.1, pairwise: float = 0.1
) -> Comparison:
    return Comparison(
        opponent=f"{name}-per_store",
        family=name,
        geo1=difference(geo1),
        top1=difference(top1),
        top5=difference(top5),
        pairwise=difference(pairwise),
        num_seeds=5,
    )


@dataclass(frozen=True)
class Case:
    """One row: everything is in the challenger's favour but what is named."""

    seeds: int = 5
    predict_ms: float = 10.0
    round_s: float | None = 10.0
    rolled_back: str = ""
    beaten: tuple[Comparison, ...] = tuple(reference(name) for name in REQUIRED)
    champion: bool = True
    geo1: float = 0.05
    top1: float = 0.05
    top5: float = 0.05
    pairwise: float = 0.05
    champion_ms: float | None = 10.0
    champion_s: float | None = 10.0

    def verdict(self, rule: PromotionRule | None = None) -> ProgramVerdict:
        challenger = Challenger(
            num_seeds=self.seeds,
            predict_ms=self.predict_ms,
            round_s=self.round_s,
            unmeasured="" if self.round_s else "no modules",
            rolled_back=self.rolled_back,
        )
        champion = Comparison(
            opponent="champion 1.0",
            family="xgb",
            geo1=difference(self.geo1),
            top1=difference(self.top1),
            top5=difference(self.top5),
            pairwise=difference(self.pairwise),
            num_seeds=5,
            predict_ms=self.champion_ms,
            round_s=self.champion_s,
        )
        met = champion if self.champion else None
        return judge_ranker(challenger, self.beaten, met, required=REQUIRED, rule=rule)


def instead(name: str, **values: float) -> tuple[Comparison, ...]:
    """All references beaten but one, which is met as given."""
    return tuple(reference(one, **values) if one == name else reference(one) for one in REQUIRED)


TABLE: list[tuple[Case, tuple[str, ...]]] = [
    # Nothing objects.
    (Case(), ()),
    (Case(champion=False), ()),
    # Seeds and history.
    (
        Case(seeds=4),
        ("trained with 4 seed(s), at least 5 asked for: train with seeds=[0,1,2,3,4]",),
    ),
    (Case(seeds=6), ()),
    (Case(champion=False, seeds=1), ("trained with 1 seed(s)",)),
    (Case(rolled_back="2030-01-01"), ("was rolled back on 2030-01-01",)),
    # References: every one must be there and be beaten on geo1 (equal is not better), and none be known to be better.
    *[
        (Case(beaten=instead(name, geo1=value)), (f"geo1 {told} [",))
        for name in REQUIRED
        for value, told in ((0.0, "+0.000"), (-0.1, "-0.100"), (NAN, "+nan"))
    ],
    *[
        (Case(beaten=instead(name, **{metric: value})), objections)
        for name in REQUIRED
        for metric, word in (("top1", "top-1"), ("top5", "top-5"), ("pairwise", "pairwise"))
        for value, objections in (
            (0.0, ()),
            (-0.02, ()),  # the interval ends at 0
            (
                -0.021,
                (f"{word} -0.021 [-0.041, -0.001] against {name}-per_store, known to be lower",),
            ),
            (NAN, (f"{word} +nan [",)),
        )
    ],
    *[
        (
            Case(beaten=tuple(one for one in Case().beaten if one.family != name)),
            (f"{name}: not evaluated, so not known to be beaten",),
        )
        for name in REQUIRED
    ],
    (Case(beaten=()), tuple(f"{name}: not evaluated" for name in REQUIRED)),
    # The champion: a better geo1, and the rest within the margin.
    (Case(geo1=0.0), ("geo1 +0.000",)),
    (Case(geo1=-0.01, top1=0.5, top5=0.5), ("geo1 -0.010",)),
    (Case(geo1=NAN), ("geo1 +nan",)),
    (Case(top1=-0.009, top5=-0.009), ()),
    (Case(top1=-0.01, top5=-0.01), ()),  # lower by the margin, not by more
    (Case(top1=-0.011), ("top-1 -0.011",)),
    (Case(top5=-0.011), ("top-5 -0.011",)),
    (Case(pairwise=-0.011), ("pairwise -0.011",)),
    (Case(top1=NAN), ("top-1 +nan",)),
    (Case(champion=False, geo1=-1.0, top1=-1.0, top5=-1.0), ()),
    # Prediction time.
    (Case(predict_ms=1000.0, champion_ms=500.0), ()),
    (Case(predict_ms=1001.0, champion_ms=500.0), ("limit 1000 ms",)),
    (Case(predict_ms=1001.0, champion=False), ("limit 1000 ms",)),
    (Case(predict_ms=89.0, champion_ms=30.0), ()),
    (Case(predict_ms=90.0, champion_ms=30.0), ()),
    (Case(predict_ms=91.0, champion_ms=30.0), ("prediction takes 3.0 times the champion's",)),
    (Case(predict_ms=49.0, champion_ms=1.0), ()),  # too fast to matter
    (Case(predict_ms=50.0, champion_ms=1.0), ()),
    (Case(predict_ms=91.0, champion_ms=None), ()),
    # A round's time.
    (Case(round_s=19.9), ()),
    (Case(round_s=20.1), ("a round take 20.1 s, 2.01 times the champion's, limit 2",)),
    (Case(round_s=1.9, champion_s=0.1), ()),  # too fast to matter
    (Case(round_s=2.0, champion_s=0.1), ()),
    (Case(round_s=2.1, champion_s=0.1), ("2.1 s, 21 times",)),
    (Case(round_s=1000.0, champion=False), ()),
    (Case(round_s=None), ()),
    (Case(round_s=1000.0, champion_s=None), ()),
    # Each objects for itself.
    (Case(geo1=-0.1, top1=-0.1, top5=-0.1), ("geo1 -0.1", "top-1 -0.1", "top-5 -0.1")),
    (Case(geo1=-0.1, round_s=30.0), ("geo1 -0.1", "3 times the champion's")),
    (Case(geo1=0.5, seeds=2, predict_ms=1001.0), ("2 seed(s)", "limit 1000 ms", "100.1 times")),
    (
        Case(
            seeds=1,
            rolled_back="2030-01-01",
            beaten=instead("tvm_xgb", geo1=-0.1)[:2],
            geo1=-0.1,
            top1=-0.1,
            top5=-0.1,
            predict_ms=1001.0,
            round_s=21.0,
        ),
        (
            "1 seed(s)",
            "rolled back",
            "tvm_mlp: not evaluated",
            "against tvm_xgb-per_store",
            "geo1 -0.100 [-0.120, -0.080] against champion 1.0",
            "top-1",
            "top-5",
            "limit 1000 ms",
            "prediction takes 100.1 times",
            "a round take 21 s",
        ),
    ),
]


@pytest.mark.parametrize(("case", "objections"), TABLE)
def test_truth_table(case: Case, objections: tuple[str, ...]) -> None:
    verdict = case.verdict()
    assert len(verdict.objections) == len(objections), verdict.objections
    for told, expected in zip(verdict.objections, objections, strict=True):
        assert expected in told
    assert verdict.promote is (not objections)
    agreeing = [reason for reason in verdict.reasons if reason.startswith("yes: ")]
    assert len(agreeing) + len(objections) == len(verdict.reasons)


@pytest.mark.parametrize(
    ("case", "rule"),
    [
        (Case(seeds=2), PromotionRule(min_seeds=2)),
        (Case(top1=-0.05), PromotionRule(margin=0.1)),
        (Case(predict_ms=1500.0, champion_ms=1000.0), PromotionRule(max_predict_ms=2000.0)),
        (Case(predict_ms=91.0, champion_ms=30.0), PromotionRule(max_slowdown=4.0)),
        (Case(predict_ms=91.0, champion_ms=30.0), PromotionRule(free_predict_ms=100.0)),
        (Case(round_s=30.0), PromotionRule(max_round_slowdown=3.0)),
        (Case(round_s=30.0), PromotionRule(free_round_s=40.0)),
    ],
)
def test_the_rule_decides_what_is_tolerated(case: Case, rule: PromotionRule) -> None:
    assert not case.verdict().promote
    assert case.verdict(rule).promote


def test_the_interval_is_told_and_does_not_block() -> None:
    case = Case(
        beaten=tuple(reference(name, 0.01, 0.01, 0.01, 0.01) for name in REQUIRED), geo1=0.01
    )
    verdict = case.verdict()
    assert verdict.promote
    told = "yes: geo1 +0.010 [-0.010, +0.030] against {}, interval contains 0"
    for opponent in ("random-per_store", "champion 1.0"):
        assert told.format(opponent) in verdict.reasons
    assert verdict.references == case.beaten


@pytest.mark.parametrize(
    ("gains", "search", "beaten_on"),
    [
        ({"geo1": 0.05}, None, "geo1"),
        ({"geo1": 0.05}, 0.05, "geo1 and search score"),
        ({"geo1": 0.01}, 0.05, "search score"),
        ({"geo1": 0.01}, 0.01, ""),
        ({"geo1": 0.01, "top1": 0.5, "top5": 0.5, "pairwise": 0.5}, None, ""),
    ],
)
def test_nearest_neighbours_are_beaten_beyond_the_interval(
    gains: dict[str, float], search: float | None, beaten_on: str
) -> None:
    """In what decides: a higher pairwise accuracy alone is worth nothing to a user."""
    neighbours = replace(
        reference("knn", **gains), search_score=None if search is None else difference(search)
    )
    verdict = replace(Case(), beaten=(*Case().beaten, neighbours)).verdict()
    text = f"{beaten_on or 'nothing'} is above knn-per_store beyond its interval"
    assert f"{'yes' if beaten_on else 'no'}: {text}" in verdict.reasons
    assert verdict.promote is bool(beaten_on)


def test_a_reference_of_fewer_seeds_is_judged_and_named_with_them() -> None:
    beaten = tuple(replace(reference(name), num_seeds=1) for name in REQUIRED)
    verdict = Case(beaten=beaten).verdict()
    assert verdict.promote
    against = [text for text in verdict.reasons if "against tvm_mlp-per_store" in text]
    assert against
    assert all("against tvm_mlp-per_store (1 seed)" in text for text in against)
    assert not any("seed)" in text for text in Case().verdict().reasons)


def test_what_was_not_measured_is_told() -> None:
    assert (
        "yes: a round's time was not measured: no modules" in Case(round_s=None).verdict().reasons
    )
    told = Case(champion_s=None).verdict().reasons[-1]
    assert told.endswith("take 10 s; the champion's time was not measured")


@pytest.mark.parametrize(
    ("low", "high", "is_told"),
    [
        (-0.1, 0.2, True),
        (0.0, 0.2, True),
        (-0.1, 0.0, True),
        (0.01, 0.2, False),
        (-0.2, -0.1, False),
    ],
)
def test_an_interval_contains_its_ends(low: float, high: float, is_told: bool) -> None:
    champion = Comparison(
        opponent="champion 1.0",
        family="xgb",
        geo1=Difference(0.5, low, high, 2000),
        top1=difference(0.5),
        top5=difference(0.5),
        pairwise=difference(0.5),
    )
    reasons = judge_ranker(Challenger(num_seeds=5, predict_ms=1.0), (), champion).reasons
    assert any("interval contains 0" in reason for reason in reasons) is is_told
