"""Layers of a network in NumPy whose result for a row does not depend on the rows beside it.

One product of two matrices rounds a row differently when the matrix has another number of rows, or
when the row stands elsewhere in it: BLAS treats edges with other kernels. So a matrix product here
is a stack of products of one row each, all of one shape, and a program's score is the same bits
alone or among thousands. For the sizes of a cost model this costs little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

CLIP = 4.0
"""Standardised inputs are cut to [-CLIP, CLIP]."""

POOL_SCALE = 8.0
"""tlp: the sum over steps is divided by it, so that it has about the size of the maximum beside it."""

MASKED = -1e4
"""tlp: added to what padding steps would contribute to a softmax or a maximum."""


@dataclass(frozen=True)
class Scaler:
    """Standardisation of columns, fitted on the training split and kept in the bundle.

    Attributes:
        mean: float32 [C].
        inverse: float32 [C], 1 / standard deviation; 0 for a column that never varied.
    """

    mean: Array
    inverse: Array

    @classmethod
    def fit(cls, rows: Array) -> Scaler:
        """Fit on rows, float32 [R, C]."""
        deviation = rows.std(axis=0, dtype=np.float64)
        mean = rows.mean(axis=0, dtype=np.float64)
        varies = deviation > 1e-4
        inverse = np.where(varies, 1.0 / np.where(varies, deviation, 1.0), 0.0)
        return cls(mean.astype(np.float32), inverse.astype(np.float32))

    def __call__(self, rows: Array) -> Array:
        """Standardise rows, float32 [R, C], and cut outliers."""
        return np.clip((rows - self.mean) * self.inverse, np.float32(-CLIP), np.float32(CLIP))


def dense(inputs: Array, weight: Array, bias: Array, *, relu: bool = False) -> Array:
    """Apply inputs @ weight + bias, row by row.

    Args:
        inputs: float32 [n, i].
        weight: float32 [i, o], C-contiguous.
        bias: float32 [o].
        relu: cut negative results to 0.

    Returns:
        float32 [n, o].
    """
    out = np.matmul(inputs[:, None, :], weight)[:, 0, :]
    out += bias
    return np.maximum(out, np.float32(0.0), out=out) if relu else out


def layer(weights: Mapping[str, Array], name: str, inputs: Array, *, relu: bool = True) -> Array:
    """Apply the dense layer of this name, see `dense`."""
    return dense(inputs, weights[f"{name}.weight"], weights[f"{name}.bias"], relu=relu)


def dot(inputs: Array, weight: Array, bias: Array) -> Array:
    """Apply a layer with one output, row by row: float32 [n, i], [i], [1] -> float32 [n]."""
    return np.asarray((inputs * weight).sum(axis=1) + bias[0], dtype=np.float32)


def layer_norm(inputs: Array, weight: Array, bias: Array) -> Array:
    """Normalise the last axis to mean 0 and variance 1 (epsilon 1e-5), then scale and shift."""
    centered = inputs - inputs.mean(axis=-1, keepdims=True)
    variance = np.mean(centered * centered, axis=-1, keepdims=True)
    return np.asarray(centered / np.sqrt(variance + np.float32(1e-5)) * weight + bias)


def softmax(values: Array) -> Array:
    """Softmax over the last axis."""
    shifted = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))
