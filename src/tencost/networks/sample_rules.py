"""Where the samples of a batch do not meet: by operator, for :mod:`tencost.networks.samples`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class MeetError(Exception):
    """Samples meet in an operator, or may."""


Rule = Callable[[Any, Mapping[Any, bool]], set[int]]
"""A call and the divided variables -> the arguments of which each part reads its own share of the leading axis.

It raises MeetError where samples meet.
"""


def is_divided(value: Any, divided: Mapping[Any, bool]) -> bool:
    """Say whether an expression's leading axis is that of the samples, given the variables of which it is."""
    from tvm import relax

    if isinstance(value, relax.Tuple):
        return any(is_divided(field, divided) for field in value.fields)
    if isinstance(value, relax.TupleGetItem):
        return is_divided(value.tuple_value, divided)
    return isinstance(value, relax.Var) and divided.get(value, False)


def static_shape(value: Any) -> tuple[int, ...]:
    """Return a tensor's shape; empty of anything else, of a number, and of shapes that are not known."""
    sizes = getattr(getattr(value, "ty", None), "shape", None)
    sizes = getattr(sizes, "values", sizes)
    if sizes is None or not all(hasattr(size, "value") for size in sizes):
        return ()
    return tuple(int(size) for size in sizes)


def count_of(value: Any) -> int:
    """Return how many numbers a tensor has."""
    return math.prod(static_shape(value))


def _aligned(call: Any, divided: Mapping[Any, bool]) -> set[int]:
    """An operator of which every number needs those of the same place, broadcast: its leading axis is the operands'."""
    from tvm import relax

    arguments = list(call.args)
    if isinstance(arguments[0], relax.Tuple):
        arguments = list(arguments[0].fields)
    rank, shared = len(static_shape(call)), set()
    for place, argument in enumerate(arguments):
        shape = static_shape(argument)
        if not shape:
            if is_divided(argument, divided):
                raise MeetError
            continue
        leads = len(shape) == rank and shape[0] == static_shape(call)[0]
        if leads and not is_divided(argument, divided):
            shared.add(place)
        elif not leads and (is_divided(argument, divided) or (len(shape) == rank and shape[0] > 1)):
            raise MeetError
    return shared


def _needs(condition: Callable[[Any], bool]) -> Rule:
    """Return the rule of an operator of which the first argument alone may be divided, under a condition."""

    def rule(call: Any, divided: Mapping[Any, bool]) -> set[int]:
        others = any(is_divided(argument, divided) for argument in call.args[1:])
        if others or not is_divided(call.args[0], divided) or not condition(call):
            raise MeetError
        return set()

    return rule


def _rank(call: Any) -> int:
    return len(static_shape(call.args[0]))


def _axes(call: Any, names: Sequence[str]) -> list[int]:
    """Return an operator's axes, not negative; raises MeetError where it takes all of them."""
    found: list[int] = []
    for name in names:
        value = getattr(call.attrs, name)
        if value is None:
            raise MeetError
        values = value if hasattr(value, "__len__") else [value]
        found += [int(axis) % _rank(call) for axis in values]
    return found


def _not_along(*names: str) -> Rule:
    return _needs(lambda call: 0 not in _axes(call, names))


def _matmul(call: Any, divided: Mapping[Any, bool]) -> set[int]:
    """Rows, or stacks, of the first operand are divided; stacks of the second one with those of the first."""
    first, second = (len(static_shape(argument)) for argument in call.args)
    if not is_divided(call.args[1], divided):
        if first == 1 or (second > 2 and first == 2):
            raise MeetError
        if second == 2:
            return set()
    elif second == 2 or first == 2:
        raise MeetError
    return _aligned(call, divided)


def _take(call: Any, divided: Mapping[Any, bool]) -> set[int]:
    """Places are divided, of a table; or the same places are taken of each sample."""
    places = is_divided(call.args[1], divided)
    axis = call.attrs.axis
    if axis is None or places == is_divided(call.args[0], divided):
        raise MeetError
    if (int(axis) % _rank(call) == 0) != places:
        raise MeetError
    return set()


