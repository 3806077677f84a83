"""XGBoost as the families use it: rows of programs, predictions summed, one thread when serving."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tencost.errors import BundleError
from tencost.models.trees.checks import check_trees

Scores = npt.NDArray[np.float64]

LEAST_SHARE = 0.05
"""Share of all hessians that a leaf may have to have at most."""

Packed = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], int]
"""(rows [R, C], the program of each row [R], number of programs)."""


def least_leaf(least: float, hessian: npt.NDArray[np.floating]) -> float:
    """Return the least sum of hessians in a leaf, such that trees of few programs can still split.

    A ranking loss divides by the length of a list, so the hessians of a few dozen programs may sum to less than what
    one leaf has to have: all trees would be single leaves, and nothing would be learnt.

    Args:
        least: as it is set; returned as it is where all hessians are 1 / LEAST_SHARE times as much.
        hessian: [N] of all programs, or rows, that are learnt from, before the first tree.
    """
    return min(least, LEAST_SHARE * float(hessian.sum()))


def tree_parameters(config: Any, seed: int, min_child_weight: float) -> dict[str, Any]:
    """Return XGBoost's parameters of settings (depth, shares of rows and columns, ...) that families of trees share."""
    return {
        "max_depth": config.max_depth,
        "eta": config.eta,
        "min_child_weight": min_child_weight,
        "subsample": config.subsample,
        "colsample_bytree": config.colsample,
        "max_bin": config.max_bin,
        "tree_method": "hist",
        "nthread": config.num_threads,
        "seed": seed,
    }


def ranking_parameters(config: Any, seed: int, min_child_weight: float) -> dict[str, Any]:
    """Return the parameters of trees whose gradients are a ranking loss's."""
    parameters = tree_parameters(config, seed, min_child_weight)
    return {**parameters, "reg_lambda": config.reg_lambda, "base_score": 0.0}


def row_gradient(
    loss: Callable[[Scores], tuple[Scores, Scores]], segment: npt.NDArray[np.int64], size: int
) -> Callable[[npt.NDArray[np.float32], Any], tuple[Any, Any]]:
    """Return XGBoost's objective for a loss of programs' scores, each the sum over its rows.

    Args:
        loss: scores, float64 [size] -> gradient and hessian.
        segment: the program of each row [R].
        size: number of programs.
    """

    def objective(row_scores: npt.NDArray[np.float32], _: Any) -> tuple[Any, Any]:
        gradient, hessian = loss(packed_sum(row_scores, segment, size))
        return gradient[segment].astype(np.float32), hessian[segment].astype(np.float32)

    return objective


def packed_sum(
    predictions: npt.NDArray[np.float32], segment: npt.NDArray[np.int64], size: int
) -> Scores:
    """Sum row predictions of each program in row order: float64 [size]."""
    totals: Scores = np.bincount(segment, weights=predictions, minlength=size).astype(np.float64)
    return totals


def predict_rows(booster: Any, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Predict on one thread: small batches wait for threads far longer than they compute."""
    import xgboost

    booster.set_param({"nthread": 1})
    return np.asarray(
        booster.predict(xgboost.DMatrix(rows, nthread=1), output_margin=True), dtype=np.float32
    )


def load_booster(path: Path) -> Any:
    """Load UBJSON weights for serving on one thread, after every node was looked at.

    Raises:
        BundleError: no trees that can be loaded and walked.
    """
    content = path.read_bytes()
    try:
        check_trees(content)
    except (ValueError, TypeError) as error:
        raise BundleError(
            f"{path}: expected boosted trees as tencost writes them (UBJSON), found others: {error}. Pull or train "
            "the model again."
        ) from error
    import xgboost

    booster = xgboost.Booster({"nthread": 1})
    try:
        booster.load_model(bytearray(content))
    except xgboost.core.XGBoostError as error:
        reason = (str(error).splitlines() or ["no reason"])[0]
        raise BundleError(f"{path}: XGBoost cannot load it: {reason}") from error
    return booster


def gain_shares(boosters: list[Any], names: list[str]) -> dict[str, float]:
    """Sum of gains of the splits on each named column, as shares of all gains, largest first."""
    gains: dict[str, float] = {}
    for booster in boosters:
        for key, gain in booster.get_score(importance_type="total_gain").items():
            name = names[int(key.removeprefix("f"))]
            gains[name] = gains.get(name, 0.0) + float(gain)
    total = sum(gains.values())
    if total <= 0:
        return {}
    return {
        name: gain / total
        for name, gain in sorted(gains.items(), key=lambda item: (-item[1], item[0]))
    }
