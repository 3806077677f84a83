"""May a graph model become the champion of its device? A pure function of predictions.

The rule, on the split's test part and, where it has one, on its families that nothing was learnt of; means over seeds:

1. Trained with at least `MIN_SEEDS` seeds, and never rolled back.
2. Against every reference: a lower MAPE on the test part.
3. Against the champion: a lower MAPE on the test part, and on the other families one that is not higher by more than
   `MARGIN` times the champion's.

MAPE decides, not acc10: where nearly all errors are below 10 %, acc10 tells models apart no more. Every difference has
its 95 % bootstrap interval over graphs (inside families) and seeds; one that contains 0 is reported and does not block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tencost.evaluate.interval import Difference, Statistic, seeded_bootstrap
from tencost.evaluate.leaderboard import TEST
from tencost.evaluate.metrics import Floats
from tencost.evaluate.networks.board import OTHER, PARTS
from tencost.register.verdict import PromotionVerdict, check_challenger, decide, sentence

_MAPE_OF = {part: f"MAPE {title}" for part, title in PARTS.items()}


MIN_SEEDS = 3
"""Training seeds, at least."""
MARGIN = 0.05
"""By which share the MAPE on families never learnt may be higher than the champion's."""


@dataclass(frozen=True)
class Errors:
    """What a model got wrong on a part of a split.

    Attributes:
        error: float64 [S, G]; |predicted - measured| / measured, a row a seed.
        family: int64 [G]; which family each graph is of, for the bootstrap.
    """

    error: NDArray[np.float64]
    family: NDArray[np.int64]

    def statistics(self) -> list[Statistic]:
        """Return, a seed: the mean over families of the mean error, as a function of how often a graph counts."""
        return [_mape(row, self.family) for row in self.error]


@dataclass(frozen=True)
class Opponent:
    """Whom the challenger meets.

    Attributes:
        name: a reference model, or the champion's version.
        errors: part -> its errors on the same graphs as the challenger's.
    """

    name: str
    errors: dict[str, Errors]


def judge(
    challenger: dict[str, Errors],
    references: Sequence[Opponent],
    champion: Opponent | None,
    *,
    rolled_back: str = "",
) -> PromotionVerdict:
    """Apply the rule.

    Args:
        challenger: part -> its errors.
        references: the references.
        champion: None if there is none.
        rolled_back: when the challenger was taken back as champion; empty if it never was.
    """
    checks = check_challenger(len(challenger[TEST].error), MIN_SEEDS, rolled_back)
    if not references:
        checks.append((False, "no reference was evaluated, so none is known to be beaten"))
    for opponent in (*references, *([] if champion is None else [champion])):
        gain = difference(challenger[TEST], opponent.errors[TEST])
        checks.append((gain.mean < 0.0, sentence(_MAPE_OF[TEST], gain, opponent.name)))
    if champion is not None and OTHER in challenger and OTHER in champion.errors:
        gain = difference(challenger[OTHER], champion.errors[OTHER])
        limit = MARGIN * mean_error(champion.errors[OTHER])
        text = f"{sentence(_MAPE_OF[OTHER], gain, champion.name)}, tolerated +{limit:.3f}"
        checks.append((gain.mean <= limit, text))
    return PromotionVerdict(*decide(checks))


def difference(a: Errors, b: Errors) -> Difference:
    """Return MAPE of a minus MAPE of b on the same graphs, negative is better, with its 95 % interval."""
    return seeded_bootstrap(a.statistics(), b.statistics(), a.family, num_resamples=1000)


def mean_error(errors: Errors) -> float:
    """Return the mean over seeds and families of the mean error."""
    whole = np.ones((1, errors.error.shape[1]))
    return float(np.mean([statistic(whole)[0] for statistic in errors.statistics()]))


def _mape(error: NDArray[np.float64], family: NDArray[np.int64]) -> Statistic:
    member = (family[:, None] == np.unique(family)[None, :]).astype(np.float64)

    def statistic(counts: Floats) -> Floats:
        # A stratum keeps its number of graphs in every resample, so no family is ever empty.
        return np.asarray(((counts * error) @ member / (counts @ member)).mean(axis=1))

    return statistic
