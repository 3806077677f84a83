"""The promotion rule: may a challenger become the champion? A pure function of measured numbers.

The rule, on the test part of the split, means over training seeds:

1. The challenger was trained with at least `PromotionRule.min_seeds` seeds, and was not rolled back before.
2. Against every reference (`random`, `tvm_xgb`, `tvm_mlp`): higher geo1. A reference may have fewer seeds (one, in the
   default pipeline): its sentences then say how many. What has learnt no more than nearest neighbours know is no
   model: against `knn`, where it was evaluated, the interval of geo1's or the search score's difference must lie
   above 0.
3. Against the champion, where there is one: higher geo1, and top-1, top-5 and pairwise not lower by
   more than `PromotionRule.margin`.
   Against all of them: search score, top-1, top-5 and pairwise that are not known to be lower, their intervals not
   below 0.
4. Prediction takes no longer than `PromotionRule.max_predict_ms` per 1,000 programs, and no longer than
   `PromotionRule.max_slowdown` times the champion's (times below `Rule.free_predict_ms` are not compared).
5. What a tuning round asks of the model, features included, takes no longer than
   `PromotionRule.max_round_slowdown` times the champion's (below `Rule.free_round_s` it does not matter; a
   time that could not be measured does not block).

What a user gains decides, on tasks that count alike: geo1, which is the latency of the program picked unmeasured over
the rule's but for a constant a task. The others only forbid: two models that are equal in one of them differ by luck
in half of all cases, so a rule that asked for a higher figure would hold back seven of eight models that are equal in
three of them. Weighted by time, a few of the tasks judged decide top-1 and the search
score (the leaderboard tells which), and their intervals are up to three times that of geo1. So a model that is lower
by luck is not held back, and one that is worse beyond its interval is. RMSE and R² do not, because models that are
bad at both have been the best tuners (TenSet). The 95 % bootstrap interval of every difference is
part of the verdict: an interval that contains 0 is reported as such and does not block, since the
tasks of a small test split cannot decide a small gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tencost.evaluate.interval import Difference, interval_text
from tencost.evaluate.scoring import HEADINGS
from tencost.register.verdict import (
    Check,
    PromotionVerdict,
    check_challenger,
    decide,
    sentence,
)


@dataclass(frozen=True, kw_only=True)
class PromotionRule:
    """What the rule tolerates."""

    min_seeds: int = 5
    """Training seeds of the challenger, at least: with fewer, luck and skill look alike."""
    margin: float = 0.01
    """How much lower than the champion's the challenger's top-1, top-5 and pairwise may be."""
    max_predict_ms: float = 1000.0
    """Milliseconds to score 1,000 programs: a third of what extracting their features costs TVM."""
    max_slowdown: float = 3.0
    """Prediction time of the challenger / that of the champion, at most."""
    free_predict_ms: float = 50.0
    """Below this time for 1,000 programs, slowdown does not matter."""
    max_round_slowdown: float = 2.0
    """A round's time with the challenger / that with the champion, at most."""
    free_round_s: float = 2.0
    """Below this time a round's slowdown does not matter: measuring its programs takes far longer."""


