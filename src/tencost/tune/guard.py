"""Who ranks the next round: the registered model, it with what was learnt here, or a model of this run alone.

Each arm's scores of a measured batch are compared with what was measured, before anybody learns from it, so that all
arms have a rank correlation for every round, whoever ranked it. An arm's credit is the mean of these, the latest
counting most; nobody has any before the first batch. The residual ranks until another arm has had the better credit by
more than MARGIN: a bad registered model costs a round or two, not the tuning, and noise does not change hands.

Correlations are taken among programs that the arm in charge has picked, all of them good in its opinion, so that its
own is understated. Therefore every EXPLORE-th round goes to the best of the other arms.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

MARGIN = 0.1
"""Credit that another arm needs beyond that of the arm in charge."""
DECAY = 0.7
"""Weight of what was known before, at each new round."""
EXPLORE = 8
"""Every so many rounds the best of the other arms ranks."""


class Arm(StrEnum):
    """A way to rank candidates."""

    registered = "registered"
    """The registered model as it is."""
    residual = "residual"
    """The registered model, corrected by what this run measured."""
    scratch = "scratch"
    """Boosted trees that know only what this run measured, as stock MetaSchedule's XGBModel does."""


class Guard:
    """Credits of the arms, and the one in charge."""

    def __init__(self, first: Arm = Arm.residual) -> None:
        self.in_charge = first
        self.rounds = 0
        self._sums: dict[Arm, float] = dict.fromkeys(Arm, 0.0)
        self._weights: dict[Arm, float] = dict.fromkeys(Arm, 0.0)
        self._leader = first

    def credit(self, arm: Arm) -> float:
        """Return an arm's mean rank correlation, in [-1, 1]; 0 where it has none."""
        return self._sums[arm] / self._weights[arm] if self._weights[arm] else 0.0

    def note(self, correlations: Mapping[Arm, float | None]) -> Arm:
        """Take in how well each arm ranked a measured batch; return the arm that ranks the next one.

        Args:
            correlations: Spearman's, in [-1, 1], higher is better; None where there is none (too few programs, no
                differences, nothing learnt yet), which counts for nothing.
        """
        self.rounds += 1
        for arm, value in correlations.items():
            if value is not None:
                self._sums[arm] = DECAY * self._sums[arm] + value
                self._weights[arm] = DECAY * self._weights[arm] + 1.0
        best = max(Arm, key=self.credit)
        if self.credit(best) > self.credit(self._leader) + MARGIN:
            self._leader = best
        self.in_charge = self._leader
        if self.rounds % EXPLORE == 0:
            others = [arm for arm in Arm if arm is not self._leader and self._weights[arm]]
            self.in_charge = max(others, key=self.credit, default=self._leader)
        return self.in_charge
