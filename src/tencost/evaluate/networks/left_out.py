"""How far off a model is on families of networks that were held out from it: what an interval needs beyond its data.

The errors of a family stand together: a family that is predicted 10 % too high is so throughout. So the interval for a
network of another family is that of a new group in a model with random effects: the families' median log errors are
draws of one normal distribution, whose spread few families tell badly (Student's t), and around its median a family's
networks lie as far as those of the widest family held out.

Each of CG's thirteen families left out in turn, with bounds from three others: these hold .97 to .98 of its networks,
device by device; the bounds of the networks that were learnt from hold .25 to .68.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tencost.errors import BundleError

FILE = "left_out.json"
"""File of a registered bundle: its FamilyErrorBounds."""
FARTHEST = 75.0
"""How many times beyond the sizes learnt from the families went on which the coverage was measured."""
_FEWEST = 2
"""Families whose spread can be told."""


@dataclass(frozen=True)
class FamilyErrorBounds:
    """Bounds of log(measured / predicted) for networks of families that were held out.

    Attributes:
        low: lower bound.
        high: upper bound.
        families: family -> how many of its networks were measured.
    """

    low: float
    high: float
    families: dict[str, int]


def left_out_errors(
    family: NDArray[np.str_],
    measured_ms: NDArray[np.float64],
    predicted_ms: NDArray[np.float64],
    coverage: float = 0.9,
) -> FamilyErrorBounds | None:
    """Return the bounds for networks of a family that the model never saw; None with fewer than two families.

    Args:
        family: [G]; of each graph that was held out with its whole family.
        measured_ms: float64 [G]; NaN where nobody measured.
        predicted_ms: float64 [G].
        coverage: share of a new family's networks that is to lie between the bounds, at least.
    """
    from scipy.stats import t

    error = np.log(measured_ms / predicted_ms)
    measured = np.isfinite(error)
    names, counts = np.unique(family[measured], return_counts=True)
    if len(names) < _FEWEST:
        return None
    by_family = [error[measured & (family == name)] for name in names]
    medians = [float(np.median(errors)) for errors in by_family]
    tails = [(1 - coverage) / 2, (1 + coverage) / 2]
    ends = [
        np.quantile(errors - median, tails).tolist()
        for errors, median in zip(by_family, medians, strict=True)
    ]
    spread = float(np.std(medians, ddof=1)) * math.sqrt(1 + 1 / len(names))
    between = float(t.ppf((1 + coverage) / 2, len(names) - 1)) * spread
    middle = float(np.mean(medians))
    return FamilyErrorBounds(
        low=round(middle - between + min(low for low, _ in ends), 4),
        high=round(middle + between + max(high for _, high in ends), 4),
        families=dict(zip(names.tolist(), counts.tolist(), strict=True)),
    )


def left_out_from_json(values: Mapping[str, Any]) -> FamilyErrorBounds:
    """Read what JSON holds of a FamilyErrorBounds.

    Raises:
        BundleError: it is something else.
    """
    try:
        families = {str(name): int(count) for name, count in values["families"].items()}
        bounds = FamilyErrorBounds(float(values["low"]), float(values["high"]), families)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(
            f"expected the errors on families held out (low, high, families), found something else: {error}"
        ) from error
    if not bounds.low <= bounds.high:
        raise BundleError(f"expected low <= high, found {bounds.low} and {bounds.high}")
    return bounds
