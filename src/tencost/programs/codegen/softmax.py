"""softmax along a tensor's last axis, written out in vectors.

LLVM vectorizes the maximum of a row only where NaN may be ignored, divides each number, and leaves numbers behind the
last whole vector one by one: 49 of a window, 197 of an image. Here the last vector of a row overlaps the one before it:
a maximum does not mind, and the sum leaves out the numbers that both have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tencost.programs.codegen.blocks import PARALLEL_NUMBERS
from tencost.programs.codegen.vector_math import exp_at_most_one

_NESTS = ["T_softmax_maxelem", "T_softmax_exp", "T_softmax_expsum", "T_softmax_norm"]
"""Blocks of TVM's softmax (topi), in order."""
_UNROLLED = 8
"""Vectors of a row up to which there is no loop over them."""


def softmax_in_vectors(function: Any, nests: list[str], lanes: int, cores: int) -> Any:
    """Return a softmax that goes over each row in vectors; None for a function that is something else.

    Args:
        function: PrimFunc, unscheduled, that takes a tensor and the tensor that it writes.
        nests: names of its blocks.
        lanes: numbers of a vector.
        cores: among which rows are divided, if they are worth it.
    """
    from tvm import tirx
    from tvm.s_tir import SBlock, SBlockRealize

    shape = softmax_shape(function, nests, lanes)
    if shape is None:
        return None
    data, output = function.params
    rows = math.prod(shape[:-1])
    row = tirx.Var("row", "int64")
    places: list[Any] = []
    stride = rows
    for extent in shape[:-1]:
        stride //= extent
        places.append(tirx.floormod(tirx.floordiv(row, stride), extent))
    is_parallel = cores > 1 and rows > 1 and rows * shape[-1] >= PARALLEL_NUMBERS
    kind = tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL
    body = tirx.SeqStmt(row_softmax(data, output, places, shape[-1], lanes))
    loop = tirx.For(row, _whole(0), _whole(rows), kind, body)
    # TVM's passes expect functions of schedules to be one block.
    whole = SBlockRealize([], True, SBlock([], [], [], "root", loop))
    return tirx.PrimFunc(function.params, whole, function.ret_type, function.attrs)


def softmax_shape(function: Any, nests: list[str], lanes: int) -> list[int] | None:
    """Return the shape of a float32 softmax along the last axis, at least a vector long; None for other functions."""
    from tvm.s_tir import SBlock
    from tvm_ffi import structural_walk

    if nests != _NESTS or len(function.params) != 2:
        return None
    if any(str(each.dtype) != "float32" for each in function.params):
        return None
    if not all(hasattr(extent, "value") for extent in function.params[0].shape):
        return None
    shape = [int(extent) for extent in function.params[0].shape]
    axes: set[int] = set()

    def read(block: Any) -> None:
        if block.name_hint == _NESTS[-1]:
            axes.add(int(block.annotations["axis"]))

    structural_walk(function.body, (SBlock, read))
    return shape if axes == {len(shape) - 1} and shape[-1] >= lanes else None


def row_softmax(data: Any, output: Any, places: list[Any], size: int, lanes: int) -> list[Any]:
    """Return the statements that compute a row, see :func:`row_exponentials`."""
    from tvm import tirx

    peak_of, peak = row_peak(data, places, size, lanes)
    exponentials, share, tail = row_exponentials(data, output, places, size, lanes, peak)
    row = _Row(places, size, lanes)
    shares = tirx.Broadcast(share, lanes)
    row.over_vectors(
        lambda at: [tirx.BufferStore(output, tirx.BufferLoad(output, at) * shares, at)]
    )
    if tail is not None:
        row.statements.append(tirx.BufferStore(output, tail * shares, row.last))
    return [*peak_of, *exponentials, *row.statements]


def row_peak(data: Any, places: list[Any], size: int, lanes: int) -> tuple[list[Any], Any]:
    """Return the statements that find a row's maximum, and its variable.

    Args:
        data: tensor that is read.
        places: indices of the row.
        size: numbers of a row, at least `lanes`.
        lanes: numbers of a vector.
    """
    from tvm import tirx

    row = _Row(places, size, lanes)
    largest = row.summed("largest", -float.fromhex("0x1.fffffep+127"))  # as TVM: -inf alone is NaN
    row.over_vectors(lambda at: [row.update(largest, tirx.Max, tirx.BufferLoad(data, at))])
    if row.rest:
        row.statements.append(row.update(largest, tirx.Max, tirx.BufferLoad(data, row.last)))
    peak = row.bound("peak", row.folded(largest, tirx.Max))
    return row.statements, peak


