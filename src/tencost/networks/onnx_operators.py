"""ONNX operators that TVM's frontend lacks or computes otherwise than ONNX says: written with others, or refused.

What ONNX defines as a function of other operators becomes those; of the rest, a few nodes are written anew here. An
operator that neither does for is refused by name before anything is imported: a wrong number is worse than none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from tencost.networks.inputs import Array
from tencost.networks.onnx_graph import (
    attribute,
    constant_node,
    constant_value,
    node_attributes,
    replace,
    subgraphs,
)
from tencost.networks.resizing import ResizeAxis

_OURS = "tencost_"
"""How the names of tensors and of operators begin that were written anew and stay as they are."""
_IN_EVALUATION = "(export the network in evaluation mode)"


class Refused(Exception):
    """An operator that TVM's frontend computes wrongly and nothing here writes anew; its text says which and why."""


@dataclass(frozen=True)
class _Tensors:
    """A model's tensors.

    Attributes:
        opsets: the model's operator sets, by domain.
        types: onnx.TypeProto of tensors, by name, as far as they are inferred.
        constants: values of tensors that are constants, by name.
        used: names that nodes, or the graph's outputs, read.
    """

    opsets: dict[str, int]
    types: dict[str, Any]
    constants: dict[str, Array]
    used: set[str]


@dataclass(frozen=True)
class _Node:
    """A node in its graph, and the nodes that are written in its place.

    Attributes:
        proto: onnx.NodeProto.
        tensors: those of its model.
        numbers: for new names.
        nodes: onnx.NodeProtos that stand for it; it stays where there are none.
    """

    proto: Any
    tensors: _Tensors
    numbers: Iterator[int]
    nodes: list[Any] = field(default_factory=list)

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return self.tensors.opsets.get("", 0)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, text as str."""
        return attribute(self.proto, name, default)

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of an input.

        Raises:
            Refused: it is not known before the network runs.
        """
        tensor_type = self.tensors.types.get(self.proto.input[index])
        sizes = [] if tensor_type is None else tensor_type.tensor_type.shape.dim
        if tensor_type is None or not all(size.HasField("dim_value") for size in sizes):
            raise Refused(f"{self.proto.op_type} of an input whose shape is not known")
        return tuple(int(size.dim_value) for size in sizes)

    def dtype(self, index: int) -> Any:
        """Return the NumPy type of an input.

        Raises:
            Refused: it is not known before the network runs.
        """
        import onnx

        if not self.has_type(index):
            raise Refused(f"{self.proto.op_type} of an input whose type is not known")
        tensor_type = self.tensors.types[self.proto.input[index]].tensor_type
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor_type.elem_type))

    def has_type(self, index: int) -> bool:
        """Say whether the type of an input is known."""
        return self.proto.input[index] in self.tensors.types

    def has_input(self, index: int) -> bool:
        """Say whether an optional input is there."""
        return len(self.proto.input) > index and bool(self.proto.input[index])

    def constant(self, index: int) -> Array | None:
        """Return the value of an input; None where it is no constant or not there."""
        if not self.has_input(index):
            return None
        return self.tensors.constants.get(self.proto.input[index])

    def is_read(self, index: int) -> bool:
        """Say whether somebody reads an output."""
        return len(self.proto.output) > index and self.proto.output[index] in self.tensors.used

    def new_name(self) -> str:
        """Return a name that no tensor has."""
        return f"{_OURS}{self.proto.op_type}_{next(self.numbers)}"

    def write_constant(self, value: Any, dtype: Any = None, output: str = "") -> str:
        """Write a tensor in the node's place and return its name."""
        output = output or self.new_name()
        self.nodes.append(constant_node(output, np.asarray(value, dtype)))
        return output

    def write(
        self, op_type: str, *inputs: str, outputs: Sequence[str] = (), **settings: Any
    ) -> str:
        """Write an operator in the node's place and return its first output, a new one where none is named."""
        import onnx

        outputs = outputs or [self.new_name()]
        node = onnx.helper.make_node(op_type, inputs, outputs, self.new_name(), **settings)
        self.nodes.append(node)
        return outputs[0]

    def finish(self, op_type: str, *inputs: str, **settings: Any) -> None:
        """Write the operator that makes what the node made."""
        self.write(op_type, *inputs, outputs=self.proto.output, **settings)

    def cast(self, name: str, dtype: Any, outputs: Sequence[str] = ()) -> str:
        """Write a cast and return its output."""
        import onnx

        tensor_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.write("Cast", name, outputs=outputs, to=tensor_type)


