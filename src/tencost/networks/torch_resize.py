"""PyTorch's interpolation for TVM's frontend, which knows three of its operators and rounds places otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tencost.networks.inputs import Array

_NEAREST = (
    *(f"upsample_nearest{axes}d" for axes in (1, 2, 3)),
    *(f"_upsample_nearest_exact{axes}d" for axes in (1, 2, 3)),
)
_WEIGHTED = (
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
_OVERLOADS = ("vec", "default")
_MOST_TAPS = 4
"""Values that one new value is added from; more (shrinking with antialias) become a product with a matrix."""


def operators() -> list[Any]:
    """Return PyTorch's operators of interpolation, which are converted whole."""
    import torch

    return [
        getattr(getattr(torch.ops.aten, name), overload)
        for name in (*_NEAREST, *_WEIGHTED)
        for overload in _OVERLOADS
    ]


def converters() -> dict[str, Callable[[Any, Any], Any]]:
    """Return converters of interpolations by operator, for from_exported_program's custom_convert_map."""
    return {operator.__name__: _convert for operator in operators()}


def _convert(node: Any, importer: Any) -> Any:
    """Resize axis by axis with the weights that PyTorch's operator has for a matrix of ones on the diagonal.

    Raises:
        NotImplementedError: weighted sums of integers, which PyTorch rounds in ways of its own.
    """
    name = node.target.overloadpacket.__name__
    data = importer.env[node.args[0]]
    before, after = node.args[0].meta["val"], node.meta["val"]
    if name in _WEIGHTED and not before.dtype.is_floating_point:
        raise NotImplementedError(f"{name} of {before.dtype}")
    rest, scales = _settings(node, len(before.shape) - 2)
    builder, dtype = importer.block_builder, str(data.ty.dtype)
    for axis, scale in enumerate(scales, start=2):
        size_in, size_out = int(before.shape[axis]), int(after.shape[axis])
        if size_in == size_out and scale in (None, 1.0):
            continue
        matrix = _weights(name, size_in, size_out, axis, len(scales), rest, scale)
        data = _resized(builder, data, axis, matrix, dtype)
    return data


def _settings(node: Any, count: int) -> tuple[list[Any], list[float | None]]:
    """Return (align_corners where the operator has it, one scale per axis or None) of either overload."""
    names = [argument.name for argument in node.target._schema.arguments]
    values = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    rest = [values["align_corners"]] if "align_corners" in names else []
    if "scale_factors" in names:
        return rest, list(values.get("scale_factors") or [None] * count)
    return rest, [values.get(name) for name in names if name.startswith("scales")]


def _weights(
    name: str,
    size_in: int,
    size_out: int,
    axis: int,
    count: int,
    rest: list[Any],
    scale: float | None,
) -> Array:
    """Return the weight of each old value in each new one, float32 [size_out, size_in]: the operator decides."""
    import torch

    # Other axes keep a size of 2: of size 1, antialias misreads the strides (PyTorch 2.13).
    shape = [1, size_in] + [2] * count
    shape[axis] = size_in
    sizes = [2] * count
    scales: list[float | None] = [None] * count
    sizes[axis - 2], scales[axis - 2] = size_out, scale
    places = torch.arange(size_in)
    along = places.reshape([size_in if place == axis else 1 for place in range(count + 2)])
    ones = (along == places.reshape(-1, *[1] * count)).float().expand(shape).contiguous()
    resized = getattr(torch.ops.aten, name).default(ones, sizes, *rest, *scales)
    for other in range(count + 1, 1, -1):
        if other != axis:
            resized = resized.select(other, 0)
    return np.ascontiguousarray(resized[0].T.numpy())


def _resized(builder: Any, data: Any, axis: int, matrix: Array, dtype: str) -> Any:
    """Write a resize along an axis: a gather, a sum of few gathers with weights, or a product with a matrix."""
    from tvm import relax

    op, emit = relax.op, builder.emit
    taps = int((matrix != 0).sum(axis=1).max())
    if taps == 1 and (matrix.max(axis=1) == 1).all():
        places = relax.const(matrix.argmax(axis=1), "int64")
        return emit(op.take(data, places, axis=axis))
    if dtype != "float32":
        data = emit(op.astype(data, "float32"))
    rank = len(data.ty.shape)
    if taps > _MOST_TAPS:
        order = list(range(rank))
        order[axis], order[-1] = order[-1], order[axis]
        turned = emit(op.permute_dims(data, order))
        product = emit(op.matmul(turned, relax.const(np.ascontiguousarray(matrix.T))))
        data = emit(op.permute_dims(product, order))
    else:
        data = _weighted_sum(builder, data, axis, matrix, taps)
    return data if dtype == "float32" else emit(op.astype(data, dtype))


def _weighted_sum(builder: Any, data: Any, axis: int, matrix: Array, taps: int) -> Any:
    from tvm import relax

    op, emit = relax.op, builder.emit
    columns = np.argsort(matrix == 0, axis=1, kind="stable")[:, :taps]  # of weights, not of zeros
    shape = [1] * len(data.ty.shape)
    shape[axis] = len(matrix)
    total = None
    for tap in columns.T:
        weights = np.take_along_axis(matrix, tap[:, None], axis=1).reshape(shape)
        taken = emit(op.take(data, relax.const(tap.copy(), "int64"), axis=axis))
        term = emit(op.multiply(taken, relax.const(weights)))
        total = term if total is None else emit(op.add(total, term))
    return total
