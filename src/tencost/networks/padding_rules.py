"""What each operator does to a tensor's front and padding, for :mod:`tencost.networks.padding`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tencost.networks.padding_values import (
    ANY,
    FINITE,
    HALF_OF_FLOAT16,
    HIDDEN,
    ZERO,
    Specials,
    Values,
    elementwise_bounds,
    exactly,
)
from tencost.networks.sample_rules import ELEMENTWISE


class PaddingError(Exception):
    """Padding changes results, or may; the message names the operator."""


@dataclass(frozen=True)
class Pair:
    """A tensor of both graphs.

    Attributes:
        small, large: its shapes.
        values: of all its numbers in the large graph.
        behind: open axis -> bounds of the values in its padding.
        blocks: open axis -> how often front and padding follow each other along it: once, or more after a reshape.
        constant: its numbers in the large graph, where they are constants; the small graph has the front of them.
    """

    small: tuple[int, ...]
    large: tuple[int, ...]
    values: Values = FINITE
    behind: Mapping[int, Values] = field(default_factory=dict)
    blocks: Mapping[int, int] = field(default_factory=dict)
    constant: Any = None

    def hides(self, axis: int) -> bool:
        """Whether the padding of an axis is far below what is in front of it, where a mask leaves something there."""
        padding = self.behind[axis]
        is_low = padding.depth >= HIDDEN and padding.specials is not Specials.any
        return is_low and self.values.depth < HIDDEN / 4

    @property
    def open(self) -> list[int]:
        return [axis for axis, size in enumerate(self.large) if size != self.small[axis]]

    def along(self, axis: int) -> Values:
        """Return bounds of the values in the padding of an axis; of all values where it is not open."""
        return self.behind.get(axis, self.values)

    def block(self, axis: int) -> int:
        return self.blocks.get(axis, 1)


Rule = Callable[["Node"], "Pair | list[Pair]"]


@dataclass(frozen=True)
class Node:
    """A call of an operator, in both graphs.

    Attributes:
        name: of the operator, without "relax.".
        calls: the call in the small graph and in the large one.
        operands: its tensors; those of a tuple one after the other.
        shapes: of its outputs, in the small and the large graph.
        dtype: of its first output.
    """

    name: str
    calls: tuple[Any, Any]
    operands: list[Pair]
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]]
    dtype: str

    @property
    def attrs(self) -> Any:
        return self.calls[1].attrs

    def refuse(self, why: str) -> PaddingError:
        return PaddingError(f"{self.name} {why}")

    def axes(self, *names: str) -> list[int]:
        """Return axes of the first operand from attributes, not negative; all axes where an attribute has none."""
        rank, axes = len(self.operands[0].large), []
        for name in names:
            value = getattr(self.attrs, name)
            if value is None:
                return list(range(rank))
            axes += [int(axis) % rank for axis in (value if hasattr(value, "__len__") else [value])]
        return axes

    def closed(self, axes: Iterable[int], operand: int = 0) -> None:
        """Raise PaddingError if one of an operand's axes is open."""
        for axis in set(axes) & set(self.operands[operand].open):
            raise self.refuse(
                f"goes over axis {axis} of {list(self.operands[operand].large)}, the padding with it"
            )

    def others_closed(self) -> None:
        """Raise PaddingError if an operand other than the first one has an open axis."""
        for number, operand in enumerate(self.operands[1:], 1):
            self.closed(operand.open, number)

    def out(
        self,
        sources: Callable[[int], Iterable[tuple[Pair, int]]],
        compute: Callable[[Sequence[Values]], Values],
        place: int = 0,
    ) -> Pair:
        """Return an output.

        Args:
            sources: axis of the output -> the operands, each with its axis that becomes this one, or -1.
            compute: bounds of the operands' values -> those of the output's.
            place: which output.
        """
        small, large = self.shapes[place]
        output = Pair(small, large)
        behind, blocks = {}, {}
        for axis in output.open:
            each = list(sources(axis))
            counts = {pair.block(source) for pair, source in each if source in pair.open}
            if len(counts) != 1:
                raise self.refuse(f"makes axis {axis} of {list(large)} from others")
            (blocks[axis],) = counts
            behind[axis] = compute([pair.along(source) for pair, source in each])
        whole = compute([operand.values for operand in self.operands])
        # The padding is a part of all values, of which more may be known than of the whole.
        return Pair(
            small, large, whole.joined(*behind.values()) if behind else whole, behind, blocks
        )

    def unary(
        self,
        axis_of: Mapping[int, int],
        compute: Callable[[Values], Values] = lambda values: values,
    ) -> Pair:
        """Return an output of the first operand alone; `axis_of`: axis of the output -> of the operand."""
        first = self.operands[0]
        return self.out(
            lambda axis: [(first, axis_of.get(axis, -1))], lambda each: compute(each[0])
        )


