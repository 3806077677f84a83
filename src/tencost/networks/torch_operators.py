"""PyTorch's operators that TVM's frontend lacks, by decompositions into others or as operators of Relax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from tencost.networks.inputs import Array


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return decompositions for run_decompositions: PyTorch's where it has them, else those of this module."""
    import torch
    from torch._decomp import decomposition_table

    aten: Any = torch.ops.aten
    ours: dict[Any, Callable[..., Any]] = {
        aten._cdist_forward.default: _distances,
        aten.copysign.Scalar: _with_sign_of,
        aten.copysign.Tensor: _with_sign_of,
        aten.cummax.default: lambda x, dim: _running_extreme(x, dim, torch.ge),
        aten.cummin.default: lambda x, dim: _running_extreme(x, dim, torch.le),
        aten.index.Tensor: _indexed,
        aten.index_put.default: _overwritten,
        aten.kthvalue.default: _kth_value,
        aten.max.dim: lambda x, dim, keepdim=False: (
            x.amax(dim, keepdim),
            x.argmax(dim, keepdim),
        ),
        aten.min.dim: lambda x, dim, keepdim=False: (
            x.amin(dim, keepdim),
            x.argmin(dim, keepdim),
        ),
        aten.rrelu_with_noise_functional.default: _evaluated_rrelu,
        **{
            operator: _scattering(operator)
            for operator in (aten.scatter.src, aten.scatter.value, aten.scatter_add.default)
        },
        aten.scatter_reduce.two: _scattering(aten.scatter_reduce.two, _scatter_reduced),
        aten.searchsorted.Tensor: _insertion_points,
        aten.searchsorted.Scalar: _insertion_points,
        aten.var_mean.correction: _variance_and_mean,
    }
    known = (aten.any.default, aten.ldexp.Tensor, aten.linalg_vector_norm.default)
    return {operator: decomposition_table[operator] for operator in known} | ours


def converters() -> dict[str, Callable[[Any, Any], Any]]:
    """Return converters by operator, for from_exported_program's custom_convert_map."""
    return {
        "amax.default": lambda node, importer: _extreme(node, importer, "max"),
        "amin.default": lambda node, importer: _extreme(node, importer, "min"),
        "native_group_norm.default": _group_norm,
        "prod.dim_int": lambda node, importer: importer._prod(node),
        "scatter_add.default": lambda node, importer: _scattered(node, importer, "add"),
        "scatter_reduce.two": _scattered_by_name,
        "unfold.default": _unfolded,
        "__lshift__.Scalar": lambda node, importer: _shifted(node, importer, "left_shift"),
        "__rshift__.Scalar": lambda node, importer: _shifted(node, importer, "right_shift"),
        **{f"adaptive_max_pool{count}d.default": _adaptive_max_pool for count in (2, 3)},
        **{f"max_pool{count}d_with_indices.default": _max_pool for count in (2, 3)},
    }


# Decompositions: tensors in, tensors out, as PyTorch's operator of that name.


