"""TVM's ONNX frontend with converters of tencost's own, for operators that other operators do not express exactly.

Quantization divides and rounds half to even; TVM multiplies by the reciprocal of a scalar scale, and its converters
know no blocks. BitCast, NonMaxSuppression and recurrent layers (:mod:`.recurrent_layers`) have no equivalent among the
operators that the frontend has right.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from tvm import ir, relax, te, tirx
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tencost.networks.operators import recurrent_layers


def import_graph(model: Any) -> Any:
    """Return the Relax module of an onnx.ModelProto, its weights inputs of ``main`` after those of the graph.

    Raises:
        tvm.error.OpNotImplemented: an operator that neither the frontend nor this module converts.
    """
    opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)
    return _Importer(None, None, keep_params_in_input=True).from_onnx(model.graph, opset)


class _Importer(ONNXGraphImporter):
    def _check_for_unsupported_ops(self, graph: Any) -> None:
        nodes = [node for node in graph.node if node.op_type not in _CONVERTERS]
        super()._check_for_unsupported_ops(SimpleNamespace(node=nodes))

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        converter = _CONVERTERS.get(op_name)
        if converter is None:
            return super()._convert_operator(op_name, inputs, attrs, opset)
        padded = [*inputs, *[None] * 5]
        converted = converter(self.bb, padded, attrs)
        if converted is None:
            return super()._convert_operator(op_name, inputs, attrs, opset)
        return self.bb.normalize(converted)


def _quantize(bb: Any, inputs: Any, attrs: dict[str, Any]) -> Any:
    """clip(round(x / scale) + zero point): the division in the type of the scale, the rest in float32."""
    data, scale, zero, *_ = inputs
    through = _type_name(attrs, "precision") or _dtype(scale)
    kind = _dtype(zero) if zero is not None else _type_name(attrs, "output_dtype") or "uint8"
    shape = _shape(data)
    data = _cast(bb, data if shape else _reshape(bb, data, [1]), through)
    if not _is_all(scale, 1):
        divisor = _cast(bb, _spread(bb, scale, shape, attrs), through)
        data = bb.normalize(relax.op.divide(data, divisor))
    rounded = bb.normalize(relax.op.round(_cast(bb, data, "float32")))
    if zero is not None and not _is_all(zero, 0):
        offset = _cast(bb, _spread(bb, zero, shape, attrs), "float32")
        rounded = bb.normalize(relax.op.add(rounded, offset))
    limits = np.iinfo(kind)
    clipped = bb.normalize(relax.op.clip(rounded, float(limits.min), float(limits.max)))
    quantized = _cast(bb, clipped, kind)
    return quantized if shape else _reshape(bb, quantized, [])


def _dequantize(bb: Any, inputs: Any, attrs: dict[str, Any]) -> Any:
    """(x - zero point) * scale: the difference in int32, where it is exact, the product in float32."""
    data, scale, zero, *_ = inputs
    kind = _type_name(attrs, "output_dtype") or _dtype(scale)
    through = "float64" if _dtype(scale) == "float64" else "float32"
    shape = _shape(data)
    if not shape:
        data = _reshape(bb, data, [1])
    if zero is not None and not _is_all(zero, 0):
        offset = _cast(bb, _spread(bb, zero, shape, attrs), "int32")
        data = bb.normalize(relax.op.subtract(_cast(bb, data, "int32"), offset))
    factor = _cast(bb, _spread(bb, scale, shape, attrs), through)
    scaled = bb.normalize(relax.op.multiply(_cast(bb, data, through), factor))
    scaled = _cast(bb, scaled, kind)
    return scaled if shape else _reshape(bb, scaled, [])


def _spread(bb: Any, value: Any, shape: list[int], attrs: dict[str, Any]) -> Any:
    """Return a scale or zero point with as many axes as the data, at least one, repeated where it is of blocks.

    It is never a scalar: TVM replaces the division by a scalar constant by a multiplication, which rounds otherwise.
    """
    sizes, rank = _shape(value), max(len(shape), 1)
    if np.prod(sizes) == 1:
        return _reshape(bb, value, [1] * rank)
    axis = 0 if rank == 1 else int(attrs.get("axis", 1)) % rank
    block = int(attrs.get("block_size", 0))
    if not block:
        return _reshape(bb, value, [sizes[0] if place == axis else 1 for place in range(rank)])
    repeated = bb.normalize(relax.op.repeat(value, block, axis))
    return bb.normalize(relax.op.strided_slice(repeated, [axis], [0], [shape[axis]]))


def _clip(bb: Any, inputs: Any, attrs: dict[str, Any]) -> Any:
    """Operators for constant limits, which join the convolution before them; the frontend's are functions already.

    A limit that is no number is none, as ONNX Runtime has it. None where limits are computed by the network.
    """
    data = inputs[0]
    limits = zip(("min", "max"), inputs[1:3], (relax.op.maximum, relax.op.minimum), strict=True)
    for name, limit, operator in limits:
        if name in attrs:  # before opset 11
            limit = relax.const(attrs[name], _dtype(data))
        if limit is None:
            continue
        if not isinstance(limit, ir.GenericConst) or limit.value.numpy().size != 1:
            return None
        value = limit.value.numpy().reshape(())
        if value == value:
            data = bb.normalize(operator(data, relax.const(value, _dtype(data))))
    return data


def _gather(_bb: Any, inputs: Any, attrs: dict[str, Any]) -> Any:
    """A slice, which joins what is beside it, for one constant place of an axis: the frontend's looks up rows.

    None for other places, and where the data are constant, or a shape.
    """
    data, index, *_ = inputs
    is_known = isinstance(data, ir.GenericConst | relax.ShapeExpr)
    shape = getattr(data.ty, "shape", None)
    if is_known or shape is None or not isinstance(index, ir.GenericConst):
        return None
    if index.value.numpy().ndim:
        return None
    axis = int(attrs.get("axis", 0)) % len(shape)
    if not hasattr(shape[axis], "value"):
        return None
    place = int(index.value.numpy()) % int(shape[axis])
    part = relax.op.strided_slice(data, [axis], [place], [place + 1])
    return relax.op.squeeze(part, [axis])


def _bit_cast(bb: Any, inputs: Any, attrs: dict[str, Any]) -> Any:
    data, kind = inputs[0], _type_name(attrs, "to")
    if "bool" in (kind, _dtype(data)):
        return _cast(bb, data, kind)

    def reinterpreted(values: Any) -> Any:
        return te.compute(
            values.shape, lambda *places: tirx.reinterpret(kind, values(*places)), name="bits"
        )

    return bb.emit_te(reinterpreted, data, primfunc_name_hint="bit_cast")


def _non_max_suppression(bb: Any, inputs: Any, attrs: dict[str, Any]) -> Any:
    """Select boxes class by class, the best first; rows after the selected ones are -1."""
    boxes, scores, limit, overlap, least = inputs[:5]
    batch, classes, count = _shape(scores)
    each = min(int(limit.value.numpy().item()), count)
    zero = relax.const(np.zeros(1, np.float32))
    overlap = zero if overlap is None else _reshape(bb, overlap, [1])
    least = (
        relax.const(np.full(1, -np.inf, np.float32)) if least is None else _reshape(bb, least, [1])
    )
    from_center = bool(attrs.get("center_point_box", 0))

    def selected(*tensors: Any) -> Any:
        return te.extern(
            [(batch * classes * each, 3)],
            list(tensors),
            lambda ins, outs: _selection([*ins, *outs], each, from_center),
            dtype=["int64"],
            name="non_max_suppression",
        )

    return bb.emit_te(
        selected, boxes, scores, overlap, least, primfunc_name_hint="non_max_suppression"
    )


def _selection(buffers: Sequence[Any], each: int, from_center: bool) -> Any:
    """Return the loops of NonMaxSuppression over buffers: boxes, scores, both thresholds, the rows that are written."""
    boxes, scores, overlap, least, rows = buffers
    batch, classes, count = (int(size) for size in scores.shape)

    def corners(image: Any, box: Any) -> list[Any]:
        """Return (low, high) along both axes."""
        first, second, third, fourth = (boxes[image, box, place] for place in range(4))
        if from_center:
            half = tirx.const(0.5, boxes.dtype)
            ends = [(first - third * half, first + third * half)]
            ends += [(second - fourth * half, second + fourth * half)]
        else:
            ends = [(tirx.min(a, b), tirx.max(a, b)) for a, b in ((first, third), (second, fourth))]
        return ends

    def area(ends: list[Any]) -> Any:
        return (ends[0][1] - ends[0][0]) * (ends[1][1] - ends[1][0])

    def shared(first: list[Any], second: list[Any]) -> Any:
        zero = tirx.const(0, boxes.dtype)
        sides = [
            tirx.max(tirx.min(a[1], b[1]) - tirx.max(a[0], b[0]), zero)
            for a, b in zip(first, second, strict=True)
        ]
        return sides[0] * sides[1]

    with IRBuilder() as builder, T.seq_scope():
        alive = T.buffer_proxy(T.alloc_buffer((count,), "int32", scope="global"))
        state = T.buffer_proxy(T.alloc_buffer((2,), "int32", scope="local"))  # rows, best box
        out = T.buffer_proxy(rows)
        state[0] = T.int32(0)
        with T.serial(0, batch * classes * each) as row, T.serial(0, 3) as column:
            out[row, column] = T.int64(-1)
        with T.serial(0, batch) as image, T.serial(0, classes) as label:
            with T.serial(0, count) as box:
                alive[box] = tirx.Cast("int32", scores[image, label, box] > least[0])
            state[1] = T.int32(0)
            with T.serial(0, each), T.If(state[1] >= 0), T.Then():  # none selected: none remain
                state[1] = T.int32(-1)
                with T.serial(0, count) as box:
                    best = tirx.max(state[1], 0)
                    better = tirx.any(
                        state[1] < 0, scores[image, label, box] > scores[image, label, best]
                    )
                    with T.If(tirx.all(alive[box] == 1, better)), T.Then():
                        state[1] = box
                with T.If(state[1] >= 0), T.Then():
                    for column, value in enumerate((image, label, state[1])):
                        out[state[0], column] = tirx.Cast("int64", value)
                    state[0] = state[0] + 1
                    alive[state[1]] = T.int32(0)
                    chosen = corners(image, state[1])
                    with T.serial(0, count) as box:
                        other = corners(image, box)
                        common = shared(chosen, other)
                        union = area(chosen) + area(other) - common
                        overlaps = tirx.all(common > 0, common / union > overlap[0])
                        with T.If(overlaps), T.Then():
                            alive[box] = T.int32(0)
    return builder.get()


def _shape(value: Any) -> list[int]:
    return [int(size) for size in value.ty.shape]


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)


def _type_name(attrs: dict[str, Any], name: str) -> str:
    """Return the type that an attribute gives, "" for none."""
    number = int(attrs.get(name, 0))
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)).name if number else ""


def _is_all(value: Any, number: int) -> bool:
    return isinstance(value, ir.GenericConst) and bool(np.all(value.value.numpy() == number))


def _reshape(bb: Any, value: Any, shape: list[int]) -> Any:
    if isinstance(value, ir.GenericConst):
        return relax.const(value.value.numpy().reshape(shape))
    return bb.normalize(relax.op.reshape(value, shape))


def _cast(bb: Any, value: Any, kind: str) -> Any:
    if _dtype(value) == kind:
        return value
    if isinstance(value, ir.GenericConst):
        return relax.const(value.value.numpy().astype(kind))
    return bb.normalize(relax.op.astype(value, kind))


def _cast_operator(bb: Any, inputs: Any, attrs: dict[str, Any]) -> Any:
    """A cast of floats to integers as CPUs have it; the frontend's asks of bfloat16 whether it is finite, in vain."""
    from tvm.relax.frontend.onnx.onnx_frontend import get_type

    data, kind = inputs[0], str(get_type(attrs["to"]))
    if kind.startswith(("float4", "float8")):
        raise NotImplementedError(f"a cast to {kind}, whose rounding TVM leaves out")
    is_tensor = isinstance(data, relax.Expr) and not isinstance(data, relax.ShapeExpr)
    if not is_tensor or "float" not in _dtype(data) or "int" not in kind:
        return None
    return _cast(bb, data, kind)


_CONVERTERS = recurrent_layers.CONVERTERS | {
    "BitCast": _bit_cast, "Cast": _cast_operator, "Clip": _clip, "DequantizeLinear": _dequantize, "Gather": _gather,
    "NonMaxSuppression": _non_max_suppression, "QuantizeLinear": _quantize,
}  # fmt: skip
"""Operator -> (block builder, inputs, attributes) -> relax.Expr, or None: as the frontend's converter has it."""
