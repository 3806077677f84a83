"""Operators that select, sort, insert or overwrite values."""

from __future__ import annotations

import numpy as np

from tencost.networks.onnx_graph import node_attributes
from tencost.networks.operators.node import Node, Refused


def _sequence_insert(node: Node) -> None:
    """The frontend counts places below 0 from behind the last tensor, ONNX from the last one."""
    position = node.constant(2)
    if position is not None and position < 0:
        shifted = node.write_constant(position - 1)
        node.finish("SequenceInsert", *node.proto.input[:2], shifted)


def _slice(node: Node) -> None:
    """The frontend looks for the limits among the inputs, where they are since operator set 10, not the attributes."""
    if node.opset >= 10 or node.attribute("starts") is None:
        return
    limits = {key: node.attribute(key) for key in ("starts", "ends")}
    limits["axes"] = node.attribute("axes", list(range(len(limits["starts"]))))
    names = [node.write_constant(limit, np.int64) for limit in limits.values()]
    # With its attributes, too: ONNX's shape inference reads them in this operator set.
    node.finish("Slice", node.proto.input[0], *names, **limits)


def _top_k(node: Node) -> None:
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


def _eye_like(node: Node) -> None:
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


def _one_hot(node: Node) -> None:
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


def _tensor_scatter(node: Node) -> None:
    """Overwrite the places along an axis of a cache that begin at an index of each item of the batch."""
    cache, update, *starts = node.proto.input
    shape = node.shape(1)
    axis, size = node.attribute("axis", -2) % len(shape), node.shape(0)[node.attribute("axis", -2)]
    ones = [1] * len(shape)
    steps = np.arange(shape[axis]).reshape(
        [-1 if place == axis else 1 for place in range(len(shape))]
    )
    places = node.write_constant(steps, np.int64)
    if starts and starts[0]:
        column = node.write_constant([-1, *ones[1:]], np.int64)
        first = node.cast(node.write("Reshape", starts[0], column), np.int64)
        places = node.write("Add", first, places)
    if node.attribute("mode", "linear") == "circular":
        places = node.write("Mod", places, node.write_constant(size, np.int64))
    places = node.write("Expand", places, node.write_constant(shape, np.int64))
    node.finish("ScatterElements", cache, places, update, axis=axis)


def _reverse_sequence(node: Node) -> None:
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


WRITERS = {
    "EyeLike": _eye_like, "OneHot": _one_hot, "ReverseSequence": _reverse_sequence, "SequenceInsert": _sequence_insert,
    "Slice": _slice, "TensorScatter": _tensor_scatter, "TopK": _top_k,
}  # fmt: skip
