"""Bounds of a tensor's values: what is known of the numbers that lie in the padding of an axis.

For :mod:`tencost.networks.padding`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np

HIDDEN = 1e4
"""A score is hidden by a number at least so far below zero: exp(-1e4) is 0 in every type, also beside other scores."""

HALF_OF_FLOAT16 = float(np.finfo(np.float16).max) / 2


class Specials(IntEnum):
    """Which values other than finite numbers a tensor may have."""

    none = 0
    minus_infinity = 1
    any = 2


@dataclass(frozen=True)
class Values:
    """Bounds of some values of a tensor.

    Attributes:
        low, high: of the finite ones.
        specials: which others there may be.
        below: they are numbers of moderate size less at least this; 0 where nothing is known.
    """

    low: float = -math.inf
    high: float = math.inf
    specials: Specials = Specials.none
    below: float = 0.0

    @property
    def point(self) -> float | None:
        """The only value that there is; None where there may be several."""
        if self.specials is Specials.any or self.low != self.high:
            return None
        return self.low

    @property
    def depth(self) -> float:
        """How far below numbers of moderate size they are."""
        return max(self.below, -self.high, 0.0)

    def joined(self, *others: Values) -> Values:
        """Return bounds of these and of others."""
        each = (self, *others)
        return Values(
            min(values.low for values in each),
            max(values.high for values in each),
            max(values.specials for values in each),
            min(values.depth for values in each),
        )


FINITE, ANY, ZERO = Values(), Values(specials=Specials.any), Values(0.0, 0.0)


def exactly(value: float) -> Values:
    """Return the bounds of one value."""
    if math.isnan(value) or value == math.inf:
        return ANY
    return Values(value, value, Specials(int(value == -math.inf)))


def _product(first: Values, second: Values) -> Values:
    for x, y in ((first, second), (second, first)):
        if x.point == 0.0 and y.specials is Specials.none:
            return ZERO
    bounds = [
        0.0 if 0.0 in (x, y) else x * y
        for x in (first.low, first.high)
        for y in (second.low, second.high)
    ]
    specials = max(first.specials, second.specials)
    below = 0.0
    for x, y in ((first, second), (second, first)):
        if x.point is not None and 0.0 < x.point < math.inf:
            below = max(below, x.point * y.depth)
        elif specials is Specials.minus_infinity and y.specials:
            specials = Specials.any  # a zero, or a number below it, times infinity
    return Values(min(bounds), max(bounds), specials, below)


def _sum(first: Values, second: Values) -> Values:
    specials = max(first.specials, second.specials)
    if specials < Specials.any and -math.inf in (first.point, second.point):
        return exactly(-math.inf)
    depth = 0.0
    deep = [values for values in (first, second) if values.depth >= HIDDEN]
    if deep:
        depth = sum(values.depth for values in deep)
        # A number known to be as large the other way brings the sum back.
        if any(values.low > depth / 4 for values in (first, second)):
            depth = 0.0
        elif depth > float(np.finfo(np.float32).max):
            specials = max(specials, Specials.minus_infinity)
    low, high = first.low + second.low, first.high + second.high
    low, high = (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)
    return Values(low, high, specials, depth)


def _negative(values: Values) -> Values:
    specials = Specials.any if values.specials else Specials.none
    return Values(-values.high, -values.low, specials)


def _quotient(first: Values, second: Values) -> Values:
    if second.specials or (second.low <= 0.0 <= second.high):
        return ANY
    inverse = Values(1 / second.high, 1 / second.low)
    return _product(first, inverse)


def _maximum(first: Values, second: Values) -> Values:
    low, high = max(first.low, second.low), max(first.high, second.high)
    specials = max(first.specials, second.specials)
    if specials is Specials.minus_infinity and Specials.none in (first.specials, second.specials):
        specials = Specials.none
    return Values(low, high, specials, min(first.depth, second.depth))


def _minimum(first: Values, second: Values) -> Values:
    low, high = min(first.low, second.low), min(first.high, second.high)
    specials = max(first.specials, second.specials)
    return Values(low, high, specials, max(first.depth, second.depth))


def _where(condition: Values, first: Values, second: Values) -> Values:
    if condition.point is not None:
        return first if condition.point else second
    return first.joined(second)


def _power(base: Values, exponent: Values) -> Values:
    whole = exponent.point is not None and exponent.point > 0 and float(exponent.point).is_integer()
    if not whole or base.specials:
        return ANY
    return Values(low=0.0) if exponent.point is not None and exponent.point % 2 == 0 else FINITE


def _root(values: Values) -> Values:
    if values.specials or values.low < 0.0:
        return ANY
    return Values(math.sqrt(values.low), math.sqrt(values.high))


def _equal(first: Values, second: Values) -> Values:
    pair = (first, second)
    for x, y in (pair, pair[::-1]):
        if x.point is not None and (
            (math.isinf(x.point) and y.specials is Specials.none)
            or (y.specials is Specials.none and not y.low <= x.point <= y.high)
        ):
            return ZERO
    return Values(0.0, 1.0)


def _less(first: Values, second: Values) -> Values:
    if first.specials or second.specials:
        return Values(0.0, 1.0)
    if first.high < second.low:
        return exactly(1.0)
    return ZERO if first.low >= second.high else Values(0.0, 1.0)


def _not(values: Values) -> Values:
    return Values(0.0, 1.0) if values.point is None else exactly(float(not values.point))


def _unit(values: Values) -> Values:
    return ANY if values.specials is Specials.any else Values(-1.0, 1.0)


def _finite_function(values: Values) -> Values:
    """Return the bounds of a function that is finite for finite numbers, and 0 for 0."""
    if values.specials:
        return ANY
    return ZERO if values.point == 0.0 else FINITE


def _above_zero(values: Values) -> Values:
    return _maximum(values, ZERO)


_BOUNDS: dict[str, Callable[..., Values]] = {
    "abs": lambda values: ANY if values.specials else Values(low=0.0),
    "add": _sum,
    "divide": _quotient,
    "equal": _equal,
    "erf": _unit,
    "cos": _unit,
    "exp": lambda values: (
        Values(low=0.0)
        if values.specials < Specials.any and values.high < 80.0
        else replace(ANY, low=0.0)
    ),
    "greater": lambda first, second: _less(second, first),
    "isnan": lambda values: (
        Values(0.0, 1.0) if values.specials is Specials.any else ZERO
    ),
    "less": _less,
    "logical_not": _not,
    "maximum": _maximum,
    "minimum": _minimum,
    "multiply": _product,
    "negative": _negative,
    "nn.relu": _above_zero,
    "nn.relu6": lambda values: _minimum(_above_zero(values), exactly(6.0)),
    "power": _power,
    "rsqrt": lambda values: (
        ANY if values.specials or values.low <= 0.0 else Values(0.0, values.low**-0.5)
    ),
    "sigmoid": _unit,
    "sin": _unit,
    "sqrt": _root,
    "square": lambda values: ANY if values.specials else Values(low=0.0),
    "subtract": lambda first, second: _sum(first, _negative(second)),
    "tanh": _unit,
    "where": _where,
    **dict.fromkeys(
        ("ceil", "floor", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.silu", "round", "sign"),
        _finite_function,
    ),
    "nn.softplus": lambda values: ANY if values.specials else Values(low=0.0),
}  # fmt: skip
"""Elementwise operator -> bounds of its values, from those of its operands; of another operator nothing is known."""
_LOGICAL = {"bitwise_and": np.logical_and, "bitwise_or": np.logical_or}
"""Of booleans, which TVM computes bit by bit."""
_OTHER_IN_NUMPY = ("bitwise_and", "bitwise_or", "mod")
"""Operators that are others in NumPy, or have no meaning for its floating-point numbers."""


def elementwise_bounds(call: Any, name: str, dtype: str, each: Sequence[Values]) -> Values:
    """Return bounds of the values of an elementwise operator.

    Args:
        call: of the operator.
        name: of the operator, without "relax.".
        dtype: of its output.
        each: bounds of the operands' values.
    """
    points = [values.point for values in each]
    is_bool = dtype == "bool"
    function: Any = _LOGICAL.get(name) if is_bool else None
    if function is None and name not in _OTHER_IN_NUMPY:
        function = getattr(np, name, None)
    if isinstance(function, np.ufunc) and len(points) == function.nin and None not in points:
        number = np.float32 if dtype == "float32" else np.float64
        with np.errstate(all="ignore"):
            value = float(function(*map(number, points)))
        if is_bool or dtype.startswith("float") or value.is_integer():
            return exactly(value)
        return FINITE  # integers are divided otherwise
    if name.startswith(("logical_", "bitwise_")) and dtype == "bool":
        ands = name.endswith("_and")
        if name.endswith(("_and", "_or")):
            if any(point is not None and bool(point) is not ands for point in points):
                return exactly(float(not ands))
            return Values(0.0, 1.0)
    if name == "astype":
        (values,) = each
        if dtype == "bool":
            return Values(0.0, 1.0) if values.point is None else exactly(float(values.point != 0))
        if not dtype.startswith(("float", "bfloat")):
            low, high = (
                bound if math.isinf(bound) else whole(bound)
                for whole, bound in ((math.floor, values.low), (math.ceil, values.high))
            )
            return Values(low, high)
        return values
    if name == "clip":
        low, high = (float(value.value) for value in call.args[1:3])
        return _minimum(_maximum(each[0], exactly(low)), exactly(high))
    if name in _BOUNDS:
        return _BOUNDS[name](*each)
    return Values(0.0, 1.0) if dtype == "bool" else ANY
