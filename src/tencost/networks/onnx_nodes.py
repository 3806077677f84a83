"""What is read of an ONNX graph: the graphs within it, the values of its Constant nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph, then the graphs in its nodes (the branches of an If)."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def constant_value(node: Any) -> Any | None:
    """Return the tensor of a Constant node in whatever way it is written; None for any other node."""
    from onnx import numpy_helper

    if node.op_type != "Constant" or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value":
        return attribute.t
    plain: dict[str, tuple[Any, str]] = {
        "value_float": (attribute.f, "float32"),
        "value_floats": (list(attribute.floats), "float32"),
        "value_int": (attribute.i, "int64"),
        "value_ints": (list(attribute.ints), "int64"),
    }
    if attribute.name not in plain:
        return None
    value, dtype = plain[attribute.name]
    return numpy_helper.from_array(np.array(value, dtype))
