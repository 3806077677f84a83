"""A node of an ONNX graph, its tensors, and the nodes that are written in its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tencost.networks.inputs import Array
from tencost.networks.onnx_graph import attribute, constant_node, constant_value, replace, subgraphs

WRITTEN = "tencost_"
"""Prefix of the tensors and operators that were written anew and stay as they are."""


class Refused(Exception):
    """An operator that TVM's frontend computes wrongly and nothing here writes anew; its text says which and why."""


@dataclass(frozen=True)
class Tensors:
    """A model's tensors.

    Attributes:
        opsets: the model's operator sets, by domain.
        types: onnx.TypeProto of tensors, by name, as far as they are inferred.
        constants: values of tensors that are constants, by name.
        readers: nodes that read a tensor, by its name; None stands for an output of a graph.
        makers: the node that makes a tensor, by its name.
    """

    opsets: dict[str, int]
    types: dict[str, Any]
    constants: dict[str, Array]
    readers: dict[str, list[Any]]
    makers: dict[str, Any]


@dataclass(frozen=True)
class Node:
    """A node in its graph, and the nodes that are written in its place.

    Attributes:
        proto: onnx.NodeProto.
        tensors: those of its model.
        numbers: for new names.
        nodes: onnx.NodeProtos that stand for it; it stays where there are none.
    """

    proto: Any
    tensors: Tensors
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
        return self._sizes(self.proto.input[index], "input")

    def _sizes(self, name: str, end: str) -> tuple[int, ...]:
        tensor_type = self.tensors.types.get(name)
        sizes = [] if tensor_type is None else tensor_type.tensor_type.shape.dim
        if tensor_type is None or not all(size.HasField("dim_value") for size in sizes):
            raise Refused(f"{self.proto.op_type} of an {end} whose shape is not known")
        return tuple(int(size.dim_value) for size in sizes)

    def output_shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of an output, as :meth:`shape` does that of an input."""
        return self._sizes(self.proto.output[index], "output")

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
        return len(self.proto.output) > index and self.proto.output[index] in self.tensors.readers

    def new_name(self) -> str:
        """Return a name that no tensor has."""
        return f"{WRITTEN}{self.proto.op_type}_{next(self.numbers)}"

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

    def reduce(
        self,
        op_type: str,
        data: str,
        axes: list[int],
        *,
        keepdims: int,
        outputs: Sequence[str] = (),
    ) -> str:
        """Write a reduction, its axes where the operator set has them, and return its output."""
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            inputs = [data, self.write_constant(axes, np.int64)]
            return self.write(op_type, *inputs, outputs=outputs, keepdims=keepdims)
        return self.write(op_type, data, outputs=outputs, axes=axes, keepdims=keepdims)

    def reshape(self, name: str, shape: Sequence[int], outputs: Sequence[str] = ()) -> str:
        """Write a reshape and return its output."""
        return self.write("Reshape", name, self.write_constant(shape, np.int64), outputs=outputs)

    def cast(self, name: str, dtype: Any, outputs: Sequence[str] = ()) -> str:
        """Write a cast and return its output."""
        import onnx

        tensor_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.write("Cast", name, outputs=outputs, to=tensor_type)


Writer = Callable[[Node], None]


def write_once(
    model: Any,
    numbers: Iterator[int],
    writer_of: Callable[[Any], Writer | None],
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
    graphs, changed = list(graphs), False
    if not any(writer_of(proto) for graph in graphs for proto in graph.node):
        return False
    tensors = read_tensors(model)
    for graph in reversed(graphs):  # a graph before the one that it is in
        protos: list[Any] = []
        for proto in graph.node:
            node, writer = Node(proto, tensors, numbers), writer_of(proto)
            if writer is not None:
                writer(node)
            protos += node.nodes or [proto]
            changed = changed or bool(node.nodes)
        replace(graph.node, protos)
    return changed


def read_tensors(model: Any) -> Tensors:
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # noqa: BLE001 - what is not inferred is said where it is needed
        inferred = model
    opsets = {item.domain: int(item.version) for item in model.opset_import}
    tensors = Tensors(opsets, {}, {}, defaultdict(list), {})
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
        for output in graph.output:
            tensors.readers[output.name].append(None)
        for node in graph.node:
            for name in node.input:
                tensors.readers[name].append(node)
            tensors.makers.update(dict.fromkeys(node.output, node))
    return tensors
