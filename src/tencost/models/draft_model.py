"""Drafting: guess the scores of a batch from tile columns, and extract features only for the promising share.

Nine tenths of the time of scoring is TVM's PerStoreFeature, which lowers each program; tile columns are read off the
trace. The draft is a boosted-tree regression (XGBoost, one thread) from tile columns to the scores that the model in
charge gives to the candidates of the same task that it has scored in full: it needs no training of its own and follows
the model that ranks now. Two parts of a batch are scored in full: the SHARE that the draft ranks highest, and a few at
random, which keep it honest. Where it does not rank these as the model does, all of the batch is scored in full.

A guess never exceeds the guess of a candidate that was scored in full for its guess, so that what is guessed does not
displace what is known; it is a score in (0, 1] on the scale of the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import xgboost as xgb

from tencost.features.rows.ragged import FloatArray, IntArray

Doubles = npt.NDArray[np.float64]
Key = TypeVar("Key")

SHARE = 0.3
"""Share of a batch that is scored in full because the draft likes it."""
RANDOM_SHARE = 0.05
"""Share of the others that is scored in full nonetheless."""
MIN_BATCH = 64
"""New candidates below which all are scored in full."""
MIN_KNOWN = 128
"""Candidates of a task that are scored in full, drawn at random, before anything is guessed."""
MAX_KNOWN = 1024
"""The latest candidates that a draft learns from, which bounds the time of a fit."""
MIN_TRUST = 0.3
"""Rank correlation of guesses and scores below which all of the batch are scored in full."""
LEAST_GUESS = 1e-3
"""Least guess: a sum of boosted trees may be negative, and a score is above 0."""
_ROUNDS = 25
_PARAMETERS = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_bin": 32,
    "max_depth": 5,
    "eta": 0.3,
    "min_child_weight": 1.0,
    "reg_lambda": 1.0,
    "nthread": 1,
    "seed": 0,
    "verbosity": 0,
}


class Draft:
    """Trees fitted to known scores of one task; made anew for each batch."""

    def __init__(self, tiles: FloatArray, scores: Doubles) -> None:
        """Fit.

        Args:
            tiles: float32 [N, T], tile rows of the candidates that were scored in full, the latest last.
            scores: their scores, float64 [N], in (0, 1].
        """
        scores = scores[-MAX_KNOWN:]
        parameters = {**_PARAMETERS, "base_score": float(scores.mean())}
        data = xgb.DMatrix(tiles[-MAX_KNOWN:], label=scores, nthread=1)
        self._booster = xgb.train(parameters, data, num_boost_round=_ROUNDS)

    def guess(self, tiles: FloatArray) -> Doubles:
        """Return guessed scores in (0, 1], float64 [N], of tile rows, float32 [N, T]."""
        guesses = self._booster.predict(xgb.DMatrix(tiles, nthread=1)).astype(np.float64)
        return np.clip(guesses, LEAST_GUESS, 1.0)


def chosen(guesses: Doubles, generator: np.random.Generator) -> IntArray:
    """Return the positions to score in full: the best SHARE and RANDOM_SHARE of the others, in order."""
    order = np.argsort(-guesses, kind="stable")
    cut = int(np.ceil(SHARE * len(guesses)))
    rest = order[cut:]
    lucky = generator.choice(rest, int(np.ceil(RANDOM_SHARE * len(rest))), replace=False)
    return np.sort(np.concatenate([order[:cut], lucky])).astype(np.int64)


def trusted(guesses: Doubles, scores: Doubles) -> bool:
    """Whether guesses rank candidates as their scores do."""
    from scipy import stats

    if np.ptp(guesses) == 0 or np.ptp(scores) == 0:
        return False
    return float(stats.spearmanr(guesses, scores).statistic) >= MIN_TRUST


def guess_the_rest(
    rows: dict[Key, FloatArray],
    scored: dict[Key, FloatArray],
    score_in_full: Callable[[Sequence[Key]], None],
    scores_of: Callable[[Sequence[Key]], Doubles],
    generator: np.random.Generator,
) -> dict[Key, float]:
    """Score the promising share of a task's new candidates in full; guess the others.

    Args:
        rows: tile row, float32 [1, T], of each new candidate; those that are scored in full are taken out.
        scored: tile rows of the task's candidates that were scored in full, the latest last; new ones are added.
        score_in_full: scores candidates, so that `scores_of` knows them.
        scores_of: returns the scores that the model in charge gave to such candidates, float64 [N] in (0, 1].
        generator: draws the candidates that are scored at random.

    Returns:
        The guess, in (0, 1], of each candidate that is left in `rows`; none where all were scored in full.
    """

    def learn(keys: Sequence[Key]) -> None:
        score_in_full(keys)
        scored.update((key, rows.pop(key)) for key in keys)

    lacking = min(len(rows), max(0, MIN_KNOWN - len(scored)))
    drawn = generator.choice(len(rows), lacking, replace=False)
    names = list(rows)
    learn([names[at] for at in np.sort(drawn)])
    if not rows:
        return {}
    for key in list(scored)[:-MAX_KNOWN]:
        del scored[key]
    draft = Draft(np.concatenate(list(scored.values())), scores_of(list(scored)))
    names = list(rows)
    guesses = draft.guess(np.concatenate(list(rows.values())))
    picked = chosen(guesses, generator)
    learn([names[at] for at in picked])
    if not trusted(guesses[picked], scores_of([names[at] for at in picked])):
        learn(list(rows))
    return {key: float(guess) for key, guess in zip(names, guesses, strict=True) if key in rows}
