"""An ONNX graph made ready for TVM's frontend, which wants static shapes and looks at constants only where they stand.

Its input shapes are fixed, what follows from shapes and constants alone is folded (exported transformers compute most
of their shapes in the graph), and its tensors are sorted into weights, which stay inputs of the Relax module until
after fusion, and constants, as they come out of PyTorch: integers, scalars and the running statistics of batch norms
are constants, every other tensor is a weight. A layer then gives the same workload whichever way it came.
"""

from __future__ import annotations

import contextlib
from copy import copy
from typing import Any

from tencost.networks.onnx_nodes import constant_value, graphs
from tencost.networks.onnx_operators import written_anew
from tencost.networks.source import held_log

_CONSTANT_INPUTS = {"BatchNormalization": (3, 4), "Resize": (1, 2, 3), "Upsample": (1,)}
"""Operators and which of their inputs are settings or statistics though they are floating-point tensors."""


def prepare(model: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """Fix a model's input shapes, fold constants, write anew what TVM gets wrong and sort its tensors, all in place.

    Raises:
        Refused: an operator that TVM's frontend computes wrongly.
    """
    fix_shapes(model.graph, shapes)
    _fold_if_possible(model)
    if written_anew(model):
        _fold_if_possible(model)
    _sort_tensors(model.graph)


def _fold_if_possible(model: Any) -> None:
    """A graph that cannot be folded may be imported all the same."""
    with contextlib.suppress(Exception):
        fold(model)


def fix_shapes(graph: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """Give a graph's inputs these shapes, in place."""
    import onnx

    for item in graph.input:
        if item.name in shapes:
            dtype = item.type.tensor_type.elem_type
            item.CopyFrom(onnx.helper.make_tensor_value_info(item.name, dtype, shapes[item.name]))
    del graph.value_info[:]  # of shapes that are inferred anew


def fold(model: Any) -> None:
    """Compute what follows from shapes and constants alone, and drop what nothing uses, in place."""
    from onnxscript import optimizer

    folded = type(model)()
    folded.CopyFrom(model)
    with held_log("onnxscript.optimizer._constant_folding"):
        optimizer.fold_constants(folded, onnx_shape_inference=True)
    optimizer.remove_unused_nodes(folded)
    model.CopyFrom(folded)


def _sort_tensors(graph: Any) -> None:
    """Make every tensor in use either an initializer, which becomes a weight, or a Constant node."""
    from onnx import numpy_helper

    parts = list(graphs(graph))
    used = {name for part in parts for node in part.node for name in node.input}
    used |= {item.name for part in parts for item in part.output}
    settings = {
        node.input[index]
        for part in parts
        for node in part.node
        for index in _CONSTANT_INPUTS.get(node.op_type, ())
        if index < len(node.input)
    }
    tensors, nodes = _tensors(graph)
    constants, weights = [], []
    for name, tensor in tensors.items():
        if name not in used:
            continue
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "f" and array.ndim > 0 and array.size > 1 and name not in settings:
            weights.append(numpy_helper.from_array(array, name))
        else:
            constants.append(_constant(name, array))
    for part in parts[1:]:
        # The frontend does not see the tensors of a branch.
        inside, others = _tensors(part)
        arrays = {name: numpy_helper.to_array(tensor) for name, tensor in inside.items()}
        made = [_constant(name, array) for name, array in arrays.items()]
        _replace(part.initializer, [])
        _replace(part.node, [*made, *others])
    _replace(graph.input, [item for item in graph.input if item.name not in tensors])
    _replace(graph.initializer, weights)
    _replace(graph.node, [*constants, *nodes])


def _replace(field: Any, values: list[Any]) -> None:
    values = [copy(value) for value in values]
    del field[:]
    field.extend(values)


def _constant(name: str, array: Any) -> Any:
    import onnx

    value = onnx.numpy_helper.from_array(array)
    return onnx.helper.make_node("Constant", [], [name], name=f"constant_{name}", value=value)


def _tensors(graph: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return (initializers and the tensors of Constant nodes by name, the other nodes)."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        value = constant_value(node)
        if value is None:
            nodes.append(node)
        else:
            tensors[node.output[0]] = value
    return tensors, nodes
