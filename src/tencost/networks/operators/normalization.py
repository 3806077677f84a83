"""Normalizations, and dropout."""

from __future__ import annotations

import numpy as np

from tencost.networks.operators.functions import as_function
from tencost.networks.operators.node import Node, Refused

IN_EVALUATION = "(export the network in evaluation mode)"


def _layer_normalization(node: Node) -> None:
    """The frontend returns zeros as mean and inverse deviation; TVM lowers it for float16 and float32 only."""
    is_other = node.has_type(0) and node.dtype(0) not in (np.float16, np.float32)
    if node.is_read(1) or node.is_read(2) or is_other:
        as_function(node)


def _rms_normalization(node: Node) -> None:
    """TVM cannot lower it over more than the last axis."""
    if node.attribute("axis", -1) not in (-1, len(node.shape(0)) - 1):
        as_function(node)


def _batch_normalization(node: Node) -> None:
    """The frontend takes the running statistics, as outside training."""
    old = node.opset < 7
    training = not node.attribute("is_test", 0) if old else node.attribute("training_mode", 0)
    if training or node.is_read(1) or node.is_read(2):
        raise Refused(f"BatchNormalization in training mode {IN_EVALUATION}")


def _dropout(node: Node) -> None:
    """The frontend looks at no training mode and gives a mask of numbers."""
    training = node.opset < 7 and not node.attribute("is_test", 0)
    if node.opset >= 12 and node.has_input(2):
        mode, ratio = node.constant(2), node.constant(1)
        if mode is None:
            raise Refused(f"Dropout whose training mode is no constant {IN_EVALUATION}")
        training = bool(mode.any() and (ratio is None or ratio.any()))
    if training:
        raise Refused(f"Dropout in training mode {IN_EVALUATION}")
    node.write("Identity", node.proto.input[0], outputs=node.proto.output[:1])
    if node.is_read(1):
        dtype = np.bool_ if node.opset >= 10 else node.dtype(0)
        node.write_constant(np.ones(node.shape(0), dtype), output=node.proto.output[1])


def _lp_normalization(node: Node) -> None:
    """Divide by the norm along an axis; where the norm is 0, the result is 0."""
    data, order = node.proto.input[0], node.attribute("p", 2)
    norm = node.reduce(f"ReduceL{order}", data, [node.attribute("axis", -1)], keepdims=1)
    zero = node.write_constant(0, node.dtype(0))
    is_zero = node.write("Equal", norm, zero)
    node.finish("Where", is_zero, zero, node.write("Div", data, norm))


WRITERS = {
    "BatchNormalization": _batch_normalization, "Dropout": _dropout, "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization, "RMSNormalization": _rms_normalization,
}  # fmt: skip