def _elementwise(node: Node) -> Pair:
    def compute(each: Sequence[Values]) -> Values:
        values = elementwise_bounds(node.calls[1], node.name, node.dtype, each)
        if node.dtype == "float16" and values.depth > HALF_OF_FLOAT16:
            # A score less the least number of half precision may be -inf.
            return replace(values, specials=max(values.specials, Specials.minus_infinity))
        return values

    rank = len(node.shapes[0][1])

    def sources(axis: int) -> list[tuple[Pair, int]]:
        return [(operand, axis - rank + len(operand.large)) for operand in node.operands]

    return node.out(sources, compute)


def _permuted(node: Node) -> Pair:
    rank = len(node.operands[0].large)
    axes = node.attrs.axes
    order = range(rank)[::-1] if axes is None else [int(axis) % rank for axis in axes]
    return node.unary(dict(enumerate(order)))


def _expanded(node: Node) -> Pair:
    rank = len(node.shapes[0][1])
    added = {int(axis) % rank for axis in node.attrs.axis}
    return node.unary(
        {axis: place for place, axis in enumerate(a for a in range(rank) if a not in added)}
    )


def _squeezed(node: Node) -> Pair:
    first = node.operands[0]
    if node.attrs.axis is None:
        removed = {axis for axis, size in enumerate(first.large) if size == 1}
    else:
        removed = set(node.axes("axis"))
    remaining = [axis for axis in range(len(first.large)) if axis not in removed]
    return node.unary(dict(enumerate(remaining)))


def _broadcast(node: Node) -> Pair:
    """Axes of one number may be repeated as often as the size says."""
    first, (small, large) = node.operands[0], node.shapes[0]
    shift = len(large) - len(first.large)
    output = Pair(small, large, first.values)
    behind = {axis: first.along(axis - shift) for axis in output.open}
    blocks = {axis: first.block(axis - shift) for axis in output.open}
    return replace(output, behind=behind, blocks=blocks)


def _reshaped(node: Node) -> Pair:
    """Axes are merged and divided in groups; along a group's open axis front and padding stay apart."""
    first, (small, large) = node.operands[0], node.shapes[0]
    output = Pair(small, large, first.values)
    behind, blocks = {}, {}
    for before, after in _groups((first.small, first.large), (small, large)):
        opened = [axis for axis in before if axis in first.open]
        opening = [axis for axis in after if axis in output.open]
        if not opened and not opening:
            continue
        if len(opened) != 1 or len(opening) != 1:
            raise node.refuse(f"from {list(first.large)} to {list(large)} mixes front and padding")
        (old,), (new,) = opened, opening
        count = first.block(old) * math.prod(first.large[before.start : old])
        ahead = math.prod(large[after.start : new])
        parts = count // ahead
        if count % ahead or small[new] % parts or large[new] % parts:
            raise node.refuse(f"from {list(first.large)} to {list(large)} mixes front and padding")
        blocks[new], behind[new] = parts, first.behind[old]
    return replace(output, behind=behind, blocks=blocks)


