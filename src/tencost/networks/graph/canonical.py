"""An ONNX model as a graph of the operators of CG's data (module operators), spelt as those spell it.

What TensorFlow's graphs of 2020 do that exporters of today do not, and what is done about it:

- Shapes are NHWC. A Transpose that only turns one layout into the other has no node, nor has padding before a
  convolution or a pooling (there it is an attribute), nor Identity, Dropout and Cast.
- A convolution has no bias; a FusedBatchNorm stands behind it. Exporters fold the batch norm into the convolution, and
  what is left of it is the bias. So a convolution with a bias becomes Conv2D and FusedBatchNorm (`unfold`) unless it
  returns a single pixel, where the data have Conv2D and BiasAdd: squeeze and excitation, their only BiasAdd. With
  `bias`, every bias is a BiasAdd. A convolution without a bias is a Conv2D alone. Gemm is MatMul, and BiasAdd where it
  has a bias (the data's dense layers have none).
- HardSigmoid(x) is Mul(Relu6(Add(x, Const)), Const), HardSwish is that times x; Clip to 0..6 is Relu6. Div and Sub by a
  constant are Mul and Add.
- Global pooling is Mean from [N, C] to [N, C], and what makes its input says [N, C] of its output as well; where the
  single pixel goes on into a convolution it is an AvgPool whose kernel is the image. Before a dense layer stands a
  Reshape behind which the batch is -1.
- Slices that divide a tensor among them are a Split.
- What is broadcast over an image says the image's shape of its output.
- The shuffle of channels (Reshape, Transpose, Reshape) computes its shapes in the graph: Const, StridedSlice, Pack.

An operator that CG's data lack is one of the further OPERATORS, or Other; both are counted. So are settings that no
column states: dilations, groups of a transposed convolution, weights that are not float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tencost.config.checking import one_of
from tencost.errors import ConfigError
from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.node_writer import NodeWriter
from tencost.networks.graph.onnx_tensors import OnnxTensors, Shape
from tencost.networks.graph.operators import CG_OPERATORS
from tencost.networks.onnx_graph import attribute

BATCH_NORM = ("unfold", "bias")
"""What a bias of a convolution stands for: a batch norm that was folded into it, or a bias."""

_PLAIN = {
    "Relu": "Relu", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "Softmax": "Softmax", "LogSoftmax": "Softmax", "Erf": "Erf",
    "Gelu": "Gelu", "LayerNormalization": "LayerNorm", "RMSNormalization": "LayerNorm", "Pow": "Pow", "Sqrt": "Sqrt",
    "Exp": "Exp", "Pad": "Pad", "Resize": "Resize", "Upsample": "Resize", "BatchNormalization": "FusedBatchNorm",
    "InstanceNormalization": "LayerNorm", "GroupNormalization": "LayerNorm", "ReduceMean": "Mean", "ReduceMax": "Max",
    "ReduceMin": "Min", "ReduceSum": "Sum", "GlobalMaxPool": "Max", "Concat": "ConcatV2", "Split": "Split",
    "Slice": "StridedSlice", "Einsum": "MatMul", "MatMul": "MatMul", "Reciprocal": "Div", "Neg": "Mul",
}  # fmt: skip
"""Operators of one node that says no more than the shapes."""
_BINARY = {
    "Add": "Add", "Mul": "Mul", "Sub": "Sub", "Div": "Div", "Max": "Max", "Min": "Min", "Sum": "Add",
}  # fmt: skip
_BY_CONSTANT = {"Div": "Mul", "Sub": "Add"}
_NOTHING = ("Identity", "Dropout", "Cast", "CastLike")
_DENSE = ("Flatten", "Reshape", "Squeeze", "Gemm", "MatMul")
"""What a global pooling goes into that ends in a dense layer."""


@dataclass(frozen=True)
class CanonicalNetwork:
    """A network in CG's words.

    Attributes:
        graphs: one graph.
        foreign: how many nodes are of an operator that CG's data do not have, by that operator.
        other: how many nodes no operator stands for, by their ONNX operator.
        unstated: how many nodes (or weights) have a setting that no column states, such as a dilation, by a text that
            names it. The graph is that of a network without the setting.
    """

    graphs: GraphSet
    foreign: dict[str, int]
    other: dict[str, int]
    unstated: dict[str, int] = field(default_factory=dict)

    def unmodelled(self) -> tuple[str, ...]:
        """Return a sentence for each operator and each setting that models cannot see."""
        return (
            *(
                f"{operator} ({count} times): no operator that is known here, it counts as nothing"
                for operator, count in self.other.items()
            ),
            *(
                f"{setting} ({count} times): a graph cannot state this, the network is predicted as without it"
                for setting, count in self.unstated.items()
            ),
        )


def canonical_network(
    model: Any, *, name: str, family: str = "", batch_norm: str = "unfold"
) -> CanonicalNetwork:
    """Write an ONNX model in CG's words.

    Args:
        model: onnx.ModelProto; a dimension that it leaves open is -1.
        name: of the graph.
        family: of the graph.
        batch_norm: one of BATCH_NORM.

    Raises:
        ConfigError: its shapes cannot be inferred, or no node hangs on an input.
    """
    one_of("batch_norm", batch_norm, BATCH_NORM)
    writer = _Network(OnnxTensors(model), batch_norm == "unfold")
    graph = writer.write().graph(name, family)
    if len(graph.operator) <= len(writer.tensors.inputs):
        raise ConfigError(
            f"network {name!r}: expected an ONNX graph with operators on its inputs, found none"
        )
    names = Counter(writer.nodes.operators)
    foreign = {operator: count for operator, count in names.items() if operator not in CG_OPERATORS}
    unstated = dict(writer.unstated + _other_precisions(model))
    return CanonicalNetwork(graph, foreign, dict(writer.other), unstated)


def _other_precisions(model: Any) -> Counter[str]:
    """Return how many weights have floating-point numbers of another size than the data's networks (float32)."""
    from onnx import TensorProto

    names = (TensorProto.DataType.Name(tensor.data_type) for tensor in model.graph.initializer)
    return Counter(
        f"weights in {name.lower()}"
        for name in names
        if name == "DOUBLE" or ("FLOAT" in name and name != "FLOAT")
    )


