"""The promotion rule: may a challenger become the champion? A pure function of measured numbers.

The rule, on the test part of the split, means over seeds:

1. Against every reference (`random`, `tvm_xgb`, `tvm_mlp`): higher search score, higher top-1 and
higher top-5. 2. Against the champion, where there is one: higher search score, and top-1 and top-5
not lower by more than
   `Rule.margin`.
3. Prediction takes no longer than `Rule.max_predict_ms` per 1,000 programs, and no longer than
   `Rule.max_slowdown` times the champion's (times below `Rule.free_predict_ms` are not compared).

Replayed search decides because it is what a tuner does; RMSE and R² do not, because models that are
bad at both have been the best tuners (TenSet). The paired 95 % bootstrap interval over tasks of
every difference is part of the verdict: an interval that contains 0 is reported as such and does
not block, since the tasks of a small test split cannot decide a small gain.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tencost.evaluate.interval import Difference


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What the rule tolerates."""

    margin: float = 0.01
    """How much lower than the champion's the challenger's top-1 and top-5 may be."""
    max_predict_ms: float = 1000.0
    """Milliseconds to score 1,000 programs: a third of what extracting their features costs TVM."""
    max_slowdown: float = 3.0
    """Prediction time of the challenger / that of the champion, at most."""
    free_predict_ms: float = 50.0
    """Below this time for 1,000 programs, slowdown does not matter."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Challenger minus opponent on the same tasks, means over seeds; positive is better.

    Attributes:
        opponent: a reference model, or the champion's version.
        family: the opponent's model family.
        search_score: difference of the replayed-search score.
        top1: difference of the mean top-1 score over networks.
        top5: difference of the mean top-5 score over networks.
        predict_ms: the opponent's milliseconds for 1,000 programs; None where not compared.
    """

    opponent: str
    family: str
    search_score: Difference
    top1: Difference
    top5: Difference
    predict_ms: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What the rule says, and why.

    Attributes:
        promote: move the champion alias to the challenger.
        reasons: one sentence per check; those that forbid the promotion start with "no:", the
            others with "yes:".
        comparisons: the numbers behind the reasons.
    """

    promote: bool
    reasons: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = field(default=())


def judge(
    predict_ms: float,
    references: tuple[Comparison, ...],
    champion: Comparison | None,
    *,
    required: tuple[str, ...] = (),
    rule: Rule | None = None,
) -> Verdict:
    """Apply the rule.

    Args:
        predict_ms: the challenger's milliseconds for 1,000 programs.
        references: the challenger compared with each reference family.
        champion: the challenger compared with the champion; None if there is none.
        required: references that must have been compared; one that is missing forbids the
            promotion.
        rule: what is tolerated.
    """
    rule = rule or Rule()
    checks: list[tuple[bool, str]] = []
    compared = {item.family for item in references}
    for name in required:
        if name not in compared:
            checks.append((False, f"{name}: not evaluated, so not known to be beaten"))
    for item in references:
        for metric in ("search_score", "top1", "top5"):
            difference: Difference = getattr(item, metric)
            checks.append((difference.mean > 0.0, _sentence(metric, difference, item.opponent)))
    if champion is not None:
        gain = champion.search_score
        checks.append((gain.mean > 0.0, _sentence("search_score", gain, champion.opponent)))
        for metric in ("top1", "top5"):
            difference = getattr(champion, metric)
            text = _sentence(metric, difference, champion.opponent)
            checks.append((difference.mean >= -rule.margin, f"{text}, tolerated -{rule.margin:g}"))
    checks.append(
        (
            predict_ms <= rule.max_predict_ms,
            f"scores 1,000 programs in {predict_ms:.0f} ms, limit {rule.max_predict_ms:.0f} ms",
        )
    )
    if (
        champion is not None
        and champion.predict_ms is not None
        and predict_ms > rule.free_predict_ms
    ):
        slowdown = predict_ms / max(champion.predict_ms, 1e-9)
        text = f"prediction takes {slowdown:.1f} times the champion's"
        text += f", limit {rule.max_slowdown:g}"
        checks.append((slowdown <= rule.max_slowdown, text))
    reasons = tuple(f"{'yes' if passed else 'no'}: {text}" for passed, text in checks)
    everything = references if champion is None else (*references, champion)
    return Verdict(all(passed for passed, _ in checks), reasons, everything)


_WORDS = {"search_score": "search score", "top1": "top-1", "top5": "top-5"}


def _sentence(metric: str, difference: Difference, opponent: str) -> str:
    interval = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
    unsure = ", interval contains 0" if difference.low <= 0.0 <= difference.high else ""
    return f"{_WORDS[metric]} {difference.mean:+.3f} {interval} against {opponent}{unsure}"
