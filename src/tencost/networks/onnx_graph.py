"""Reading and changing ONNX models: files, subgraphs, attributes and constants, fixed input shapes, folding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tencost.errors import ConfigError
from tencost.networks.source import first_sentence, held_log, require_module

_CONSTANT_TYPES = {
    "value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64",
}  # fmt: skip

MAX_NODES = 200_000
"""Nodes of a model whose functions are written out: exported language models have some ten thousand."""
MAX_BYTES = 1 << 33
"""Bytes of one tensor: what a network computes at a time, or a file of a few bytes asks for (ConstantOfShape)."""
SMALL = 1024
"""Numbers that a weight may have whose value is asked for: shapes, bounds, axes."""


def load_model(path: Path, *, weights: bool = True) -> Any:
    """Return the model in a file, its local functions inlined; see :func:`read_model`.

    Raises:
        ConfigError: there is none.
    """
    from onnx.inliner import inline_local_functions

    model = read_model(path, "network.path: ", weights=weights)
    return inline_local_functions(model) if model.functions else model


def read_model(path: Path, where: str = "", *, weights: bool = True) -> Any:
    """Read a whole ONNX model, spelt as the operator set demands; ONNX Runtime runs files that are not.

    Args:
        path: of the file.
        where: what messages begin with, such as the option that names the file.
        weights: read the weights, too. Without them the initializers have their shapes only, and those with data
            outside of the file need not be there.

    Raises:
        ConfigError: there is none, or it is beyond MAX_NODES or MAX_BYTES.
    """
    require_module("onnx", extra="latency")
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
        _check_nodes(model, f"{where}{path}")
        _spell_out(model)
        _load_weights(model, path.parent, every=weights)
        light, _ = without_large_weights(model)
        inferred = infer_shapes(light)
        check_bytes(inferred, f"{where}{path}")
        unknown = _without_shape(inferred.graph.output)
        if not unknown:
            replace(model.graph.output, list(inferred.graph.output))
            replace(light.graph.output, list(inferred.graph.output))
            for item in light.graph.input:  # the checker wants a shape, which a user may give
                if item.type.WhichOneof("value") == "tensor_type":
                    item.type.tensor_type.shape.SetInParent()
            onnx.checker.check_model(light)
    except ConfigError:
        raise
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


def _spell_out(model: Any) -> None:
    """Write what ONNX Runtime takes for granted into a model, in place.

    Nodes come in an order in which each is behind those that it reads, ONNX's own domain is "", the domains of
    operators are imported, the last of several initializers of a name counts, and the graph has a name.
    """
    from onnx import helper

    if 0 < model.ir_version < 4:
        model.ir_version = 4  # from there on an initializer need not be an input as well
    model.graph.name = model.graph.name or "network"
    for graph in (*subgraphs(model.graph), *model.functions):
        for node in graph.node:
            node.domain = "" if node.domain == "ai.onnx" else node.domain
        _sort_nodes(graph)
    for graph in subgraphs(model.graph):
        last = {tensor.name: tensor for tensor in graph.initializer}
        if len(last) < len(graph.initializer):
            replace(graph.initializer, list(last.values()))
    opsets = {
        ("" if item.domain == "ai.onnx" else item.domain): item.version
        for item in model.opset_import
    }
    used = {node.domain for graph in subgraphs(model.graph) for node in graph.node}
    if "com.microsoft" in used:
        opsets.setdefault("com.microsoft", 1)
    replace(model.opset_import, [helper.make_opsetid(*item) for item in opsets.items()])


def _sort_nodes(graph: Any) -> None:
    """Sort the nodes of a graph or function in place, unless they are sorted or in a cycle."""
    nodes = list(graph.node)
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    before = {
        place: {makers[name] for name in _reads(node) if name in makers}
        for place, node in enumerate(nodes)
    }
    if any(other >= place for place, others in before.items() for other in others):
        with suppress(CycleError):  # the checker says so
            replace(
                graph.node, [nodes[place] for place in TopologicalSorter(before).static_order()]
            )


def _reads(node: Any) -> set[str]:
    """Return the names that a node reads, those that the graphs in it take from around it included."""
    inner = (setting.g for setting in node.attribute if setting.HasField("g"))
    return {name for name in node.input if name}.union(
        *(_reads(each) for graph in inner for each in graph.node)
    )


def _check_nodes(model: Any, where: str) -> None:
    """Raise ConfigError for a model that has more than MAX_NODES nodes once its functions are written out."""
    bodies = {(item.domain, item.name): item for item in model.functions}
    counts: dict[tuple[str, str], int] = {}

    def nodes_of(graph: Any) -> int:
        return sum(
            counts.get((node.domain, node.op_type), 1)
            + sum(nodes_of(setting.g) for setting in node.attribute if setting.HasField("g"))
            for node in graph.node
        )

    callees = {
        key: {(node.domain, node.op_type) for node in body.node} & bodies.keys()
        for key, body in bodies.items()
    }
    for key in TopologicalSorter(callees).static_order():
        counts[key] = nodes_of(bodies[key])
    total = nodes_of(model.graph)
    if total > MAX_NODES:
        raise ConfigError(
            f"{where}: expected at most {MAX_NODES} nodes, found {total:.3g} once its functions are written out. "
            "Export the model without functions that call each other so often"
        )


def check_bytes(model: Any, where: str) -> None:
    """Raise ConfigError for a model with a tensor of more than MAX_BYTES, as far as its shapes are inferred.

    Args:
        model: onnx.ModelProto, its shapes inferred.
        where: what the message begins with.
    """
    from onnx import helper

    for graph in subgraphs(model.graph):
        for item in (*graph.input, *graph.value_info, *graph.output):
            tensor = item.type.tensor_type
            if not tensor.elem_type or not tensor.HasField("shape"):
                continue
            sizes = [max(int(dim.dim_value), 1) for dim in tensor.shape.dim]
            size = prod(sizes) * helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
            if size > MAX_BYTES:
                raise ConfigError(
                    f"{where}: expected tensors of at most {MAX_BYTES / 1e9:.1f} GB, found {item.name} of {sizes}, "
                    f"{size / 1e9:.3g} GB. Export the model for smaller inputs, or cut that operator off with "
                    "onnx.utils.extract_model"
                )


def infer_shapes(model: Any) -> Any:
    """Return a model with the shapes of its tensors, or as it is where the checker will say what is wrong with it."""
    import onnx

    with suppress(Exception):
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    return model


def _load_weights(model: Any, folder: Path, *, every: bool) -> None:
    """Read the data that lie outside of the file: all of them, or those of small tensors that are there.

    Raises:
        Exception: data are missing, or are not as many as the shape says; ONNX's own types.
    """
    from onnx import checker, external_data_helper, numpy_helper

    if every:
        external_data_helper.load_external_data_for_model(model, str(folder))
        for tensor in model.graph.initializer:
            numpy_helper.to_array(tensor) if tensor.external_data else checker.check_tensor(tensor)
        return
    for tensor in model.graph.initializer:
        if external_data_helper.uses_external_data(tensor) and prod(tensor.dims) <= SMALL:
            with suppress(Exception):  # it is one more weight whose values are not known
                external_data_helper.load_external_data_for_tensor(tensor, str(folder))
                tensor.data_location = tensor.DEFAULT


def without_large_weights(model: Any) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Return (a copy of a model whose large weights are inputs, the shapes of these).

    Nothing but their shapes is asked for, and copying them takes longer than all the rest. So are weights without
    data: their values are not known.
    """
    import onnx

    declared = {tensor.name for tensor in model.graph.input}
    light = onnx.ModelProto(
        ir_version=model.ir_version and max(model.ir_version, 4),  # a weight need not be an input
        opset_import=model.opset_import,
        functions=model.functions,
    )
    graph = light.graph
    graph.name = model.graph.name or "network"
    for field in ("node", "output", "input"):
        getattr(graph, field).extend(getattr(model.graph, field))
    large = {}
    for tensor in model.graph.initializer:
        if prod(tensor.dims) <= SMALL and _has_data(tensor):
            graph.initializer.append(tensor)
            continue
        large[tensor.name] = tuple(tensor.dims)
        if tensor.name not in declared:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return light, large


def _has_data(tensor: Any) -> bool:
    """Say whether a tensor holds its values itself."""
    fields = {field.name for field, _ in tensor.ListFields()}
    is_inside = tensor.data_location != tensor.EXTERNAL
    return is_inside and (
        not prod(tensor.dims) or any(name.endswith("_data") for name in fields - {"external_data"})
    )


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
            input_size_limit=MAX_FOLDED,
            output_size_limit=MAX_FOLDED,
            should_fold=_is_foldable,
        )
    optimizer.remove_unused_nodes(folded)
    model.CopyFrom(folded)


MAX_FOLDED = 1 << 19
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
    inputs = sum(value.const_value.size for value in node.inputs if value is not None)
    shapes = [value.shape for value in node.outputs if value.shape is not None]
    if any(shape.is_static() and prod(shape.numpy()) > MAX_FOLDED + inputs for shape in shapes):
        return False  # the optimizer's own limit is asked when it is computed
    if node.op_type == "ConstantOfShape":
        shape = node.inputs[0].const_value
        if shape is not None and shape.numpy().prod() <= _MAX_FILLED:
            return True
    return None