def written_anew(model: Any) -> bool:
    """Write the operators of a model that the frontend gets wrong with others, in place; say whether there were any.

    Args:
        model: onnx.ModelProto, its input shapes fixed.

    Raises:
        Refused: an operator that the frontend computes wrongly and that cannot be written with others.
    """
    numbers, changed = count(), False
    # What operators are written with may be such operators, too.
    while any(_writer(node) for graph in subgraphs(model.graph) for node in graph.node):
        if not write_once(model, numbers, _writer, subgraphs(model.graph)):
            break
        changed = True
    return changed


def _writer(proto: Any) -> Callable[[_Node], None] | None:
    if proto.domain not in ("", "ai.onnx") or proto.name.startswith(_OURS):
        return None
    return _WRITERS.get(proto.op_type)


def write_once(
    model: Any,
    numbers: Iterator[int],
    writer_of: Callable[[Any], Callable[[_Node], None] | None],
    graphs: Iterable[Any],
) -> bool:
    """Write nodes of a model anew, in place; say whether there were any.

    Args:
        model: onnx.ModelProto.
        numbers: for new names.
        writer_of: what writes an onnx.NodeProto anew, or None.
        graphs: those of the model in which nodes are written, a graph before those in it.

    Raises:
        Refused: by a writer.
    """
    tensors, changed = _tensors(model), False
    for graph in reversed(list(graphs)):  # a graph before the one that it is in
        protos: list[Any] = []
        for proto in graph.node:
            node, writer = _Node(proto, tensors, numbers), writer_of(proto)
            if writer is not None:
                writer(node)
            protos += node.nodes or [proto]
            changed = changed or bool(node.nodes)
        replace(graph.node, protos)
    return changed


def _tensors(model: Any) -> _Tensors:
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # noqa: BLE001 - what is not inferred is said where it is needed
        inferred = model
    opsets = {item.domain: int(item.version) for item in model.opset_import}
    tensors = _Tensors(opsets, {}, {}, set())
    for graph in subgraphs(inferred.graph):
        for declared in (*graph.input, *graph.value_info, *graph.output):
            tensors.types[declared.name] = declared.type
        stored = {tensor.name: tensor for tensor in graph.initializer}
        stored |= {node.output[0]: constant_value(node) for node in graph.node}
        for name, tensor in stored.items():
            if tensor is None:
                continue
            array = tensors.constants[name] = onnx.numpy_helper.to_array(tensor)
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor_type = onnx.helper.make_tensor_type_proto(kind, array.shape)
            tensors.types.setdefault(name, tensor_type)
        tensors.used.update(output.name for output in graph.output)
        tensors.used.update(name for node in graph.node for name in node.input)
    return tensors


def _as_function(node: _Node) -> None:
    """Write a node as ONNX defines it: a function of other operators."""
    import onnx
    import onnx.inliner

    proto, op_type = node.proto, node.proto.op_type
    types = {name: node.tensors.types.get(name) for name in proto.input if name}
    if None in types.values():
        raise Refused(f"{op_type} of an input whose type is not known")
    inputs = [onnx.helper.make_value_info(name, tensor_type) for name, tensor_type in types.items()]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output if name]
    opsets = [onnx.helper.make_opsetid(*domain) for domain in node.tensors.opsets.items()]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([proto], "alone", inputs, outputs), opset_imports=opsets
    )
    # The body of a function reads the attributes that the node leaves to their defaults.
    schema = onnx.defs.get_schema(op_type, node.opset)
    model.graph.node[0].attribute.extend(
        setting.default_value
        for name, setting in schema.attributes.items()
        if name not in node_attributes(proto) and setting.default_value.name
    )
    if "" in proto.input:
        _define_locally(model, node)
        inlined = onnx.inliner.inline_local_functions(model)
    else:
        inlined = onnx.inliner.inline_selected_functions(
            model, [(proto.domain, op_type)], inline_schema_functions=True
        )
    if any(inner.op_type == op_type for inner in inlined.graph.node):
        raise Refused(f"{op_type} of operator set {node.opset}")
    ends, prefix = {*types, *proto.output, ""}, node.new_name()
    for inner in inlined.graph.node:
        for names in (inner.input, inner.output):
            names[:] = [name if name in ends else f"{prefix}_{name}" for name in names]
    node.nodes.extend(inlined.graph.node)


