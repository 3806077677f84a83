"""What is added to leaves, against the same posterior written out by inverses and determinants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tencost.models.trees.leaf_values import leaf_changes

RATIOS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
NOISE, CORRELATION, WORTH, LEAST_SLOPE = 0.1, 0.7, 5.0, 0.1


def made(seed: int, correlation: float, rows: int = 1) -> tuple[Any, ...]:
    """Nine programs of three tasks, each of `rows` rows, in four trees of three leaves (nodes 2, 3 and 4)."""
    random = np.random.default_rng(seed)
    leaves = random.integers(2, 5, (9 * rows, 4)).astype(np.int32)
    segment = np.repeat(np.arange(9), rows)
    spreads = np.array([0.8, 0.6, 0.4, 0.2])
    score = random.normal(size=9)
    label = correlation * 0.2 * score + 0.1 * random.normal(size=9)
    group = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
    return leaves, segment, spreads, score, label - label.min(), group


def written_out(
    leaves: Any, segment: Any, spreads: Any, score: Any, label: Any, group: Any
) -> np.ndarray[Any, Any]:
    """Return what is added to each program's score: rows of a program count one by one."""
    share = spreads / spreads.sum()
    kernel = np.zeros((9, 9))
    for row, a in enumerate(segment):
        for other, b in enumerate(segment):
            kernel[a, b] += share[leaves[row] == leaves[other]].sum()
    # Differences to the first program of the task, made orthonormal: offsets of tasks drop out.
    contrasts = [
        np.eye(9)[program] - np.eye(9)[np.flatnonzero(group == group[program])[0]]
        for program in range(9)
        if np.flatnonzero(group == group[program])[0] != program
    ]
    basis, _ = np.linalg.qr(np.array(contrasts).T)
    z, y, count = basis.T @ score, basis.T @ label, len(contrasts)
    expected = CORRELATION * np.sqrt((y**2).sum() / (z**2).sum())
    evidence, slopes, means = [], [], []
    for ratio in RATIOS:
        variance = ratio * basis.T @ kernel @ basis + np.eye(count)
        inverse = np.linalg.inv(variance)
        precision = z @ inverse @ z
        prior = WORTH / count * precision
        slope = (z @ inverse @ y + prior * expected) / (precision + prior)
        slope = max(slope, LEAST_SLOPE * expected)
        rest = y - slope * z
        noise = (rest @ inverse @ rest + WORTH * NOISE**2) / (count + WORTH)
        log_det = np.linalg.slogdet(variance)[1]
        evidence.append(-0.5 * (count + WORTH) * np.log(noise) - 0.5 * log_det)
        slopes.append(slope)
        means.append(ratio * kernel @ basis @ inverse @ rest)
    weight = np.exp(np.array(evidence) - max(evidence))
    weight /= weight.sum()
    return np.asarray((weight @ np.array(means)) / (weight @ np.array(slopes)))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("correlation", [1.0, 0.0, -3.0])
def test_changes_are_those_of_the_posterior(rows: int, correlation: float) -> None:
    leaves, segment, spreads, score, label, group = made(rows, correlation, rows)
    changes = leaf_changes(leaves, segment, spreads, score, label, group)
    added = np.zeros(9)
    for tree, change in zip(leaves.T, changes, strict=True):
        np.add.at(added, segment, change[tree])
    wanted = written_out(leaves, segment, spreads, score, label, group)
    assert np.abs(wanted).max() > 1e-3
    np.testing.assert_allclose(added, wanted, rtol=1e-9, atol=1e-12)
