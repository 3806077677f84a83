"""ONNX operators that TVM's frontend lacks or computes otherwise than ONNX says: written with others, or refused.

What ONNX defines as a function of other operators becomes those; of the rest, a few nodes are written anew here. An
operator that neither does for is refused by name before anything is imported: a wrong number is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from tencost.networks.inputs import Array
from tencost.networks.onnx_nodes import constant_value, graphs
from tencost.networks.resizing import ResizeAxis

_AS_FUNCTION = {
    "Attention",  # the frontend knows com.microsoft's, whose inputs are others
    "CausalConvWithState", "Celu", "CenterCropPad", "NegativeLogLikelihoodLoss", "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss", "SpaceToDepth", "SwiGLU", "Swish",
}  # fmt: skip

_OURS = "tencost_"
"""How the names of tensors and of operators begin that were written anew and stay as they are."""


class Refused(Exception):
    """An operator that TVM's frontend computes wrongly and nothing here writes anew; its text says which and why."""


@dataclass(frozen=True)
class _Place:
    """A node in its graph.

    Attributes:
        node: onnx.NodeProto.
        opsets: the model's operator sets, by domain.
        types: onnx.TypeProto of tensors, by name, as far as they are inferred.
        constants: values of tensors that are constants, by name.
        used: names that other nodes, or the graph's outputs, read.
        fresh: numbers for new names.
    """

    node: Any
    opsets: dict[str, int]
    types: dict[str, Any]
    constants: dict[str, Array]
    used: set[str]
    fresh: Iterator[int]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, text as str."""
        import onnx

        for item in self.node.attribute:
            if item.name == name:
                value = onnx.helper.get_attribute_value(item)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of an input.

        Raises:
            Refused: it is not known before the network runs.
        """
        kind = self.types.get(self.node.input[index])
        sizes = [] if kind is None else kind.tensor_type.shape.dim
        if kind is None or not all(size.HasField("dim_value") for size in sizes):
            raise Refused(f"{self.node.op_type} of an input whose shape is not known")
        return tuple(int(size.dim_value) for size in sizes)

    def dtype(self, index: int) -> Any:
        """Return the NumPy type of an input.

        Raises:
            Refused: it is not known before the network runs.
        """
        import onnx

        kind = self.types.get(self.node.input[index])
        if kind is None:
            raise Refused(f"{self.node.op_type} of an input whose type is not known")
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type))

    def has_type(self, index: int) -> bool:
        """Say whether the type of an input is known."""
        return self.node.input[index] in self.types

    def has_input(self, index: int) -> bool:
        """Say whether an optional input is there."""
        return len(self.node.input) > index and bool(self.node.input[index])

    def constant(self, index: int) -> Array | None:
        """Return the value of an input; None where it is no constant or not there."""
        return self.constants.get(self.node.input[index]) if self.has_input(index) else None

    def writes(self, index: int) -> bool:
        """Say whether somebody reads an output."""
        return len(self.node.output) > index and self.node.output[index] in self.used

    def name(self) -> str:
        """Return a name that no tensor has."""
        return f"{_OURS}{self.node.op_type}_{next(self.fresh)}"


def written_anew(model: Any) -> bool:
    """Write the operators of a model that the frontend gets wrong with others, in place; say whether there were any.

    Args:
        model: onnx.ModelProto, its input shapes fixed.

    Raises:
        Refused: an operator that the frontend computes wrongly and that cannot be written with others.
    """
    fresh, changed = count(), False
    while _once_more(model, fresh):
        changed = True
    return changed