def _define_locally(model: Any, node: _Node) -> None:
    """Add the function that defines a model's one node to the model's local functions, in place.

    ONNX's inliner asks for the type of every input of a function that depends on its inputs, absent ones included.
    """
    import onnx

    proto = node.proto
    schema = onnx.defs.get_schema(proto.op_type, node.opset)
    versions = [
        version
        for version in schema.context_dependent_function_opset_versions
        if version <= node.opset
    ]
    if not versions:
        raise Refused(f"{proto.op_type} of operator set {node.opset} without one of its inputs")
    types = [node.tensors.types[name] if name else onnx.TypeProto() for name in proto.input]
    text = schema.get_context_dependent_function_with_opset_version(
        max(versions), proto.SerializeToString(), [kind.SerializeToString() for kind in types]
    )
    function = onnx.FunctionProto.FromString(text)
    function.domain, function.name = "tencost", proto.op_type
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid(function.domain, 1))
    model.graph.node[0].domain = function.domain


def _layer_normalization(node: _Node) -> None:
    """The frontend returns zeros as mean and inverse deviation."""
    if node.is_read(1) or node.is_read(2):
        _as_function(node)


def _is_inf(node: _Node) -> None:
    """The frontend looks at neither flag."""
    positive, negative = (node.attribute(f"detect_{sign}", 1) for sign in ("positive", "negative"))
    if positive and negative:
        return
    infinity = node.write_constant(np.inf if positive else -np.inf, node.dtype(0))
    op_type = "Equal" if positive or negative else "Less"  # nothing is less than -inf
    node.finish(op_type, node.proto.input[0], infinity)


def _conv_transpose(node: _Node) -> None:
    """The frontend looks at no output_shape; it settles the padding."""
    sizes = node.attribute("output_shape")
    if sizes is None:
        return
    data, kernel = node.shape(0)[2:], node.attribute("kernel_shape", node.shape(1)[2:])
    rank = len(data)
    strides, dilations = (node.attribute(key, [1] * rank) for key in ("strides", "dilations"))
    added = list(node.attribute("output_padding", [0] * rank))
    begin, end = [0] * rank, [0] * rank
    for axis, size in enumerate(list(sizes)[-rank:]):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        total = strides[axis] * (data[axis] - 1) + added[axis] + window - int(size)
        if total < 0:
            added[axis], total = added[axis] - total, 0
        smaller, larger = total // 2, total - total // 2
        upper = node.attribute("auto_pad", "NOTSET") == "SAME_UPPER"
        begin[axis], end[axis] = (smaller, larger) if upper else (larger, smaller)
    if any(added[axis] >= max(strides[axis], dilations[axis]) for axis in range(rank)):
        raise Refused("ConvTranspose with an output_shape beyond what its windows reach")
    settings = node_attributes(node.proto) | {"pads": [*begin, *end], "output_padding": added}
    del settings["output_shape"]
    settings.pop("auto_pad", None)
    node.finish("ConvTranspose", *node.proto.input, **settings)


def _dropout(node: _Node) -> None:
    """The frontend looks at no training mode and gives a mask of numbers."""
    training = node.opset < 7 and not node.attribute("is_test", 0)
    if node.opset >= 12 and node.has_input(2):
        mode, ratio = node.constant(2), node.constant(1)
        if mode is None:
            raise Refused(f"Dropout whose training mode is no constant {_IN_EVALUATION}")
        training = bool(mode.any() and (ratio is None or ratio.any()))
    if training:
        raise Refused(f"Dropout in training mode {_IN_EVALUATION}")
    node.write("Identity", node.proto.input[0], outputs=node.proto.output[:1])
    if node.is_read(1):
        dtype = np.bool_ if node.opset >= 10 else node.dtype(0)
        node.write_constant(np.ones(node.shape(0), dtype), output=node.proto.output[1])