@dataclass(frozen=True, kw_only=True)
class Challenger:
    """What the rule asks about the challenger alone.

    Attributes:
        num_seeds: training seeds behind its figures.
        predict_ms: milliseconds for 1,000 programs, features at hand.
        round_s: seconds of features and scores for the candidates of a tuning round; None: not measured.
        unmeasured: why `round_s` is None.
        rolled_back: when it was taken back as champion; empty if it never was.
    """

    num_seeds: int
    predict_ms: float
    round_s: float | None = None
    unmeasured: str = ""
    rolled_back: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Challenger minus opponent on the same tasks, means over seeds; positive is better.

    Attributes:
        opponent: a reference model, or the champion's version.
        family: the opponent's model family.
        geo1: difference of the geometric mean over tasks of best latency / latency of the first choice.
        top1: difference of the mean top-1 score over networks.
        top5: difference of the mean top-5 score over networks.
        pairwise: difference of the mean share of pairs in the right order.
        search_score: difference of the mean score of replayed search over networks; None where it is not compared.
        num_seeds: training seeds behind the opponent's figures.
        predict_ms: the opponent's milliseconds for 1,000 programs; None where not compared.
        round_s: the opponent's seconds a tuning round; None where not compared or not measured.
    """

    opponent: str
    family: str
    geo1: Difference
    top1: Difference
    top5: Difference
    pairwise: Difference
    search_score: Difference | None = None
    num_seeds: int = 1
    predict_ms: float | None = None
    round_s: float | None = None


@dataclass(frozen=True)
class ProgramVerdict(PromotionVerdict):
    """A verdict with the numbers that were compared.

    Attributes:
        challenger: the challenger's own numbers.
        references: the numbers against each reference.
        champion: the numbers against the champion; None if there is none to compare with.
    """

    challenger: Challenger
    references: tuple[Comparison, ...]
    champion: Comparison | None


def judge_ranker(
    challenger: Challenger,
    references: tuple[Comparison, ...],
    champion: Comparison | None,
    *,
    required: tuple[str, ...] = (),
    rule: PromotionRule | None = None,
) -> ProgramVerdict:
    """Apply the rule.

    Args:
        challenger: the challenger's own numbers.
        references: the challenger compared with each reference family.
        champion: the challenger compared with the champion; None if there is none.
        required: references that must have been compared; one that is missing forbids the
            promotion.
        rule: what is tolerated.
    """
    rule = rule or PromotionRule()
    checks = [
        *check_challenger(
            challenger.num_seeds,
            rule.min_seeds,
            challenger.rolled_back,
            f": train with seeds=[{','.join(map(str, range(rule.min_seeds)))}], or lower rule.min_seeds",
        ),
        *_against_references(references, required, challenger.num_seeds),
        *([] if champion is None else _against_champion(champion, rule)),
        *_prediction(challenger, champion, rule),
        *_round(challenger, champion, rule),
    ]
    return ProgramVerdict(*decide(checks), challenger, references, champion)


def _against_references(
    references: tuple[Comparison, ...], required: tuple[str, ...], num_seeds: int
) -> list[Check]:
    """Return the checks against references; one that has fewer seeds than the challenger is printed with its number."""
    compared = {reference.family for reference in references}
    checks = [
        (False, f"{name}: not evaluated, so not known to be beaten")
        for name in required
        if name not in compared
    ]
    for reference in references:
        opponent = reference.opponent
        if reference.num_seeds < num_seeds:
            seeds = f"{reference.num_seeds} seed{'s' if reference.num_seeds > 1 else ''}"
            opponent = f"{opponent} ({seeds})"
        gain = reference.geo1
        checks.append((gain.mean > 0.0, sentence(METRICS["geo1"], gain, opponent)))
        checks += _not_lower(reference, opponent)
        if reference.family == NEIGHBOURS:
            beyond = [
                label
                for label, difference in (
                    (METRICS["geo1"], gain),
                    (SEARCH, reference.search_score),
                )
                if difference is not None and difference.low > 0.0
            ]
            text = f"{' and '.join(beyond) or 'nothing'} is above {opponent} beyond its interval"
            checks.append((bool(beyond), text))
    return checks


def _not_lower(reference: Comparison, opponent: str) -> list[Check]:
    """Return the checks that the challenger is not worse in what does not decide: an interval below 0 forbids."""
    guarded = [(METRICS[name], getattr(reference, name)) for name in ("top1", "top5", "pairwise")]
    return [
        *(_not_known_lower(label, difference, opponent) for label, difference in guarded),
        *_search(reference.search_score, opponent),
    ]


def _search(difference: Difference | None, opponent: str) -> list[Check]:
    """Return the check that the challenger does not search worse; none where it was not compared."""
    if difference is None or math.isnan(difference.mean):
        return []
    return [_not_known_lower(SEARCH, difference, opponent)]


def _not_known_lower(label: str, difference: Difference, opponent: str) -> Check:
    """Return the check that a difference's interval does not lie below 0; one that is not a number forbids, too."""
    allowed = difference.high >= 0.0
    text = f"{label} {interval_text(difference)} against {opponent}"
    return allowed, f"{text}, {'not known' if allowed else 'known'} to be lower"


def _against_champion(champion: Comparison, rule: PromotionRule) -> list[Check]:
    gain = champion.geo1
    checks = [(gain.mean > 0.0, sentence("geo1", gain, champion.opponent))]
    for metric in ("top1", "top5", "pairwise"):
        difference: Difference = getattr(champion, metric)
        text = sentence(METRICS[metric], difference, champion.opponent)
        checks.append((difference.mean >= -rule.margin, f"{text}, tolerated -{rule.margin:g}"))
    return [*checks, *_search(champion.search_score, champion.opponent)]


def _prediction(
    challenger: Challenger, champion: Comparison | None, rule: PromotionRule
) -> list[Check]:
    predict_ms = challenger.predict_ms
    text = f"scores 1,000 programs in {predict_ms:.0f} ms, limit {rule.max_predict_ms:.0f} ms"
    checks = [(predict_ms <= rule.max_predict_ms, text)]
    if (
        champion is not None
        and champion.predict_ms is not None
        and predict_ms > rule.free_predict_ms
    ):
        slowdown = predict_ms / max(champion.predict_ms, 1e-9)
        text = f"prediction takes {slowdown:.1f} times the champion's"
        checks.append((slowdown <= rule.max_slowdown, f"{text}, limit {rule.max_slowdown:g}"))
    return checks


def _round(challenger: Challenger, champion: Comparison | None, rule: PromotionRule) -> list[Check]:
    round_s = challenger.round_s
    if round_s is None:
        return [(True, f"a round's time was not measured: {challenger.unmeasured}")]
    text = f"features and scores of a round take {round_s:.3g} s"
    if champion is None:
        return [(True, text)]
    if champion.round_s is None:
        return [(True, f"{text}; the champion's time was not measured")]
    slowdown = round_s / max(champion.round_s, 1e-9)
    text += f", {slowdown:.3g} times the champion's, limit {rule.max_round_slowdown:g}"
    if round_s <= rule.free_round_s:
        return [(True, f"{text} above {rule.free_round_s:g} s")]
    return [(slowdown <= rule.max_round_slowdown, text)]


NEIGHBOURS = "knn"
"""The family that a model must be known to beat: the mean label of the programs with the most similar tiles."""
METRICS = {name: HEADINGS[name] for name in ("geo1", "top1", "top5", "pairwise")}
"""What the rule compares, and its name for people."""
SEARCH = HEADINGS["search_score"]
