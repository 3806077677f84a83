"""New values for the leaves of boosted trees, learnt from a few labels; what the trees split on stays.

On other hardware the columns that matter are mostly the same, and programs of one leaf are mostly still alike; how fast
they are has changed. A Gaussian process says how much each leaf has to change:

    label = offset of the task + slope * score + f + noise,     f ~ GP(0, ratio * noise * K)
    K(a, b) = share of the trees in which a and b share a leaf, a tree counted by the spread of its leaves' values

K is a random forest's proximity (Breiman 2001; as a kernel: Davies and Ghahramani, arXiv 1402.4293), so the mean of f
is a sum over trees: each leaf's value changes by a number, and the result is an ordinary model that costs nothing more
to serve. How far f may go (`ratio`) is weighed by the evidence of the labels (Rasmussen and Williams 2006, 5.4), no
change among the choices: a few labels that show nothing change nearly nothing. Offsets of tasks are projected out, as
only programs of one task are compared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Leaves = npt.NDArray[np.int32]

RATIOS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Variances of f over that of the noise that are weighed against each other."""
NOISE = 0.1
"""What labels are expected to scatter by beside the model, in shares of a task's fastest (an inverse gamma prior)."""
CORRELATION = 0.7
"""Expected between labels and scores of programs of one task."""
WORTH = 5.0
"""As how many labels both expectations count: without them, labels of a task or two would reverse the model sooner."""
LEAST_SLOPE = 0.1
"""Share of the expected slope of the labels over the scores that is left in any case."""


def leaf_changes(
    leaves: Leaves,
    segment: npt.NDArray[np.int64],
    spreads: Floats,
    score: Floats,
    label: npt.NDArray[np.floating],
    group: npt.NDArray[np.int64],
) -> list[Floats]:
    """Return what is added to the score by each node of each tree: float64 [nodes seen], 0 for nodes without labels.

    Args:
        leaves: int32 [R, T], the leaf of each row of the N labelled programs in each tree.
        segment: int64 [R], the program of each row, dense from 0.
        spreads: float64 [T], standard deviation of each tree's leaf values.
        score: float64 [N], the model's, higher is predicted faster.
        label: [N], fastest latency of the task's labels / latency, 0 for a failure.
        group: int64 [N], the task of each, dense from 0.
    """
    share = spreads / spreads.sum()
    # Of each tree: how often each program is in each of its leaves.
    counts = []
    for tree in leaves.T:
        count = np.zeros((len(label), int(tree.max()) + 1))
        np.add.at(count, (segment, tree), 1.0)
        counts.append(count)
    kernel = np.zeros((len(label), len(label)))
    for weight, count in zip(share, counts, strict=True):
        kernel += weight * (count @ count.T)
    within = _within_tasks(group)
    weights, slope = _posterior(
        within.T @ kernel @ within, within.T @ score, within.T @ label.astype(np.float64)
    )
    programs = within @ weights / slope
    return [weight * (programs @ count) for weight, count in zip(share, counts, strict=True)]


def _within_tasks(group: npt.NDArray[np.int64]) -> Floats:
    """Return orthonormal columns, float64 [N, N - tasks], that span all differences within tasks."""
    tasks = (group[:, None] == np.unique(group)[None]).astype(np.float64)
    whole, _, _ = np.linalg.svd(tasks, full_matrices=True)
    return np.asarray(whole[:, tasks.shape[1] :], np.float64)


def _posterior(kernel: Floats, score: Floats, label: Floats) -> tuple[Floats, float]:
    """Return (weights [M] whose product with the kernel is the mean of f, the slope), averaged by evidence."""
    count = len(label)
    expected = CORRELATION * float(np.linalg.norm(label)) / max(float(np.linalg.norm(score)), 1e-12)
    found = []
    for ratio in RATIOS:
        factor = np.linalg.cholesky(ratio * kernel + np.eye(count))
        white_label, white_score = (np.linalg.solve(factor, values) for values in (label, score))
        precision = float(white_score @ white_score)
        prior = WORTH / count * precision
        slope = (float(white_label @ white_score) + prior * expected) / (precision + prior)
        slope = max(slope, LEAST_SLOPE * expected)
        rest = white_label - slope * white_score
        noise = (float(rest @ rest) + WORTH * NOISE**2) / (count + WORTH)
        evidence = -0.5 * (count + WORTH) * np.log(noise) - np.log(np.diag(factor)).sum()
        found.append((evidence, slope, ratio * np.linalg.solve(factor.T, rest)))
    evidences = np.array([evidence for evidence, _, _ in found])
    likely = np.exp(evidences - evidences.max())
    likely /= likely.sum()
    slope = sum(share * slope for share, (_, slope, _) in zip(likely, found, strict=True))
    weights = sum(share * part for share, (_, _, part) in zip(likely, found, strict=True))
    return np.asarray(weights, np.float64), float(slope)


def leaves_of(booster: Any, rows: npt.NDArray[np.float32]) -> Leaves:
    """Return the leaf of each row in each tree, int32 [R, T]."""
    import xgboost

    leaves = np.asarray(booster.predict(xgboost.DMatrix(rows, nthread=1), pred_leaf=True))
    return leaves.reshape(len(rows), -1).astype(np.int32)


def leaf_spreads(booster: Any) -> Floats:
    """Return the standard deviation of each tree's leaf values, float64 [T]."""
    return np.array([_values(tree)[_is_leaf(tree)].std() for tree in _trees(_model(booster))])


def with_changes(booster: Any, changes: Sequence[Floats]) -> Any:
    """Return a copy of a booster to whose leaves' values changes were added, an array a tree."""
    import xgboost

    model = _model(booster)
    for tree, change in zip(_trees(model), changes, strict=True):
        values = _values(tree)
        values[: len(change)] += np.where(_is_leaf(tree)[: len(change)], change, 0.0)
        tree["split_conditions"] = values.astype(np.float32).tolist()
    copied = xgboost.Booster({"nthread": 1})
    copied.load_model(bytearray(json.dumps(model).encode()))
    return copied


def _model(booster: Any) -> Any:
    return json.loads(bytes(booster.save_raw("json")))


def _trees(model: Any) -> Any:
    return model["learner"]["gradient_booster"]["model"]["trees"]


def _values(tree: Any) -> Floats:
    """Return the values of leaves and the thresholds of other nodes."""
    return np.array(tree["split_conditions"], np.float64)


def _is_leaf(tree: Any) -> npt.NDArray[np.bool_]:
    return np.array(tree["left_children"]) == -1
