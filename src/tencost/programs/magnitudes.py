"""Kinds of values in one tensor, by magnitude: a mask's -1e9 says nothing about the rounding of logits beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_GAP = 1e3
"""Values that differ by this factor, with no value between them, are of two kinds."""
_MOST_CANCELLED = 2
"""So many values may be 1000 times smaller than all others by chance: differences of numbers that are nearly equal."""


def finite_magnitudes(values: Array) -> Array:
    """Absolute values, float64; 0 for values that are not finite."""
    return np.where(np.isfinite(values), np.abs(values), 0.0)


def kinds_of(magnitudes: Array) -> Array:
    """Number of the kind that each value belongs to, from 0 for the smallest; zeros are of kind 0.

    Args:
        magnitudes: finite numbers from 0 on, float64.
    """
    ascending = np.sort(magnitudes[magnitudes > 0])
    starts = np.flatnonzero(ascending[1:] > _GAP * ascending[:-1]) + 1
    if starts.size and starts[0] <= _MOST_CANCELLED:
        following = ascending[starts[0] : starts[1] if starts.size > 1 else None]
        if following[-1] > 2 * following[0]:  # not a mask's
            starts = starts[1:]
    return np.digitize(magnitudes, ascending[starts])


def largest_of_kind(values: Array) -> Array:
    """The largest magnitude among the values of each value's kind, float64; 1 where they are all 0."""
    magnitudes = finite_magnitudes(values)
    kinds = kinds_of(magnitudes)
    largest = np.zeros(int(kinds.max(initial=0)) + 1)
    np.maximum.at(largest, kinds.ravel(), magnitudes.ravel())
    return np.asarray(np.where(largest > 0, largest, 1.0)[kinds])