def _once_more(model: Any, fresh: Iterator[int]) -> bool:
    """Write the operators anew that are there; those that they are written with may be some themselves."""
    import onnx

    opsets = {item.domain: int(item.version) for item in model.opset_import}
    inferred = model
    if _to_write(model.graph):
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        except Exception:  # noqa: BLE001 - what is not inferred is said where it is needed
            inferred = model
    types: dict[str, Any] = {}
    constants: dict[str, Array] = {}
    used: set[str] = set()
    for part in graphs(inferred.graph):
        for item in [*part.input, *part.value_info, *part.output]:
            types[item.name] = item.type
        for tensor in part.initializer:
            constants[tensor.name] = onnx.numpy_helper.to_array(tensor)
            types.setdefault(tensor.name, _type_of(constants[tensor.name]))
        used |= {item.name for item in part.output}
        for node in part.node:
            used |= set(node.input)
            value = constant_value(node)
            if value is not None:
                array = constants[node.output[0]] = onnx.numpy_helper.to_array(value)
                types.setdefault(node.output[0], _type_of(array))
    changed = False
    for part in list(graphs(model.graph)):
        nodes: list[Any] = []
        for node in part.node:
            others = None
            if node.domain in ("", "ai.onnx") and not node.name.startswith(_OURS):
                place = _Place(node, opsets, types, constants, used, fresh)
                others = _written(place)
            nodes += [node] if others is None else others
            changed = changed or others is not None
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del part.node[:]
        part.node.extend(copies)
    return changed


def _to_write(graph: Any) -> bool:
    known = _AS_FUNCTION | set(_WRITERS)
    return any(node.op_type in known for part in graphs(graph) for node in part.node)


def _type_of(array: Array) -> Any:
    import onnx

    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_type_proto(kind, array.shape)


def _written(place: _Place) -> list[Any] | None:
    """Return the nodes that stand for a node; None for one that stays."""
    if place.node.op_type in _AS_FUNCTION:
        return _as_function(place)
    writer = _WRITERS.get(place.node.op_type)
    return None if writer is None else writer(place)


def _as_function(place: _Place) -> list[Any]:
    """Return a node as ONNX defines it: a function of other operators."""
    import onnx
    import onnx.inliner

    node = place.node
    known = {name: place.types.get(name) for name in node.input if name}
    if any(kind is None for kind in known.values()):
        raise Refused(f"{node.op_type} of an input whose type is not known")
    inputs = [onnx.helper.make_value_info(name, kind) for name, kind in known.items()]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
    opsets = [onnx.helper.make_opsetid(domain, number) for domain, number in place.opsets.items()]
    alone = onnx.helper.make_model(
        onnx.helper.make_graph([node], "alone", inputs, outputs), opset_imports=opsets
    )
    _add_default_attributes(alone.graph.node[0], place)
    if "" in node.input:
        _define_locally(alone, place)
        inlined = onnx.inliner.inline_local_functions(alone)
    else:
        inlined = onnx.inliner.inline_selected_functions(
            alone, [(node.domain, node.op_type)], inline_schema_functions=True
        )
    nodes = list(inlined.graph.node)
    if any(one.op_type == node.op_type for one in nodes):
        raise Refused(f"{node.op_type} of operator set {place.opsets.get('', 0)}")
    ends, prefix = {*known, *node.output, ""}, place.name()
    for one in nodes:
        for field in (one.input, one.output):
            field[:] = [name if name in ends else f"{prefix}_{name}" for name in field]
    return nodes


def _add_default_attributes(node: Any, place: _Place) -> None:
    """Add to a node the attributes that it leaves to their defaults: the body of a function reads them."""
    import onnx

    schema = onnx.defs.get_schema(node.op_type, place.opsets.get("", 0))
    attribute_names = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in attribute_names and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def _define_locally(model: Any, place: _Place) -> None:
    """Add the function that defines a model's one node to the model's local functions, in place.

    ONNX's inliner asks for the type of every input of a function that depends on its inputs, absent ones included.
    """
    import onnx

    node, version = place.node, place.opsets.get("", 0)
    schema = onnx.defs.get_schema(node.op_type, version)
    versions = [
        number for number in schema.context_dependent_function_opset_versions if number <= version
    ]
    if not versions:
        raise Refused(f"{node.op_type} of operator set {version} without one of its inputs")
    types = [place.types[name] if name else onnx.TypeProto() for name in node.input]
    text = schema.get_context_dependent_function_with_opset_version(
        max(versions), node.SerializeToString(), [kind.SerializeToString() for kind in types]
    )
    function = onnx.FunctionProto.FromString(text)
    function.domain, function.name = "tencost", node.op_type
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid(function.domain, 1))
    model.graph.node[0].domain = function.domain


def _constant_node(name: str, value: Any) -> Any:
    import onnx

    tensor = onnx.numpy_helper.from_array(np.asarray(value))
    return onnx.helper.make_node("Constant", [], [name], value=tensor)


