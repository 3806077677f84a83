"""Quantized operators, as integer products or as float operators between a dequantization and a quantization.

An integer product is written in float32 where its sums stay below 2**24, up to which float32 holds all integers: the
result is the same, and the schedules are those of float networks. Scales are multiplied as ONNX Runtime does, in
float32, so that half a quantum is rounded as there; onnx.reference multiplies in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tencost.networks.inputs import Array
from tencost.networks.onnx_graph import node_attributes
from tencost.networks.operators.functions import evaluate
from tencost.networks.operators.node import Node, Refused

_EXACT = 2**24
_LEAST_OPSET = 19
"""Of QuantizeLinear and DequantizeLinear in ONNX's reference; it added types to those of sets 10 and 13."""
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


def _dequantize_linear(node: Node) -> None:
    """Weights are dequantized here, whatever their type."""
    if evaluate(node, _LEAST_OPSET):
        return
    if node.has_type(0) and node.dtype(0).name not in _INTEGERS:
        raise Refused(f"DequantizeLinear of {node.dtype(0).name} values that are no constants")


def _quantize_linear(node: Node) -> None:
    import onnx

    kind = "uint8"
    if node.has_input(2):
        kind = node.dtype(2).name
    elif node.attribute("output_dtype"):
        kind = onnx.helper.tensor_dtype_to_np_dtype(node.attribute("output_dtype")).name
    if kind not in _INTEGERS and not evaluate(node, _LEAST_OPSET):
        raise Refused(f"QuantizeLinear to {kind}")


def _dynamic_quantize_linear(node: Node) -> None:
    """As ONNX defines it, but for nothing but zeros: those keep a scale of 1, as in ONNX Runtime, and stay zeros."""
    data, (quantized, scale, zero_point) = node.proto.input[0], node.proto.output
    zero, one, most = (node.write_constant(number, np.float32) for number in (0, 1, 255))
    low = node.write("Min", node.write("ReduceMin", data, keepdims=0), zero)
    high = node.write("Max", node.write("ReduceMax", data, keepdims=0), zero)
    span = node.write("Sub", high, low)
    divided = node.write("Div", span, most)
    node.write("Where", node.write("Equal", span, zero), one, divided, outputs=[scale])
    start = node.write("Sub", zero, node.write("Div", low, scale))
    clipped = node.write("Round", node.write("Clip", start, zero, most))
    node.cast(clipped, np.uint8, [zero_point])
    node.write("QuantizeLinear", data, scale, zero_point, outputs=[quantized])


def _qlinear_conv(node: Node) -> None:
    product = _integer_product(node, "Conv", (0, 2), (3, 5), bias=8)
    rank = len(node.shape(3)) - 2
    factor = _scale_ratio(node, 1, 4, 6, lambda scale, _: node.reshape(scale, [-1, *[1] * rank]))
    _finish_quantized(node, product, factor, 7)


def _qlinear_matmul(node: Node) -> None:
    product = _integer_product(node, "MatMul", (0, 2), (3, 5))
    factor = _scale_ratio(node, 1, 4, 6, lambda scale, index: _as_rows(node, scale, index))
    _finish_quantized(node, product, factor, 7)


def _conv_integer(node: Node) -> None:
    _finish_integer(node, _integer_product(node, "Conv", (0, 2), (1, 3)))


def _matmul_integer(node: Node) -> None:
    _finish_integer(node, _integer_product(node, "MatMul", (0, 2), (1, 3)))


def _integer_product(
    node: Node, op_type: str, data: tuple[int, int], weights: tuple[int, int], bias: int = -1
) -> str:
    """Write a convolution or matrix product of what is left when zero points are subtracted, and return its output.

    Args:
        node: a quantized operator; its attributes are those of `op_type`.
        op_type: Conv or MatMul.
        data: indices of the data and its zero point among the inputs.
        weights: indices of the weights and their zero point.
        bias: index of the bias, int32.

    Returns:
        The name of a tensor of float32 or int32, of the same integers.
    """
    weight, zero = node.constant(weights[0]), _zero_point(node, weights[1])
    added = node.constant(bias) if bias >= 0 and node.has_input(bias) else np.zeros(1, np.int32)
    kind: Any = np.int32
    if weight is not None and zero is not None and added is not None:
        if op_type == "Conv":
            zero = zero.reshape(-1, *[1] * (weight.ndim - 1))
            contracted = tuple(range(1, weight.ndim))
        else:
            contracted = (max(weight.ndim - 2, 0),)
        centered = weight.astype(np.int64) - zero
        sums = np.abs(centered).sum(axis=contracted) * _largest(node, data[1])
        if np.max(sums, initial=0) + np.abs(added.astype(np.int64)).max(initial=0) < _EXACT:
            kind = np.float32
        second = node.write_constant(centered, kind)
    else:
        second = _centered(node, *weights, kind, op_type == "Conv")
    first = _centered(node, *data, kind, False)
    settings = node_attributes(node.proto) if op_type == "Conv" else {}
    inputs = [first, second]
    if bias >= 0 and node.has_input(bias):
        inputs.append(node.cast(node.proto.input[bias], kind))
    return node.write(op_type, *inputs, **settings)


def _zero_point(node: Node, index: int) -> Array | None:
    """Return a zero point as int64, 0 where there is none; None where it is no constant."""
    if not node.has_input(index):
        return np.zeros((), np.int64)
    zero = node.constant(index)
    return None if zero is None else zero.astype(np.int64)


def _largest(node: Node, zero_index: int) -> int:
    """Return the largest distance of 8-bit data from their zero point."""
    zero = _zero_point(node, zero_index)
    if zero is None or not node.has_input(zero_index):
        return 255
    limits = np.iinfo(node.dtype(zero_index))
    return int(max((zero - limits.min).max(), (limits.max - zero).max()))


