"""Transpositions that need not be done: a rearrangement of axes is carried along until the order of numbers matters.

PyTorch's attention (nn.MultiheadAttention) takes sequences first: its exported graphs turn [batch, length, numbers] to
[length, batch, numbers], multiply, make heads of the numbers, and turn all back. Products, sums with a bias and
activations do the same to each row in whatever order the rows are, so that most of these turns undo each other.

A value is carried as a *view*: a tensor, and for each axis of the value the tensor's axes of which it is made. Where an
operator needs the value itself, one transposition makes it. The network is written so if that moves fewer numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tencost.networks.sample_rules import count_of, static_shape
from tencost.programs.codegen.blocks import replaced

_Axes = tuple[int, ...]
_UNARY = {
    f"relax.{name}"
    for name in ("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "sigmoid", "tanh", "exp", "erf", "sqrt", "negative")
}  # fmt: skip
_BINARY = {
    f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")
}


@dataclass(frozen=True)
class Rearranged:
    """A value that is a rearrangement of a tensor.

    Attributes:
        base: the tensor.
        groups: for each axis of the value, in order, the axes of the tensor that it is made of, the outermost first.
            Each axis of the tensor is in one of them; an axis of the value that has none is of size 1.
    """

    base: Any
    groups: tuple[_Axes, ...]

    @property
    def sizes(self) -> _Axes:
        return static_shape(self.base)

    @property
    def order(self) -> _Axes:
        return tuple(itertools.chain(*self.groups))

    @property
    def shape(self) -> _Axes:
        return tuple(math.prod(self.sizes[axis] for axis in group) for group in self.groups)


def with_few_transpositions(mod: Any) -> Any:
    """Return a network without rearrangements of axes that undo each other; the same one if that moves no less.

    Args:
        mod: Relax module, its operators not lowered yet; what has no constant shape is left as it is, and what is no
            dataflow.
    """
    from tvm import relax

    if not all(isinstance(block, relax.DataflowBlock) for block in mod["main"].body.blocks):
        return mod
    written = carried(mod)
    return written if moved(written) < moved(mod) else mod


def carried(mod: Any) -> Any:
    """Return a network whose rearrangements are all carried along as far as they can be."""
    from tvm import IRModule, relax

    main = mod["main"]
    builder = relax.BlockBuilder()
    with builder.function("main", list(main.params), attrs=dict(main.attrs or {})):
        with builder.dataflow():
            writing = _Writing(builder)
            for block in main.body.blocks:
                for binding in block.bindings:
                    writing.write(binding)
            output = builder.emit_output(writing.whole(main.body.body))
        builder.emit_func_output(output)
    functions = {**mod.functions, mod.get_global_var("main"): builder.get()["main"]}
    return relax.transform.DeadCodeElimination()(IRModule(functions, attrs=mod.attrs))


def moved(mod: Any) -> int:
    """Return how many numbers the transpositions of a network move, but of axes of size 1, which move nothing."""
    from tvm import relax

    total = 0
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and getattr(call.op, "name", "") == _PERMUTE:
                axes = _axes_of(call)
                if not _is_in_order(axes, static_shape(call.args[0])):
                    total += count_of(call)
    return total


_PERMUTE = "relax.permute_dims"


def _axes_of(call: Any) -> _Axes:
    """Return the axes of a permute_dims."""
    rank = len(static_shape(call.args[0]))
    if call.attrs.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(int(axis) % rank for axis in call.attrs.axes)


def _is_in_order(order: Sequence[int], sizes: Sequence[int]) -> bool:
    """Say whether an order of axes moves no number: axes of size 1 may be anywhere."""
    counted = [axis for axis in order if sizes[axis] > 1]
    return counted == sorted(counted)


class _Writing:
    """A network's dataflow as it is written anew.

    Attributes:
        values: what a variable is now.
        views: the variables that are carried as views.
    """

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self.values: dict[Any, Any] = {}
        self.views: dict[Any, Rearranged] = {}

    def write(self, binding: Any) -> None:
        """Write what a variable is bound to: a view of what another is, if it can be, else the same operator."""
        from tvm import relax

        call = binding.value
        view = None
        shape = static_shape(binding.var)
        if isinstance(call, relax.Call) and shape and all(shape):
            view = self._viewed(call)
        if view is not None and view.shape == shape:
            self.views[binding.var] = view
            return
        name = getattr(getattr(call, "op", None), "name", "")
        if name == "relax.shape_of" and call.args[0] in self.views:
            call = relax.ShapeExpr(list(self.views[call.args[0]].shape))
        for variable in relax.analysis.free_vars(call):
            self.whole(variable)
        value = replaced(call, self.values)
        if isinstance(binding, relax.MatchCast):
            self.values[binding.var] = self._builder.match_cast(value, binding.ty)
        else:
            self.values[binding.var] = self._builder.emit(value)

    def whole(self, value: Any) -> Any:
        """Return an expression of the new dataflow; views in it are made whole."""
        from tvm import relax

        if isinstance(value, relax.Tuple):
            return relax.Tuple([self.whole(field) for field in value.fields])
        if value in self.views and value not in self.values:
            self.values[value] = self._made(self.views[value])
        return self.values.get(value, value) if isinstance(value, relax.Var) else value

    def _made(self, view: Rearranged) -> Any:
        base, shape = self._in_order(view, view.order), view.shape
        return base if static_shape(base) == shape else self._reshaped(base, shape)

    def _in_order(self, view: Rearranged, order: _Axes) -> Any:
        """Return the tensor of a view with its axes in another order, where one moves those of size 1 left out."""
        from tvm import relax

        if order == tuple(range(len(order))):
            return view.base
        if _is_in_order(order, view.sizes):
            return self._reshaped(view.base, [view.sizes[axis] for axis in order])
        counted = [axis for axis in range(len(order)) if view.sizes[axis] > 1]
        base = view.base
        if len(counted) < len(order):
            base = self._reshaped(base, [view.sizes[axis] for axis in counted])
        places = [counted.index(axis) for axis in order if axis in counted]
        return self._builder.emit(relax.op.permute_dims(base, places))

    def _reshaped(self, base: Any, shape: Sequence[int]) -> Any:
        from tvm import relax

        return self._builder.emit(relax.op.reshape(base, tuple(shape)))

    def _viewed(self, call: Any) -> Rearranged | None:
        """Return what a call computes as a view; None where it needs its arguments whole."""
        name = getattr(call.op, "name", "")
        data = call.args[0] if call.args else None
        if name == _PERMUTE and data not in self.views and len(static_shape(data)) > 1:
            whole = self.whole(data)
            start = Rearranged(whole, tuple((axis,) for axis in range(len(static_shape(data)))))
            return replace(start, groups=tuple(start.groups[axis] for axis in _axes_of(call)))
        if name in _BINARY:
            return self._of_two(call)
        view = self.views.get(data)
        if view is None:
            return None
        steps: dict[str, Callable[[Any, Rearranged], Rearranged | None]] = {
            _PERMUTE: self._permuted,
            "relax.reshape": self._split,
            "relax.expand_dims": self._expanded,
            "relax.squeeze": self._squeezed,
            "relax.strided_slice": self._sliced,
            "relax.take": self._taken,
            "relax.matmul": self._multiplied,
        }
        if name in _UNARY:
            return self._by(view, call, [view.base])
        return steps[name](call, view) if name in steps else None

    def _by(self, view: Rearranged, call: Any, arguments: Sequence[Any]) -> Rearranged:
        """Return the view of what an operator makes of the tensor, whose axes stay."""
        from tvm import relax

        return replace(view, base=self._builder.emit(relax.Call(call.op, arguments, call.attrs)))

    def _permuted(self, call: Any, view: Rearranged) -> Rearranged:
        return replace(view, groups=tuple(view.groups[axis] for axis in _axes_of(call)))

    def _expanded(self, call: Any, view: Rearranged) -> Rearranged:
        groups, rank = list(view.groups), len(static_shape(call))
        for axis in sorted(int(axis) % rank for axis in call.attrs.axis):
            groups.insert(axis, ())
        return replace(view, groups=tuple(groups))

    def _squeezed(self, call: Any, view: Rearranged) -> Rearranged | None:
        rank, shape = len(view.groups), view.shape
        given = call.attrs.axis
        gone = {axis for axis, size in enumerate(shape) if size == 1 and given is None}
        gone |= {int(axis) % rank for axis in given or ()}
        left = [list(group) for axis, group in enumerate(view.groups) if axis not in gone]
        if not left:
            return None
        for axis in sorted(gone):  # axes of size 1 are of any group
            left[-1].extend(view.groups[axis])
        return replace(view, groups=tuple(map(tuple, left)))

    def _split(self, call: Any, view: Rearranged) -> Rearranged | None:
        """Return a reshaped view: axes of the value are joined, and where it needs be axes of the tensor are split."""
        parts: list[
            list[tuple[int, int]]
        ] = []  # of each new axis: axes of the tensor, and how much of them
        left = [(axis, view.sizes[axis]) for axis in view.order]
        for size in static_shape(call):
            taken: list[tuple[int, int]] = []
            missing = size
            while missing > 1 and left:
                axis, extent = left.pop(0)
                common = math.gcd(missing, extent)
                if common not in (missing, extent):
                    return None
                taken.append((axis, common))
                missing //= common
                if extent > common:
                    left.insert(0, (axis, extent // common))
            if missing > 1:
                return None
            parts.append(taken)
        if any(extent > 1 for _, extent in left) or not parts:
            return None
        parts[-1].extend(left)
        pieces = [(axis, part, extent) for part, each in enumerate(parts) for axis, extent in each]
        # Of the tensor's axes in their order; pieces of one axis stay in theirs.
        ordered = sorted(range(len(pieces)), key=lambda place: pieces[place][0])
        place_of = {piece: place for place, piece in enumerate(ordered)}
        counted = itertools.count()
        groups = tuple(tuple(place_of[next(counted)] for _ in each) for each in parts)
        sizes = [pieces[piece][2] for piece in ordered]
        base = view.base if tuple(sizes) == view.sizes else self._reshaped(view.base, sizes)
        return Rearranged(base, groups)

    def _sliced(self, call: Any, view: Rearranged) -> Rearranged | None:
        """Return the view of a part of one axis."""
        from tvm import relax

        _, axes, *ends = call.args
        if len(axes.fields) != 1:
            return None
        group = view.groups[int(axes.fields[0]) % len(view.groups)]
        if len(group) != 1:
            return None
        return self._by(view, call, [view.base, relax.Tuple([relax.prim_value(group[0])]), *ends])

    def _taken(self, call: Any, view: Rearranged) -> Rearranged | None:
        """Return the view of one place of an axis."""
        from tvm import relax

        axis, index = call.attrs.axis, call.args[1]
        if axis is None or static_shape(index) or len(getattr(index.ty, "shape", (1,))) > 0:
            return None
        axis = int(axis) % len(view.groups)
        if len(view.groups[axis]) != 1:
            return None
        (gone,) = view.groups[axis]
        picked = relax.op.take(view.base, self.whole(index), gone, mode=str(call.attrs.mode))
        groups = (group for place, group in enumerate(view.groups) if place != axis)
        shifted = (tuple(each - (each > gone) for each in group) for group in groups)
        return Rearranged(self._builder.emit(picked), tuple(shifted))

    def _multiplied(self, call: Any, view: Rearranged) -> Rearranged | None:
        """Return the product of each row with a matrix that is the same for all."""
        weights = call.args[1]
        if len(static_shape(weights)) != 2:
            return None
        view = self._with_rows(view)
        return self._by(view, call, [view.base, self.whole(weights)])

    def _of_two(self, call: Any) -> Rearranged | None:
        """Return a view of what an operator makes of a view and numbers of a row, or of two views that are alike."""
        first, second = (self.views.get(each) for each in call.args)
        if first is not None and second is not None:
            alike = (first.groups, first.sizes) == (second.groups, second.sizes)
            return self._by(first, call, [first.base, second.base]) if alike else None
        view = first if second is None else second
        other = call.args[1] if second is None else call.args[0]
        rank = len(getattr(getattr(other, "ty", None), "shape", None) or ())
        if view is None or rank > 1:
            return None
        if rank == 1 and static_shape(other) != (1,):
            if static_shape(other) != view.shape[-1:]:
                return None
            view = self._with_rows(view)
        pair = (view.base, self.whole(other))
        return self._by(view, call, pair if second is None else pair[::-1])

    def _with_rows(self, view: Rearranged) -> Rearranged:
        """Return a view whose last axis is the tensor's last one, which it is transposed to where it is not."""
        row = view.groups[-1]
        others = [axis for axis in range(len(view.sizes)) if axis not in row]
        base = self._in_order(view, (*others, *row))
        places = {axis: place for place, axis in enumerate(others)}
        sizes = [*(view.sizes[axis] for axis in others), view.shape[-1]]
        if static_shape(base) != tuple(sizes):
            base = self._reshaped(base, sizes)
        groups = (tuple(places[axis] for axis in group) for group in view.groups[:-1])
        return Rearranged(base, (*groups, (len(others),)))
