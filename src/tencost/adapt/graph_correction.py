"""A handful of labels of a new family, or of a new host, and predictions that fit it: whatever the model.

What is corrected is the logarithm of label over prediction. It is a Gaussian process (Rasmussen & Williams 2006) over
a family's graphs: an offset, a slope along the logarithm of the prediction, and a part that depends on the graphs'
features, linear or smooth. How large each part is, which features count and how noisy labels are is not chosen but
averaged: each combination of a small grid counts by how probable it makes the labels (marginal likelihood), so that
five labels move the offset and little else, and a hundred can bend the rest. Labels far from what the others say are
drawn in. Without labels nothing is corrected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from tencost.errors import TrainError
from tencost.evaluate.metrics import Floats
from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.operators import OPERATORS, WEIGHT

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


_OUTLIER = 2.0
"""Median errors of labels, from what was learnt of all, beyond which a label is drawn in (Huber 1964): times on devices
have tails, and what is asked is what most graphs take."""
_LEAST_LIMIT = 0.015
_ROUNDS = 2
_FEWEST = 10
"""Labels below which none is called an outlier."""
_SIDES = 10
"""Sides of a kernel that are told apart: 0 (none) to 8, and larger."""


@dataclass(frozen=True, eq=False)
class _Block:
    """Standardised numbers of k graphs, float64 [k, F]; a column that does not vary is 0."""

    values: Floats
    center: Floats
    scale: Floats

    @classmethod
    def of(cls, raw: Floats) -> _Block:
        center, spread = raw.mean(axis=0), raw.std(axis=0)
        scale = np.divide(1.0, spread, out=np.zeros(len(spread)), where=spread > 1e-6)
        return cls((raw - center) * scale, center, scale)

    def standardise(self, raw: Floats) -> Floats:
        standard: Floats = (raw - self.center) * self.scale
        return standard


@dataclass(frozen=True, eq=False)
class Correction:
    """What was learnt from k labels.

    Attributes:
        blocks: what is known of the k graphs, standardised: the logarithms of their predictions, then their features.
        settings: (block, slope, part, length) of each member of the grid that counts.
        duals: float64 [members, k]; each member's weights of the labelled graphs, times its share.
    """

    blocks: tuple[_Block, ...]
    settings: tuple[tuple[int, float, float, float], ...]
    duals: Floats

    def apply(self, predicted_ms: Floats, features: Sequence[Floats] = ()) -> Floats:
        """Return corrected milliseconds, float64 [G].

        Args:
            predicted_ms: float64 [G], positive.
            features: the blocks of `fit_correction`, [G, F] each.
        """
        log_ratio = np.zeros(len(predicted_ms))
        if self.settings:
            raw = (np.log(predicted_ms)[:, None], *features)
            inputs = [block.standardise(each) for block, each in zip(self.blocks, raw, strict=True)]
            for (index, *setting), dual in zip(self.settings, self.duals, strict=True):
                learnt = self.blocks[0].values, self.blocks[index].values
                log_ratio += _kernel((inputs[0], inputs[index]), learnt, *setting) @ dual
        corrected: Floats = predicted_ms * np.exp(log_ratio)
        return corrected


def fit_correction(
    predicted_ms: Floats, labels_ms: Floats, features: Sequence[Floats] = ()
) -> Correction:
    """Learn from k labelled graphs how predictions of their kind are off.

    Args:
        predicted_ms: float64 [k], positive.
        labels_ms: float64 [k], positive; NaN where there is none. k may be 0.
        features: blocks of numbers of these graphs, [k, F] each, such as `cost_shares` and
            tencost.models.networks.families.summed.summed_rows give. Which block tells more, labels decide.

    Raises:
        TrainError: a prediction or label is not positive.
    """
    labelled = ~np.isnan(labels_ms)
    predicted_ms, labels_ms = predicted_ms[labelled], labels_ms[labelled]
    for name, times in (("predictions", predicted_ms), ("labels", labels_ms)):
        wrong = times[~((times > 0) & np.isfinite(times))]
        if len(wrong):
            raise TrainError(
                f"expected {name} in milliseconds, positive and finite, found {wrong[0]}"
            )
    if not len(labels_ms):
        return Correction((), (), np.zeros((0, 0)))
    of_labelled = [np.asarray(each)[labelled] for each in features]
    raw = (np.log(predicted_ms)[:, None], *of_labelled)
    blocks = tuple(_Block.of(np.asarray(each, dtype=np.float64)) for each in raw)
    log_ratio = np.log(labels_ms / predicted_ms)
    correction = _fit(blocks, log_ratio)
    for _ in range(_ROUNDS if len(log_ratio) >= _FEWEST else 0):
        learnt = np.log(correction.apply(predicted_ms, of_labelled) / predicted_ms)
        error = log_ratio - learnt
        limit = max(_OUTLIER * float(np.median(np.abs(error))), _LEAST_LIMIT)
        correction = _fit(blocks, learnt + np.clip(error, -limit, limit))
    return correction


def _fit(blocks: tuple[_Block, ...], log_ratio: Floats) -> Correction:
    """Average the grid, each member by how probable it makes the logarithms of label over prediction."""
    settings, shares, duals = [], [], []
    for block, (slope, slope_prior), (part, part_prior), length in product(
        range(min(1, len(blocks) - 1), len(blocks)), _SLOPES.items(), _PARTS.items(), _LENGTHS
    ):
        inputs = blocks[0].values, blocks[block].values
        eigenvalues, vectors = np.linalg.eigh(_kernel(inputs, inputs, slope, part, length))
        turned = vectors.T @ log_ratio
        for noise, noise_prior in _NOISES.items():
            variance = np.maximum(eigenvalues, 0) + noise**2
            settings.append((block, slope, part, length))
            prior = np.log(slope_prior * part_prior * noise_prior)
            shares.append(prior - 0.5 * (turned**2 / variance + np.log(variance)).sum())
            duals.append(vectors @ (turned / variance))
    evidence = np.exp(np.array(shares) - max(shares))
    evidence /= evidence.sum()
    counts = evidence > 1e-6
    return Correction(
        blocks,
        tuple(setting for setting, keep in zip(settings, counts, strict=True) if keep),
        (np.array(duals) * evidence[:, None])[counts],
    )


def cost_shares(graphs: GraphSet, node_ms: Floats) -> Floats:
    """Return which share of a graph's latency each operator has; by the side of its kernel, too: float64 [G, S].

    Args:
        graphs: G graphs.
        node_ms: float64 [N]; what each node costs on one device, as models tell that are sums over nodes.
    """
    side = np.minimum(graphs.columns[:, WEIGHT.start].astype(np.int64), _SIDES - 1)
    group = graphs.operator.astype(np.int64) * _SIDES + side
    width = len(OPERATORS) * _SIDES
    sums = np.bincount(
        graphs.graph_of_node * width + group, weights=node_ms, minlength=len(graphs) * width
    ).reshape(len(graphs), width)
    totals = sums.sum(axis=1, keepdims=True)
    shares: Floats = np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)
    return shares


def _kernel(
    first_set: tuple[Floats, Floats],
    second_set: tuple[Floats, Floats],
    slope: float,
    part: float,
    length: float,
) -> Floats:
    """Return the prior covariance of log ratios between two sets of graphs: float64 [L, R]."""
    covariance = _OFFSET**2 + slope**2 * first_set[0] @ second_set[0].T
    first, second = first_set[1], second_set[1]
    varied = max(int((second != 0).any(axis=0).sum()), 1)
    inner = first @ second.T / varied
    if length == 0:
        return covariance + part**2 * inner
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None]
    distance = np.maximum(squares / varied - 2 * inner, 0)
    smooth: Floats = covariance + part**2 * np.exp(-0.5 * distance / length**2)
    return smooth