def _node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    import onnx

    return onnx.helper.make_node(kind, list(inputs), list(outputs), **attributes)


def _layer_normalization(place: _Place) -> list[Any] | None:
    """The frontend returns zeros as mean and inverse deviation."""
    return _as_function(place) if place.writes(1) or place.writes(2) else None


def _is_inf(place: _Place) -> list[Any] | None:
    """The frontend looks at neither flag."""
    positive, negative = (place.attribute(f"detect_{sign}", 1) for sign in ("positive", "negative"))
    if positive and negative:
        return None
    end = place.name()
    value = np.array(np.inf if positive else -np.inf, place.dtype(0))
    kind = "Equal" if positive or negative else "Less"  # nothing is less than -inf
    return [
        _constant_node(end, value),
        _node(kind, [place.node.input[0], end], place.node.output),
    ]


def _conv_transpose(place: _Place) -> list[Any] | None:
    """The frontend looks at no output_shape; it settles the padding."""
    sizes = place.attribute("output_shape")
    if sizes is None:
        return None
    data, kernel = place.shape(0)[2:], list(place.attribute("kernel_shape", place.shape(1)[2:]))
    rank = len(data)
    strides, dilations = (
        list(place.attribute(key, [1] * rank)) for key in ("strides", "dilations")
    )
    added = list(place.attribute("output_padding", [0] * rank))
    begin, end = [0] * rank, [0] * rank
    for axis, size in enumerate(list(sizes)[-rank:]):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        total = strides[axis] * (data[axis] - 1) + added[axis] + window - int(size)
        if total < 0:
            added[axis], total = added[axis] - total, 0
        smaller, larger = total // 2, total - total // 2
        upper = place.attribute("auto_pad", "NOTSET") == "SAME_UPPER"
        begin[axis], end[axis] = (smaller, larger) if upper else (larger, smaller)
    if any(added[axis] >= max(strides[axis], dilations[axis]) for axis in range(rank)):
        raise Refused("ConvTranspose with an output_shape beyond what its windows reach")
    kept = {
        item.name: item
        for item in place.node.attribute
        if item.name not in ("output_shape", "auto_pad", "pads", "output_padding")
    }
    node = _node(
        "ConvTranspose", place.node.input, place.node.output,
        pads=[*begin, *end], output_padding=added,
    )  # fmt: skip
    node.attribute.extend(kept.values())
    return [node]


def _dropout(place: _Place) -> list[Any] | None:
    """The frontend looks at no training mode and gives a mask of numbers."""
    version = place.opsets.get("", 0)
    advice = "(export the network in evaluation mode)"
    training = Refused(f"Dropout in training mode {advice}")
    if version < 7 and not place.attribute("is_test", 0):
        raise training
    if version >= 12 and place.has_input(2):
        mode, ratio = place.constant(2), place.constant(1)
        if mode is None:
            raise Refused(f"Dropout whose training mode is no constant {advice}")
        if mode.any() and (ratio is None or ratio.any()):
            raise training
    nodes = [_node("Identity", place.node.input[:1], place.node.output[:1])]
    if place.writes(1):
        kind = np.bool_ if version >= 10 else place.dtype(0)
        nodes.append(_constant_node(place.node.output[1], np.ones(place.shape(0), kind)))
    return nodes


def _non_max_suppression(_: _Place) -> None:
    """The frontend takes limits that are no constants for others, and the boundary of what overlaps for overlapping."""
    raise Refused("NonMaxSuppression, which selects as many boxes as its data say")


def _max_pool(place: _Place) -> list[Any] | None:
    """The frontend gives no places of the largest values."""
    if place.writes(1):
        raise Refused("MaxPool whose second output, the places of the largest values, is used")
    if len(place.node.output) < 2:
        return None
    node = _node("MaxPool", place.node.input, place.node.output[:1])
    node.attribute.extend(place.node.attribute)
    return [node]


def _max_unpool(place: _Place) -> None:
    """The frontend wants to know the shape of the output."""
    if place.has_input(2) and place.constant(2) is None:
        raise Refused("MaxUnpool whose output_shape is no constant")


def _sequence_insert(place: _Place) -> list[Any] | None:
    """The frontend counts places below 0 from behind the last tensor, ONNX from the last one."""
    position = place.constant(2)
    if position is None or position >= 0:
        return None
    shifted = place.name()
    inputs = [*place.node.input[:2], shifted]
    return [
        _constant_node(shifted, position - 1),
        _node("SequenceInsert", inputs, place.node.output, name=place.name()),
    ]