class _Network:
    """The rules, one a method; `nodes` is where they write."""

    def __init__(self, tensors: OnnxTensors, unfold: bool) -> None:
        self.tensors = tensors
        self.nodes = NodeWriter(tensors)
        self.other: Counter[str] = Counter()
        self.unstated: Counter[str] = Counter()
        self._unfold = unfold
        self._written: set[str] = set()
        """First outputs of the nodes that a node before them was written for, too."""
        self._rules: dict[str, Callable[[Any], None]] = {
            "GlobalAveragePool": self._global_pool, "ReduceMean": self._mean, "Gemm": self._dense,
            "Clip": self._clip, "Gather": self._gather, "Pad": self._pad, "Slice": self._slice,
            "Transpose": self._transpose,
            **dict.fromkeys(("Conv", "ConvTranspose"), self._conv),
            **dict.fromkeys(("MaxPool", "AveragePool"), self._pool),
            **dict.fromkeys(("HardSigmoid", "HardSwish", "Swish"), self._gate),
            **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), self._reshape),
            **dict.fromkeys(_NOTHING, self._nothing),
            **dict.fromkeys(_BINARY, self._binary),
        }  # fmt: skip

    def write(self) -> NodeWriter:
        for name in self.tensors.inputs:
            if self.tensors.consumers(name):
                node = self.nodes.add("Placeholder", [], returned=self.tensors.shape(name))
                self.nodes.assign([name], node)
        for node in self.tensors.nodes:
            if node.output[0] not in self._written:
                self._rules.get(node.op_type, self._plain)(node)
        return self.nodes

    def _active(self, node: Any) -> list[str]:
        """Return the inputs that hang on the network's."""
        return [name for name in node.input if name and not self.tensors.is_static(name)]

    def _returned(self, node: Any, first_input: Shape) -> Shape:
        """Return the shape of a node's output; behind a Reshape that forgot the batch it is -1."""
        shape = self.tensors.shape(node.output[0])
        return (-1, *shape[1:]) if first_input[:1] == (-1,) and shape else shape

    def _write(
        self,
        node: Any,
        operator: str,
        names: Sequence[str] = (),
        returned: Shape | None = None,
        **settings: Any,
    ) -> None:
        """Write one node for an ONNX node.

        Args:
            node: NodeProto.
            operator: one of OPERATORS.
            names: the tensors that it takes; those that hang on the network's inputs where none is named.
            returned: shape of its output, where it is another than the tensor's.
            settings: of the node, as NodeWriter.add takes them.
        """
        names = names or self._active(node)
        shape = self.nodes.shape(names[0])
        returned = self._returned(node, shape) if returned is None else returned
        number = self.nodes.add(operator, self.nodes.sources(names), shape, returned, **settings)
        self.nodes.assign(node.output, number, returned)

    def _follow(self, node: Any, operator: str) -> None:
        """Write another node behind the one that makes a node's output."""
        shape = self.nodes.shape(node.output[0])
        number = self.nodes.add(operator, self.nodes.sources(node.output[:1]), shape, shape)
        self.nodes.assign(node.output, number, shape)

    def _plain(self, node: Any) -> None:
        self._write(node, self._counted(node, _PLAIN.get(node.op_type, "Other")))

    def _counted(self, node: Any, operator: str) -> str:
        """Return an operator; count a node that no operator stands for."""
        if operator == "Other":
            self.other[node.op_type] += 1
        return operator

    def _nothing(self, node: Any) -> None:
        self.nodes.same(node.output[0], node.input[0])

    def _conv(self, node: Any) -> None:
        weight, groups = self.tensors.raw_shape(node.input[1]), attribute(node, "group") or 1
        rank = len(weight) - 2
        if rank not in (1, 2):
            self._plain(node)
            return
        operator, channels = "Conv2D", (weight[1], weight[0])
        if node.op_type == "ConvTranspose":
            operator, channels = "Conv2DTranspose", (weight[0], weight[1] * groups)
        elif rank == 1:
            operator = "Conv1D"
        elif groups > 1 and weight[1] == 1:
            operator, channels = "DepthwiseConv2dNative", (groups, weight[0] // groups)
        elif groups > 1:
            operator = "GroupConv2D"
        self._count_dilation(node, operator)
        if node.op_type == "ConvTranspose" and groups > 1:
            self.unstated[f"{operator} with {groups} groups"] += 1
        returned = self.tensors.shape(node.output[0])
        self._write(
            node, operator, node.input[:1], returned,
            weight=(*_two(weight[2:]), *channels), strides=_two(attribute(node, "strides") or [1] * rank),
        )  # fmt: skip
        users = [user.op_type for user in self.tensors.consumers(node.output[0])]
        if len(node.input) > 2 and node.input[2] and users != ["BatchNormalization"]:
            single = prod(returned[1:-1]) == 1
            self._follow(node, "FusedBatchNorm" if self._unfold and not single else "BiasAdd")

    def _count_dilation(self, node: Any, operator: str) -> None:
        """Count a node whose kernel is dilated: the columns have no dilation."""
        dilations = [int(step) for step in attribute(node, "dilations") or []]
        if any(step != 1 for step in dilations):
            self.unstated[f"{operator} with dilation {'x'.join(map(str, dilations))}"] += 1

    def _pool(self, node: Any) -> None:
        shape, returned = self.nodes.shape(node.input[0]), self.tensors.shape(node.output[0])
        kernel = attribute(node, "kernel_shape")
        if len(kernel) > 2:
            self._plain(node)
            return
        covers = all(size >= side > 1 for size, side in zip(kernel, shape[1:-1], strict=True))
        if node.op_type == "AveragePool" and covers and prod(returned[1:-1]) == 1:
            self._global_pool(node)
            return
        operator = "AvgPool" if node.op_type == "AveragePool" else "MaxPool"
        self._count_dilation(node, operator)
        self._write(
            node, operator, node.input[:1], returned,
            weight=(*_two(kernel), 0, 0), strides=_two(attribute(node, "strides") or [1] * len(kernel)),
        )  # fmt: skip

    def _mean(self, node: Any) -> None:
        image, axes = self.tensors.is_image(node.input[0]), self.tensors.axes(node) or []
        if image and len(self.tensors.raw_shape(node.input[0])) == 4 and sorted(axes) == [2, 3]:
            self._global_pool(node)
        else:
            self._plain(node)

    def _global_pool(self, node: Any) -> None:
        pooled, output = node.input[0], node.output[0]
        shape, sources = self.nodes.shape(pooled), self.nodes.sources([pooled])
        users = {user.op_type for user in self.tensors.consumers(output)}
        keeps = len(self.tensors.raw_shape(output)) == len(self.tensors.raw_shape(pooled))
        if keeps and users and not users & set(_DENSE):
            single = (shape[0], *[1] * (len(shape) - 2), shape[-1])
            weight = (*_two(shape[1:-1]), 0, 0)
            number = self.nodes.add(
                "AvgPool", sources, shape, single, weight=weight, strides=(1, 1)
            )
            self.nodes.assign([output], number)
            return
        channels: Shape = (shape[0], shape[-1])
        for source in sources:
            self.nodes.restate(source, channels)
        number = self.nodes.add("Mean", sources, channels, channels)
        if users & set(_DENSE):
            flat = (-1, shape[-1])
            number, channels = self.nodes.add("Reshape", [number], channels, flat), flat
        self.nodes.assign([output], number, channels)

    def _dense(self, node: Any) -> None:
        self._write(node, "MatMul")
        if len(node.input) > 2 and self.tensors.is_static(node.input[2]):
            self._follow(node, "BiasAdd")

    def _gate(self, node: Any) -> None:
        """Write HardSigmoid, relu6(x + 3) / 6, or a product of x and that or of x and its Sigmoid."""
        shape, sources = self.nodes.shape(node.input[0]), self.nodes.sources(node.input[:1])
        if node.op_type == "Swish":
            gate = self.nodes.add("Sigmoid", sources, shape, shape)
        else:
            gate = self.nodes.add("Add", [*sources, self.nodes.constant()], shape, shape)
            gate = self.nodes.add("Relu6", [gate], shape, shape)
            gate = self.nodes.add("Mul", [gate, self.nodes.constant()], shape, shape)
        if node.op_type != "HardSigmoid":
            gate = self.nodes.add("Mul", [*sources, gate], shape, shape)
        self.nodes.assign(node.output, gate, shape)

    def _clip(self, node: Any) -> None:
        bounds = [attribute(node, "min"), attribute(node, "max")]
        for place, name in enumerate(node.input[1:3]):
            value = self.tensors.value(name) if name else None
            bounds[place] = bounds[place] if value is None else float(value)
        operator = {(0.0, 6.0): "Relu6", (0.0, None): "Relu"}.get(tuple(bounds), "Other")
        self._write(node, self._counted(node, operator), node.input[:1])

    def _binary(self, node: Any) -> None:
        active = list(dict.fromkeys(self._active(node)))
        largest = max(active, key=lambda name: _size(self.nodes.shape(name)))
        shape, sources = self.nodes.shape(largest), self.nodes.sources(active)
        fixed = [name for name in node.input if self.tensors.is_static(name)]
        operator, returned = _BINARY[node.op_type], self._returned(node, shape)
        if not fixed:
            for source in sources:
                self._broadcast(source, returned)
        elif node.op_type in ("Add", "Mul", "Sub", "Div"):
            if node.input[0] not in fixed:
                operator = _BY_CONSTANT.get(operator, operator)
            constant = _constant_shape(
                self.tensors.raw_shape(fixed[0]), self.tensors.is_image(largest)
            )
            dense = operator == "Add" and self.nodes.operator(largest) == "MatMul"
            if dense and constant == shape[-1:]:
                operator = "BiasAdd"
            else:
                sources = [*sources, self.nodes.constant(constant)]
        number = self.nodes.add(operator, sources, shape, returned)
        self.nodes.assign(node.output, number, returned)

    def _broadcast(self, source: int, returned: Shape) -> None:
        """Let a node that makes one pixel, which is broadcast here over an image, say the image's shape."""
        stated = self.nodes.output(source)[: len(returned)]
        if len(returned) == 4 and prod(stated[1:3]) == 1 and prod(returned[1:3]) > 1:
            self.nodes.restate(source, returned)

    def _gather(self, node: Any) -> None:
        self._write(node, "StridedSlice" if self.tensors.is_static(node.input[1]) else "Gather")

    def _pad(self, node: Any) -> None:
        users = {user.op_type for user in self.tensors.consumers(node.output[0])}
        folded = users and users <= {"Conv", "MaxPool", "AveragePool"}
        (self._nothing if folded else self._plain)(node)

    def _slice(self, node: Any) -> None:
        """Write a Split for slices that divide a tensor among them, as tracing leaves of it."""
        pieces = self.tensors.pieces(node)
        if not pieces:
            self._plain(node)
            return
        shape = self.nodes.shape(node.input[0])
        returned = self._returned(pieces[0], shape)
        number = self.nodes.add("Split", self.nodes.sources(node.input[:1]), shape, returned)
        for piece in pieces:
            self.nodes.assign(piece.output, number, self._returned(piece, shape))
            self._written.add(piece.output[0])

    def _transpose(self, node: Any) -> None:
        source, output = node.input[0], node.output[0]
        rank = len(self.tensors.raw_shape(source))
        order = list(attribute(node, "perm", range(rank)[::-1]))
        last, first = [0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]
        # An image whose channels go last, or tokens whose channels go first: only the layout changes.
        images = (self.tensors.is_image(source), self.tensors.is_image(output))
        if (images, order) in (((True, False), last), ((False, True), first)):
            self.nodes.same(output, source)
        else:
            self._write(node, "Transpose", [source])

    def _reshape(self, node: Any) -> None:
        source, output = node.input[0], node.output[0]
        shape, returned = self.nodes.shape(source), self.tensors.shape(output)
        if self._shuffle(node):
            return
        if len(returned) == 2 and (shape[:1] == (-1,) or len(shape) == 4):
            returned = (-1, *returned[1:])
        if returned == shape:
            self.nodes.same(output, source)
        else:
            self._write(node, "Reshape", [source], returned)

    def _shuffle(self, node: Any) -> bool:
        """Write a shuffle of channels that begins with this Reshape; return whether it does."""
        source = node.input[0]
        split = self.tensors.raw_shape(node.output[0])
        chain = [node]
        while len(chain) < 3 and len(users := self.tensors.consumers(chain[-1].output[0])) == 1:
            chain.append(users[0])
        if (
            [link.op_type for link in chain] != ["Reshape", "Transpose", "Reshape"]
            or len(split) != 5
            or list(attribute(chain[1], "perm") or []) != [0, 2, 1, 3, 4]
            or self.tensors.raw_shape(chain[2].output[0]) != self.tensors.raw_shape(source)
            or not self.tensors.is_image(source)
        ):
            return False
        shape = self.nodes.shape(source)
        groups: Shape = (*shape[:-1], split[1], split[2])
        turned: Shape = (*shape[:-1], split[2], split[1])
        number = self._computed_reshape(self.nodes.sources([source]), shape, groups)
        number = self.nodes.add("Transpose", [number, self.nodes.constant((5,))], groups, turned)
        number = self._computed_reshape([number], turned, shape)
        self.nodes.assign(chain[2].output, number, shape)
        self._written.update(link.output[0] for link in chain)
        return True

    def _computed_reshape(self, sources: list[int], shape: Shape, returned: Shape) -> int:
        """Write a Reshape whose batch is taken out of the shape, the other sizes are constants."""
        sliced = [self.nodes.constant((size,)) for size in (len(shape), 1, 1, 1)]
        batch = self.nodes.add("StridedSlice", sliced, shape, shape)
        sizes = [self.nodes.constant() for _ in returned[1:]]
        packed = self.nodes.add("Pack", [batch, *sizes])
        return self.nodes.add("Reshape", [*sources, packed], shape, returned)


def _two(sizes: Any) -> tuple[int, int]:
    """Return height and width; what has one dimension is one wide."""
    values = [int(size) for size in sizes]
    return values[0], values[1] if len(values) > 1 else 1


def _size(shape: Shape) -> int:
    return int(np.prod([abs(size) for size in shape], dtype=np.int64))


def _constant_shape(raw: Shape, beside_image: bool) -> Shape:
    """Return what a Const says of its output: () for a number, (C,) for one number a channel."""
    if prod(raw) == 1:
        return ()
    wide = [size for size in raw if size != 1]
    if len(wide) == 1 and (not beside_image or len(raw) < 2 or raw[-1] == 1):
        return (wide[0],)
    return (raw[0], *raw[2:], raw[1]) if beside_image and len(raw) == 4 else raw
