"""Which family to register: by the networks that were left out of its training, one fold after the other.

`train` has scored each fold of the training networks by a model that has not seen it
(:mod:`tencost.train.data.folds`). Here the orders are compared with what was measured: pairwise, geo1 and search
score of each candidate on each fold. A figure x of candidate c on fold f is taken apart as x = a_c + b_f + e: some
networks are easier than others, and a slow family may have been tried on fewer. The candidate's part a_c is divided by
the metric's spread, the standard deviation of e, so that a metric counts as much as the folds agree on it; the mean of
the three is the composite that decides.

Legend: C candidates, F folds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tencost.evaluate.metrics import Floats

METRICS = ("pairwise", "geo1", "search_score")
"""What the composite is made of."""
_LEAST_SPREAD = 1e-3
"""Folds that agree better than this agree by chance: there are few of them."""

Figures = Mapping[str, Mapping[str, float]]
"""Fold -> metric -> figure of one candidate."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How a candidate did on the networks left out.

    Attributes:
        composite: mean over METRICS of its advantage over the candidates' mean / the metric's spread; higher is better.
        folds: the networks of a fold, joined by ", " -> metric -> figure.
    """

    composite: float
    folds: dict[str, dict[str, float]]


def choices(figures: Mapping[str, Figures]) -> dict[str, Choice]:
    """Return the choice of each candidate; empty where one of them was not tried on any fold.

    Args:
        figures: candidate -> fold -> metric -> figure.
    """
    if not figures or not all(figures.values()):
        return {}
    names = sorted(figures)
    candidates = [figures[name] for name in names]
    composites = np.mean([_advantage(candidates, metric) for metric in METRICS], axis=0)
    return {
        name: Choice(
            composite=float(composite),
            folds={fold: dict(metrics) for fold, metrics in figures[name].items()},
        )
        for name, composite in zip(names, composites, strict=True)
    }


def _advantage(candidates: Sequence[Figures], metric: str) -> Floats:
    """Least squares of x = a_c + b_f + e over the figures there are: (a_c - mean a) / spread of e, float64 [C]."""
    folds = sorted({fold for figures in candidates for fold in figures})
    cells = [
        (index, folds.index(fold), metrics[metric])
        for index, figures in enumerate(candidates)
        for fold, metrics in figures.items()
        if not math.isnan(metrics[metric])
    ]
    if not cells:
        return np.zeros(len(candidates))
    design = np.zeros((len(cells), len(candidates) + len(folds)))
    for row, (candidate, fold, _) in enumerate(cells):
        design[row, [candidate, len(candidates) + fold]] = 1.0
    target = np.array([figure for _, _, figure in cells])
    solution, _, rank, _ = np.linalg.lstsq(design, target)
    parts, error = solution[: len(candidates)], target - design @ solution
    degrees = len(cells) - int(rank)
    spread = math.sqrt(float(error @ error) / degrees) if degrees > 0 else 1.0
    return np.asarray((parts - parts.mean()) / max(spread, _LEAST_SPREAD))