def _centered(node: Node, index: int, zero_index: int, kind: Any, of_filters: bool) -> str:
    """Write an input minus its zero point."""
    values = node.cast(node.proto.input[index], kind)
    zero = _zero_point(node, zero_index)
    if zero is not None and not zero.any():
        return values
    zeros = node.cast(node.proto.input[zero_index], kind)
    if of_filters:
        zeros = node.reshape(zeros, [-1, *[1] * (len(node.shape(index)) - 1)])
    elif index == 0:
        zeros = _as_rows(node, zeros, zero_index)
    return node.write("Sub", values, zeros)


def _as_rows(node: Node, name: str, index: int) -> str:
    """Write a scale or zero point of each row as a column; one of columns, or of all values, stays."""
    of_rows = index <= 2 and node.shape(index) not in ((), (1,)) and len(node.shape(index)) == 1
    return node.reshape(name, [-1, 1]) if of_rows else name


def _scale_ratio(
    node: Node, first: int, second: int, output: int, arranged: Callable[[str, int], str]
) -> str:
    """Write first scale * second scale / output scale, in their type, and return it as float32."""
    scales = [node.proto.input[index] for index in (first, second, output)]
    product = node.write("Mul", arranged(scales[0], first), arranged(scales[1], second))
    ratio = node.write("Div", product, arranged(scales[2], output))
    return node.cast(ratio, np.float32)


def _finish_quantized(node: Node, product: str, factor: str, zero_index: int) -> None:
    scaled = node.write("Mul", node.cast(product, np.float32), factor)
    one = node.write_constant(1, np.float32)
    node.finish("QuantizeLinear", scaled, one, *node.proto.input[zero_index : zero_index + 1])


def _finish_integer(node: Node, product: str) -> None:
    """The sums are int32; where they are cast to float32 only, they stay what they are."""
    import onnx

    readers = node.tensors.readers[node.proto.output[0]]
    only_cast = all(
        reader is not None
        and reader.op_type == "Cast"
        and node_attributes(reader)["to"] == onnx.TensorProto.FLOAT
        for reader in readers
    )
    node.cast(product, np.float32 if only_cast else np.int32, node.proto.output)


def _between(op_type: str, data: Sequence[int], scale: int) -> Callable[[Node], None]:
    """Return what writes an operator as one of floats; `data`, `scale`: where inputs and the output's scale begin."""

    def write(node: Node) -> None:
        settings = node_attributes(node.proto)
        places = range(data[0], len(node.proto.input), 3) if op_type == "Concat" else data
        if settings.pop("channels_last", 0):
            raise Refused(f"{node.proto.op_type} with channels_last=1")
        if settings.pop("opset", 13) < 13 and settings.get("axis", -1) != -1:
            raise Refused(f"{node.proto.op_type} of operator set 12 along axis {settings['axis']}")
        inputs = [node.write("DequantizeLinear", *node.proto.input[at : at + 3]) for at in places]
        result = node.write(op_type, *inputs, **settings)
        node.finish("QuantizeLinear", result, *node.proto.input[scale : scale + 2])

    return write


def _qgemm(node: Node) -> None:
    """Write alpha * A @ B + C, quantized if there is an output scale; C is int32 of scale alpha * A's * B's."""
    transposed = [bool(node.attribute(name, 0)) for name in ("transA", "transB")]
    data, weight = node.proto.input[0], node.proto.input[3]
    inputs = [
        node.write("Transpose", name, perm=[1, 0]) if is_transposed else name
        for name, is_transposed in zip((data, weight), transposed, strict=True)
    ]
    factors = [node.proto.input[1], node.proto.input[4]]
    zeros = [node.proto.input[2], node.proto.input[5]]
    product = node.write("MatMulInteger", *inputs, *zeros)
    if node.has_input(6):
        product = node.write("Add", product, node.proto.input[6])
    scale = node.write("Mul", *factors)
    if node.attribute("alpha", 1.0) != 1.0:
        scale = node.write("Mul", scale, node.write_constant(node.attribute("alpha"), np.float32))
    if not node.has_input(7):
        node.finish("Mul", node.cast(product, np.float32), scale)
        return
    ratio = node.write("Div", scale, node.proto.input[7])
    scaled = node.write("Mul", node.cast(product, np.float32), ratio)
    one = node.write_constant(1, np.float32)
    node.finish("QuantizeLinear", scaled, one, *node.proto.input[8:9])


def _standard(node: Node) -> None:
    """Write ONNX's own operator of this name."""
    node.finish(node.proto.op_type, *node.proto.input, **node_attributes(node.proto))


WRITERS = {
    "ConvInteger": _conv_integer, "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize_linear, "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv, "QLinearMatMul": _qlinear_matmul, "QuantizeLinear": _quantize_linear,
}  # fmt: skip
MICROSOFT_WRITERS = {
    "DequantizeLinear": _standard, "QGemm": _qgemm, "QuantizeLinear": _standard,
    "QLinearAdd": _between("Add", (0, 3), 6),
    "QLinearAveragePool": _between("AveragePool", (0,), 3),
    "QLinearConcat": _between("Concat", (2,), 0),
    "QLinearGlobalAveragePool": _between("GlobalAveragePool", (0,), 3),
    "QLinearLeakyRelu": _between("LeakyRelu", (0,), 3),
    "QLinearMul": _between("Mul", (0, 3), 6),
    "QLinearSigmoid": _between("Sigmoid", (0,), 3),
    "QLinearSoftmax": _between("Softmax", (0,), 3),
}  # fmt: skip
"""Operators of com.microsoft that onnxruntime.quantization writes, and what writes them with ONNX's."""