def _rms_normalization(place: _Place) -> list[Any] | None:
    """TVM cannot lower it over more than the last axis."""
    axis = place.attribute("axis", -1)
    last = axis == -1 or axis == len(place.shape(0)) - 1
    return None if last else _as_function(place)


def _pow(place: _Place) -> list[Any] | None:
    """TVM raises floats only, to powers of their own type; as ONNX Runtime does, integers are raised as float64."""
    import onnx

    if place.opsets.get("", 0) < 7:
        return _broadcast(place)
    if not (place.has_type(0) and place.has_type(1)):
        return None
    kind, by_kind = place.dtype(0), place.dtype(1)
    if kind == by_kind and kind.kind == "f":
        return None
    through = kind if kind.kind == "f" else np.dtype(np.float64)
    if kind.kind != "f" and by_kind.kind != "f" and kind.itemsize == 8:
        raise Refused(f"Pow of {kind} to powers of {by_kind}, which float64 does not hold")
    types = [onnx.helper.np_dtype_to_tensor_dtype(one) for one in (through, kind)]
    data, by, raised, whole = (place.name() for _ in range(4))
    nodes = [
        _node("Cast", [place.node.input[0]], [data], to=types[0]),
        _node("Cast", [place.node.input[1]], [by], to=types[0]),
        _node("Pow", [data, by], [raised], name=place.name()),
    ]
    if kind.kind != "f" and by_kind.kind != "f":
        nodes.append(_node("Round", [raised], [whole]))
        raised = whole
    return [*nodes, _node("Cast", [raised], place.node.output, to=types[1])]


def _prelu(place: _Place) -> list[Any] | None:
    """The frontend takes a slope with one axis for one of the last axis; before operator set 7 it is the channels'."""
    if place.opsets.get("", 0) >= 7:
        return None
    rank, slope = len(place.shape(0)), place.shape(1)
    if len(slope) != 1 or slope[0] == 1 or rank < 3:
        return None
    unsqueezed = place.name()
    inputs = [place.node.input[0], unsqueezed]
    return [
        _node("Unsqueeze", place.node.input[1:2], [unsqueezed], axes=list(range(1, rank - 1))),
        _node("PRelu", inputs, place.node.output, name=place.name()),
    ]


def _broadcast(place: _Place) -> list[Any] | None:
    """The frontend looks at no axis that the second operand begins at, as it may before operator set 7."""
    axis = place.attribute("axis")
    if place.opsets.get("", 0) >= 7 or axis is None:
        return None
    rank, second_rank = len(place.shape(0)), len(place.shape(1))
    trailing = rank - second_rank - int(axis) % rank
    if trailing <= 0 or not second_rank:
        return None
    unsqueezed, axes = place.name(), list(range(second_rank, second_rank + trailing))
    inputs = [place.node.input[0], unsqueezed]
    return [
        _node("Unsqueeze", place.node.input[1:2], [unsqueezed], axes=axes),
        _node(place.node.op_type, inputs, place.node.output, name=place.name(), broadcast=1),
    ]


def _slice(place: _Place) -> list[Any] | None:
    """The frontend looks for the limits among the inputs, where they are since operator set 10, not the attributes."""
    if place.opsets.get("", 0) >= 10 or place.attribute("starts") is None:
        return None
    limits = {key: place.attribute(key) for key in ("starts", "ends")}
    limits["axes"] = place.attribute("axes", list(range(len(limits["starts"]))))
    names = {key: place.name() for key in limits}
    inputs = [place.node.input[0], *names.values()]
    # With its attributes, too: ONNX's shape inference reads them in this operator set.
    return [
        *(_constant_node(names[key], np.array(limits[key], np.int64)) for key in limits),
        _node("Slice", inputs, place.node.output, name=place.name(), **limits),
    ]