def _non_max_suppression(_: _Node) -> None:
    """The frontend takes limits that are no constants for others, and the boundary of what overlaps for overlapping."""
    raise Refused("NonMaxSuppression, which selects as many boxes as its data say")


def _max_pool(node: _Node) -> None:
    """The frontend gives no places of the largest values."""
    if node.is_read(1):
        raise Refused("MaxPool whose second output, the places of the largest values, is used")
    if len(node.proto.output) > 1:
        outputs = node.proto.output[:1]
        node.write("MaxPool", *node.proto.input, outputs=outputs, **node_attributes(node.proto))


def _max_unpool(node: _Node) -> None:
    """The frontend wants to know the shape of the output."""
    if node.has_input(2) and node.constant(2) is None:
        raise Refused("MaxUnpool whose output_shape is no constant")


def _sequence_insert(node: _Node) -> None:
    """The frontend counts places below 0 from behind the last tensor, ONNX from the last one."""
    position = node.constant(2)
    if position is not None and position < 0:
        shifted = node.write_constant(position - 1)
        node.finish("SequenceInsert", *node.proto.input[:2], shifted)


def _rms_normalization(node: _Node) -> None:
    """TVM cannot lower it over more than the last axis."""
    if node.attribute("axis", -1) not in (-1, len(node.shape(0)) - 1):
        _as_function(node)


def _pow(node: _Node) -> None:
    """TVM raises floats only, to powers of their own type; as ONNX Runtime does, integers are raised as float64."""
    if node.opset < 7:
        _broadcast(node)
        return
    if not (node.has_type(0) and node.has_type(1)):
        return
    dtype, exponent_dtype = node.dtype(0), node.dtype(1)
    if dtype == exponent_dtype and dtype.kind == "f":
        return
    whole = dtype.kind != "f" and exponent_dtype.kind != "f"
    if whole and dtype.itemsize == 8:
        raise Refused(f"Pow of {dtype} to powers of {exponent_dtype}, which float64 does not hold")
    through = dtype if dtype.kind == "f" else np.float64
    power = node.write("Pow", *(node.cast(name, through) for name in node.proto.input))
    node.cast(node.write("Round", power) if whole else power, dtype, node.proto.output)


def _prelu(node: _Node) -> None:
    """The frontend takes a slope with one axis for one of the last axis; before operator set 7 it is the channels'."""
    if node.opset >= 7:
        return
    rank, slope = len(node.shape(0)), node.shape(1)
    if len(slope) == 1 and slope[0] != 1 and rank >= 3:
        data, name = node.proto.input
        node.finish("PRelu", data, node.write("Unsqueeze", name, axes=list(range(1, rank - 1))))


def _broadcast(node: _Node) -> None:
    """The frontend looks at no axis that the second operand begins at, as it may before operator set 7."""
    axis = node.attribute("axis")
    if node.opset >= 7 or axis is None:
        return
    rank, second_rank = len(node.shape(0)), len(node.shape(1))
    trailing = rank - second_rank - int(axis) % rank
    if trailing > 0 and second_rank:
        axes = list(range(second_rank, second_rank + trailing))
        second = node.write("Unsqueeze", node.proto.input[1], axes=axes)
        node.finish(node.proto.op_type, node.proto.input[0], second, broadcast=1)


def _slice(node: _Node) -> None:
    """The frontend looks for the limits among the inputs, where they are since operator set 10, not the attributes."""
    if node.opset >= 10 or node.attribute("starts") is None:
        return
    limits = {key: node.attribute(key) for key in ("starts", "ends")}
    limits["axes"] = node.attribute("axes", list(range(len(limits["starts"]))))
    names = [node.write_constant(limit, np.int64) for limit in limits.values()]
    # With its attributes, too: ONNX's shape inference reads them in this operator set.
    node.finish("Slice", node.proto.input[0], *names, **limits)


def _top_k(node: _Node) -> None:
    """TVM sorts floats and some integers; what fits into one of these is sorted as that."""
    if not node.has_type(0):
        return
    dtype, (values, *places) = node.dtype(0), node.proto.output
    if dtype == np.uint64:
        raise Refused("TopK of uint64 values")
    if dtype in (np.int16, np.uint16, np.uint32):
        data, *others = node.proto.input
        wide, outputs = node.cast(data, np.int64), [node.new_name(), *places]
        node.write("TopK", wide, *others, outputs=outputs, **node_attributes(node.proto))
        node.cast(outputs[0], dtype, [values])


