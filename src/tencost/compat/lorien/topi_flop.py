"""Arithmetic of AutoTVM tasks, from the arguments of TOPI's templates: a multiply and an add are two operations.

What counts is the contraction that the operator is defined by, whatever the template computes (Winograd does less).
A transposed convolution counts as TOPI computes it, a convolution over the input with zeros between its elements.
Shapes by the template's name, K kernel and S spatial sizes:

    dense*                                   data [.., k], weight of n x k elements in any layout
    batch_matmul*                            x [b, m, k], y [b or 1, ...] of n x k elements
    [group_|depthwise_]conv{1,2,3}d[_transpose]_<layout>*
        ncw nchw NCHW<x>c ncdhw              data [n, c, S.., (c)], kernel [o, i, K.., (i, o)]
        nwc nhwc ndhwc                       data [n, S.., c], kernel [K.., i, o]
        hwcn                                 data [h, w, c, n], kernel [h, w, i, o]
        then strides, padding, dilation; transposed: strides, padding, dtype, output padding
    tvm_matmul_tune_op, tvm_conv2d_nchw_tune_op    NNFusion's: [m, k, n]; [data, kernel, output, ...] shapes
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from tencost.records.formats.autotvm.lines import Task, as_tensor

_CONVOLUTION = re.compile(r"(?:group_|depthwise_)?conv([123])d(_transpose)?_(.+)")
_LAYOUT = re.compile(
    r"(?:^|_)(ncw|nwc|nchw|nchw\d*c|nhwc|hwcn|ncdhw|ndhwc)(?=[_.]|$)", re.IGNORECASE
)
_LAYOUTS = {"ncw": 1, "nwc": 1, "nchw": 2, "nhwc": 2, "hwcn": 2, "ncdhw": 3, "ndhwc": 3}
"""Layout -> spatial axes."""


def flop(task: Task) -> int | None:
    """Return the operations of one run of a task, None where its template is not known."""
    try:
        return _flop(task.name, task.args)
    except (IndexError, TypeError, ValueError):
        return None  # arguments that the template does not have


def _flop(name: str, args: list[Any]) -> int | None:
    if name == "tvm_matmul_tune_op":
        rows, inner, columns = args
        return 2 * _product([rows, inner, columns])
    if name == "tvm_conv2d_nchw_tune_op":
        return 2 * _product(args[2]) * _product(args[1][1:])
    tensors = [tensor[0] for arg in args[:2] if (tensor := as_tensor(arg)) is not None]
    if len(tensors) != 2:
        return None
    data, weight = tensors
    if name.startswith("dense"):
        fits = _product(weight) % _product(data[-1:]) == 0
        return 2 * _product(data[:-1]) * _product(weight) if fits else None
    if name.startswith("batch_matmul"):
        return 2 * max(data[0], weight[0]) * data[1] * _product(weight[1:])
    template = _CONVOLUTION.match(name)
    layout = template and _LAYOUT.search(template[3])
    if template is None or layout is None or "without_weight_transform" in name:
        return None
    rank, transposed = int(template[1]), bool(template[2])
    return _convolution(layout[1].lower(), rank, transposed, data, weight, args[2:])


def _convolution(
    layout: str, rank: int, transposed: bool, data: list[int], kernel: list[int], rest: list[Any]
) -> int | None:
    """Return twice the multiply-adds: every output position meets every element of the kernel, for every image.

    That holds for grouped and depthwise kernels, too: they have the elements of one group.
    """
    first = "nchw" if layout.startswith("nchw") else layout
    if _LAYOUTS[first] != rank:
        return None
    channels_first = first.startswith("nc")
    start = 2 if channels_first else 0 if first == "hwcn" else 1
    sizes = data[start : start + rank]
    window = kernel[2 : 2 + rank] if channels_first else kernel[:rank]
    if transposed:
        steps, padding = _each(rest[0], rank, least=1), _padding(rest[1], window)
        added = _each(rest[3], rank) if len(rest) > 3 else [0] * rank
        out = [
            (size - 1) * step - pad + extent + more
            for size, step, pad, extent, more in zip(
                sizes, steps, padding, window, added, strict=True
            )
        ]
    else:
        out = output_sizes(sizes, window, *rest[:3])
    images = data[3] if first == "hwcn" else data[0]
    return 2 * images * _product(out) * _product(kernel)


def output_sizes(
    sizes: Sequence[int], window: Sequence[int], strides: Any, padding: Any, dilation: Any
) -> list[int]:
    """Return the spatial sizes of a convolution's output.

    Args:
        sizes: of the input.
        window: of the kernel.
        strides: a number, or one an axis.
        padding: VALID, SAME, a number, one an axis, or all before and then all behind.
        dilation: as strides.

    Raises:
        ValueError: something else.
    """
    steps = _each(strides, len(sizes), least=1)
    gaps = _each(dilation, len(sizes), least=1)
    extents = [(size - 1) * gap + 1 for size, gap in zip(window, gaps, strict=True)]
    return [
        (size + pad - extent) // step + 1
        for size, pad, extent, step in zip(
            sizes, _padding(padding, extents), extents, steps, strict=True
        )
    ]


def _padding(value: Any, extents: Sequence[int]) -> list[int]:
    """Return what is added on both sides of each axis together."""
    rank = len(extents)
    if value == "VALID":
        return [0] * rank
    if value == "SAME":
        return [extent - 1 for extent in extents]
    if isinstance(value, list | tuple) and len(value) == 2 * rank:
        sides = _each(value, 2 * rank)
        return [before + after for before, after in zip(sides[:rank], sides[rank:], strict=True)]
    return [2 * side for side in _each(value, rank)]


def _each(value: Any, rank: int, least: int = 0) -> list[int]:
    values = list(value) if isinstance(value, list | tuple) else [value] * rank
    if len(values) != rank or not all(type(number) is int and number >= least for number in values):
        raise ValueError(f"expected {rank} integers of at least {least}, found {value!r}")
    return values


def _product(values: list[Any]) -> int:
    if not values or not all(type(size) is int and size > 0 for size in values):
        raise ValueError(f"expected positive sizes, found {values!r}")
    return math.prod(values)
