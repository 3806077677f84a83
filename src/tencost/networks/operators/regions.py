"""Boxes and regions of images, as detectors use them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tencost.networks.operators.node import Node, Refused


def _non_max_suppression(node: Node) -> None:
    """It selects as many boxes as its data say; the network returns as many rows as there may be, -1 after the boxes.

    A reader of the rows would take -1 for a box, so they are an output and nothing else.
    """
    limit = node.constant(2)
    if limit is None and node.has_input(2):
        raise Refused("NonMaxSuppression whose max_output_boxes_per_class is no constant")
    if limit is None or limit.item() <= 0:
        raise Refused("NonMaxSuppression that selects nothing: its max_output_boxes_per_class is 0")
    if any(reader is not None for reader in node.tensors.readers[node.proto.output[0]]):
        raise Refused(
            "NonMaxSuppression whose boxes other operators read, so that their shapes depend on data"
        )


def padded_outputs(graph: Any) -> list[str]:
    """Return the names of a graph's outputs that end with rows of -1 (see NonMaxSuppression above)."""
    made = {node.output[0] for node in graph.node if node.op_type == "NonMaxSuppression"}
    return [output.name for output in graph.output if output.name in made]


def _roi_align(node: Node) -> None:
    """The frontend takes the largest of interpolated values, ONNX that of the four products before they are added."""
    ids = _images(node)
    if node.attribute("mode", "avg") != "max":
        if ids != node.proto.input[2]:
            settings = {one.name: node.attribute(one.name) for one in node.proto.attribute}
            node.finish("RoiAlign", *node.proto.input[:2], ids, **settings)
        return
    ratio = node.attribute("sampling_ratio", 0)
    if ratio <= 0:
        raise Refused("RoiAlign with mode=max and a sampling_ratio that depends on the regions")
    batch, channels, height, width = node.shape(0)
    regions, dtype = node.shape(1)[0], node.dtype(0)
    half_pixel = (
        node.opset >= 16
        and node.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    )
    scale = node.write_constant(node.attribute("spatial_scale", 1.0), dtype)
    edges = node.write("Mul", node.proto.input[1], scale)
    if half_pixel:
        edges = node.write("Sub", edges, node.write_constant(0.5, dtype))
    axes = {}
    for axis, (size, count) in enumerate(
        ((width, node.attribute("output_width", 1)), (height, node.attribute("output_height", 1)))
    ):
        first, last = (
            node.write("Gather", edges, node.write_constant([place], np.int64), axis=1)
            for place in (axis, axis + 2)
        )
        extent = node.write("Sub", last, first)
        if not half_pixel:
            extent = node.write("Max", extent, node.write_constant(1, dtype))
        steps = node.write_constant((np.arange(count * ratio) + 0.5)[None] / (count * ratio), dtype)
        axes[axis] = _corners(
            node, node.write("Add", first, node.write("Mul", extent, steps)), size
        )
    # Rows of the image by pixel: one gather reads all channels of a pixel.
    order = node.write("Transpose", node.proto.input[0], perm=[0, 2, 3, 1])
    pixels = node.reshape(order, [batch * height * width, channels])
    image = node.write("Mul", node.cast(ids, np.int64), node.write_constant(height * width))
    image = node.reshape(image, [regions, 1, 1])
    products = []
    for row, row_weight in axes[1]:
        start = node.write("Add", image, node.reshape(_times(node, row, width), [regions, -1, 1]))
        for column, column_weight in axes[0]:
            places = node.write("Add", start, node.reshape(column, [regions, 1, -1]))
            weight = node.write(
                "Mul", node.reshape(row_weight, [regions, -1, 1, 1]),
                node.reshape(column_weight, [regions, 1, -1, 1]),
            )  # fmt: skip
            products.append(node.write("Mul", node.write("Gather", pixels, places, axis=0), weight))
    counts = [node.attribute("output_height", 1), node.attribute("output_width", 1)]
    largest = node.reshape(
        node.write("Max", *products), [regions, counts[0], ratio, counts[1], ratio, channels]
    )
    pooled = node.reduce("ReduceMax", largest, [2, 4], keepdims=0)
    node.finish("Transpose", pooled, perm=[0, 3, 1, 2])


def _images(node: Node) -> str:
    """Look the batch indices up, so that they are checked as other ids are; unsigned ones do not count from the end."""
    if node.constant(2) is not None:
        return str(node.proto.input[2])
    places = node.write_constant(np.arange(node.shape(0)[0]), node.dtype(2))
    return node.write("Gather", places, node.cast(node.proto.input[2], np.uint64), axis=0)


def _times(node: Node, name: str, factor: int) -> str:
    return node.write("Mul", name, node.write_constant(factor, np.int64))


def _corners(node: Node, points: str, size: int) -> list[tuple[str, str]]:
    """Return (place, weight) of the pixels before and after points on an axis; 0 is the weight outside the image."""
    dtype = node.dtype(0)
    zero, one, last = (node.write_constant(number, dtype) for number in (0, 1, size - 1))
    below = node.write("Less", points, node.write_constant(-1, dtype))
    above = node.write("Greater", points, node.write_constant(size, dtype))
    inside = node.cast(node.write("Not", node.write("Or", below, above)), dtype)
    points = node.write("Min", node.write("Max", points, zero), last)
    low = node.write("Floor", points)
    high = node.write("Min", node.write("Add", low, one), last)
    far = node.write("Sub", points, low)
    near = node.write("Sub", one, far)
    return [
        (node.cast(place, np.int64), node.write("Mul", weight, inside))
        for place, weight in ((low, near), (high, far))
    ]


WRITERS = {"NonMaxSuppression": _non_max_suppression, "RoiAlign": _roi_align}
