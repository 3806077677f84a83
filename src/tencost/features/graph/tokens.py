"""A network's kernels as numbers: what a device runs as one piece, described without embeddings.

Devices fuse: a convolution runs with the batch norm, the bias and the activation behind it, an addition with its
activation. A kernel here is such a group, found by rule in the graph (after nn-Meter, MobiSys 2021, whose kernels are
found by probing devices): its root is the operator that does the work, its followers are folded into it. What hangs
on constants only (the shape arithmetic of ShuffleNetV2) is computed before the network runs and is no kernel. The input
is one: what starting a network costs, and bringing its input, has a place.

A kernel's integers say everything; equal integers mean equal kernels, so that 25,998 graphs can be learnt from as
counts of their distinct kernels. Its features are logarithms of sizes, FLOP and bytes, indicators, and how well the
channels fill a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tencost.features.graph.tiling import depthwise_tiles_of, tiles_of
from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.operators import (
    INPUT,
    OPERATOR_CODES,
    OPERATORS,
    OUTPUT,
    STRIDES,
    WEIGHT,
)

KINDS = (
    "conv", "depthwise", "matmul", "norm", "activation", "add", "mul", "concat", "move", "pool", "mean", "input",
    "other",
)  # fmt: skip
"""Coarse kinds of a kernel's root, and of the kernels around it."""

_KIND_OF = {
    "Conv2D": "conv", "GroupConv2D": "conv", "Conv1D": "conv", "Conv2DTranspose": "conv",
    "DepthwiseConv2dNative": "depthwise", "MatMul": "matmul",
    "FusedBatchNorm": "norm", "LayerNorm": "norm", "BiasAdd": "add",
    "Relu": "activation", "Relu6": "activation", "Sigmoid": "activation", "Tanh": "activation",
    "Erf": "activation", "Gelu": "activation", "Exp": "activation", "Pow": "activation", "Sqrt": "activation",
    "Add": "add", "Sub": "add", "Max": "add", "Min": "add", "Mul": "mul", "Div": "mul",
    "ConcatV2": "concat",
    "Split": "move", "Reshape": "move", "Transpose": "move", "StridedSlice": "move", "Pack": "move",
    "Pad": "move", "Gather": "move", "Resize": "move",
    "AvgPool": "pool", "MaxPool": "pool", "Mean": "mean", "Sum": "mean", "Placeholder": "input",
}  # fmt: skip
KIND = np.array([KINDS.index(_KIND_OF.get(name, "other")) for name in OPERATORS], dtype=np.uint8)
"""Operator code -> index into KINDS, uint8."""

INTEGERS = (
    "operator", "in_h", "in_w", "in_c", "kernel_h", "kernel_w", "stride_h", "stride_w", "out_h", "out_w", "out_c",
    "batch", "weights", "in_elements", "out_elements", "producers", "consumers",
    "norms", "biases", "relus", "relu6s", "scalars", "gates", "shared_elements", "producer_kinds", "consumer_kinds",
)  # fmt: skip
"""What a kernel's columns of integers are. weights counts parameters; norms to gates count what is folded in;
shared_elements are those read that another kernel reads, too; the two last are bit sets over KINDS."""
_AT = {name: index for index, name in enumerate(INTEGERS)}


def _codes(*names: str) -> NDArray[np.bool_]:
    chosen = np.zeros(256, dtype=bool)
    chosen[[OPERATOR_CODES[name] for name in names]] = True
    return chosen


_WEIGHTED = _codes(
    "Conv2D", "DepthwiseConv2dNative", "MatMul", "GroupConv2D", "Conv1D", "Conv2DTranspose"
)
_FOLDED = _codes("FusedBatchNorm", "BiasAdd")
_RECTIFIER = _codes("Relu", "Relu6")
_SCALAR = _codes("Add", "Sub", "Mul", "Div")
"""With a constant, these are part of an activation: hard sigmoid is Add, Relu6 and Mul."""
_BARE = _codes("Reshape", "Const", "Placeholder")
"""Nothing is folded into these."""


@dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels of a set of graphs.

    Attributes:
        of_node: int64 [N]; the kernel that a node is part of, -1 for constants and what hangs on them.
        root: int64 [K]; the node that does the work, ascending.
        graph: int64 [K]; the graph of each kernel, ascending.
        integers: int64 [K, len(INTEGERS)].
    """

    of_node: NDArray[np.int64]
    root: NDArray[np.int64]
    graph: NDArray[np.int64]
    integers: NDArray[np.int64]


def find_kernels(graphs: GraphSet) -> Kernels:
    """Find what a device would run as one piece, and describe it."""
    operator, nodes = graphs.operator, len(graphs.operator)
    source, target = graphs.global_edges
    static = _static(operator, source, target)
    live = ~static[source]
    source, target = source[live], target[live]
    root = _roots(operator, source, target)
    is_root = (root == np.arange(nodes)) & ~static
    roots = np.flatnonzero(is_root)
    kernel = np.cumsum(is_root) - 1
    of_node = np.where(static, -1, kernel[root])
    integers = _own_integers(graphs, roots)
    member = np.flatnonzero((root != np.arange(nodes)) & ~static)
    for column, names in (
        ("norms", ("FusedBatchNorm",)),
        ("biases", ("BiasAdd",)),
        ("relus", ("Relu",)),
        ("relu6s", ("Relu6",)),
        ("scalars", ("Add", "Sub", "Mul", "Div")),
    ):
        of_kind = member[_codes(*names)[operator[member]]]
        integers[:, _AT[column]] = np.bincount(of_node[of_kind], minlength=len(roots))
    pairs = member[np.bincount(target, minlength=nodes)[member] == 2]
    integers[:, _AT["gates"]] = np.bincount(of_node[pairs], minlength=len(roots))
    _around(integers, of_node, source, target)
    return Kernels(of_node, roots, graphs.graph_of_node[roots], integers)


def _static(
    operator: NDArray[np.uint8], source: NDArray[np.int64], target: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which nodes hang on constants only: bool [N]."""
    static = operator == OPERATOR_CODES["Const"]
    fed = np.bincount(target, minlength=len(operator)) > 0
    while True:
        moving = np.bincount(target[~static[source]], minlength=len(operator)) > 0
        further = static | (fed & ~moving)
        if (further == static).all():
            return static
        static = further


