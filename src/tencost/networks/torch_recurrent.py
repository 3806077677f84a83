"""PyTorch's recurrent layers for TVM's frontend, which knows one layer of each and forgets its last states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tencost.networks.recurrent import Activation, RecurrentLayer, RecurrentTensors, sizes

_LAYERS = {
    "lstm": ("LSTM", "ifco", ("sigmoid", "tanh", "tanh")),
    "gru": ("GRU", "rzh", ("sigmoid", "tanh")),
    "rnn_tanh": ("RNN", "h", ("tanh",)),
    "rnn_relu": ("RNN", "h", ("relu",)),
}
"""Operator of PyTorch -> cell, the order of its gates in the weights, its activations."""


def operators() -> list[Any]:
    """Return PyTorch's operators of recurrent layers: decomposed, each step would be written anew."""
    import torch

    return [getattr(torch.ops.aten, name).input for name in _LAYERS]


def converters() -> dict[str, Callable[[Any, Any], Any]]:
    """Return what converts the layers, by operator, for from_exported_program's custom_convert_map."""
    return {f"{name}.input": _converter(name) for name in _LAYERS}


def _converter(name: str) -> Callable[[Any, Any], Any]:
    return lambda node, importer: _convert(
        name, importer.block_builder, importer.retrieve_args(node)
    )


def _convert(name: str, builder: Any, arguments: list[Any]) -> Any:
    """Write all layers of a call and return its outputs, a tuple: the last layer's states, and the last states of all.

    Args:
        name: of the operator.
        builder: relax.BlockBuilder.
        arguments: data, initial states, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first.
    """
    from tvm import relax

    op = relax.op
    kind, gates, names = _LAYERS[name]
    data, states, weights, has_biases, count, _, _, bidirectional, batch_first = arguments
    states = list(states) if kind == "LSTM" else [states]
    reverse = (False, True) if bidirectional else (False,)
    each = 4 if has_biases else 2
    if len(weights) != each * len(reverse) * count:
        raise NotImplementedError(f"{kind} with proj_size")
    activations = (tuple(map(Activation, names)),) * len(reverse)
    layer = RecurrentLayer(kind, gates, reverse, activations, linear_before_reset=kind == "GRU")
    if batch_first:
        data = builder.emit(op.permute_dims(data, [1, 0, 2]))
    last: list[list[Any]] = [[] for _ in states]
    for index in range(count):
        first = index * len(reverse)

        def stacked(place: int, first: int = first) -> Any:
            parts = [
                weights[(first + direction) * each + place] for direction in range(len(reverse))
            ]
            whole = builder.emit(op.concat(parts, axis=0)) if len(parts) > 1 else parts[0]
            return builder.emit(op.reshape(whole, (len(parts), *sizes(parts[0]))))

        initial = [
            builder.emit(op.strided_slice(state, [0], [first], [first + len(reverse)]))
            for state in states
        ]
        entering, recurrent, *biases = (stacked(place) for place in range(each))
        tensors = RecurrentTensors(
            data,
            entering,
            recurrent,
            *(biases or (None, None)),
            *initial,
        )
        y, *ends = layer.emit(builder, tensors)
        steps, directions, batch, hidden = sizes(y)
        turned = builder.emit(op.permute_dims(y, [0, 2, 1, 3]))
        data = builder.emit(op.reshape(turned, (steps, batch, directions * hidden)))
        for parts, end in zip(last, ends, strict=True):
            parts.append(end)
    if batch_first:
        data = builder.emit(op.permute_dims(data, [1, 0, 2]))
    return relax.Tuple(
        [
            data,
            *(
                builder.emit(op.concat(parts, axis=0)) if len(parts) > 1 else parts[0]
                for parts in last
            ),
        ]
    )
