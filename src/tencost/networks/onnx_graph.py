"""Reading and changing ONNX models: files, subgraphs, attributes and constants, fixed input shapes, folding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from tencost.errors import ConfigError
from tencost.networks.source import first_sentence, held_log, require_module

_CONSTANT_TYPES = {
    "value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64",
}  # fmt: skip


def read_model(path: Path, where: str = "") -> Any:
    """Read a whole ONNX model with its weights.

    Args:
        path: of the file.
        where: what messages begin with, such as the option that names the file.

    Raises:
        ConfigError: there is none.
    """
    require_module("onnx", extra="latency")
    import onnx

    try:
        model = _with_output_shapes(path)
        unknown = [] if model is None else _without_shape(model.graph.output)
        if not unknown:
            onnx.checker.check_model(str(path) if model is None else model)
            model = onnx.load(str(path)) if model is None else model
    except Exception as error:
        raise ConfigError(
            f"{where}expected a whole ONNX model in {path}, found something else: {first_sentence(error)}. Export it "
            "again, or copy it with all its files"
        ) from error
    if unknown:
        raise ConfigError(
            f"{where}expected outputs that have a shape, or one that follows from the inputs' shapes, found none of "
            f"{', '.join(unknown)} in {path}. Declare it (onnx.helper.make_tensor_value_info), or export the model "
            "again"
        )
    return model


def _with_output_shapes(path: Path) -> Any | None:
    """Return a model with the shapes of its outputs inferred; None where they are declared, or it cannot be read.

    ONNX Runtime needs no such shapes, but ONNX's checker does.
    """
    import onnx

    with suppress(Exception):  # the checker says what is wrong with the file
        if _without_shape(onnx.load(str(path), load_external_data=False).graph.output):
            return onnx.shape_inference.infer_shapes(onnx.load(str(path)))
    return None


def _without_shape(declared: Any) -> list[str]:
    """Return the names of tensors that have no type or no shape."""
    return [
        item.name
        for item in declared
        if item.type.WhichOneof("value") in (None, "tensor_type")
        and not item.type.tensor_type.HasField("shape")
    ]


def subgraphs(graph: Any) -> Iterator[Any]:
    """Yield a graph, then the graphs in its nodes (the branches of an If)."""
    yield graph
    for node in graph.node:
        for setting in node.attribute:
            if setting.HasField("g"):
                yield from subgraphs(setting.g)


def node_attributes(node: Any) -> dict[str, Any]:
    """Return the values of a node's attributes by name, text as str."""
    from onnx import helper

    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """Return the value of a node's attribute, text as str."""
    return node_attributes(node).get(name, default)


def constant_value(node: Any) -> Any | None:
    """Return the tensor of a Constant node in whatever way it is written; None for any other node."""
    from onnx import numpy_helper

    if node.op_type != "Constant" or len(node.attribute) != 1:
        return None
    ((name, value),) = node_attributes(node).items()
    if name in _CONSTANT_TYPES:
        return numpy_helper.from_array(np.array(value, _CONSTANT_TYPES[name]))
    return value if name == "value" else None


def constant_node(output: str, value: Any, name: str = "") -> Any:
    """Return a Constant node that makes a tensor of an array."""
    from onnx import helper, numpy_helper

    tensor = numpy_helper.from_array(np.asarray(value))
    return helper.make_node("Constant", [], [output], name=name, value=tensor)


def replace(field: Any, messages: list[Any]) -> None:
    """Put copies of messages in the place of those of a repeated field, which may be some of them."""
    copies = [copy(message) for message in messages]
    del field[:]
    field.extend(copies)


def fix_shapes(graph: Any, shapes: dict[str, tuple[int, ...]]) -> None:
    """Give a graph's inputs these shapes, in place."""
    from onnx import helper

    for tensor in graph.input:
        if tensor.name in shapes:
            dtype, shape = tensor.type.tensor_type.elem_type, shapes[tensor.name]
            tensor.CopyFrom(helper.make_tensor_value_info(tensor.name, dtype, shape))
    del graph.value_info[:]  # of shapes that are inferred anew


def fold(model: Any) -> None:
    """Compute what follows from shapes and constants alone, and drop what nothing uses, in place."""
    from onnxscript import optimizer

    folded = copy(model)
    with held_log("onnxscript.optimizer._constant_folding"):
        optimizer.fold_constants(
            folded,
            onnx_shape_inference=True,
            input_size_limit=_MAX_FOLDED,
            output_size_limit=_MAX_FOLDED,
            should_fold=_is_foldable,
        )
    optimizer.remove_unused_nodes(folded)
    model.CopyFrom(folded)


_MAX_FOLDED = 1 << 19
"""Numbers of a tensor that is folded: the tables and masks of attention in windows (Swin) are computed of larger ones
than onnxscript's default of 1024, at each call otherwise."""
_MAX_FILLED = 1024
"""Numbers that a ConstantOfShape may make and be folded: exported pads begin with one; large ones stay operators."""


def _is_foldable(node: Any) -> bool | None:
    """Say what is folded otherwise than by onnxscript's defaults, None: as they are.

    Not layers that ONNX's reference computes without their activations, clip and lengths; and ConstantOfShape, which
    the defaults leave, as what PyTorch pads with is sliced out of one.
    """
    if node.op_type in ("LSTM", "GRU", "RNN"):
        return False
    if node.op_type == "ConstantOfShape":
        shape = node.inputs[0].const_value
        if shape is not None and shape.numpy().prod() <= _MAX_FILLED:
            return True
    return None