def _reduce_bool(node: _Node) -> None:
    """TVM knows no least and no largest truth value."""
    if node.has_type(0) and node.dtype(0) == np.bool_:
        data, *others = node.proto.input
        numbers = node.cast(data, np.uint8)
        reduced = node.write(node.proto.op_type, numbers, *others, **node_attributes(node.proto))
        node.cast(reduced, np.bool_, node.proto.output)


def _eye_like(node: _Node) -> None:
    """The frontend makes numbers of the input's type only."""
    import onnx

    tensor_type = node.attribute("dtype")
    if tensor_type is None:
        return
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor_type)
    if dtype != node.dtype(0):
        rows, columns = node.shape(0)
        matrix = np.eye(rows, columns, k=node.attribute("k", 0))
        node.write_constant(matrix, dtype, node.proto.output[0])


def _one_hot(node: _Node) -> None:
    """The frontend wants a depth without axes and forgets the type of the values."""
    depth = node.constant(1)
    if depth is None:
        raise Refused("OneHot whose depth is no constant")
    shape, size = node.shape(0), int(depth.item())
    axis = node.attribute("axis", -1) % (len(shape) + 1)
    spread = [1] * (len(shape) + 1)
    spread[axis] = size
    zero, one = (node.write_constant(number, np.int64) for number in (0, 1))
    indices = node.cast(node.proto.input[0], np.int64)
    shifted = node.write("Add", indices, node.write_constant(size, np.int64))
    positive = node.write("Where", node.write("Less", indices, zero), shifted, indices)
    column_shape = node.write_constant([*shape[:axis], 1, *shape[axis:]], np.int64)
    classes = node.write_constant(np.arange(size, dtype=np.int64).reshape(spread))
    hot = node.write("Equal", node.write("Reshape", positive, column_shape), classes)
    on, off = (node.write("Gather", node.proto.input[2], at, axis=0) for at in (one, zero))
    node.finish("Where", hot, on, off)


def _batch_normalization(node: _Node) -> None:
    """The frontend takes the running statistics, as outside training."""
    old = node.opset < 7
    training = not node.attribute("is_test", 0) if old else node.attribute("training_mode", 0)
    if training or node.is_read(1) or node.is_read(2):
        raise Refused(f"BatchNormalization in training mode {_IN_EVALUATION}")


def _roi_align(node: _Node) -> None:
    """The frontend takes the largest of interpolated values, ONNX that of the four products before they are added."""
    if node.attribute("mode", "avg") == "max":
        raise Refused("RoiAlign with mode=max")


def _bit_shift(node: _Node) -> None:
    """A shift by less than 0 or by all bits and more is not defined in LLVM; ONNX says what it gives."""
    dtype, places = node.dtype(0), node.constant(1)
    bits = 8 * dtype.itemsize
    if places is not None and np.all((places >= 0) & (places < bits)):
        return
    direction = node.attribute("direction")
    data, by = node.proto.input
    zero = node.write_constant(0, dtype)
    least = node.write("GreaterOrEqual", by, zero)
    valid = node.write("And", least, node.write("Less", by, node.write_constant(bits, dtype)))
    within = node.write("Where", valid, by, zero)
    shifted = node.write("BitShift", data, within, direction=direction)
    end = zero
    if direction != "LEFT" and dtype.kind != "u":
        negative = node.write("Less", data, zero)
        end = node.write("Where", negative, node.write_constant(-1, dtype), zero)
    node.finish("Where", valid, shifted, end)


def _mod(node: _Node) -> None:
    """The frontend divides floats, so that what is left of a division by infinity is not a number."""
    dtype = node.dtype(0)
    if dtype.kind != "f" or node.attribute("fmod", 0):
        return
    data, by = node.proto.input
    zero = node.write_constant(0, dtype)
    rest = node.write("Mod", data, by, fmod=1)
    signs_differ = node.write("Xor", node.write("Less", rest, zero), node.write("Less", by, zero))
    some_rest = node.write("Not", node.write("Equal", rest, zero))
    added = node.write("And", signs_differ, some_rest)
    node.finish("Where", added, node.write("Add", rest, by), rest)


