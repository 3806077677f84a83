"""What is known of an ONNX model's tensors: their shapes, which hang on weights only, and which are images.

ONNX says nothing of layouts. A tensor is an image (NCHW, or NCL of a convolution in one dimension) where a convolution,
a pooling or the like takes or returns it, or where what works element by element ties it to such a one; tokens of a
transformer are not, though attention has tensors of rank 4, too.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tencost.errors import ConfigError
from tencost.networks.onnx_graph import (
    MAX_FOLDED,
    SMALL,
    attribute,
    check_bytes,
    constant_value,
    fold,
    replace,
    without_large_weights,
)
from tencost.networks.source import first_sentence, require_module

Shape = tuple[int, ...]
"""Sizes; -1 is one that the model leaves open."""

_ON_IMAGES = frozenset(
    {
        "Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "LRN",
        "BatchNormalization", "InstanceNormalization", "GroupNormalization", "Resize", "Upsample", "DepthToSpace",
        "SpaceToDepth",
    }
)  # fmt: skip
_CHANGES_LAYOUT = frozenset(
    {
        "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "MatMul", "Gemm", "Einsum", "Gather", "Attention",
        "Shape", "Expand", "Tile", "LayerNormalization", "RMSNormalization",
    }
)  # fmt: skip
"""Operators whose result need not have the layout of what they are given."""


class OnnxTensors:
    """A model's graph, its constants folded and its shapes inferred.

    Args:
        model: onnx.ModelProto, which is left as it is.

    Attributes:
        nodes: NodeProtos whose result hangs on an input, in topological order.
        inputs: names of the inputs that are no weights.
    """

    def __init__(self, model: Any) -> None:
        prepared, large = _prepared(model)
        graph = prepared.graph
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._static = self._weights.keys() | large.keys()
        self.inputs = [tensor.name for tensor in graph.input if tensor.name not in self._static]
        self.nodes: list[Any] = []
        for node in graph.node:
            value = constant_value(node)
            if value is not None:
                self._weights[node.output[0]] = value
            static = all(name in self._static for name in node.input if name)
            if static or node.op_type in ("Shape", "Size"):
                self._static.update(node.output)
            else:
                self.nodes.append(node)
        self._shapes = _shapes(graph) | {
            name: tuple(tensor.dims) for name, tensor in self._weights.items()
        }
        for node in self.nodes:
            if node.output[0] not in self._shapes:
                raise ConfigError(
                    f"expected an ONNX model whose shapes can be inferred, found none for what {node.op_type} makes "
                    f"({node.output[0]}). Fix the shapes of its inputs, or export it without that operator"
                )
        self._consumers: dict[str, list[Any]] = defaultdict(list)
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                self._consumers[name].append(node)
        self._images = self._find_images()

    def is_static(self, name: str) -> bool:
        """Say whether a tensor hangs on weights and shapes only."""
        return name in self._static

    def value(self, name: str) -> npt.NDArray[Any] | None:
        """Return a constant's value; None for what is no constant."""
        from onnx import numpy_helper

        tensor = self._weights.get(name)
        return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))

    def raw_shape(self, name: str) -> Shape:
        """Return a tensor's shape in ONNX's own order; () where it cannot be inferred."""
        return self._shapes.get(name, ())

    def shape(self, name: str) -> Shape:
        """Return a tensor's shape with the channels of an image last."""
        raw = self.raw_shape(name)
        return (raw[0], *raw[2:], raw[1]) if self.is_image(name) else raw

    def is_image(self, name: str) -> bool:
        """Say whether a tensor's second dimension is channels that CG's data have last."""
        return name in self._images

    def consumers(self, name: str) -> list[Any]:
        """Return the nodes that take a tensor."""
        return self._consumers.get(name, [])

    def _find_images(self) -> set[str]:
        parent: dict[str, str] = {}

        def root(name: str) -> str:
            while (above := parent.setdefault(name, name)) != name:
                name = above
            return name

        images = set()
        for node in self.nodes:
            if node.op_type in _CHANGES_LAYOUT:
                continue
            first_of_rank: dict[int, str] = {}
            for name in (*node.input, *node.output):
                rank = len(self.raw_shape(name))
                if name and rank in (3, 4) and not self.is_static(name):
                    parent[root(name)] = root(first_of_rank.setdefault(rank, name))
            if first_of_rank and (node.op_type in _ON_IMAGES or self._is_spatial_mean(node)):
                images.add(next(iter(first_of_rank.values())))
        roots = {root(name) for name in images}
        return {name for name in parent if root(name) in roots}

    def _is_spatial_mean(self, node: Any) -> bool:
        axes = self.axes(node)
        return node.op_type == "ReduceMean" and axes is not None and sorted(axes) == [2, 3]

    def axes(self, node: Any) -> list[int] | None:
        """Return the axes of a node, counted from the first; None where it names none or computes them."""
        axes = attribute(node, "axes")
        if axes is None and len(node.input) > 1:
            value = self.value(node.input[1])
            axes = None if value is None else value.ravel().tolist()
        rank = len(self.raw_shape(node.input[0]))
        return None if axes is None or not rank else [int(axis) % rank for axis in axes]

    def pieces(self, node: Any) -> list[Any]:
        """Return the Slice nodes that divide this Slice's input among them, in order; [] if they do not."""
        span = self._span(node)
        if span is None:
            return []
        users = [user for user in self.consumers(node.input[0]) if user.op_type == "Slice"]
        spans = [(other, user) for user in users if (other := self._span(user)) is not None]
        pieces = sorted((pair for pair in spans if pair[0][0] == span[0]), key=lambda pair: pair[0])
        starts = [start for (_, start, _), _ in pieces]
        ends = [end for (_, _, end), _ in pieces]
        whole = [*starts, self.raw_shape(node.input[0])[span[0]]] == [0, *ends]
        return [user for _, user in pieces] if whole and len(pieces) > 1 else []

    def _span(self, node: Any) -> tuple[int, int, int] | None:
        """Return (axis, start, end) of a Slice along one axis whose bounds are constants."""
        values = [self.value(name) for name in node.input[1:]]
        shape = self.raw_shape(node.input[0])
        numbers = [int(value.item()) for value in values if value is not None and value.size == 1]
        if len(values) < 3 or not shape or len(numbers) < len(values):
            return None
        start, end, axis, step = [*numbers, 1][:4]
        size = shape[axis]
        start, end = (min(bound + size if bound < 0 else bound, size) for bound in (start, end))
        return (axis % len(shape), start, end) if step == 1 else None


