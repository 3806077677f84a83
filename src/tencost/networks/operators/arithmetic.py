"""Arithmetic and comparisons, value by value, and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from tencost.networks.onnx_graph import node_attributes
from tencost.networks.operators.functions import as_function
from tencost.networks.operators.node import Node, Refused


def _is_inf(node: Node) -> None:
    """The frontend looks at neither flag."""
    positive, negative = (node.attribute(f"detect_{sign}", 1) for sign in ("positive", "negative"))
    if positive and negative:
        return
    infinity = node.write_constant(np.inf if positive else -np.inf, node.dtype(0))
    op_type = "Equal" if positive or negative else "Less"  # nothing is less than -inf
    node.finish(op_type, node.proto.input[0], infinity)


def _pow(node: Node) -> None:
    """TVM raises floats only, to powers of their own type; as ONNX Runtime does, integers are raised as float64."""
    if node.opset < 7:
        _broadcast(node)
        return
    if not (node.has_type(0) and node.has_type(1)):
        return
    dtype, exponent_dtype = node.dtype(0), node.dtype(1)
    if dtype == exponent_dtype and dtype.kind == "f":
        return
    whole = dtype.kind != "f" and exponent_dtype.kind != "f"
    if whole and dtype.itemsize == 8:
        _whole_power(node, dtype)
        return
    through = dtype if dtype.kind == "f" else np.float64
    power = node.write("Pow", *(node.cast(name, through) for name in node.proto.input))
    power = node.cast(node.write("Round", power) if whole else power, dtype)
    _finish_power(node, power, dtype)


def _finish_power(node: Node, power: str, dtype: np.dtype[Any]) -> None:
    """Have 0 to a power below 0, an infinity, be the least integer, as ONNX Runtime casts it."""
    powers = node.constant(1)
    if dtype.kind != "i" or (powers is not None and (powers >= 0).all()):
        node.finish("Identity", power)
        return
    zeros = (node.write_constant(0, node.dtype(index)) for index in (0, 1))
    is_zero, is_below = (
        node.write(op_type, name, zero)
        for op_type, name, zero in zip(("Equal", "Less"), node.proto.input, zeros, strict=True)
    )
    least = node.write_constant(np.iinfo(dtype).min, dtype)
    node.finish("Where", node.write("And", is_zero, is_below), least, power)


def _whole_power(node: Node, dtype: np.dtype[Any]) -> None:
    """Multiply 64-bit integers by themselves, as float64 does not hold them.

    Of a power below 0 only those of 1 and -1 are whole; the others become 0, as the quotient is cut off.
    """
    base, exponent = (
        node.reshape(node.cast(name, dtype), [*node.shape(index), 1])
        for index, name in enumerate(node.proto.input)
    )
    zero, one = (node.write_constant(number, dtype) for number in (0, 1))
    number = node.write("Abs", exponent) if dtype.kind == "i" else exponent
    powers, most = node.constant(1), 63
    if powers is not None:
        most = max(int(np.abs(powers.astype(np.int64)).max(initial=0)), 1)
    if most > 63 or powers is None:
        # Beyond 63 only powers of 0, 1 and -1 fit, which depend on whether the exponent is odd.
        parity = node.write("Mod", number, node.write_constant(2, dtype))
        reduced = node.write("Add", parity, node.write_constant(62, dtype))
        fits = node.write("Less", number, node.write_constant(64, dtype))
        number, most = node.write("Where", fits, number, reduced), 63
    is_factor = node.write("Less", node.write_constant(np.arange(most), dtype), number)
    power = node.reduce("ReduceProd", node.write("Where", is_factor, base, one), [-1], keepdims=1)
    if dtype.kind == "i":
        is_unit = node.write("Equal", node.write("Abs", base), one)
        is_fraction = node.write(
            "And", node.write("Less", exponent, zero), node.write("Not", is_unit)
        )
        power = node.write("Where", is_fraction, zero, power)
    power = node.reshape(power, np.broadcast_shapes(node.shape(0), node.shape(1)))
    _finish_power(node, power, dtype)


def _prelu(node: Node) -> None:
    """The frontend takes a slope with one axis for one of the last axis; before operator set 7 it is the channels'."""
    if node.opset >= 7:
        return
    rank, slope = len(node.shape(0)), node.shape(1)
    if len(slope) == 1 and slope[0] != 1 and rank >= 3:
        data, name = node.proto.input
        node.finish("PRelu", data, node.write("Unsqueeze", name, axes=list(range(1, rank - 1))))


def _broadcast(node: Node) -> None:
    """The frontend looks at no axis that the second operand begins at, as it may before operator set 7."""
    axis = node.attribute("axis")
    if node.opset >= 7 or axis is None:
        return
    rank, second_rank = len(node.shape(0)), len(node.shape(1))
    trailing = rank - second_rank - int(axis) % rank
    if trailing > 0 and second_rank:
        axes = list(range(second_rank, second_rank + trailing))
        second = node.write("Unsqueeze", node.proto.input[1], axes=axes)
        node.finish(node.proto.op_type, node.proto.input[0], second, broadcast=1)


