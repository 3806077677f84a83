"""softmax along a tensor's last axis, written out in vectors.

LLVM vectorizes the maximum of a row only where NaN may be ignored, divides each number, and leaves numbers behind the
last whole vector one by one: 49 of a window, 197 of an image. Here the last vector of a row overlaps the one before it:
a maximum does not mind, and the sum leaves out the numbers that both have.
"""

from __future__ import annotations

import math
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
    """Return the statements that compute a row, as :func:`row_exponentials` takes it, divided by their sum."""
    from tvm import tirx

    statements, share, tail = row_exponentials(data, output, places, size, lanes)
    place = tirx.Var("place", "int64")
    whole = size // lanes
    at = [*places, tirx.Ramp(place * lanes, _whole(1), lanes)]
    shares = tirx.Broadcast(share, lanes)
    body = tirx.BufferStore(output, tirx.BufferLoad(output, at) * shares, at)
    statements.append(tirx.For(place, _whole(0), _whole(whole), _kind(whole), body))
    if tail is not None:
        last = [*places, tirx.Ramp(_whole(size - lanes), _whole(1), lanes)]
        statements.append(tirx.BufferStore(output, tail * shares, last))
    return statements


def _kind(count: int) -> int:
    from tvm import tirx

    return tirx.ForKind.UNROLLED if count <= _UNROLLED else tirx.ForKind.SERIAL


def row_exponentials(
    data: Any, output: Any, places: list[Any], size: int, lanes: int
) -> tuple[list[Any], Any, Any]:
    """Compute a row's exponentials, the largest of which is 1, and one over their sum.

    Args:
        data: tensor that is read.
        output: tensor that is written; it may be `data`.
        places: indices of the row.
        size: numbers of a row, at least `lanes`.
        lanes: numbers of a vector.

    Returns:
        The statements, the variable of one over the sum, and that of the row's last vector, which is not written yet,
        where whole ones do not reach the end, else None.
    """
    from tvm import tirx

    statements: list[Any] = []
    vector, whole = f"float32x{lanes}", size // lanes
    rest = size % lanes

    def at(start: Any) -> list[Any]:
        return [*places, tirx.Ramp(start, _whole(1), lanes)]

    def bound(name: str, value: Any) -> Any:
        variable = tirx.Var(name, str(value.ty.dtype))
        statements.append(tirx.Bind(variable, value))
        return variable

    def summed(name: str, first: float) -> Any:
        """Return a vector that is summed up in, on the stack."""
        buffer = tirx.decl_buffer((lanes,), "float32", name, scope="local")
        statements.append(tirx.AllocBuffer(buffer))
        statements.append(
            tirx.BufferStore(buffer, tirx.Broadcast(_number(first), lanes), [_all(lanes)])
        )
        return buffer

    def over_vectors(statement: Any) -> None:
        """Take a statement for each whole vector of the row; it is given the vector's first place."""
        place = tirx.Var("place", "int64")
        steps = statement(place * lanes)
        body = steps[0] if len(steps) == 1 else tirx.SeqStmt(steps)
        statements.append(tirx.For(place, _whole(0), _whole(whole), _kind(whole), body))

    def update(buffer: Any, operator: Any, value: Any) -> Any:
        old = tirx.BufferLoad(buffer, [_all(lanes)])
        return tirx.BufferStore(buffer, operator(old, value), [_all(lanes)])

    last = _whole(size - lanes)
    largest = summed("largest", -float.fromhex("0x1.fffffep+127"))  # as TVM: -inf alone is NaN
    over_vectors(lambda start: [update(largest, tirx.Max, tirx.BufferLoad(data, at(start)))])
    if rest:
        statements.append(update(largest, tirx.Max, tirx.BufferLoad(data, at(last))))
    peak = tirx.Broadcast(
        bound("peak", _folded(tirx.BufferLoad(largest, [_all(lanes)]), tirx.Max, bound)), lanes
    )
    total = summed("total", 0.0)
    tail = None
    if rest:  # read before the output is written, which may be the same tensor
        tail = bound("tail", exp_at_most_one(tirx.BufferLoad(data, at(last)) - peak))

    def exponentials(start: Any) -> list[Any]:
        value = tirx.Var("value", vector)
        return [
            tirx.Bind(value, exp_at_most_one(tirx.BufferLoad(data, at(start)) - peak)),
            update(total, tirx.Add, value),
            tirx.BufferStore(output, value, at(start)),
        ]

    over_vectors(exponentials)
    if rest:
        lane = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes)
        again = tirx.Broadcast(tirx.const(lanes - rest, "int32"), lanes)
        zeros = tirx.Broadcast(_number(0.0), lanes)
        statements.append(update(total, tirx.Add, tirx.Select(lane >= again, tail, zeros)))
    summed_up = bound("sum", _folded(tirx.BufferLoad(total, [_all(lanes)]), tirx.Add, bound))
    return statements, bound("share", _number(1.0) / summed_up), tail


def _folded(vector: Any, operator: Any, bound: Any) -> Any:
    """Return what an operator makes of all numbers of a vector, one half with the other until one is left."""
    from tvm import tirx

    lanes = int(str(vector.ty.dtype).partition("x")[2])
    while lanes > 1:
        vector = bound("part", vector)
        lanes //= 2
        low, high = (
            tirx.Shuffle([vector], [first + lane for lane in range(lanes)]) for first in (0, lanes)
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