def _prepared(model: Any) -> tuple[Any, dict[str, Shape]]:
    """Return (the model, folded, with the shapes of its tensors, shapes of its large weights, which are inputs now)."""
    require_module("onnx", "onnxscript", extra="latency")
    import onnx
    from onnx.inliner import inline_local_functions

    light, large = without_large_weights(model)
    if light.functions:
        light = inline_local_functions(light)
    _compute_constants(light)
    with contextlib.suppress(Exception):  # what cannot be folded stays as it is
        fold(light)
        _compute_constants(light)
    try:
        inferred = onnx.shape_inference.infer_shapes(light, data_prop=True)
    except Exception as error:
        raise ConfigError(
            f"expected an ONNX model whose shapes can be inferred, found one where they cannot: "
            f"{first_sentence(error)}. Export it again with a newer opset, or simplify it"
        ) from error
    check_bytes(inferred, "ONNX model")
    return inferred, large


def _compute_constants(model: Any) -> None:
    """Compute what follows from a model's constants alone, in place; the optimizer leaves ConstantOfShape alone."""
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    graph = model.graph
    opsets = {domain.domain: domain.version for domain in model.opset_import}
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    remaining = []
    for node in graph.node:
        constant = constant_value(node)
        if constant is not None:
            values[node.output[0]] = numpy_helper.to_array(constant)
        names = [name for name in node.input if name]
        outputs: list[Any] = []
        is_constant = constant is None and names and all(name in values for name in names)
        if is_constant and _is_small(node, values, opsets):
            with contextlib.suppress(Exception):  # an operator that the reference lacks stays
                inputs = {name: values[name] for name in names}
                outputs = ReferenceEvaluator(node, opsets=opsets).run(None, inputs)
        if not outputs:
            remaining.append(node)
        for name, value in zip(node.output, outputs, strict=False):
            if name:
                values[name] = np.asarray(value)
                graph.initializer.append(numpy_helper.from_array(values[name], name))
    replace(graph.node, remaining)


def _is_small(node: Any, values: dict[str, Any], opsets: dict[str, int]) -> bool:
    """Say whether a node of constants is known to make no more than MAX_FOLDED numbers beside what it reads."""
    import onnx
    from onnx import helper, numpy_helper

    if any(setting.HasField("g") for setting in node.attribute):
        return False  # a loop says nothing of its length
    arrays = {name: values[name] for name in node.input if name}
    types = {
        name: helper.make_tensor_type_proto(
            helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in arrays.items()
    }
    small = {
        name: numpy_helper.from_array(array, name)
        for name, array in arrays.items()
        if array.size <= SMALL
    }
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
        inferred = onnx.shape_inference.infer_node_outputs(schema, node, types, small)
    except Exception:  # noqa: BLE001 - an operator of another domain, or one that cannot be inferred: it stays
        return False
    limit = MAX_FOLDED + sum(array.size for array in arrays.values())
    shapes = [item.tensor_type.shape.dim for item in inferred.values()]
    return bool(shapes) and all(
        all(dim.HasField("dim_value") for dim in shape)
        and prod(dim.dim_value for dim in shape) <= limit
        for shape in shapes
    )


def _shapes(graph: Any) -> dict[str, Shape]:
    shapes = {}
    for declared in (*graph.input, *graph.value_info, *graph.output):
        tensor = declared.type.tensor_type
        if tensor.HasField("shape"):
            shapes[declared.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim
            )
    return shapes