def _roots(
    operator: NDArray[np.uint8], source: NDArray[np.int64], target: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the root of the kernel that each node is folded into, itself where it is not: int64 [N].

    A batch norm or bias folds into the convolution or multiplication before it, an activation or arithmetic with a
    constant into whatever is before it, if nothing else reads what lies between. A product of x and a chain that
    starts at x folds into the chain: hard swish is one kernel.
    """
    nodes = np.arange(len(operator))
    producers = np.bincount(target, minlength=len(operator))
    consumers = np.bincount(source, minlength=len(operator))
    before = np.zeros(len(operator), dtype=np.int64)
    before[target] = source
    follows = (producers == 1) & (consumers[before] == 1)
    norms = _FOLDED[operator] & follows
    weighted = _WEIGHTED[operator]
    joined = np.zeros(len(operator), dtype=bool)
    for _ in range(2):  # a norm and a bias
        joined = norms & weighted[before]
        weighted = weighted | joined
    simple = _RECTIFIER[operator] | _SCALAR[operator]
    joined |= simple & follows & ~_BARE[operator[before]]
    root = _ends(np.where(joined, before, nodes))

    edge = np.flatnonzero((operator[target] == OPERATOR_CODES["Mul"]) & (producers[target] == 2))
    first, second = np.zeros((2, len(operator)), dtype=np.int64)
    first[target[edge]], second[target[edge][::-1]] = source[edge], source[edge][::-1]
    product = np.unique(target[edge])
    for chain, x in ((first[product], second[product]), (second[product], first[product])):
        start = root[chain]
        gates = (start != x) & (producers[start] == 1) & (before[start] == x)
        gates &= (consumers[chain] == 1) & simple[start]
        root[product[gates]] = start[gates]
    return _ends(root)


def _ends(root: NDArray[np.int64]) -> NDArray[np.int64]:
    """Follow chains to their ends, by doubling."""
    while True:
        further = root[root]
        if (further == root).all():
            return root
        root = further


def node_integers(graphs: GraphSet) -> NDArray[np.int64]:
    """Describe every node on its own, without what is around it: int64 [N, len(INTEGERS)]."""
    return _own_integers(graphs, np.arange(len(graphs.operator)))


def node_kinds(integers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the coarse kind of each row: indices into KINDS, uint8. A sum with a constant is an activation."""
    kinds: NDArray[np.uint8] = KIND[integers[:, 0]]
    alone = _SCALAR[integers[:, 0]] & (integers[:, _AT["producers"]] == 1)
    return np.where(alone, np.uint8(KINDS.index("activation")), kinds)


def _own_integers(graphs: GraphSet, roots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Describe some nodes without what is around them: int64 [K, len(INTEGERS)]."""
    columns = graphs.columns[roots].astype(np.int64)
    operator = graphs.operator[roots].astype(np.int64)
    weight, strides = columns[:, WEIGHT], columns[:, STRIDES]
    inner, outer = _image(columns[:, INPUT]), _image(columns[:, OUTPUT])
    same = np.isin(KIND[operator], (KINDS.index("norm"), KINDS.index("activation")))
    # Whatever the row says: CG's last activation has the shape behind the mean.
    outer[same] = inner[same]
    matmul = operator == OPERATOR_CODES["MatMul"]
    weights = np.where(_WEIGHTED[operator], np.maximum(weight, 1).prod(axis=1), 0)
    weights[matmul] = inner[matmul, 3] * outer[matmul, 3]
    integers = np.zeros((len(roots), len(INTEGERS)), dtype=np.int64)
    integers[:, : _AT["producers"]] = np.column_stack(
        [operator, inner[:, 1:4], weight[:, :2], strides, outer[:, 1:4], inner[:, 0], weights,
         inner.prod(axis=1), outer.prod(axis=1)]
    )  # fmt: skip
    return integers


def _image(shape: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return batch, height, width and channels of padded shapes, 1 where unknown or absent: int64 [K, 4].

    [n, c] is a row of channels; of five dimensions the two last are channels in groups.
    """
    rank = (shape != 0).sum(axis=1)
    sizes = np.maximum(shape, 1)
    image = np.ones((len(shape), 4), dtype=np.int64)
    image[:, 0] = sizes[:, 0]
    last = sizes[np.arange(len(shape)), np.maximum(rank, 1) - 1]
    image[:, 3] = np.where(rank >= 2, last, 1)
    image[:, 3] *= np.where(rank == 5, sizes[:, 3], 1)
    image[:, 1] = np.where(rank >= 3, sizes[:, 1], 1)
    image[:, 2] = np.where(rank >= 4, sizes[:, 2], 1)
    return image


def _around(
    integers: NDArray[np.int64],
    of_node: NDArray[np.int64],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
) -> None:
    """Fill in what stands before and behind each kernel, and what it really reads."""
    first, second = of_node[source], of_node[target]
    between = first != second
    count = max(len(integers), 1)
    pairs = np.unique(first[between] * count + second[between])  # hard swish reads x once
    first, second = np.divmod(pairs, count)
    count = len(integers)
    integers[:, _AT["producers"]] = np.bincount(second, minlength=count)
    integers[:, _AT["consumers"]] = np.bincount(first, minlength=count)
    kinds = node_kinds(integers).astype(np.int64)
    for bit in range(len(KINDS)):
        before = np.bincount(second[kinds[first] == bit], minlength=count) > 0
        behind = np.bincount(first[kinds[second] == bit], minlength=count) > 0
        integers[:, _AT["producer_kinds"]] |= before.astype(np.int64) << bit
        integers[:, _AT["consumer_kinds"]] |= behind.astype(np.int64) << bit
    written = integers[first, _AT["out_elements"]]
    shared = integers[first, _AT["consumers"]] > 1
    integers[:, _AT["shared_elements"]] = np.bincount(second, written * shared, minlength=count)
    read = np.bincount(second, written, minlength=count)
    integers[:, _AT["in_elements"]] = np.where(
        read > 0, read.astype(np.int64), integers[:, _AT["in_elements"]]
    )


def distinct(integers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct rows, int64 [U, columns], and which of them each row is, int64 [K]; U's order is by hash.

    Rows are told apart by 64 bits of hash: among a million kernels two collide with a chance of 3e-8.
    """
    odd = np.random.default_rng(0).integers(2**63, size=integers.shape[1], dtype=np.uint64)
    mixed = integers.astype(np.uint64) * (odd | np.uint64(1))
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    hashes = (mixed * (odd | np.uint64(1))).sum(axis=1, dtype=np.uint64)
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    return integers[first], which


def kernel_flop(integers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the arithmetic of each kernel: float64 [K]; two a multiply-add, one an element elsewhere."""
    value = {name: integers[:, index].astype(np.float64) for name, index in _AT.items()}
    kind = KIND[integers[:, 0]]
    area = np.maximum(value["kernel_h"], 1) * np.maximum(value["kernel_w"], 1)
    pixels = value["batch"] * value["out_h"] * value["out_w"]
    arithmetic = np.maximum(value["in_elements"], value["out_elements"])
    for name, work in (
        ("conv", 2 * pixels * value["weights"]),
        ("depthwise", 2 * area * value["out_elements"]),
        ("matmul", 2 * value["batch"] * value["out_h"] * value["out_w"] * value["weights"]),
        ("pool", area * value["out_elements"]),
    ):
        arithmetic = np.where(kind == KINDS.index(name), work, arithmetic)
    return np.maximum(arithmetic, 1.0)


def _moved(integers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the elements that each kernel reads, writes and weighs, and one: float64 [K]."""
    return 1 + integers[:, [_AT[name] for name in _MOVED]].astype(np.float64).sum(axis=1)


_MOVED = ("in_elements", "out_elements", "weights")
AMOUNTS = ("flop", "moved", "kernels", "read", "written", "weights", "cycles", "partial", "tiles")
"""What a kernel's cost may be proportional to; see `amounts`."""
_TILED = AMOUNTS.index("cycles")


def amounts(integers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return AMOUNTS of each kernel: float64 [K, len(AMOUNTS)].

    FLOP and elements moved (read, written and weights together) are at least 1, and of kernels each is one. Cycles,
    partial sums and tiles are those of a matrix unit (tencost.features.graph.tiling), 0 of what it does not run.
    """
    table = np.zeros((len(integers), len(AMOUNTS)))
    table[:, 0], table[:, 1], table[:, 2] = kernel_flop(integers), _moved(integers), 1
    table[:, 3:_TILED] = integers[:, [_AT[name] for name in _MOVED]]
    kind = KIND[integers[:, 0]]

    def sizes(rows: NDArray[np.int64], *names: str) -> NDArray[np.int64]:
        return np.maximum(integers[rows][:, [_AT[name] for name in names]], 1)

    for name, tiled in (("conv", tiles_of), ("depthwise", depthwise_tiles_of)):
        rows = np.flatnonzero(kind == KINDS.index(name))
        image, output = sizes(rows, "in_h", "in_w", "in_c"), sizes(rows, "out_h", "out_w", "out_c")
        kernel = sizes(rows, "kernel_h", "kernel_w")
        if name == "conv":  # of a convolution in groups, what one group reads
            image[:, 2] = np.maximum(
                sizes(rows, "weights")[:, 0] // (kernel.prod(axis=1) * output[:, 2]), 1
            )
        table[rows, _TILED:] = tiled(image, output, kernel, sizes(rows, "stride_h")[:, 0])
    return table


def features(integers: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the numbers of kernels that a model learns from: float32 [K, len(FEATURES)]."""
    return np.column_stack([column.astype(np.float32) for column in _columns(integers).values()])


def _columns(integers: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    value = {name: integers[:, index].astype(np.float64) for name, index in _AT.items()}
    operator = integers[:, 0]
    kind = node_kinds(integers)
    work, traffic = kernel_flop(integers), _moved(integers)
    columns: dict[str, NDArray[Any]] = {
        "log_flop": np.log(work),
        "log_moved": np.log(traffic),
        "log_intensity": np.log(work / traffic),
    }
    for name in (
        "in_h", "in_w", "in_c", "out_h", "out_w", "out_c", "weights", "in_elements", "out_elements",
    ):  # fmt: skip
        columns[f"log_{name}"] = np.log1p(value[name])
    area = np.maximum(value["kernel_h"], 1) * np.maximum(value["kernel_w"], 1)
    stride = np.maximum(value["stride_h"], 1)
    columns["log_kernel"] = np.log(area)
    columns["log_stride"] = np.log(stride)
    for side in (1, 3, 5, 7, 9, 11):
        columns[f"kernel_{side}"] = (value["kernel_h"] == side) * (value["kernel_w"] == side)
    columns["kernel_over_image"] = (value["kernel_h"] >= value["in_h"]) * (area > 1.0)
    for width in (1, 2, 4):
        columns[f"stride_{width}"] = stride == width
    for name in ("in_c", "out_c"):
        for width in (4, 8, 16, 32):
            columns[f"{name}_fills_{width}"] = _filled(value[name], width)
    for width in (4, 8):
        columns[f"out_w_fills_{width}"] = _filled(value["out_w"], width)
    for name in ("norms", "biases", "relus", "relu6s", "scalars", "gates"):
        columns[name] = np.minimum(value[name], 2.0)
    for name in ("producers", "consumers"):
        columns[f"log_{name}"] = np.log1p(value[name])
    for index, name in enumerate(KINDS):
        columns[f"kind_{name}"] = kind == index
        columns[f"after_{name}"] = (integers[:, _AT["producer_kinds"]] >> index) & 1
        columns[f"before_{name}"] = (integers[:, _AT["consumer_kinds"]] >> index) & 1
    for code, name in enumerate(OPERATORS):
        columns[f"is_{name}"] = operator == code
    return columns


def _filled(size: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return the logarithm of the share of a vector's lanes that are used."""
    return np.log(np.maximum(size, 1) / (np.ceil(np.maximum(size, 1) / width) * width))


FEATURES = tuple(_columns(np.zeros((0, len(INTEGERS)), dtype=np.int64)))
"""Names of a kernel's features."""
