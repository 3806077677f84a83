"""Resize and Upsample as products with matrices, or as gathers, axis by axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tencost.networks.inputs import Array
from tencost.networks.operators.node import Node, Refused
from tencost.networks.operators.resize_axis import ResizeAxis


def _resize(node: Node) -> None:
    """Resize with a product with a matrix, or by gathering, along each axis where the frontend would do otherwise.

    It takes the quotient of sizes for the scale (they differ where size * scale is no whole number), knows neither
    antialias nor axes nor how to keep an aspect ratio, and leaves the first two axes alone.
    """
    shape, dtype = node.shape(0), node.dtype(0)
    if node.opset < 11:  # (data, scales)
        _upsample(node)
        return
    _drop_empty_inputs(node)
    scales, sizes = node.constant(2), node.constant(3)
    settled = scales if sizes is None else sizes
    if settled is None:
        if node.has_input(3) or node.has_input(2):
            raise Refused("Resize whose scales or sizes are no constants")
        return
    axes = [axis % len(shape) for axis in node.attribute("axes", range(len(shape)))]
    if len(settled) != len(axes):
        raise Refused(f"Resize with {len(settled)} scales or sizes for {len(axes)} axes")
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    changes = _axis_changes(shape, axes, scales, sizes, policy)
    coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
    mode, antialias = node.attribute("mode", "nearest"), node.attribute("antialias", 0)
    plain = len(shape) in (3, 4, 5) and not {0, 1} & {axis for axis, _, _ in changes}
    exact = all(size == shape[axis] * scale for axis, size, scale in changes)
    if (
        plain and exact and not antialias and policy == "stretch"
        and node.attribute("axes") is None and coordinates != "half_pixel_symmetric"
    ):  # fmt: skip
        return
    if coordinates == "tf_crop_and_resize":
        raise Refused(
            "Resize with coordinate_transformation_mode=tf_crop_and_resize and axes or fractional scales"
        )
    if mode != "nearest" and dtype.kind != "f":
        raise Refused(
            f"Resize with mode={mode} of {dtype} values and antialias, axes or fractional scales"
        )
    _write_resized(
        node, changes, mode=mode, coordinates=coordinates, antialias=bool(antialias),
        nearest=node.attribute("nearest_mode", "round_prefer_floor"),
        cubic=node.attribute("cubic_coeff_a", -0.75),
        exclude_outside=bool(node.attribute("exclude_outside", 0)),
    )  # fmt: skip


def _drop_empty_inputs(node: Node) -> None:
    """Leave out inputs that are empty tensors: before opset 13 region and scales had to be there, one way or other."""
    names = node.proto.input
    for index in range(1, len(names)):
        value = node.constant(index)
        if value is not None and not value.size:
            names[index] = ""


def _upsample(node: Node) -> None:
    """The frontend knows scales as an attribute only, those of four axes, and rounds to the nearest place."""
    scales, mode = node.attribute("scales"), node.attribute("mode", "nearest")
    if node.opset >= 9:
        scales = node.constant(1)
    elif node.opset < 7:
        scales = [1.0, 1.0, node.attribute("height_scale"), node.attribute("width_scale")]
    if scales is None or mode not in ("nearest", "linear"):
        raise Refused(f"Upsample with mode={mode} or scales that are no constants")
    shape, dtype = node.shape(0), node.dtype(0)
    if mode == "linear" and dtype.kind != "f":
        raise Refused(f"Upsample with mode={mode} of {dtype} values")
    changes = _axis_changes(shape, range(len(shape)), np.asarray(scales), None, "stretch")
    _write_resized(node, changes, mode=mode, coordinates="asymmetric", nearest="floor")


def _write_resized(node: Node, changes: list[tuple[int, int, float]], **settings: Any) -> None:
    """Write what resizes a node's first input, an axis after the other, by gathering or by a product."""
    shape, dtype, data = node.shape(0), node.dtype(0), node.proto.input[0]
    for axis, size, scale in changes:
        rule = ResizeAxis(size_in=shape[axis], size_out=size, scale=scale, **settings)
        if rule.mode == "nearest":
            data = node.write("Gather", data, node.write_constant(rule.places()), axis=axis)
        else:
            order = list(range(len(shape)))
            order[axis], order[-1] = order[-1], order[axis]
            matrix = node.write_constant(np.ascontiguousarray(rule.matrix().T.astype(dtype)))
            product = node.write("MatMul", node.write("Transpose", data, perm=order), matrix)
            data = node.write("Transpose", product, perm=order)
    node.finish("Identity", data)


def _axis_changes(
    shape: Sequence[int],
    axes: Sequence[int],
    scales: Array | None,
    sizes: Array | None,
    policy: str,
) -> list[tuple[int, int, float]]:
    """Return (axis, size, scale) of the axes that are resized."""
    if sizes is None:
        assert scales is not None
        factors = [float(scale) for scale in scales]
        sizes = np.array(
            [math.floor(shape[axis] * factor) for axis, factor in zip(axes, factors, strict=True)]
        )
    else:
        factors = [int(size) / shape[axis] for axis, size in zip(axes, sizes, strict=True)]
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(axes)
            sizes = np.array([math.floor(shape[axis] * factor + 0.5) for axis in axes])
    changes = zip(axes, map(int, sizes), factors, strict=True)
    return [change for change in changes if change[1:] != (shape[change[0]], 1.0)]


WRITERS = {"Resize": _resize, "Upsample": _upsample}
