"""A handful of labels of a new family, or of a new host, and predictions that fit it: whatever the model.

What is corrected is the logarithm of label over prediction. It is a Gaussian process (Rasmussen & Williams 2006) over
a family's graphs: an offset, a slope along the logarithm of the prediction, and a part that depends on the graphs'
features, linear or smooth. How large each part is and how noisy labels are is not chosen but averaged: each
combination of a small grid counts by how probable it makes the labels (marginal likelihood), so that five labels move
the offset and little else, and a hundred can bend the rest. Without labels nothing is corrected.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tencost.errors import TrainError

Floats = NDArray[np.float64]

_OFFSET = 0.5
"""Standard deviation of the offset, as a relative error: a family left out may be 1.6 times off."""
_SLOPES = {0.03: 0.6, 0.1: 0.3, 0.3: 0.1}
"""Of the change along the standardised logarithm of the prediction; with how likely each is held before."""
_PARTS = {0.0: 0.6, 0.05: 0.15, 0.1: 0.15, 0.2: 0.05, 0.4: 0.05}
"""Of what depends on the features."""
_LENGTHS = (0.0, 1.0, 3.0)
"""How far apart, in standard deviations, two graphs may be and still be alike; 0: linear in the features."""
_NOISES = {0.01: 0.1, 0.02: 0.2, 0.04: 0.3, 0.08: 0.3, 0.16: 0.1}
"""Of a label."""


@dataclass(frozen=True, eq=False)
class Correction:
    """What was learnt from k labels.

    Attributes:
        inputs: float64 [k, 1 + F]; standardised logarithms of the predictions, and features.
        center, scale: float64 [1 + F]; what they are standardised with; scale 0 drops a column.
        settings: (slope, part, length) of each member of the grid that counts.
        duals: float64 [members, k]; each member's weights of the labelled graphs, times its share.
    """

    inputs: Floats
    center: Floats
    scale: Floats
    settings: tuple[tuple[float, float, float], ...]
    duals: Floats

    def apply(self, predicted_ms: Floats, features: Floats | None = None) -> Floats:
        """Return corrected milliseconds, float64 [G].

        Args:
            predicted_ms: float64 [G], positive.
            features: [G, F] as in `fit_correction`.
        """
        inputs = (_columns(predicted_ms, features) - self.center) * self.scale
        log_ratio = np.zeros(len(inputs))
        for setting, dual in zip(self.settings, self.duals, strict=True):
            log_ratio += _kernel(inputs, self.inputs, *setting) @ dual
        corrected: Floats = predicted_ms * np.exp(log_ratio)
        return corrected


def fit_correction(
    predicted_ms: Floats, labels_ms: Floats, features: Floats | None = None
) -> Correction:
    """Learn from k labelled graphs how predictions of their kind are off.

    Args:
        predicted_ms: float64 [k], positive.
        labels_ms: float64 [k], positive; NaN where there is none. k may be 0.
        features: [k, F], numbers of these graphs, such as tencost.graphs.families.summed.summed_rows gives; None: none.

    Raises:
        TrainError: a prediction or label is not positive.
    """
    known = ~np.isnan(labels_ms)
    columns = _columns(predicted_ms, features)[known]
    predicted_ms, labels_ms = predicted_ms[known], labels_ms[known]
    for name, values in (("predictions", predicted_ms), ("labels", labels_ms)):
        wrong = values[~((values > 0) & np.isfinite(values))]
        if len(wrong):
            raise TrainError(
                f"expected {name} in milliseconds, positive and finite, found {wrong[0]}"
            )
    width = columns.shape[1]
    if not len(columns):
        none = np.zeros((0, 0))
        return Correction(np.zeros((0, width)), np.zeros(width), np.zeros(width), (), none)
    spread = columns.std(axis=0)
    center = columns.mean(axis=0)
    scale = np.divide(1.0, spread, out=np.zeros(width), where=spread > 1e-6)
    inputs = (columns - center) * scale
    log_ratio = np.log(labels_ms / predicted_ms)
    settings, shares, duals = [], [], []
    for (slope, slope_prior), (part, part_prior), length in product(
        _SLOPES.items(), _PARTS.items(), _LENGTHS
    ):
        values, vectors = np.linalg.eigh(_kernel(inputs, inputs, slope, part, length))
        turned = vectors.T @ log_ratio
        for noise, noise_prior in _NOISES.items():
            variance = np.maximum(values, 0) + noise**2
            settings.append((slope, part, length))
            prior = np.log(slope_prior * part_prior * noise_prior)
            shares.append(prior - 0.5 * (turned**2 / variance + np.log(variance)).sum())
            duals.append(vectors @ (turned / variance))
    evidence = np.exp(np.array(shares) - max(shares))
    evidence /= evidence.sum()
    counts = evidence > 1e-6
    return Correction(
        inputs,
        center,
        scale,
        tuple(setting for setting, keep in zip(settings, counts, strict=True) if keep),
        (np.array(duals) * evidence[:, None])[counts],
    )


def _columns(predicted_ms: Floats, features: Floats | None) -> Floats:
    log_ms = np.log(predicted_ms)[:, None]
    if features is None:
        return log_ms
    return np.concatenate([log_ms, np.asarray(features, dtype=np.float64)], axis=1)


def _kernel(left: Floats, right: Floats, slope: float, part: float, length: float) -> Floats:
    """Return the prior covariance of log ratios between two sets of graphs: float64 [L, R]."""
    covariance = _OFFSET**2 + slope**2 * np.outer(left[:, 0], right[:, 0])
    first, second = left[:, 1:], right[:, 1:]
    varied = max(int((second != 0).any(axis=0).sum()), 1)
    inner = first @ second.T / varied
    if length == 0:
        return covariance + part**2 * inner
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None]
    distance = np.maximum(squares / varied - 2 * inner, 0)
    smooth: Floats = covariance + part**2 * np.exp(-0.5 * distance / length**2)
    return smooth