def _concat(call: Any, _divided: Mapping[Any, bool]) -> set[int]:
    from tvm import relax

    if (
        not isinstance(call.args[0], relax.Tuple)
        or int(call.attrs.axis) % len(static_shape(call)) == 0
    ):
        raise MeetError
    leading = {(static_shape(field) or (0,))[0] for field in call.args[0].fields}
    if leading != {static_shape(call)[0]}:
        raise MeetError
    return {0}


def _gathered(call: Any, divided: Mapping[Any, bool]) -> set[int]:
    if int(call.attrs.axis) % _rank(call) == 0:
        raise MeetError
    return _aligned(call, divided)


def _sliced(call: Any) -> bool:
    """Whether a slice leaves the leading axis whole."""
    axes = [int(axis.value) % _rank(call) for axis in call.args[1].fields]
    return 0 not in axes


def _reshaped(call: Any) -> bool:
    return len(static_shape(call)) > 0


ELEMENTWISE = (
    "abs",
    "add",
    "astype",
    "bitwise_and",
    "bitwise_or",
    "ceil",
    "clip",
    "cos",
    "cosh",
    "divide",
    "equal",
    "erf",
    "exp",
    "floor",
    "floor_divide",
    "floor_mod",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "negative",
    "not_equal",
    "nn.gelu",
    "nn.gelu_tanh",
    "nn.leakyrelu",
    "nn.relu",
    "nn.relu6",
    "nn.silu",
    "nn.softplus",
    "power",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "where",
)
_WINDOWS = (
    "nn.avg_pool1d",
    "nn.avg_pool2d",
    "nn.avg_pool3d",
    "nn.max_pool1d",
    "nn.max_pool2d",
    "nn.max_pool3d",
    "nn.adaptive_avg_pool1d",
    "nn.adaptive_avg_pool2d",
    "nn.adaptive_avg_pool3d",
    "image.resize2d",
)
_CONVOLUTIONS = (
    "nn.conv1d",
    "nn.conv2d",
    "nn.conv3d",
    "nn.conv1d_transpose",
    "nn.conv2d_transpose",
)
_SUMS = ("max", "mean", "min", "prod", "std", "sum", "variance")
TABLES = ("relax.take", "relax.gather_elements")
SHAPED = ("relax.reshape", "relax.broadcast_to")
IN_PLACE = (
    *(f"relax.{name}" for name in ELEMENTWISE),
    "relax.reshape",
    "relax.expand_dims",
    "relax.squeeze",
)
"""Operators that are computed where the one before them stores its values, or that move nothing."""
RULES: dict[str, Rule] = {
    **{f"relax.{name}": _aligned for name in ELEMENTWISE},
    **{f"relax.{name}": _needs(lambda call: str(call.attrs.layout)[0] == "N") for name in _WINDOWS},
    **{
        f"relax.{name}": _needs(lambda call: str(call.attrs.data_layout)[0] == "N")
        for name in _CONVOLUTIONS
    },
    **{f"relax.{name}": _not_along("axis") for name in (*_SUMS, "argmax", "argmin", "cumsum")},
    **{f"relax.nn.{name}": _not_along("axis") for name in ("softmax", "log_softmax")},
    **{f"relax.nn.{name}": _not_along("axes") for name in ("layer_norm", "rms_norm")},
    "relax.nn.group_norm": _not_along("channel_axis", "axes"),
    "relax.nn.instance_norm": _not_along("channel_axis", "axes"),
    "relax.nn.batch_norm": _not_along("axis"),
    "relax.nn.pad": _needs(lambda call: not any(map(int, list(call.attrs.pad_width)[:2]))),
    "relax.broadcast_to": _needs(lambda call: len(static_shape(call)) == _rank(call)),
    "relax.concat": _concat,
    "relax.expand_dims": _needs(
        lambda call: all(int(axis) % len(static_shape(call)) for axis in call.attrs.axis)
    ),
    "relax.gather_elements": _gathered,
    "relax.matmul": _matmul,
    "relax.permute_dims": _needs(
        lambda call: call.attrs.axes is not None and int(call.attrs.axes[0]) % _rank(call) == 0
    ),
    "relax.reshape": _needs(_reshaped),
    "relax.split": _not_along("axis"),
    "relax.squeeze": _not_along("axis"),
    "relax.strided_slice": _needs(_sliced),
    "relax.take": _take,
}
"""Operator -> its rule. A reshape keeps the order of numbers: what leads is divided before and after it."""