def row_exponentials(
    data: Any, output: Any, places: list[Any], size: int, lanes: int, peak: Any, halvings: int = 0
) -> tuple[list[Any], Any, Any]:
    """Compute the exponentials of a row's distances from its maximum, and one over their sum.

    Args:
        data: tensor that is read.
        output: tensor that is written; it may be `data`.
        places: indices of the row.
        size: numbers of a row, at least `lanes`.
        lanes: numbers of a vector.
        peak: the maximum.
        halvings: how often each exponential is halved.

    Returns:
        The statements, the variable of one over the sum, and that of the row's last vector, which is not written yet,
        where whole ones do not reach the end, else None.
    """
    from tvm import tirx

    row = _Row(places, size, lanes)
    peaks = tirx.Broadcast(peak, lanes)
    total = row.summed("total", 0.0)

    def exponential(at: list[Any]) -> Any:
        return exp_at_most_one(tirx.BufferLoad(data, at) - peaks, halvings)

    tail = None
    if row.rest:  # read before the output is written, which may be the same tensor
        tail = row.bound("tail", exponential(row.last))

    def exponentials(at: list[Any]) -> list[Any]:
        value = tirx.Var("value", f"float32x{lanes}")
        return [
            tirx.Bind(value, exponential(at)),
            row.update(total, tirx.Add, value),
            tirx.BufferStore(output, value, at),
        ]

    row.over_vectors(exponentials)
    if row.rest:
        lane = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes)
        again = tirx.Broadcast(tirx.const(lanes - row.rest, "int32"), lanes)
        new = tirx.Select(lane >= again, tail, tirx.Broadcast(_number(0.0), lanes))
        row.statements.append(row.update(total, tirx.Add, new))
    share = row.bound("share", _number(1.0) / row.bound("sum", row.folded(total, tirx.Add)))
    return row.statements, share, tail


class _Row:
    """Statements that go over a row in vectors.

    Attributes:
        statements: as they have been written so far.
        rest: numbers behind the last whole vector.
        last: indices of the row's last numbers, as many as a vector has.
    """

    def __init__(self, places: list[Any], size: int, lanes: int) -> None:
        self.statements: list[Any] = []
        self.rest = size % lanes
        self.last = self._at(places, _whole(size - lanes), lanes)
        self._places, self._whole, self._lanes = places, size // lanes, lanes

    @staticmethod
    def _at(places: list[Any], start: Any, lanes: int) -> list[Any]:
        from tvm import tirx

        return [*places, tirx.Ramp(start, _whole(1), lanes)]

    def bound(self, name: str, value: Any) -> Any:
        from tvm import tirx

        variable = tirx.Var(name, str(value.ty.dtype))
        self.statements.append(tirx.Bind(variable, value))
        return variable

    def summed(self, name: str, first: float) -> Any:
        """Return a vector that is summed up in, on the stack."""
        from tvm import tirx

        buffer = tirx.decl_buffer((self._lanes,), "float32", name, scope="local")
        beginning = tirx.Broadcast(_number(first), self._lanes)
        self.statements.append(tirx.AllocBuffer(buffer))
        self.statements.append(tirx.BufferStore(buffer, beginning, [_all(self._lanes)]))
        return buffer

    def update(self, buffer: Any, operator: Any, value: Any) -> Any:
        from tvm import tirx

        old = tirx.BufferLoad(buffer, [_all(self._lanes)])
        return tirx.BufferStore(buffer, operator(old, value), [_all(self._lanes)])

    def over_vectors(self, statement: Callable[[list[Any]], list[Any]]) -> None:
        """Take statements for each whole vector of the row; they are given its indices."""
        from tvm import tirx

        place = tirx.Var("place", "int64")
        steps = statement(self._at(self._places, place * self._lanes, self._lanes))
        body = steps[0] if len(steps) == 1 else tirx.SeqStmt(steps)
        kind = tirx.ForKind.UNROLLED if self._whole <= _UNROLLED else tirx.ForKind.SERIAL
        self.statements.append(tirx.For(place, _whole(0), _whole(self._whole), kind, body))

    def folded(self, buffer: Any, operator: Any) -> Any:
        """Return what an operator makes of all numbers of a vector, one half with the other until one is left."""
        from tvm import tirx

        vector, lanes = tirx.BufferLoad(buffer, [_all(self._lanes)]), self._lanes
        while lanes > 1:
            vector = self.bound("part", vector)
            lanes //= 2
            low, high = (
                tirx.Shuffle([vector], [first + lane for lane in range(lanes)])
                for first in (0, lanes)
            )
            vector = operator(low, high)
        return vector


def _all(lanes: int) -> Any:
    from tvm import tirx

    return tirx.Ramp(_whole(0), _whole(1), lanes)


def _whole(value: int) -> Any:
    from tvm import tirx

    return tirx.const(value, "int64")


def _number(value: float) -> Any:
    from tvm import tirx

    return tirx.const(value, "float32")
