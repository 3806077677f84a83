"""What a node of a network's graph says: an operator out of a fixed vocabulary, and sixteen numbers.

The columns are those of the CG benchmark (DGRL-Hardware, after nn-Meter's data): shapes are NHWC and padded with 0 on
the right, -1 is a dimension that is not known (the batch of NASBench201, anything behind a Reshape). An operator has
the shape of its first input only; groups, padding and dilation have no column.

The vocabulary is ordered once and for all: a code is an index into OPERATORS and is stored. New operators are appended.
"""

from __future__ import annotations

CG_OPERATORS = (
    "Placeholder", "Const", "Conv2D", "DepthwiseConv2dNative", "FusedBatchNorm", "BiasAdd", "Relu", "Relu6",
    "Add", "Mul", "ConcatV2", "Split", "Reshape", "Transpose", "StridedSlice", "Pack", "AvgPool", "MaxPool",
    "Mean", "MatMul",
)  # fmt: skip
"""The operators of CG's thirteen families."""

OPERATORS = (
    *CG_OPERATORS,
    "Sub", "Div", "Sigmoid", "Tanh", "Softmax", "Erf", "Gelu", "LayerNorm", "Pow", "Sqrt", "Exp", "Pad",
    "Gather", "Resize", "Max", "Min", "Sum", "GroupConv2D", "Conv1D", "Conv2DTranspose", "Other",
)  # fmt: skip
"""Every operator that a node can be; those behind CG's are met in networks measured here only."""

OPERATOR_CODES = {name: code for code, name in enumerate(OPERATORS)}
"""Operator -> its code, uint8."""

COLUMNS = (
    "in_0", "in_1", "in_2", "in_3", "in_4",
    "kernel_h", "kernel_w", "channels_in", "channels_out", "stride_h", "stride_w",
    "out_0", "out_1", "out_2", "out_3", "out_4",
)  # fmt: skip
"""Names of a node's numbers, in CG's order."""

INPUT, WEIGHT, STRIDES, OUTPUT = slice(0, 5), slice(5, 9), slice(9, 11), slice(11, 16)
"""Where the shape of the first input, that of the weight (height, width, in, out), strides and output shape stand."""