def _groups(before: Any, after: Any) -> list[tuple[range, range]]:
    """Return the least groups of neighbouring axes of equal counts before and after a reshape, in both sizes."""

    def ends(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> dict[tuple[int, int], int]:
        axis_ends: dict[tuple[int, int], int] = {}
        counts = (1, 1)
        for axis, each in enumerate(zip(*shapes, strict=True)):
            counts = (counts[0] * each[0], counts[1] * each[1])
            axis_ends[counts] = axis + 1  # ones behind belong to the group
        return axis_ends

    first, second = ends(before), ends(after)
    groups, start = [], (0, 0)
    for counts, end in first.items():
        if counts in second:
            groups.append((range(start[0], end), range(start[1], second[counts])))
            start = end, second[counts]
    return groups


def _concatenated(node: Node) -> Pair:
    rank = len(node.shapes[0][1])
    axis = int(node.attrs.axis or 0) % rank
    *ahead, last = node.operands
    if any(axis in operand.open for operand in ahead) or last.block(axis) > 1:
        raise node.refuse(f"puts others behind the padding, along axis {axis}")
    small, large = node.shapes[0]
    output = Pair(small, large)
    behind = {
        each: last.behind[each]
        if each == axis
        else node.operands[0].along(each).joined(*(pair.along(each) for pair in node.operands[1:]))
        for each in output.open
    }
    values = node.operands[0].values.joined(*(pair.values for pair in node.operands[1:]))
    counts = {(each, pair.block(each)) for pair in node.operands for each in pair.open}
    if len(counts) > len(output.open):
        raise node.refuse("joins tensors whose paddings lie elsewhere")
    return replace(output, values=values, behind=behind, blocks=dict(counts))


def _split(node: Node) -> list[Pair]:
    first, axis = node.operands[0], node.axes("axis")[0]
    begins: list[tuple[int, ...]] = []
    for call, size in zip(node.calls, (first.small[axis], first.large[axis]), strict=True):
        parts = call.attrs.indices_or_sections
        if hasattr(parts, "__len__"):
            begins.append((0, *map(int, parts)))
        else:
            begins.append(tuple(range(0, size, -(-size // int(parts)))))
    if begins[0] != begins[1] or (axis in first.open and first.block(axis) > 1):
        raise node.refuse(f"divides axis {axis} of {list(first.large)} by the size")
    same = {each: each for each in range(len(first.large))}
    # A part that begins in front may end in the padding, which is behind then, too.
    return [replace(node, shapes=[shapes]).unary(same) for shapes in node.shapes]


def _sliced(node: Node) -> Pair:
    first = node.operands[0]
    rank = len(first.large)
    for number, axis in enumerate(int(axis) % rank for axis in node.calls[1].args[1].fields):
        begins = []
        for call, shape in zip(node.calls, (first.small, first.large), strict=True):
            begin = int(call.args[2].fields[number])
            begins.append(begin + shape[axis] if begin < 0 else begin)
        strides = [
            int(call.args[4].fields[number]) if len(call.args) > 4 else 1 for call in node.calls
        ]
        is_open = axis in first.open
        if begins[0] != begins[1] or len(set(strides)) > 1:
            raise node.refuse(f"begins elsewhere in axis {axis} for another size")
        if is_open and (strides[0] < 1 or first.block(axis) > 1):
            raise node.refuse(f"goes backwards through axis {axis}")
    output = Pair(*node.shapes[0], first.values)
    behind = {axis: first.along(axis) for axis in output.open}
    return replace(output, behind=behind, blocks={axis: first.block(axis) for axis in output.open})


def _looked_up(node: Node, indices: Sequence[Any], first_axis: int) -> Pair:
    """Numbers of places along some axes of a table: places in an open axis have to be constants.

    Args:
        node: its first operand is the table.
        indices: for each of the axes the places: a pair, or constants of the shape of all of them.
        first_axis: the first of these axes.
    """
    table = node.operands[0]
    count = len(indices)
    places = len(node.shapes[0][1]) - len(table.large) + count
    inherited: dict[int, Values] = {}
    for axis, index in enumerate(indices, first_axis):
        if axis not in table.open:
            continue
        constant = index.constant if isinstance(index, Pair) else index
        if constant is None or table.block(axis) > 1:
            raise node.refuse(
                f"reads axis {axis} of {list(table.large)} at places that it computes"
            )
        if constant.min(initial=0) < 0:
            raise node.refuse(f"reads axis {axis} of {list(table.large)} from its end")
        for place in range(places):
            dimension = place - places + constant.ndim
            if dimension < 0:
                continue
            shape = [-1 if each == dimension else 1 for each in range(constant.ndim)]
            if (constant == np.arange(constant.shape[dimension]).reshape(shape)).all():
                inherited[first_axis + place] = table.behind[axis]
    small, large = node.shapes[0]
    output = Pair(small, large, table.values)
    behind, blocks = {}, {}
    for axis in output.open:
        old = axis if axis < first_axis else axis - places + count
        is_place = first_axis <= axis < first_axis + places
        behind[axis] = inherited.get(axis, table.values) if is_place else table.along(old)
        if is_place:
            sources = [
                index.block(axis - first_axis - places + len(index.large))
                for index in indices
                if isinstance(index, Pair)
            ]
            blocks[axis] = max(sources, default=1)
            if blocks[axis] > 1 and len(indices) > 1:
                raise node.refuse("looks up places whose paddings lie elsewhere")
        else:
            blocks[axis] = table.block(old)
    return replace(output, behind=behind, blocks=blocks)


def _taken(node: Node) -> Pair:
    table, places = node.operands
    if node.attrs.axis is None:
        node.closed(range(len(table.large)))
    return _looked_up(node, [places], node.axes("axis")[0] if node.attrs.axis is not None else 0)


def _gathered_nd(node: Node) -> Pair:
    places = node.operands[1]
    if int(node.attrs.batch_dims):
        raise node.refuse("has no rule for batch_dims that allows padding")
    count = places.large[-1]
    node.closed([len(places.large) - 1], 1)
    if places.constant is not None:
        return _looked_up(node, [places.constant[..., part] for part in range(count)], 0)
    alone = Pair(places.small[:-1], places.large[:-1], blocks=places.blocks)
    return _looked_up(node, [alone] * count, 0)


def _indexed(node: Node) -> Pair:
    return _looked_up(node, node.operands[1:], 0)


def _gathered_elements(node: Node) -> Pair:
    table, places = node.operands
    (axis,) = node.axes("axis")
    node.closed([axis])

    def sources(each: int) -> list[tuple[Pair, int]]:
        return [(places, each)] if each == axis else [(places, each), (table, each)]

    return node.out(sources, lambda _: table.values)


def _reduced(node: Node) -> Pair:
    """Sums, means, largest numbers: over an open axis only where the padding provably changes nothing."""
    first = node.operands[0]
    axes = set(node.axes("axis"))
    for axis in axes & set(first.open):
        padding = first.behind[axis]
        hidden = first.hides(axis)
        is_finite = padding.specials is Specials.none
        unchanged = {
            "sum": padding.point == 0.0,
            "max": hidden or (is_finite and padding.high <= first.values.low),
            "min": is_finite and padding.low >= first.values.high,
            "argmax": hidden and first.block(axis) == 1,
            "prod": padding.point == 1.0,
        }
        if not unchanged.get(node.name, False):
            node.closed([axis])
    count = math.prod(first.large[axis] for axis in axes)

    def compute(values: Values) -> Values:
        if node.name in ("max", "min"):
            return values
        if values.specials is Specials.any:
            return ANY
        if node.name == "mean":
            return replace(values, below=0.0)
        if node.name == "sum":
            low, high = (0.0 if not bound else bound * count for bound in (values.low, values.high))
            return Values(low, high, values.specials)
        if node.name in ("std", "variance", "argmax", "argmin"):
            return Values(low=0.0, specials=Specials.any if values.specials else Specials.none)
        return ZERO if values.point == 0.0 else FINITE

    rank = len(first.large)
    if node.attrs.keepdims:
        remaining = {axis: axis for axis in range(rank) if axis not in axes}
    else:
        remaining = dict(enumerate(axis for axis in range(rank) if axis not in axes))
    return node.unary(remaining, compute)


def _softmax(node: Node) -> Pair:
    """Over an open axis the padding has to be hidden; its shares are zero then."""
    first = node.operands[0]
    (axis,) = node.axes("axis")
    is_log = node.name == "nn.log_softmax"
    if axis in first.open and not first.hides(axis):
        node.closed([axis])

    def compute(values: Values) -> Values:
        # Rows of nothing but -inf are not a number.
        if values.specials is Specials.any or (values.specials and values.depth >= HIDDEN):
            return ANY
        return Values(high=0.0) if is_log else Values(0.0, 1.0)

    same = {each: each for each in range(len(first.large))}
    if axis not in first.open:
        return node.unary(same, compute)
    # Hidden scores are no row of their own.
    seen = replace(first, behind={**first.behind, axis: FINITE})
    output = replace(node, operands=[seen]).unary(same, compute)
    shares = replace(first.behind[axis], high=0.0) if is_log else ZERO
    return replace(
        output, values=output.values.joined(shares), behind={**output.behind, axis: shares}
    )


def _normalized(*names: str) -> Rule:
    """Return the rule of an operator whose numbers need others along the axes of these attributes."""

    def rule(node: Node) -> Pair | list[Pair]:
        node.closed(node.axes(*names))
        node.others_closed()
        if getattr(node.attrs, "training", False):
            raise node.refuse("goes over the whole batch, the padding with it")
        rank = len(node.operands[0].large)

        def compute(values: Values) -> Values:
            return ANY if values.specials else FINITE

        first = node.unary({axis: axis for axis in range(rank)}, compute)
        return [first, *(Pair(*shapes) for shapes in node.shapes[1:])]

    return rule


def _cumulated(node: Node) -> Pair:
    """Each sum is of the numbers before it."""
    first = node.operands[0]
    if node.attrs.axis is None or node.axes("axis")[0] in first.open:
        node.closed([axis for axis in first.open if first.block(axis) > 1])
    if node.attrs.axis is None and len(first.large) > 1:
        node.closed(range(len(first.large)))
    return node.unary(
        {axis: axis for axis in range(len(first.large))},
        lambda values: ANY if values.specials else FINITE,
    )


def _sorted(node: Node) -> Pair | list[Pair]:
    node.closed(node.axes("axis"))
    same = {axis: axis for axis in range(len(node.operands[0].large))}
    return [
        replace(node, shapes=[shapes]).unary(
            same, lambda values: replace(FINITE, specials=values.specials)
        )
        for shapes in node.shapes
    ]


def _matmul(node: Node) -> Pair:
    """Sums over the inner axis are right where one operand is zero in the padding and the other one is a number."""
    first, second = node.operands
    ranks = len(first.large), len(second.large)
    inner = ranks[0] - 1, max(ranks[1] - 2, 0)
    if inner[0] in first.open or inner[1] in second.open:
        paddings = [pair.along(axis) for pair, axis in zip((first, second), inner, strict=True)]
        blocks = {pair.block(axis) for pair, axis in zip((first, second), inner, strict=True)}
        exact = any(
            x.point == 0.0 and y.specials is Specials.none for x, y in (paddings, paddings[::-1])
        )
        if not exact or len(blocks) > 1:
            node.closed([inner[0]])
            node.closed([inner[1]], 1)
    rank = len(node.shapes[0][1])
    rows = rank - 1 - (ranks[1] > 1) if ranks[0] > 1 else None
    columns = rank - 1 if ranks[1] > 1 else None

    def sources(axis: int) -> list[tuple[Pair, int]]:
        if axis == rows:
            return [(first, ranks[0] - 2), (second, -1)]
        if axis == columns:
            return [(first, -1), (second, ranks[1] - 1)]
        shift = (rank - 1 - (ranks[1] > 1) + (ranks[0] == 1)) if rows is None else rows
        return [(first, axis - shift + ranks[0] - 2), (second, axis - shift + ranks[1] - 2)]

    def compute(each: Sequence[Values]) -> Values:
        x, y = each
        if max(x.specials, y.specials):
            return ANY
        return ZERO if 0.0 in (x.point, y.point) else FINITE

    return node.out(sources, compute)


def _window(node: Node) -> Pair:
    """A window may reach back: what it reads behind the front has to be the zeros that it reads behind the end."""
    first = node.operands[0]
    node.others_closed()
    attrs = node.attrs
    layout = str(getattr(attrs, "data_layout", None) or attrs.layout)
    spatial = [place for place, letter in enumerate(layout) if letter not in "NC"]
    is_convolution = hasattr(attrs, "data_layout")
    if is_convolution:
        node.closed([layout.index("C")])
    paddings = [int(width) for width in getattr(attrs, "padding", [])]
    for number, axis in enumerate(spatial):
        if axis not in first.open:
            continue
        reaches_back = (
            not node.name.endswith("_transpose")
            and hasattr(attrs, "strides")
            and not getattr(attrs, "ceil_mode", False)
            and first.block(axis) == 1
        )
        behind = paddings[len(paddings) // 2 + number] if len(paddings) > len(spatial) else (
            paddings[number] if paddings else 0
        )  # fmt: skip
        zeros = is_convolution and first.behind[axis].point == 0.0
        if not reaches_back or (behind and not zeros):
            node.closed([axis])

    def compute(values: Values) -> Values:
        return ANY if values.specials else FINITE

    return node.unary({axis: axis for axis in range(len(first.large))}, compute)


def _resized(node: Node) -> Pair:
    first = node.operands[0]
    layout = str(node.attrs.layout)
    node.closed(place for place, letter in enumerate(layout) if letter not in "NC")
    return node.unary({axis: axis for axis in range(len(first.large))}, lambda values: (
        ANY if values.specials else FINITE
    ))  # fmt: skip


def _padded(node: Node) -> Pair:
    """Numbers in front move the front; those behind it are in the padding already if they are zeros."""
    first = node.operands[0]
    widths = [int(width) for width in node.attrs.pad_width]
    value = float(node.attrs.pad_value)
    is_constant = str(node.attrs.pad_mode) == "constant"
    for axis in first.open:
        before, after = widths[2 * axis], widths[2 * axis + 1]
        is_same = is_constant and first.behind[axis].point == value
        if first.block(axis) > 1 and (before or after):
            node.closed([axis])
        if before < 0 or after < 0 or (before and not is_constant) or (after and not is_same):
            node.closed([axis])
    output = node.unary({axis: axis for axis in range(len(first.large))})
    behind = {
        axis: values
        if not any(widths[:2*axis] + widths[2*axis+2:])
        else values.joined(exactly(value))
        for axis, values in output.behind.items()
    }  # fmt: skip
    return replace(output, values=output.values.joined(exactly(value)), behind=behind)


def _filled(node: Node) -> Pair:
    """The same number everywhere, or as many steps as the size says."""
    small, large = node.shapes[0]
    if node.name == "arange":
        begins = [[float(call.args[place].value) for place in (0, 2)] for call in node.calls]
        if begins[0] != begins[1]:
            raise node.refuse("begins elsewhere for another size")
        values = FINITE
    elif node.name in ("zeros", "zeros_like"):
        values = ZERO
    elif node.name in ("ones", "ones_like"):
        values = exactly(1.0)
    else:
        fill = node.operands[-1]
        if fill.constant is None and fill.open:
            raise node.refuse("has no rule for such a number that allows padding")
        values = fill.values
    output = Pair(small, large, values)
    if node.name == "arange":
        first, _, step = (float(node.calls[1].args[place].value) for place in range(3))
        output = replace(output, constant=(first + step * np.arange(large[0])).astype(node.dtype))
    return replace(output, behind=dict.fromkeys(output.open, values))


def _triangle(node: Node) -> Pair:
    """A number stays or becomes zero by its place."""
    rank = len(node.operands[0].large)
    return node.unary({axis: axis for axis in range(rank)}, lambda values: values.joined(ZERO))


def _one_hot(node: Node) -> Pair:
    first = node.operands[0]
    rank = len(node.shapes[0][1])
    axis = int(node.attrs.axis) % rank
    others = [each for each in range(rank) if each != axis]
    output = node.unary({each: place for place, each in enumerate(others)}, lambda _: FINITE)
    return output if first.open else Pair(*node.shapes[0])


def _repeated(node: Node) -> Pair:
    if node.attrs.axis is None:
        node.closed(range(len(node.operands[0].large)))
    return node.unary({axis: axis for axis in range(len(node.operands[0].large))})


def _tiled(node: Node) -> Pair:
    first = node.operands[0]
    repeats = [int(count) for count in node.attrs.repeats]
    shift = len(node.shapes[0][1]) - len(first.large)
    lead = len(node.shapes[0][1]) - len(repeats)
    node.closed(
        axis
        for axis in range(len(first.large))
        if axis + shift >= lead and repeats[axis + shift - lead] > 1
    )
    return node.unary({axis + shift: axis for axis in range(len(first.large))})


def recurrent_layer(node: Node) -> list[Pair]:
    """A layer of :mod:`tencost.networks.recurrent`: the items of a batch do not meet."""
    product, *others = node.operands
    steps = [shapes[0] for shapes in node.shapes[0]]
    if steps[0] != steps[1] or (product.open and product.block(0) != steps[0]):
        raise node.refuse("of a recurrent layer goes through all steps, those of the padding, too")
    if product.open not in ([], [0]) or any(
        operand.open not in ([], [len(operand.large) - 2], [0])
        or max(operand.blocks.values(), default=1) > 1
        for operand in others
    ):
        raise node.refuse("of a recurrent layer reads padding")
    specials = max(operand.values.specials for operand in node.operands)
    output = []
    for small, large in node.shapes:
        pair = Pair(small, large, ANY if specials else FINITE)
        if pair.open not in ([], [len(large) - 2]):
            raise node.refuse("of a recurrent layer reads padding")
        output.append(replace(pair, behind=dict.fromkeys(pair.open, pair.values)))
    return output


SIZED = ("arange", "broadcast_to", "full", "ones", "reshape", "strided_slice", "zeros")
"""Operators that take sizes as arguments; their rules look at them."""
RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("sum", "max", "mean", "min", "prod", "std", "variance", "argmax", "argmin"), _reduced),
    **dict.fromkeys(("nn.softmax", "nn.log_softmax"), _softmax),
    **dict.fromkeys(("nn.layer_norm", "nn.rms_norm"), _normalized("axes")),
    **dict.fromkeys(("nn.group_norm", "nn.instance_norm"), _normalized("channel_axis", "axes")),
    "nn.batch_norm": _normalized("axis"),
    **dict.fromkeys(
        [f"nn.{kind}{rank}d" for kind in ("avg_pool", "max_pool", "adaptive_avg_pool", "conv") for rank in (1, 2, 3)],
        _window,
    ),
    **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"), _window),
    **dict.fromkeys(("full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "arange"), _filled),
    **dict.fromkeys(("tril", "triu"), _triangle),
    **dict.fromkeys(("cumsum", "cumprod"), _cumulated),
    **dict.fromkeys(("sort", "argsort", "topk"), _sorted),
    "broadcast_to": _broadcast,
    "concat": _concatenated,
    "expand_dims": _expanded,
    "gather_elements": _gathered_elements,
    "gather_nd": _gathered_nd,
    "image.resize2d": _resized,
    "index_tensor": _indexed,
    "matmul": _matmul,
    "nn.pad": _padded,
    "one_hot": _one_hot,
    "permute_dims": _permuted,
    "repeat": _repeated,
    "reshape": _reshaped,
    "split": _split,
    "squeeze": _squeezed,
    "strided_slice": _sliced,
    "take": _taken,
    "tile": _tiled,
}  # fmt: skip
"""Operator -> what it does to fronts and padding; it raises PaddingError where the front would change."""
