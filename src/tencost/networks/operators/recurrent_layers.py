"""ONNX's recurrent layers, and running products, for TVM's frontend, which has none of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tencost.networks.onnx_graph import node_attributes, subgraphs
from tencost.networks.operators.node import Refused
from tencost.networks.recurrent import (
    ACTIVATIONS,
    GATES,
    Activation,
    RecurrentLayer,
    RecurrentTensors,
    sizes,
)

_DEFAULTS = {
    "LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",),
}  # fmt: skip
_NUMBERS: dict[str, tuple[float | None, ...]] = {
    "affine": (None, None), "elu": (1.0,), "hardsigmoid": (0.2, 0.5), "leakyrelu": (0.01,),
    "scaledtanh": (None, None), "thresholdedrelu": (None,),
}  # fmt: skip
"""Activation -> its numbers (alpha, or alpha and beta) where a node has none of its own; None where it needs some.

Without a number, ONNX and ONNX Runtime disagree on the threshold of ThresholdedRelu."""
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_INPUTS = {"LSTM": 8, "GRU": 6, "RNN": 6}


def check_recurrent(graph: Any) -> None:
    """Look at the attributes of a graph's recurrent layers.

    Raises:
        Refused: one that no layer can be made of; operator and attribute are named.
    """
    for part in subgraphs(graph):
        for node in part.node:
            if node.op_type in GATES and node.domain in ("", "ai.onnx"):
                recurrent_layer(node.op_type, node_attributes(node))


def recurrent_layer(kind: str, attributes: dict[str, Any]) -> RecurrentLayer:
    """Return the layer of a node.

    Args:
        kind: LSTM, GRU or RNN.
        attributes: of the node, by name; texts as str.

    Raises:
        Refused: a value that ONNX does not define.
    """
    direction = attributes.get("direction", "forward")
    reverse = _DIRECTIONS.get(direction)
    if reverse is None:
        raise Refused(f"{kind} with direction={direction} ({', '.join(_DIRECTIONS)} would do)")
    if attributes.get("layout", 0) not in (0, 1):
        raise Refused(f"{kind} with layout={attributes['layout']} (0 or 1 would do)")
    names = [
        name if isinstance(name, str) else name.decode()
        for name in attributes.get("activations", ())
    ]
    names = [name.lower() for name in names] or list(_DEFAULTS[kind]) * len(reverse)
    each = len(_DEFAULTS[kind])
    if len(names) != each * len(reverse):
        raise Refused(f"{kind} with {len(names)} activations ({each} a direction would do)")
    unknown = [name for name in names if name not in ACTIVATIONS]
    if unknown:
        raise Refused(f"{kind} with activation {unknown[0]} ({', '.join(ACTIVATIONS)} would do)")
    numbers = [list(attributes.get(f"activation_{key}", ())) for key in ("alpha", "beta")]
    activations = []
    for name in names:
        values = []
        for default, remaining in zip(_NUMBERS.get(name, ()), numbers, strict=False):
            # A number is for the next activation that takes one.
            value = remaining.pop(0) if remaining else default
            if value is None:
                raise Refused(
                    f"{kind} with activation {name} without activation_alpha or activation_beta"
                )
            values.append(float(value))
        activations.append(Activation(name, *values))
    if any(numbers):
        raise Refused(
            f"{kind} with more activation_alpha or activation_beta than its activations take"
        )
    clip = attributes.get("clip")
    return RecurrentLayer(
        kind, GATES[kind], reverse,
        tuple(tuple(activations[start : start + each]) for start in range(0, len(names), each)),
        None if clip is None else float(clip),
        bool(attributes.get("linear_before_reset", 0)),
        bool(attributes.get("input_forget", 0)),
    )  # fmt: skip


def _convert_recurrent(
    kind: str, builder: Any, inputs: list[Any], attributes: dict[str, Any]
) -> Any:
    """Write a recurrent layer and return its outputs, a tuple."""
    from tvm import relax

    op = relax.op
    texts = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in attributes.items()
    }
    layer = recurrent_layer(kind, texts)
    data, weights, recurrent, bias, lengths, hidden, cell, peepholes = (
        *(inputs[index] for index in range(_INPUTS[kind])), None, None,
    )[:8]  # fmt: skip
    batch_first = bool(attributes.get("layout", 0))

    def turned(value: Any) -> Any:
        axes = [1, 0, *range(2, len(value.ty.shape))]
        return builder.emit(op.permute_dims(value, axes))

    if batch_first:
        data, hidden, cell = (
            None if value is None else turned(value) for value in (data, hidden, cell)
        )
    input_bias = recurrent_bias = None
    if bias is not None:
        middle = sizes(bias)[1] // 2
        input_bias, recurrent_bias = (
            builder.emit(op.strided_slice(bias, [1], [start], [start + middle]))
            for start in (0, middle)
        )
    if lengths is not None:
        lengths = builder.emit(op.astype(lengths, "int32"))
    outputs = layer.emit(
        builder,
        RecurrentTensors(
            data, weights, recurrent, input_bias, recurrent_bias, hidden, cell, peepholes, lengths
        ),
    )
    if batch_first:
        y = builder.emit(op.permute_dims(outputs[0], [2, 0, 1, 3]))
        outputs = (y, *(turned(state) for state in outputs[1:]))
    return relax.Tuple(outputs)


def _convert_running_product(builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    """Write CumProd with TVM's operator, which goes forward only."""
    from tvm import relax

    op, data = relax.op, inputs[0]
    axis = int(inputs[1].value.numpy().item()) % len(data.ty.shape)
    is_reverse = bool(attributes.get("reverse", 0))
    data = builder.emit(op.flip(data, axis)) if is_reverse else data
    exclusive = bool(attributes.get("exclusive", 0))
    product = op.cumprod(data, axis, str(data.ty.dtype), exclusive)
    return op.flip(builder.emit(product), axis) if is_reverse else product


CONVERTERS: dict[str, Callable[..., Any]] = {
    kind: partial(_convert_recurrent, kind) for kind in GATES
} | {"CumProd": _convert_running_product}
"""Operator -> (block builder, inputs, attributes) -> relax.Expr."""
