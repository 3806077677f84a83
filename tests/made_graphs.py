"""Small made-up networks whose latency is known to be a sum over their kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs, concatenate
from tencost.networks.graph.operators import COLUMNS, OPERATOR_CODES

HARDWARE = ("linear", "bound")

Node = tuple[str, tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]
"""Operator, input shape, weight shape, stride, output shape."""


def graph(nodes: list[Node], edges: list[tuple[int, int]], name: str = "made") -> GraphSet:
    """Build a set of one graph."""
    columns = np.zeros((len(nodes), len(COLUMNS)), dtype=np.int32)
    for row, (_, inner, weight, stride, outer) in zip(columns, nodes, strict=True):
        row[0 : len(inner)] = inner
        row[5 : 5 + len(weight)] = weight
        row[9:11] = stride
        row[11 : 11 + len(outer)] = outer
    return GraphSet(
        np.array([name]),
        np.array(["made"]),
        np.array([name]),
        np.zeros(1, dtype=np.int32),
        np.array([OPERATOR_CODES[node[0]] for node in nodes], dtype=np.uint8),
        columns,
        np.array([0, len(nodes)]),
        np.array(edges, dtype=np.int32).reshape(-1, 2).T,
        np.array([0, len(edges)]),
    )


def chain(channels: list[int], side: int = 16, name: str = "chain") -> GraphSet:
    """Build input, then a 3x3 convolution with batch norm and activation for each width."""
    image = (1, side, side, 3)
    nodes: list[Node] = [("Placeholder", (), (), 0, image)]
    for width in channels:
        wide = (1, side, side, width)
        nodes.append(("Conv2D", image, (3, 3, image[3], width), 1, wide))
        nodes += [("FusedBatchNorm", wide, (), 0, wide), ("Relu", wide, (), 0, wide)]
        image = wide
    return graph(nodes, [(index, index + 1) for index in range(len(nodes) - 1)], name)


def labelled(count: int, seed: int, missing: float = 0.0) -> LabelledGraphs:
    """Return chains of random depth and width; the truth is a sum over convolutions."""
    random = np.random.default_rng(seed)
    graphs, truth = [], []
    for index in range(count):
        channels = random.integers(4, 64, size=random.integers(2, 6)).tolist()
        side = int(random.choice([8, 16, 32]))
        graphs.append(chain(channels, side, f"{seed}-{index}"))
        truth.append(true_ms(channels, side).sum(axis=0))
    latency = np.array(truth)
    latency[random.random(latency.shape) < missing] = np.nan
    return LabelledGraphs(concatenate(graphs), HARDWARE, latency)


def true_ms(channels: list[int], side: int) -> NDArray[np.float64]:
    """Return what each convolution costs on each device: float64 [layers, 2]."""
    inner = np.array([3, *channels[:-1]])
    outer = np.array(channels)
    flop = 2.0 * 9 * side**2 * inner * outer
    moved = side**2 * (inner + outer) + 9.0 * inner * outer
    return np.stack([0.02 + flop / 1e7, np.maximum(flop / 1e8, moved / 1e5) + 0.05], axis=1)


def shuffled(one: GraphSet, seed: int) -> GraphSet:
    """Return the same graph with its nodes in another order."""
    order = np.random.default_rng(seed).permutation(len(one.operator))
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order))
    return GraphSet(
        one.graph_id, one.family, one.name, one.position, one.operator[order], one.columns[order],
        one.node_start, place[one.edges][:, ::-1], one.edge_start,
    )  # fmt: skip