def _bit_shift(node: Node) -> None:
    """A shift by less than 0 or by all bits and more is not defined in LLVM; ONNX says what it gives."""
    dtype, places = node.dtype(0), node.constant(1)
    bits = 8 * dtype.itemsize
    if places is not None and np.all((places >= 0) & (places < bits)):
        return
    direction = node.attribute("direction")
    data, by = node.proto.input
    zero = node.write_constant(0, dtype)
    least = node.write("GreaterOrEqual", by, zero)
    valid = node.write("And", least, node.write("Less", by, node.write_constant(bits, dtype)))
    within = node.write("Where", valid, by, zero)
    shifted = node.write("BitShift", data, within, direction=direction)
    end = zero
    if direction != "LEFT" and dtype.kind != "u":
        negative = node.write("Less", data, zero)
        end = node.write("Where", negative, node.write_constant(-1, dtype), zero)
    node.finish("Where", valid, shifted, end)


def _mod(node: Node) -> None:
    """The frontend divides floats, so that what is left of a division by infinity is not a number."""
    dtype = node.dtype(0)
    if dtype.kind != "f" or node.attribute("fmod", 0):
        return
    data, by = node.proto.input
    zero = node.write_constant(0, dtype)
    rest = node.write("Mod", data, by, fmod=1)
    signs_differ = node.write("Xor", node.write("Less", rest, zero), node.write("Less", by, zero))
    some_rest = node.write("Not", node.write("Equal", rest, zero))
    added = node.write("And", signs_differ, some_rest)
    node.finish("Where", added, node.write("Add", rest, by), rest)


def _elu(node: Node) -> None:
    """The frontend takes every number for a float32."""
    if node.dtype(0) != np.float32:
        as_function(node)


def _reduce_bool(node: Node) -> None:
    """TVM knows no least and no largest truth value."""
    if node.has_type(0) and node.dtype(0) == np.bool_:
        data, *others = node.proto.input
        numbers = node.cast(data, np.uint8)
        reduced = node.write(node.proto.op_type, numbers, *others, **node_attributes(node.proto))
        node.cast(reduced, np.bool_, node.proto.output)


def _log_sum_exp(node: Node) -> None:
    """The frontend takes the largest number off before it sums: of an infinity, what is left is not a number."""
    axes = node.attribute("axes") if node.opset < 18 else node.constant(1)
    is_computed = axes is None and node.has_input(1)
    is_none = not np.size(axes if axes is not None else ()) and node.attribute(
        "noop_with_empty_axes", 0
    )
    if is_computed or is_none or not node.has_type(0) or node.dtype(0).kind != "f":
        return

    def reduced(op_type: str, data: str, keepdims: int = 1, outputs: Sequence[str] = ()) -> str:
        if axes is None or not np.size(axes):
            return node.write(op_type, data, outputs=outputs, keepdims=keepdims)
        places = [int(axis) for axis in axes]
        return node.reduce(op_type, data, places, keepdims=keepdims, outputs=outputs)

    limits = np.finfo(node.dtype(0))
    low, high = (node.write_constant(limit, node.dtype(0)) for limit in (limits.min, limits.max))
    data = node.proto.input[0]
    largest = node.write("Min", node.write("Max", reduced("ReduceMax", data), low), high)
    parts = node.write("Exp", node.write("Sub", data, largest))
    total = node.write("Add", node.write("Log", reduced("ReduceSum", parts)), largest)
    if node.attribute("keepdims", 1):
        node.finish("Identity", total)
    else:
        # Of axes of one number each.
        reduced("ReduceMax", total, 0, node.proto.output)


def _determinant(node: Node) -> None:
    """Sum the products of all permutations, as Leibniz has it: of few rows, without the divisions of an elimination."""
    shape = node.shape(0)
    size = shape[-1]
    if size > 5:
        raise Refused(
            f"Det of {size} x {size} matrices; TVM has none, and tencost writes up to 5 x 5"
        )
    orders = np.array(list(permutations(range(size))))
    # The sign of a permutation is the determinant of its matrix.
    signs = np.round(np.linalg.det(np.eye(size)[orders]))
    flat = node.write(
        "Reshape", node.proto.input[0], node.write_constant([*shape[:-2], -1], np.int64)
    )
    factors = node.write(
        "Gather", flat, node.write_constant(orders + size * np.arange(size)), axis=-1
    )
    products = node.reduce("ReduceProd", factors, [-1], keepdims=0)
    signed = node.write("Mul", products, node.write_constant(signs, node.dtype(0)))
    node.reduce("ReduceSum", signed, [-1], keepdims=0, outputs=node.proto.output)


def _running_product(node: Node) -> None:
    """TVM takes the axis as a number."""
    if node.constant(1) is None:
        raise Refused("CumProd whose axis is no constant")


WRITERS = {
    "BitShift": _bit_shift, "CumProd": _running_product, "Det": _determinant, "Elu": _elu,
    "IsInf": _is_inf, "Mod": _mod, "PRelu": _prelu, "Pow": _pow, "ReduceLogSumExp": _log_sum_exp,
} | dict.fromkeys(("ReduceMax", "ReduceMin"), _reduce_bool) | dict.fromkeys(
    ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Sub", "Xor"), _broadcast
)  # fmt: skip
