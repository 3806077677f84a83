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
from typing import Any

MARGIN = 0.1
"""Credit that another arm needs beyond that of the arm in charge."""
DECAY = 0.7
"""Weight of what was known before, at each new round."""
FULL = 16
"""Programs of a batch that counts in full: the rank correlation of four programs is mostly noise."""
EXPLORE = 8
"""Every so many full rounds the best of the other arms ranks."""


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
        self.rounds = 0.0
        self._sums: dict[Arm, float] = dict.fromkeys(Arm, 0.0)
        self._weights: dict[Arm, float] = dict.fromkeys(Arm, 0.0)
        self._leader = first

    def credit(self, arm: Arm) -> float:
        """Return an arm's mean rank correlation, in [-1, 1]; 0 where it has none."""
        return self._sums[arm] / self._weights[arm] if self._weights[arm] else 0.0

    def note(self, correlations: Mapping[Arm, float | None], num_measured: int = FULL) -> Arm:
        """Take in how well each arm ranked a measured batch; return the arm that ranks the next one.

        Args:
            correlations: Spearman's, in [-1, 1], higher is better; None where there is none (too few programs, no
                differences, nothing learnt yet), which counts for nothing.
            num_measured: programs in the batch; one with fewer than FULL counts in proportion.
        """
        share = min(1.0, num_measured / FULL)
        explored = self.rounds // EXPLORE
        self.rounds += share
        for arm, value in correlations.items():
            if value is not None:
                self._sums[arm] = DECAY**share * self._sums[arm] + share * value
                self._weights[arm] = DECAY**share * self._weights[arm] + share
        best = max(Arm, key=self.credit)
        if self.credit(best) > self.credit(self._leader) + MARGIN:
            self._leader = best
        self.in_charge = self._leader
        if self.rounds // EXPLORE > explored:
            others = [arm for arm in Arm if arm is not self._leader and self._weights[arm]]
            self.in_charge = max(others, key=self.credit, default=self._leader)
        return self.in_charge

    def state(self) -> dict[str, Any]:
        """Return all that the next choice depends on, plain JSON values."""
        return {
            "in_charge": self.in_charge.value,
            "leader": self._leader.value,
            "rounds": self.rounds,
            "sums": {arm.value: value for arm, value in self._sums.items()},
            "weights": {arm.value: value for arm, value in self._weights.items()},
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Guard:
        """Return the guard that `state` described.

        Raises:
            KeyError, TypeError or ValueError: it is not what `state` gives.
        """
        guard = cls(Arm(state["in_charge"]))
        guard._leader = Arm(state["leader"])
        guard.rounds = float(state["rounds"])
        guard._sums = {arm: float(state["sums"][arm.value]) for arm in Arm}
        guard._weights = {arm: float(state["weights"][arm.value]) for arm in Arm}
        return guard
