"""A verdict on a challenger, and the checks that every promotion rule has.

The rules themselves are two functions: `register.promotion.judge_ranker` of models of programs,
`register.networks.promotion.judge` of models of whole networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tencost.evaluate.interval import Difference, interval_text

YES, NO = "yes: ", "no: "
Check = tuple[bool, str]
"""Whether it allows the promotion, and a sentence."""


@dataclass(frozen=True)
class PromotionVerdict:
    """The decision of a promotion rule, and why.

    Attributes:
        promote: move the champion alias to the challenger.
        reasons: one sentence per check; those that forbid the promotion start with "no:", the
            others with "yes:".
    """

    promote: bool
    reasons: tuple[str, ...]

    @property
    def word(self) -> str:
        """The decision as a tag has it."""
        return "promoted" if self.promote else "refused"

    @property
    def objections(self) -> tuple[str, ...]:
        """The reasons that forbid the promotion, without their "no:"."""
        return tuple(text.removeprefix(NO) for text in self.reasons if text.startswith(NO))

    def with_notes(self, notes: Iterable[str]) -> Self:
        """Return the verdict with notes, which forbid nothing, before its reasons."""
        lines = tuple(f"{YES}note that {note}" for note in notes)
        return replace(self, reasons=(*lines, *self.reasons))

    def markdown(self) -> str:
        """Return the decision and its reasons as a Markdown list."""
        heading = "Promoted:" if self.promote else "Not promoted:"
        return "\n".join([heading, *(f"- {reason}" for reason in self.reasons)])


def decide(checks: Sequence[Check]) -> tuple[bool, tuple[str, ...]]:
    """Return the first two fields of a verdict: all checks have to allow the promotion."""
    reasons = tuple(f"{YES if passed else NO}{text}" for passed, text in checks)
    return all(passed for passed, _ in checks), reasons


def check_challenger(
    num_seeds: int, min_seeds: int, rolled_back: str, advice: str = ""
) -> list[Check]:
    """Return the checks of the challenger alone.

    Args:
        num_seeds: it was trained with.
        min_seeds: at least.
        rolled_back: when it was taken back as champion; empty if it never was.
        advice: for one with fewer seeds.
    """
    enough = num_seeds >= min_seeds
    text = f"trained with {num_seeds} seed(s), at least {min_seeds} asked for"
    checks = [(enough, text if enough else f"{text}{advice}")]
    if rolled_back:
        text = f"it was champion and was rolled back on {rolled_back}"
        text += "; `tencost register rollback <model> <version>` brings it back"
        checks.append((False, text))
    return checks


def sentence(metric: str, difference: Difference, opponent: str) -> str:
    """Return a difference to an opponent as a sentence."""
    unsure = ", interval contains 0" if difference.low <= 0.0 <= difference.high else ""
    return f"{metric} {interval_text(difference)} against {opponent}{unsure}"


def unusable(champion: str, error: Exception) -> str:
    """Return the note on a champion that cannot be compared."""
    return f"{champion} cannot be used here any more, so it is not compared: {error}"


def of_another_split(champion: str) -> str:
    """Return the note on a champion that was trained on another split."""
    return (
        f"{champion} was trained on another split, so it may have learnt from what is tested here, "
        "which favours it"
    )
