"""What is known of an ONNX model's tensors: their shapes, which hang on weights only, and which are images.

ONNX says nothing of layouts. A tensor is an image (NCHW, or NCL of a convolution in one dimension) where a convolution,
a pooling or the like takes or returns it, or where what works element by element ties it to such a one; tokens of a
transformer are not, though attention has tensors of rank 4, too.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tencost.errors import ConfigError
from tencost.networks.onnx_graph import constant_value, fold
from tencost.networks.source import first_sentence, require

Shape = tuple[int, ...]
"""Sizes; -1 is one that the model leaves open."""

_SMALL = 1024
"""Numbers that a weight may have whose value is asked for: shapes, bounds, axes."""

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
        self.inputs = [item.name for item in graph.input if item.name not in self._static]
        self.nodes: list[Any] = []
        for node in graph.node:
            value = constant_value(node)
            if value is not None:
                self._weights[node.output[0]] = value
            given = [name for name in node.input if name]
            if node.op_type in ("Shape", "Size") or all(name in self._static for name in given):
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
            names = [
                name
                for name in (*node.input, *node.output)
                if name and not self.is_static(name) and len(self.raw_shape(name)) in (3, 4)
            ]
            by_rank: dict[int, str] = {}
            for name in names:
                first = by_rank.setdefault(len(self.raw_shape(name)), name)
                parent[root(name)] = root(first)
            if names and (node.op_type in _ON_IMAGES or self._is_spatial_mean(node)):
                images.add(names[0])
        roots = {root(name) for name in images}
        return {name for name in parent if root(name) in roots}

    def _is_spatial_mean(self, node: Any) -> bool:
        axes = self.axes(node)
        return node.op_type == "ReduceMean" and axes is not None and sorted(axes) == [2, 3]

    def axes(self, node: Any) -> list[int] | None:
        """Return the axes of a node, counted from the first; None where it names none or computes them."""
        found = attribute(node, "axes")
        if found is None and len(node.input) > 1:
            value = self.value(node.input[1])
            found = None if value is None else value.ravel().tolist()
        rank = len(self.raw_shape(node.input[0]))
        return None if found is None or not rank else [int(axis) % rank for axis in found]

    def pieces(self, node: Any) -> list[Any]:
        """Return the Slice nodes that divide this Slice's input among them, in order; [] if they do not."""
        found = []
        for user in self.consumers(node.input[0]):
            span = self._span(user) if user.op_type == "Slice" else None
            if span is not None:
                found.append((span, user))
        own = self._span(node)
        rank = len(self.raw_shape(node.input[0]))
        pieces = sorted(
            (pair for pair in found if own is not None and pair[0][0] == own[0]),
            key=lambda pair: pair[0],
        )
        if len(pieces) < 2 or not rank:
            return []
        ends = [0, *(span[2] for span, _ in pieces)]
        whole = ends[-1] == self.raw_shape(node.input[0])[pieces[0][0][0]]
        touching = [span[1] for span, _ in pieces] == ends[:-1]
        return [user for _, user in pieces] if whole and touching else []

    def _span(self, node: Any) -> tuple[int, int, int] | None:
        """Return (axis, start, end) of a Slice along one axis whose bounds are constants."""
        values = [self.value(name) for name in node.input[1:]]
        shape = self.raw_shape(node.input[0])
        if len(values) < 3 or not shape or any(one is None or one.size != 1 for one in values):
            return None
        start, end, axis, step = [int(one.item()) for one in values if one is not None] + [1] * (
            4 - len(values)
        )
        size = shape[axis]
        start, end = (min(bound + size if bound < 0 else bound, size) for bound in (start, end))
        return (axis % len(shape), start, end) if step == 1 else None


def read_model(path: Path) -> Any:
    """Read a whole ONNX model with its weights.

    Raises:
        ConfigError: there is none.
    """
    require("onnx", extra="latency")
    import onnx

    try:
        onnx.checker.check_model(str(path))
        return onnx.load(str(path))
    except Exception as error:
        raise ConfigError(
            f"expected a whole ONNX model in {path}, found something else: {first_sentence(error)}. Export it again, "
            "or copy it with all its files"
        ) from error


def attribute(node: Any, name: str) -> Any:
    """Return the value of a node's attribute, None where it has none of that name."""
    from onnx import helper

    return next(
        (helper.get_attribute_value(item) for item in node.attribute if item.name == name), None
    )


def _prepared(model: Any) -> tuple[Any, dict[str, Shape]]:
    """Return (the model, folded, with the shapes of its tensors, shapes of its large weights, which are inputs now)."""
    require("onnx", "onnxscript", extra="latency")
    import onnx
    from onnx.inliner import inline_local_functions

    light, large = _without_large_weights(model)
    if light.functions:
        light = inline_local_functions(light)
    _compute_constants(light)
    with contextlib.suppress(Exception):  # what cannot be folded stays as it is
        fold(light)
        _compute_constants(light)
    try:
        return onnx.shape_inference.infer_shapes(light, data_prop=True), large
    except Exception as error:
        raise ConfigError(
            f"expected an ONNX model whose shapes can be inferred, found one where they cannot: "
            f"{first_sentence(error)}. Export it again with a newer opset, or simplify it"
        ) from error


def _without_large_weights(model: Any) -> tuple[Any, dict[str, Shape]]:
    """Return (a copy of a model whose large weights are inputs, the shapes of these).

    Nothing but their shapes is asked for, and copying them takes longer than all the rest.
    """
    import onnx

    declared = {item.name for item in model.graph.input}
    light = onnx.ModelProto(
        ir_version=max(model.ir_version, 4),  # from there on a weight need not be an input as well
        opset_import=model.opset_import,
        functions=model.functions,
    )
    graph = light.graph
    graph.name = model.graph.name or "network"
    graph.node.extend(model.graph.node)
    graph.output.extend(model.graph.output)
    graph.input.extend(model.graph.input)
    large = {}
    for tensor in model.graph.initializer:
        if prod(tensor.dims) <= _SMALL:
            graph.initializer.append(tensor)
            continue
        large[tensor.name] = tuple(tensor.dims)
        if tensor.name not in declared:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return light, large


def _compute_constants(model: Any) -> None:
    """Compute what follows from a model's constants alone, in place; the optimizer leaves ConstantOfShape alone."""
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    graph = model.graph
    opsets = {item.domain: item.version for item in model.opset_import}
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    kept = []
    for node in graph.node:
        constant = constant_value(node)
        if constant is not None:
            values[node.output[0]] = numpy_helper.to_array(constant)
        names = [name for name in node.input if name]
        if constant is not None or not names or any(name not in values for name in names):
            kept.append(node)
            continue
        found: list[Any] = []
        with contextlib.suppress(Exception):  # an operator that the reference lacks stays
            inputs = {name: values[name] for name in names}
            found = ReferenceEvaluator(node, opsets=opsets).run(None, inputs)
        if not found:
            kept.append(node)
        for name, value in zip(node.output, found, strict=False):
            if name:
                values[name] = np.asarray(value)
                graph.initializer.append(numpy_helper.from_array(values[name], name))
    del graph.node[:]
    graph.node.extend(kept)


def _shapes(graph: Any) -> dict[str, Shape]:
    shapes = {}
    for item in (*graph.input, *graph.value_info, *graph.output):
        tensor = item.type.tensor_type
        if tensor.HasField("shape"):
            shapes[item.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim
            )
    return shapes