def _distances(x: Any, y: Any, p: float, _compute_mode: int | None) -> Any:
    """Distances of each row of x from each of y, from their differences: PyTorch prefers products for many."""
    import torch

    difference = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (difference != 0).to(x.dtype).sum(-1)
    if p == 1:
        return difference.sum(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if math.isinf(p):
        return torch.amax(difference, -1)
    return difference.pow(p).sum(-1).pow(1 / p)


def _with_sign_of(x: Any, sign: Any) -> Any:
    """|x| with the sign of another number; a zero's sign shows in its reciprocal."""
    import torch

    if not isinstance(sign, torch.Tensor):
        return -x.abs() if math.copysign(1, sign) < 0 else x.abs()
    dtype = torch.result_type(x, sign)
    size = x.to(dtype if dtype.is_floating_point else torch.get_default_dtype()).abs()
    negative = sign < 0
    if sign.is_floating_point():
        negative = negative | (sign.reciprocal() < 0)
    return torch.where(negative, -size, size)


def _running_extreme(x: Any, dim: int, before: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Extremes of all that came before, and their last places: each step compares with values twice as far away."""
    import torch

    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    size = x.shape[dim]
    shape = [1] * x.dim()
    shape[dim] = size
    values, places = x, torch.arange(size).reshape(shape).expand(x.shape)
    distance = 1
    while distance < size:
        head, tail = values.narrow(dim, 0, distance), values.narrow(dim, distance, size - distance)
        other = values.narrow(dim, 0, size - distance)
        keeps = before(tail, other)
        other_places = places.narrow(dim, 0, size - distance)
        tail_places = places.narrow(dim, distance, size - distance)
        values = torch.cat([head, torch.where(keeps, tail, other)], dim)
        places = torch.cat(
            [places.narrow(dim, 0, distance), torch.where(keeps, tail_places, other_places)], dim
        )
        distance *= 2
    return values, places


def _kth_value(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    values, places = (part.narrow(dim, k - 1, 1) for part in x.sort(dim))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _indexed(x: Any, indices: Sequence[Any]) -> Any:
    """Values at places along several axes beside whole axes, which the frontend takes one axis after the other."""
    count = sum(index is not None for index in indices)
    if count < 2 or count == len(indices) or any(map(_is_mask, indices)):
        return NotImplemented
    import torch

    return torch.ops.aten.index.Tensor(x, _whole_indices(x, indices))


def _overwritten(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """Values written at places along some axes: the frontend knows those along all, and no mask."""
    import torch

    if any(map(_is_mask, indices)):
        if accumulate or len(indices) > 1 or values.numel() > 1:
            return NotImplemented
        mask = indices[0].reshape(*indices[0].shape, *[1] * (x.dim() - indices[0].dim()))
        return torch.where(mask, values.reshape(()), x)
    if len(indices) == x.dim() and all(index is not None for index in indices):
        return NotImplemented
    whole: Any = torch.broadcast_tensors(*_whole_indices(x, indices))  # type: ignore[no-untyped-call]
    return torch.ops.aten.index_put.default(
        x, list(whole), values.expand(whole[0].shape), accumulate
    )


def _is_mask(index: Any) -> bool:
    import torch

    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _whole_indices(x: Any, indices: Sequence[Any]) -> list[Any]:
    """Return an index for each axis; together they have the shape of what is indexed, or broadcast to it."""
    import torch

    indices = [*indices, *[None] * (x.dim() - len(indices))]
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    rank = max(indices[axis].dim() for axis in indexed)
    adjacent = indexed == list(range(indexed[0], indexed[-1] + 1))
    # PyTorch puts the axes of the indices where the indexed ones stood, or first where these stood apart.
    front = indexed[0] if adjacent else 0
    total = rank + len(indices) - len(indexed)
    others = [place for place in range(total) if not front <= place < front + rank]
    whole = []
    for axis, index in enumerate(indices):
        if index is None:
            place = others.pop(0)
            index = torch.arange(x.shape[axis]).reshape([-1] + [1] * (total - place - 1))
        else:
            index = index.reshape(*index.shape, *[1] * (total - front - rank))
        whole.append(index)
    return whole


def _evaluated_rrelu(
    x: Any, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any
) -> Any:
    if training:
        return NotImplemented
    import torch

    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


def _scattering(
    operator: Any, decompose: Callable[..., Any] = lambda *_, **__: NotImplemented
) -> Callable[..., Any]:
    """Scattering where sizes agree, which Relax's operator expects of all axes but the one it scatters along."""
    import torch

    def scattering(x: Any, dim: int, index: Any, source: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(source, torch.Tensor) and source.dim() and source.shape != index.shape:
            source = source[tuple(slice(size) for size in index.shape)]
            return operator(x, dim, index, source, *rest, **options)
        for axis, size in enumerate(index.shape):
            if axis != dim % x.dim() and size < x.shape[axis]:
                head, tail = x.split([size, x.shape[axis] - size], axis)
                return torch.cat([operator(head, dim, index, source, *rest, **options), tail], axis)
        return decompose(x, dim, index, source, *rest, **options)

    return scattering


def _scatter_reduced(
    x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Reductions that Relax lacks: means, and those that forget the values that were there."""
    import torch

    if reduce == "mean":
        ones = torch.ones_like(src)
        counts = (torch.ones_like(x) if include_self else torch.zeros_like(x)).scatter_add(
            dim, index, ones
        )
        start = x if include_self else x.scatter(dim, index, 0)
        total, counts = start.scatter_add(dim, index, src), counts.clamp(min=1)
        if x.is_floating_point():
            return total / counts
        return torch.div(total, counts, rounding_mode="floor")
    if include_self:
        return NotImplemented
    kind = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
    lowest, highest = (-math.inf, math.inf) if x.is_floating_point() else (kind.min, kind.max)
    start = {"sum": 0, "prod": 1, "amax": lowest, "amin": highest}[reduce]
    return x.scatter(dim, index, start).scatter_reduce(dim, index, src, reduce)


def _insertion_points(
    boundaries: Any,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """Places that keep each row of boundaries sorted: how many of its values lie before."""
    import torch

    if sorter is not None:
        return NotImplemented
    if not isinstance(x, torch.Tensor):
        x = torch.full((), x)
    if boundaries.dim() > 1:
        boundaries = boundaries.unsqueeze(-2)
    x = x.unsqueeze(-1)
    before = boundaries <= x if right or side == "right" else boundaries < x
    return before.to(torch.int64).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def _variance_and_mean(
    x: Any, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Any, Any]:
    variance = x.var(dim, correction=1 if correction is None else correction, keepdim=keepdim)
    return variance, x.mean(dim, keepdim)


# Converters: a node of the exported graph in, an expression of Relax out.


def _arguments(node: Any) -> dict[str, Any]:
    """Return a node's arguments by name, those that it was called without by their default."""
    schema = node.target._schema.arguments
    told = dict(zip((argument.name for argument in schema), node.args, strict=False))
    return {argument.name: argument.default_value for argument in schema} | told | node.kwargs


def _extreme(node: Any, importer: Any, name: str) -> Any:
    """Relax's max and min know no truth values."""
    from tvm import relax

    told, data = _arguments(node), importer.env[node.args[0]]
    emit, dtype = importer.block_builder.emit, str(data.ty.dtype)
    if dtype == "bool":
        data = emit(relax.op.astype(data, "int8"))
    axes = list(told["dim"] or []) or None
    found = emit(getattr(relax.op, name)(data, axes, told["keepdim"]))
    return emit(relax.op.astype(found, "bool")) if dtype == "bool" else found


def _group_norm(node: Any, importer: Any) -> Any:
    """Normalize groups of channels; the frontend expects a weight and a bias."""
    from tvm import relax

    told = _arguments(node)
    data, channels = importer.env[told["input"]], told["C"]
    dtype = str(data.ty.dtype)
    weight, bias = (
        relax.const(fill((channels,)), dtype) if told[name] is None else importer.env[told[name]]
        for name, fill in (("weight", np.ones), ("bias", np.zeros))
    )
    axes = list(range(2, len(data.ty.shape)))
    normed = relax.op.nn.group_norm(data, weight, bias, told["group"], 1, axes, told["eps"])
    return relax.Tuple([importer.block_builder.emit(normed)])


def _scattered(node: Any, importer: Any, reduction: str) -> Any:
    from tvm import relax

    told, emit = _arguments(node), importer.block_builder.emit
    data, index, source = (importer.env[told[name]] for name in ("self", "index", "src"))
    return emit(relax.op.scatter_elements(data, index, source, told["dim"], reduction))


def _scattered_by_name(node: Any, importer: Any) -> Any:
    names = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    return _scattered(node, importer, names[_arguments(node)["reduce"]])


def _shifted(node: Any, importer: Any, name: str) -> Any:
    from tvm import relax

    data, count = importer.retrieve_args(node)
    shift = getattr(relax.op, name)
    return importer.block_builder.emit(shift(data, relax.const(count, str(data.ty.dtype))))


def _unfolded(node: Any, importer: Any) -> Any:
    from tvm import relax

    told, data = _arguments(node), importer.env[node.args[0]]
    shape = node.args[0].meta["val"].shape
    axis = told["dimension"] % max(len(shape), 1)
    size, step, emit = told["size"], told["step"], importer.block_builder.emit
    if not shape:
        return emit(relax.op.reshape(data, (size,)))
    starts = np.arange(0, shape[axis] - size + 1, step)
    places = starts[:, None] + np.arange(size)
    taken = emit(relax.op.take(data, relax.const(places, "int64"), axis=axis))
    order = [*range(axis + 1), *range(axis + 2, len(shape) + 1), axis + 1]
    return emit(relax.op.permute_dims(taken, order))


def _adaptive_max_pool(node: Any, importer: Any) -> Any:
    """Windows differ in size by one: from floor(i * size / count) to ceil((i + 1) * size / count)."""
    from tvm import relax

    sizes = _spatial(node)
    counts = _arguments(node)["output_size"]
    windows = [
        [range(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        for size, count in zip(sizes, counts, strict=True)
    ]
    taken = _taken_windows(node, importer, windows)
    values = importer.block_builder.emit(relax.op.max(taken, -1))
    return _with_places(node, importer, values, windows, taken)


def _max_pool(node: Any, importer: Any) -> Any:
    """Pool as the frontend does; it returns zeros for the places of the largest values."""
    sizes = _spatial(node)
    impl = {2: importer._max_pool2d_impl, 3: importer._max_pool3d_impl}[len(sizes)]
    told = _arguments(node)
    kernel, pads, gaps = (
        list(told[name]) * (len(sizes) // len(told[name]))
        for name in ("kernel_size", "padding", "dilation")
    )
    steps = list(told["stride"] or kernel)
    steps *= len(sizes) // len(steps)
    values = impl(
        importer.env[node.args[0]], kernel_size=kernel, stride=steps, padding=pads, dilation=gaps,
        ceil_mode=told["ceil_mode"],
    )  # fmt: skip
    counts = node.meta["val"][0].shape[-len(sizes) :]
    windows = [
        [
            [
                at
                for at in range(i * step - pad, i * step - pad + count * gap, gap)
                if 0 <= at < size
            ]
            for i in range(outputs)
        ]
        for size, outputs, count, step, pad, gap in zip(
            sizes, counts, kernel, steps, pads, gaps, strict=True
        )
    ]
    return _with_places(node, importer, values, windows, None)


def _spatial(node: Any) -> list[int]:
    """Return the sizes of the axes that an operator pools, by its name's 2d or 3d."""
    name = node.target.overloadpacket.__name__
    return [int(size) for size in node.args[0].meta["val"].shape[-3 if "3d" in name else -2 :]]


def _with_places(
    node: Any, importer: Any, values: Any, windows: list[Any], taken: Any | None
) -> Any:
    """Return pooled values and, where the graph reads them, the places of these in the flattened plane."""
    from tvm import relax

    op, emit = relax.op, importer.block_builder.emit
    shape = [int(size) for size in node.meta["val"][0].shape]
    values = emit(op.reshape(values, shape))
    if not any(user.args[1] == 1 for user in node.users):
        return relax.Tuple([values, values])
    if taken is None:
        taken = _taken_windows(node, importer, windows)
    table = _places(_spatial(node), windows)
    starts = np.arange(len(table)) * table.shape[1]
    within = emit(op.add(emit(op.argmax(taken, -1)), relax.const(starts, "int64")))
    places = emit(op.take(relax.const(table.reshape(-1), "int64"), within, axis=0))
    return relax.Tuple([values, emit(op.reshape(places, shape))])


def _taken_windows(node: Any, importer: Any, windows: list[Any]) -> Any:
    """Return the values of each window, shape [..., windows, values]."""
    from tvm import relax

    op, emit, sizes = relax.op, importer.block_builder.emit, _spatial(node)
    data, shape = importer.env[node.args[0]], node.args[0].meta["val"].shape
    leading = [int(size) for size in shape[: len(shape) - len(sizes)]]
    flat = emit(op.reshape(data, (*leading, math.prod(sizes))))
    table = _places(sizes, windows)
    return emit(op.take(flat, relax.const(table, "int64"), axis=len(leading)))


def _places(sizes: Sequence[int], windows: list[Any]) -> Array:
    """Return the places of each window's values in the flattened plane, int64 [windows, values].

    Shorter windows repeat their first place, which changes neither their maximum nor its first place.
    """
    rows = []
    for window in product(*windows):
        places = [np.ravel_multi_index(at, sizes) for at in product(*window)]
        rows.append(places)
    longest = max(map(len, rows))
    return np.array([[row[0]] * (longest - len(row)) + row for row in rows], dtype=np.int64)