def _running_product(node: _Node) -> None:
    """TVM takes the axis as a number."""
    if node.constant(1) is None:
        raise Refused("CumProd whose axis is no constant")


def _reverse_sequence(node: _Node) -> None:
    """The frontend lacks it: gathers rows by their numbers, those of the first steps in reverse."""
    shape = node.shape(0)
    time, batch = node.attribute("time_axis", 0), node.attribute("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise Refused(
            f"ReverseSequence with time_axis={time} and batch_axis={batch} (0 and 1 would do)"
        )
    spread = [1, 1]
    spread[batch] = shape[batch]
    steps = np.expand_dims(np.arange(shape[time]), batch)
    lengths = node.cast(node.proto.input[1], np.int64)
    lengths = node.write("Reshape", lengths, node.write_constant(spread, np.int64))
    step, one = node.write_constant(steps, np.int64), node.write_constant(1, np.int64)
    mirrored = node.write("Sub", node.write("Sub", lengths, one), step)
    place = node.write("Where", node.write("Less", step, lengths), mirrored, step)
    items = np.expand_dims(np.arange(shape[batch]), time)
    if time == 0:
        rows = node.write("Mul", place, node.write_constant(shape[1], np.int64))
        rows = node.write("Add", rows, node.write_constant(items, np.int64))
    else:
        rows = node.write("Add", place, node.write_constant(items * shape[1], np.int64))
    flat = node.write_constant([shape[0] * shape[1], *shape[2:]], np.int64)
    node.finish("Gather", node.write("Reshape", node.proto.input[0], flat), rows, axis=0)


def _elu(node: _Node) -> None:
    """The frontend takes every number for a float32."""
    if node.dtype(0) != np.float32:
        _as_function(node)


def _resize(node: _Node) -> None:
    """Resize with a product with a matrix, or by gathering, along each axis where the frontend would do otherwise.

    It takes the quotient of sizes for the scale (they differ where size * scale is no whole number), knows neither
    antialias nor axes nor how to keep an aspect ratio, and leaves the first two axes alone.
    """
    shape, dtype = node.shape(0), node.dtype(0)
    if node.opset < 11:  # (data, scales)
        _upsample(node)
        return
    scales, sizes = node.constant(2), node.constant(3)
    scales = scales if scales is not None and scales.size else None
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


def _upsample(node: _Node) -> None:
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


def _write_resized(node: _Node, changes: list[tuple[int, int, float]], **settings: Any) -> None:
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


_WRITERS: dict[str, Callable[[_Node], None]] = {
    "BatchNormalization": _batch_normalization, "BitShift": _bit_shift, "ConvTranspose": _conv_transpose,
    "CumProd": _running_product, "Dropout": _dropout, "Elu": _elu, "EyeLike": _eye_like, "IsInf": _is_inf,
    "LayerNormalization": _layer_normalization, "MaxPool": _max_pool, "MaxUnpool": _max_unpool,
    "Mod": _mod, "NonMaxSuppression": _non_max_suppression, "OneHot": _one_hot, "PRelu": _prelu, "Pow": _pow,
    "RMSNormalization": _rms_normalization, "Resize": _resize, "ReverseSequence": _reverse_sequence,
    "RoiAlign": _roi_align, "SequenceInsert": _sequence_insert, "Slice": _slice, "TopK": _top_k,
    "Upsample": _upsample,
} | dict.fromkeys(("ReduceMax", "ReduceMin"), _reduce_bool) | dict.fromkeys(
    ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Sub", "Xor"), _broadcast
) | dict.fromkeys(
    (
        "Attention",  # the frontend knows com.microsoft's, whose inputs are others
        "CausalConvWithState", "Celu", "CenterCropPad", "NegativeLogLikelihoodLoss", "RotaryEmbedding",
        "SoftmaxCrossEntropyLoss", "SpaceToDepth", "SwiGLU", "Swish",
    ),
    _as_function,
)  # fmt: skip
"""Operator -> what writes it with others, refuses it, or leaves it where the frontend is right."""
