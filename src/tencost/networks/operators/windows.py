"""Convolutions and pools: operators that move a window over an image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tencost.networks.inputs import Array
from tencost.networks.onnx_graph import node_attributes
from tencost.networks.operators.node import Node, Refused


def _conv(node: Node) -> None:
    """Zeros that a Pad puts around an image become the convolution's own: the pass over the image is spared."""
    pad = node.tensors.makers.get(node.proto.input[0])
    settings, weights = node_attributes(node.proto), node.constant(1)
    if pad is None or pad.op_type != "Pad" or weights is None or node.opset < 11:
        return  # before opset 11 sizes were attributes
    if settings.pop("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return
    names = [*pad.input[1:], "", ""][:3]
    sizes, value, axes = (node.tensors.constants.get(name) for name in names)
    is_zero = not names[1] or (value is not None and not value.any())
    mode = node_attributes(pad).get("mode", "constant")
    if sizes is None or (names[2] and axes is None) or not is_zero or mode != "constant":
        return
    around = np.zeros((2, weights.ndim), np.int64)
    around[:, np.arange(weights.ndim) if axes is None else axes] = sizes.reshape(2, -1)
    if around.min() < 0 or around[:, :2].any():
        return
    pads = around[:, 2:] + np.reshape(settings.pop("pads", [0] * around[:, 2:].size), (2, -1))
    inputs = [pad.input[0], *node.proto.input[1:]]
    node.finish("Conv", *inputs, **settings, pads=pads.ravel().tolist())


def _conv_transpose(node: Node) -> None:
    """The frontend looks at no output_shape; it settles the padding."""
    sizes = node.attribute("output_shape")
    if sizes is None:
        return
    data, kernel = node.shape(0)[2:], node.attribute("kernel_shape", node.shape(1)[2:])
    rank = len(data)
    strides, dilations = (node.attribute(key, [1] * rank) for key in ("strides", "dilations"))
    added = list(node.attribute("output_padding", [0] * rank))
    begin, end = [0] * rank, [0] * rank
    for axis, size in enumerate(list(sizes)[-rank:]):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        total = strides[axis] * (data[axis] - 1) + added[axis] + window - int(size)
        if total < 0:
            added[axis], total = added[axis] - total, 0
        smaller, larger = total // 2, total - total // 2
        upper = node.attribute("auto_pad", "NOTSET") == "SAME_UPPER"
        begin[axis], end[axis] = (smaller, larger) if upper else (larger, smaller)
    if any(added[axis] >= max(strides[axis], dilations[axis]) for axis in range(rank)):
        raise Refused("ConvTranspose with an output_shape beyond what its windows reach")
    settings = node_attributes(node.proto) | {"pads": [*begin, *end], "output_padding": added}
    del settings["output_shape"]
    settings.pop("auto_pad", None)
    node.finish("ConvTranspose", *node.proto.input, **settings)


def _max_pool(node: Node) -> None:
    """The frontend gives no places of the largest values."""
    if not node.is_read(1):
        if len(node.proto.output) > 1:
            outputs = node.proto.output[:1]
            node.write("MaxPool", *node.proto.input, outputs=outputs, **node_attributes(node.proto))
        return
    batch, channels, *image = node.shape(0)
    kernel, counts = node.attribute("kernel_shape"), node.output_shape(0)[2:]
    steps, pads = _moves(node, image, kernel, counts)
    places = _window_places(image, kernel, counts, **steps, begin=pads)
    # A place in the padding becomes the first one of its window that is not: the maximum is found there as well.
    inside = (places >= 0).argmax(axis=1)[:, None]
    places = np.where(places < 0, np.take_along_axis(places, inside, 1), places)
    size, (windows, window) = int(np.prod(image)), places.shape
    flat = node.reshape(node.proto.input[0], [batch, channels, size])
    values = node.write("Gather", flat, node.write_constant(places), axis=2)
    best = node.write("ArgMax", values, axis=3, keepdims=0)
    rows = node.write("Add", best, node.write_constant(window * np.arange(windows)))
    if node.attribute("storage_order", 0):
        by_column = np.arange(size).reshape(image[::-1]).T.reshape(-1)
        places = by_column[places]
    place = node.write("Gather", node.write_constant(places.reshape(-1)), rows, axis=0)
    image_starts = np.arange(batch * channels).reshape(batch, channels, 1) * size
    whole = node.write("Add", place, node.write_constant(image_starts))
    node.reshape(whole, [batch, channels, *counts], node.proto.output[1:2])
    largest = node.reduce("ReduceMax", values, [3], keepdims=0)
    node.reshape(largest, [batch, channels, *counts], node.proto.output[:1])


def _moves(
    node: Node, image: list[int], kernel: Sequence[int], counts: Sequence[int]
) -> tuple[dict[str, list[int]], list[int]]:
    """Return (strides and dilations, the padding before each axis) of a window that an operator moves."""
    rank = len(image)
    strides, dilations = (list(node.attribute(key, [1] * rank)) for key in ("strides", "dilations"))
    begin, policy = list(node.attribute("pads", [0] * rank))[:rank], node.attribute("auto_pad", "")
    if policy.startswith("SAME"):
        moves = zip(image, kernel, counts, strides, dilations, strict=True)
        totals = [
            max((count - 1) * stride + (width - 1) * dilation + 1 - size, 0)
            for size, width, count, stride, dilation in moves
        ]
        begin = [total // 2 if policy == "SAME_UPPER" else -(-total // 2) for total in totals]
    return {"strides": strides, "dilations": dilations}, begin


def _window_places(
    image: Sequence[int],
    kernel: Sequence[int],
    counts: Sequence[int],
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    begin: Sequence[int],
) -> Array:
    """Return where in an image the values of windows are.

    Args:
        image: its sizes.
        kernel: the sizes of a window.
        counts: how many windows there are along each axis.
        strides: between windows.
        dilations: between the values of a window.
        begin: padding before the image.

    Returns:
        int64 [windows, values of a window], the place in the flat image; -1 for one outside it.
    """
    rank = len(image)
    windows = np.indices(counts).reshape(rank, -1, 1)
    values = np.indices(kernel).reshape(rank, 1, -1)
    column = (-1, 1, 1)
    at = windows * np.reshape(strides, column) + values * np.reshape(dilations, column)
    at = at - np.reshape(begin, column)
    outside = ((at < 0) | (at >= np.reshape(image, column))).any(axis=0)
    flat = np.ravel_multi_index(tuple(np.where(outside, 0, at)), tuple(image))
    return np.where(outside, -1, flat).astype(np.int64)


def _max_unpool(node: Node) -> None:
    """The frontend wants to know the shape of the output."""
    if node.has_input(2) and node.constant(2) is None:
        raise Refused("MaxUnpool whose output_shape is no constant")


def _col2im(node: Node) -> None:
    """Each pixel is the sum of the values of the windows that cover it: a gather of constant places."""
    sizes, widths = node.constant(1), node.constant(2)
    if sizes is None or widths is None:
        raise Refused("Col2Im whose image_shape or block_shape is no constant")
    image, kernel = [int(size) for size in sizes], [int(size) for size in widths]
    batch, rows, columns = node.shape(0)
    steps, begin = _moves(node, image, kernel, image)
    ends = list(node.attribute("pads", [0] * 2 * len(image)))[len(image) :]
    counts = [
        (size + before + after - (width - 1) * dilation - 1) // stride + 1
        for size, before, after, width, dilation, stride in zip(
            image, begin, ends, kernel, steps["dilations"], steps["strides"], strict=True
        )
    ]
    places = _window_places(image, kernel, counts, **steps, begin=begin)
    values, pixels = int(np.prod(kernel)), int(np.prod(image))
    sources: list[list[int]] = [[] for _ in range(pixels)]
    for (window, value), pixel in np.ndenumerate(places):
        if pixel >= 0:
            sources[pixel].append(value * columns + window)
    most, nothing = max(map(len, sources)), values * columns
    table = np.array([row + [nothing] * (most - len(row)) for row in sources], np.int64)
    channels = rows // values
    flat = node.reshape(node.proto.input[0], [batch, channels, values * columns])
    zero = node.write_constant(np.zeros((batch, channels, 1)), node.dtype(0))
    padded = node.write("Concat", flat, zero, axis=2)
    covering = node.write("Gather", padded, node.write_constant(table), axis=2)
    summed = node.reduce("ReduceSum", covering, [3], keepdims=0)
    node.reshape(summed, [batch, channels, *image], node.proto.output)


def _deform_conv(node: Node) -> None:
    """Sample the image at the shifted places of all windows, then multiply with the weights."""
    batch, channels, *image = node.shape(0)
    if len(image) != 2:
        raise Refused(f"DeformConv of images with {len(image)} axes")
    filters, channels_of_filter, *kernel = node.shape(1)
    groups, sets = node.attribute("group", 1), node.attribute("offset_group", 1)
    counts = list(node.shape(2)[2:])
    steps, begin = _moves(node, image, kernel, counts)
    taps, windows, dtype = int(np.prod(kernel)), int(np.prod(counts)), node.dtype(0)
    # Where each value of each window is without its offset, [axis, taps, windows].
    grid = (
        np.indices(counts).reshape(2, 1, -1) * np.reshape(steps["strides"], (2, 1, 1))
        + np.indices(kernel).reshape(2, -1, 1) * np.reshape(steps["dilations"], (2, 1, 1))
        - np.reshape(begin, (2, 1, 1))
    )
    offsets = node.reshape(node.proto.input[2], [batch * sets, taps, 2, windows])
    moved = node.write("Add", offsets, node.write_constant(grid.transpose(1, 0, 2), dtype))
    # GridSample's coordinates: -1 and 1 are the outer edges of the first and the last pixel; x comes before y.
    lengths = np.reshape(image, (2, 1))
    scaled = node.write("Mul", moved, node.write_constant(2 / lengths, dtype))
    centered = node.write("Add", scaled, node.write_constant(1 / lengths - 1, dtype))
    swapped = node.write("Gather", centered, node.write_constant([1, 0], np.int64), axis=2)
    coordinates = node.write("Transpose", swapped, perm=[0, 1, 3, 2])
    data = node.reshape(node.proto.input[0], [batch * sets, channels // sets, *image])
    sampled = node.write("GridSample", data, coordinates, align_corners=0)
    if node.has_input(4):
        mask = node.reshape(node.proto.input[4], [batch * sets, 1, taps, windows])
        sampled = node.write("Mul", sampled, mask)
    columns = node.reshape(sampled, [batch, groups, channels_of_filter * taps, windows])
    weights = node.reshape(
        node.proto.input[1], [groups, filters // groups, channels_of_filter * taps]
    )
    product = node.reshape(node.write("MatMul", weights, columns), [batch, filters, *counts])
    bias = node.constant(3)
    if node.has_input(3) and (bias is None or bias.any()):
        product = node.write("Add", product, node.reshape(node.proto.input[3], [filters, 1, 1]))
    node.finish("Identity", product)


WRITERS = {
    "Col2Im": _col2im, "Conv": _conv, "ConvTranspose": _conv_transpose, "DeformConv": _deform_conv,
    "MaxPool": _max_pool, "MaxUnpool": _max_unpool,
}  # fmt: skip