def _top_k(place: _Place) -> list[Any] | None:
    """TVM sorts floats and some integers; what fits into one of these is sorted as that."""
    import onnx

    if not place.has_type(0):
        return None
    kind = place.dtype(0)
    if kind == np.uint64:
        raise Refused("TopK of uint64 values")
    if kind not in (np.int16, np.uint16, np.uint32):
        return None
    wide, values = place.name(), place.name()
    inputs = [wide, *place.node.input[1:]]
    node = _node("TopK", inputs, [values, *place.node.output[1:]], name=place.name())
    node.attribute.extend(place.node.attribute)
    return [
        _node("Cast", place.node.input[:1], [wide], to=onnx.TensorProto.INT64),
        node,
        _node(
            "Cast", [values], place.node.output[:1], to=onnx.helper.np_dtype_to_tensor_dtype(kind)
        ),
    ]


def _reduce_bool(place: _Place) -> list[Any] | None:
    """TVM knows no least and no largest truth value."""
    import onnx

    if not place.has_type(0) or place.dtype(0) != np.bool_:
        return None
    numbers, reduced = place.name(), place.name()
    node = _node(place.node.op_type, [numbers, *place.node.input[1:]], [reduced], name=place.name())
    node.attribute.extend(place.node.attribute)
    return [
        _node("Cast", place.node.input[:1], [numbers], to=onnx.TensorProto.UINT8),
        node,
        _node("Cast", [reduced], place.node.output, to=onnx.TensorProto.BOOL),
    ]


def _eye_like(place: _Place) -> list[Any] | None:
    """The frontend makes numbers of the input's type only."""
    import onnx

    tensor_type = place.attribute("dtype")
    if tensor_type is None:
        return None
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor_type)
    if kind == place.dtype(0):
        return None
    rows, columns = place.shape(0)
    value = np.eye(rows, columns, k=place.attribute("k", 0)).astype(kind)
    return [_constant_node(place.node.output[0], value)]


def _one_hot(place: _Place) -> list[Any]:
    """The frontend wants a depth without axes and forgets the type of the values."""
    import onnx

    depth = place.constant(1)
    if depth is None:
        raise Refused("OneHot whose depth is no constant")
    shape, size = place.shape(0), int(depth.item())
    axis = place.attribute("axis", -1) % (len(shape) + 1)
    spread = [1] * (len(shape) + 1)
    spread[axis] = size
    classes = np.arange(size, dtype=np.int64).reshape(spread)
    zero, one, count_, new_shape, numbers = (place.name() for _ in range(5))
    indices, negative, shifted, positive, column, hot, off, on = (place.name() for _ in range(8))
    values = place.node.input[2]
    return [
        _constant_node(zero, np.array(0, np.int64)),
        _constant_node(one, np.array(1, np.int64)),
        _constant_node(count_, np.array(size, np.int64)),
        _constant_node(new_shape, np.array([*shape[:axis], 1, *shape[axis:]], np.int64)),
        _constant_node(numbers, classes),
        _node("Cast", place.node.input[:1], [indices], to=onnx.TensorProto.INT64),
        _node("Less", [indices, zero], [negative]),
        _node("Add", [indices, count_], [shifted]),
        _node("Where", [negative, shifted, indices], [positive]),
        _node("Reshape", [positive, new_shape], [column]),
        _node("Equal", [column, numbers], [hot]),
        _node("Gather", [values, zero], [off], axis=0),
        _node("Gather", [values, one], [on], axis=0),
        _node("Where", [hot, on, off], place.node.output),
    ]


def _batch_normalization(place: _Place) -> None:
    """The frontend takes the running statistics, as outside training."""
    old = place.opsets.get("", 0) < 7
    training = not place.attribute("is_test", 0) if old else place.attribute("training_mode", 0)
    if training or place.writes(1) or place.writes(2):
        raise Refused("BatchNormalization in training mode (export the network in evaluation mode)")


def _roi_align(place: _Place) -> None:
    """The frontend takes the largest of interpolated values, ONNX that of the four products before they are added."""
    if place.attribute("mode", "avg") == "max":
        raise Refused("RoiAlign with mode=max")


