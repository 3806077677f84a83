"""XGBoost as the families use it: rows of programs, predictions summed, one thread when serving."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tencost.errors import BundleError
from tencost.models.manifest import version_in_range
from tencost.models.trees.checks import check_trees

Scores = npt.NDArray[np.float64]

XGBOOST_RANGE = ("3.1", "4")
"""XGBoost releases that tencost's extras ask for: from the first, up to but without the second."""
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
    """Load UBJSON weights for serving on one thread, see :func:`parse_booster`.

    Raises:
        BundleError: no trees that can be loaded and walked, or the installed XGBoost does not fit them.
    """
    try:
        return parse_booster(path.read_bytes())
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from error
    except (ValueError, TypeError) as error:
        reason = (str(error).splitlines() or ["no reason"])[0]
        raise BundleError(
            f"{path}: expected boosted trees as tencost writes them (UBJSON), found others: {reason}. Pull or train "
            "the model again."
        ) from error


def parse_booster(content: bytes) -> Any:
    """Return the xgboost.Booster of UBJSON for serving on one thread, after every node was looked at.

    Raises:
        BundleError: the installed XGBoost is none of XGBOOST_RANGE, or of another major release than the one that wrote
            the trees: such a release may read other values from them without an error.
        ValueError, TypeError: no trees that can be loaded and walked.
    """
    major = check_trees(content)
    import xgboost

    # The packages xgboost and xgboost-cpu install the same module, so only the module knows which release runs.
    version = xgboost.__version__
    if version.split(".")[0] != str(major) or not version_in_range(version, XGBOOST_RANGE):
        low, high = XGBOOST_RANGE
        raise BundleError(
            f"expected XGBoost >= {low} and < {high} for trees of XGBoost {major}, found {version}, which may give "
            f"other scores: pip uninstall -y xgboost xgboost-cpu; pip install 'xgboost-cpu>={low},<{high}'"
        )
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(content))
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
