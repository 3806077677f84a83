"""The expected outputs of ONNX files: ONNX Runtime computes them, or ONNX's reference where that cannot.

On CPUs without VNNI, ONNX Runtime multiplies uint8 data by int8 weights in pairs whose sum is cut off at 16 bits. Its
option against that, session.x64quantprecision, is one of its extended optimizations, which are off here. So int8
weights become uint8 ones, and their zero points with them, before such a product is run: 128 more each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tencost.config import NetworkConfig
from tencost.errors import MeasureError
from tencost.networks.inputs import Array, range_advice
from tencost.networks.onnx_graph import load_model, node_attributes, replace, subgraphs
from tencost.networks.operators.node import WRITTEN, Node, write_once
from tencost.networks.source import first_sentence

_INTEGER_PRODUCTS = {
    "ConvInteger": (1, 3), "MatMulInteger": (1, 3), "QGemm": (3, 5), "QLinearConv": (3, 5), "QLinearMatMul": (3, 5),
}  # fmt: skip
"""Operator -> positions of the weights and of their zero point; the data are at 0, their zero point at 2."""


def run_model(
    config: NetworkConfig,
    path: Path,
    inputs: dict[str, Array],
    changed: Callable[[Array], Array] | None = None,
) -> tuple[list[Array], str]:
    """Run an ONNX file: (its outputs, the name of the runtime that computed them).

    Args:
        config: names the network in messages.
        path: of the file.
        inputs: by name.
        changed: applied to each weight of the file before it is run; None: the weights stay.

    Raises:
        MeasureError: neither ONNX Runtime nor ONNX's reference runs it.
    """
    from onnx.reference import ReferenceEvaluator

    model = load_model(path)
    if changed is not None:
        _change_weights(model, changed)
    is_written = _write_unsigned_weights(model)
    advice = "Install onnxruntime: pip install 'tencost[tuner]'"
    with contextlib.suppress(ImportError):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # fatal: everything else is raised as well
        # Further optimizations fuse quantized operators and are up to two quanta off what ONNX defines.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        try:
            is_file = changed is None and not is_written
            session = onnxruntime.InferenceSession(
                str(path) if is_file else model.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
            )
            outputs = session.run(None, inputs)
            return [np.asarray(array) for array in outputs], "ONNX Runtime"
        except Exception as error:  # noqa: BLE001 - onnxruntime's have no root of their own
            advice = f"onnxruntime does not run it either: {first_sentence(error)}"
    try:
        outputs = ReferenceEvaluator(model).run(None, inputs)
    except Exception as error:
        raise MeasureError(
            f"network {config.name!r}: ONNX's reference does not run {path}: {first_sentence(error)}. {advice}"
            f"{range_advice(inputs)}"
        ) from error
    return [np.asarray(array) for array in outputs], "ONNX's reference"


def _change_weights(model: Any, changed: Callable[[Array], Array]) -> None:
    from onnx import numpy_helper

    for graph in subgraphs(model.graph):
        replace(
            graph.initializer,
            [
                numpy_helper.from_array(changed(numpy_helper.to_array(tensor)), tensor.name)
                for tensor in graph.initializer
            ],
        )


def _write_unsigned_weights(model: Any) -> bool:
    """Multiply uint8 data by uint8 weights in a model, in place; say whether there were int8 ones."""

    def writer_of(proto: Any) -> Callable[[Node], None] | None:
        is_product = proto.op_type in _INTEGER_PRODUCTS and not proto.name.startswith(WRITTEN)
        return _unsigned if is_product else None

    return write_once(model, count(), writer_of, subgraphs(model.graph))


def _unsigned(node: Node) -> None:
    weights, zero = _INTEGER_PRODUCTS[node.proto.op_type]
    if not (node.has_type(weights) and node.dtype(weights) == np.int8):
        return
    # What operators of com.microsoft return has no inferred type; the zero point has the same type.
    of_data = [node.dtype(at) for at in (0, 2) if node.has_input(at) and node.has_type(at)]
    if np.int8 in of_data:
        return
    inputs = [*node.proto.input, *[""] * (zero + 1 - len(node.proto.input))]
    for place in (weights, zero):
        if inputs[place]:
            shift = node.write_constant(128, np.int32)
            shifted = node.write("Add", node.cast(inputs[place], np.int32), shift)
            inputs[place] = node.cast(shifted, np.uint8)
        else:
            inputs[place] = node.write_constant(128, np.uint8)
    settings = node_attributes(node.proto)
    node.finish(node.proto.op_type, *inputs, domain=node.proto.domain, **settings)