def _bit_shift(place: _Place) -> list[Any] | None:
    """A shift by less than 0 or by all bits and more is not defined in LLVM; ONNX says what it gives."""
    kind, places = place.dtype(0), place.constant(1)
    bits = 8 * kind.itemsize
    if places is not None and np.all((places >= 0) & (places < bits)):
        return None
    left = place.attribute("direction") == "LEFT"
    data, by = place.node.input
    zero, most, low, high, valid, within, shifted, end = (place.name() for _ in range(8))
    nodes = [
        _constant_node(zero, np.array(0, kind)),
        _constant_node(most, np.array(bits, kind)),
        _node("GreaterOrEqual", [by, zero], [low]),
        _node("Less", [by, most], [high]),
        _node("And", [low, high], [valid]),
        _node("Where", [valid, by, zero], [within]),
        _node(
            "BitShift", [data, within], [shifted],
            name=place.name(), direction="LEFT" if left else "RIGHT",
        ),
    ]  # fmt: skip
    if left or kind.kind == "u":
        end = zero
    else:
        negative, all_ones = place.name(), place.name()
        nodes += [
            _constant_node(all_ones, np.array(-1, kind)),
            _node("Less", [data, zero], [negative]),
            _node("Where", [negative, all_ones, zero], [end]),
        ]
    return [*nodes, _node("Where", [valid, shifted, end], place.node.output)]


def _mod(place: _Place) -> list[Any] | None:
    """The frontend divides floats, so that what is left of a division by infinity is not a number."""
    kind = place.dtype(0)
    if kind.kind != "f" or place.attribute("fmod", 0):
        return None
    data, by = place.node.input
    zero, rest, below, by_below, apart, nothing, some, add, sum_ = (place.name() for _ in range(9))
    return [
        _constant_node(zero, np.array(0, kind)),
        _node("Mod", [data, by], [rest], fmod=1),
        _node("Less", [rest, zero], [below]),
        _node("Less", [by, zero], [by_below]),
        _node("Xor", [below, by_below], [apart]),
        _node("Equal", [rest, zero], [nothing]),
        _node("Not", [nothing], [some]),
        _node("And", [apart, some], [add]),
        _node("Add", [rest, by], [sum_]),
        _node("Where", [add, sum_, rest], place.node.output),
    ]


def _elu(place: _Place) -> list[Any] | None:
    """The frontend takes every number for a float32."""
    return None if place.dtype(0) == np.float32 else _as_function(place)


def _resize(place: _Place) -> list[Any] | None:
    """Resize with a product with a matrix, or by gathering, along each axis where the frontend would do otherwise.

    It takes the quotient of sizes for the scale (they differ where size * scale is no whole number), knows neither
    antialias nor axes nor how to keep an aspect ratio, and leaves the first two axes alone.
    """
    shape, kind = place.shape(0), place.dtype(0)
    if place.opsets.get("", 0) < 11:  # (data, scales)
        return _upsample(place)
    scales, sizes = place.constant(2), place.constant(3)
    scales = scales if scales is not None and scales.size else None
    if scales is None and sizes is None:
        if place.has_input(3) or place.has_input(2):
            raise Refused("Resize whose scales or sizes are no constants")
        return None
    axes = [axis % len(shape) for axis in place.attribute("axes", range(len(shape)))]
    wanted = scales if sizes is None else sizes
    assert wanted is not None
    if len(wanted) != len(axes):
        raise Refused(f"Resize with {len(wanted)} scales or sizes for {len(axes)} axes")
    policy = place.attribute("keep_aspect_ratio_policy", "stretch")
    changes = _axis_changes(shape, axes, scales, sizes, policy)
    coordinates = place.attribute("coordinate_transformation_mode", "half_pixel")
    mode, antialias = place.attribute("mode", "nearest"), place.attribute("antialias", 0)
    plain = len(shape) in (3, 4, 5) and not {0, 1} & {axis for axis, _, _ in changes}
    exact = all(size == shape[axis] * scale for axis, size, scale in changes)
    if (
        plain and exact and not antialias and policy == "stretch"
        and place.attribute("axes") is None and coordinates != "half_pixel_symmetric"
    ):  # fmt: skip
        return None
    if coordinates == "tf_crop_and_resize":
        raise Refused(
            "Resize with coordinate_transformation_mode=tf_crop_and_resize and axes or fractional scales"
        )
    if mode != "nearest" and kind.kind != "f":
        raise Refused(
            f"Resize with mode={mode} of {kind} values and antialias, axes or fractional scales"
        )
    rules = [
        ResizeAxis(
            size_in=shape[axis], size_out=size, scale=scale, mode=mode, coordinates=coordinates,
            nearest=place.attribute("nearest_mode", "round_prefer_floor"),
            cubic=place.attribute("cubic_coeff_a", -0.75),
            exclude_outside=bool(place.attribute("exclude_outside", 0)), antialias=bool(antialias),
        )
        for axis, size, scale in changes
    ]  # fmt: skip
    return _resize_nodes(place, [axis for axis, _, _ in changes], rules)


