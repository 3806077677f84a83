"""Kernels: what is folded into what, and what a kernel's numbers are."""

from __future__ import annotations

import numpy as np

from made_graphs import chain, graph, labelled
from tencost.features.graph.tokens import (
    FEATURES,
    INTEGERS,
    KINDS,
    distinct,
    features,
    find_kernels,
    kernel_flop,
    node_kinds,
)
from tencost.networks.graph.graph_set import GraphSet, concatenate
from tencost.networks.graph.operators import OPERATORS

IMAGE = (1, 8, 8, 4)
AT = {name: index for index, name in enumerate(INTEGERS)}


def roots(graphs: GraphSet) -> list[str]:
    return [OPERATORS[code] for code in graphs.operator[find_kernels(graphs).root]]


def test_convolution_norm_and_activation_are_one_kernel() -> None:
    graphs = chain([8, 16])
    found = find_kernels(graphs)
    assert roots(graphs) == ["Placeholder", "Conv2D", "Conv2D"]
    assert found.of_node.tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert found.integers[1:, AT["norms"]].tolist() == [1, 1]
    assert found.integers[1:, AT["relus"]].tolist() == [1, 1]
    assert kernel_flop(found.integers)[2] == 2 * 16 * 16 * 9 * 8 * 16
    assert found.integers[2, AT["in_elements"]] == 16 * 16 * 8


def test_what_others_read_is_not_folded() -> None:
    """The activation reads a norm that the addition reads, too."""
    graphs = graph(
        [
            ("Placeholder", (), (), 0, IMAGE),
            ("Conv2D", IMAGE, (3, 3, 4, 4), 1, IMAGE),
            ("FusedBatchNorm", IMAGE, (), 0, IMAGE),
            ("Relu", IMAGE, (), 0, IMAGE),
            ("Add", IMAGE, (), 0, IMAGE),
        ],
        [(0, 1), (1, 2), (2, 3), (2, 4), (3, 4)],
    )
    assert roots(graphs) == ["Placeholder", "Conv2D", "Relu", "Add"]
    integers = find_kernels(graphs).integers
    assert integers[3, AT["in_elements"]] == 2 * 8 * 8 * 4
    assert integers[:, AT["shared_elements"]].tolist() == [0, 0, 256, 256]


def test_a_norm_behind_a_concatenation_is_a_kernel() -> None:
    wide = (1, 8, 8, 8)
    graphs = graph(
        [
            ("Placeholder", (), (), 0, IMAGE),
            ("ConcatV2", IMAGE, (), 0, wide),
            ("FusedBatchNorm", wide, (), 0, wide),
            ("Relu", wide, (), 0, wide),
        ],
        [(0, 1), (1, 2), (2, 3)],
    )
    assert roots(graphs) == ["Placeholder", "ConcatV2", "FusedBatchNorm"]


def test_hard_swish_is_one_kernel_and_hard_sigmoid_is_folded() -> None:
    """x * relu6(x + 3) / 6 as MobileNetV3 writes it; the constants are nodes."""
    graphs = graph(
        [
            ("Placeholder", (), (), 0, IMAGE),
            ("Conv2D", IMAGE, (1, 1, 4, 4), 1, IMAGE),
            ("Const", (), (), 0, ()),
            ("Add", IMAGE, (), 0, IMAGE),
            ("Relu6", IMAGE, (), 0, IMAGE),
            ("Const", (), (), 0, ()),
            ("Mul", IMAGE, (), 0, IMAGE),
            ("Mul", IMAGE, (), 0, IMAGE),
            ("Conv2D", IMAGE, (1, 1, 4, 4), 1, IMAGE),
            ("Const", (), (), 0, ()),
            ("Add", IMAGE, (), 0, IMAGE),
        ],
        [(0, 1), (1, 3), (2, 3), (3, 4), (4, 6), (5, 6), (6, 7), (1, 7), (7, 8), (8, 10), (9, 10)],
    )
    found = find_kernels(graphs)
    assert roots(graphs) == ["Placeholder", "Conv2D", "Add", "Conv2D"]
    assert found.of_node.tolist() == [0, 1, -1, 2, 2, -1, 2, 2, 3, -1, 3]
    assert found.integers[2, AT["gates"]] == 1
    assert found.integers[2, AT["in_elements"]] == 256
    assert KINDS[node_kinds(found.integers)[2]] == "activation"
    assert found.integers[3, AT["scalars"]] == 1


def test_arithmetic_of_shapes_is_no_kernel() -> None:
    graphs = graph(
        [
            ("Placeholder", (), (), 0, IMAGE),
            ("Const", (), (), 0, ()),
            ("StridedSlice", IMAGE, (), 0, ()),
            ("Pack", (), (), 0, ()),
            ("Reshape", IMAGE, (), 0, (1, 8, 8, 2, 2)),
        ],
        [(1, 2), (2, 3), (0, 4), (3, 4)],
    )
    found = find_kernels(graphs)
    assert found.of_node.tolist() == [0, -1, -1, -1, 1]
    assert found.integers[1, AT["out_c"]] == 4


def test_kernels_of_a_set_are_those_of_its_graphs() -> None:
    made = labelled(5, seed=1).graphs
    apart = np.concatenate([find_kernels(made.take([index])).integers for index in range(5)])
    assert np.array_equal(find_kernels(made).integers, apart)


def test_distinct_rows_give_all_rows_back() -> None:
    integers = find_kernels(concatenate([chain([8, 8, 8]), chain([8, 16])])).integers
    some, which = distinct(integers)
    assert np.array_equal(some[which], integers)
    assert len(some) == len({tuple(row) for row in integers.tolist()}) < len(integers)


def test_features_are_finite_for_every_operator() -> None:
    integers = np.zeros((len(OPERATORS), len(INTEGERS)), dtype=np.int64)
    integers[:, 0] = np.arange(len(OPERATORS))
    matrix = features(integers)
    assert matrix.shape == (len(OPERATORS), len(FEATURES))
    assert np.isfinite(matrix).all()