def _upsample(place: _Place) -> list[Any]:
    """The frontend knows scales as an attribute only, those of four axes, and rounds to the nearest place."""
    scales, mode = place.attribute("scales"), place.attribute("mode", "nearest")
    if place.opsets.get("", 0) >= 9:
        scales = place.constant(1)
    elif place.opsets.get("", 0) < 7:
        scales = [1.0, 1.0, place.attribute("height_scale"), place.attribute("width_scale")]
    if scales is None or mode not in ("nearest", "linear"):
        raise Refused(f"Upsample with mode={mode} or scales that are no constants")
    shape, kind = place.shape(0), place.dtype(0)
    if mode == "linear" and kind.kind != "f":
        raise Refused(f"Upsample with mode={mode} of {kind} values")
    changes = _axis_changes(shape, range(len(shape)), np.asarray(scales), None, "stretch")
    rules = [
        ResizeAxis(
            size_in=shape[axis], size_out=size, scale=scale, mode=mode, coordinates="asymmetric",
            nearest="floor", cubic=-0.75, exclude_outside=False, antialias=False,
        )
        for axis, size, scale in changes
    ]  # fmt: skip
    return _resize_nodes(place, [axis for axis, _, _ in changes], rules)


def _resize_nodes(place: _Place, axes: Sequence[int], rules: Sequence[ResizeAxis]) -> list[Any]:
    """Return nodes that resize a node's first input, an axis after the other, by gathering or by a product."""
    nodes, data = [], place.node.input[0]
    last, kind = len(place.shape(0)) - 1, place.dtype(0)
    for axis, rule in zip(axes, rules, strict=True):
        table, end = place.name(), place.name()
        if rule.mode == "nearest":
            nodes += [
                _constant_node(table, rule.places()),
                _node("Gather", [data, table], [end], axis=axis),
            ]
        else:
            order = [
                one if one not in (axis, last) else axis + last - one for one in range(last + 1)
            ]
            before, product = place.name(), place.name()
            nodes += [
                _constant_node(table, np.ascontiguousarray(rule.matrix().T.astype(kind))),
                _node("Transpose", [data], [before], perm=order),
                _node("MatMul", [before, table], [product]),
                _node("Transpose", [product], [end], perm=order),
            ]
        data = end
    return [*nodes, _node("Identity", [data], place.node.output)]


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
        changes = [
            (axis, int(np.floor(shape[axis] * float(scale))), float(scale))
            for axis, scale in zip(axes, scales, strict=True)
        ]
    elif policy == "stretch":
        changes = [
            (axis, int(size), int(size) / shape[axis])
            for axis, size in zip(axes, sizes, strict=True)
        ]
    else:
        ratios = [int(size) / shape[axis] for axis, size in zip(axes, sizes, strict=True)]
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        changes = [(axis, int(np.floor(shape[axis] * scale + 0.5)), scale) for axis in axes]
    return [one for one in changes if one[1:] != (shape[one[0]], 1.0)]


_WRITERS: dict[str, Callable[[_Place], list[Any] | None]] = {
    "BatchNormalization": _batch_normalization,
    "BitShift": _bit_shift,
    "ConvTranspose": _conv_transpose,
    "Dropout": _dropout,
    "Elu": _elu,
    "EyeLike": _eye_like,
    "IsInf": _is_inf,
    "LayerNormalization": _layer_normalization,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
    "Mod": _mod,
    "NonMaxSuppression": _non_max_suppression,
    "OneHot": _one_hot,
    "PRelu": _prelu,
    "Pow": _pow,
    "RMSNormalization": _rms_normalization,
    "ReduceMax": _reduce_bool,
    "ReduceMin": _reduce_bool,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "SequenceInsert": _sequence_insert,
    "Slice": _slice,
    "TopK": _top_k,
    "Upsample": _upsample,
} | dict.fromkeys(
    ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Sub", "Xor"), _broadcast
)
