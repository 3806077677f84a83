"""Small networks with a latency that follows a law, for tests of stages and bundles."""

from __future__ import annotations

import numpy as np

from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs, concatenate
from tencost.networks.graph.operators import OPERATOR_CODES

DEVICES = ("cortex-a76", "myriad-vpu")


def chain(name: str, family: str, position: int, widths: list[int]) -> GraphSet:
    """Return a chain of 3x3 convolutions, each with a ReLU, on an 8 x 8 image."""
    operators, rows = [OPERATOR_CODES["Placeholder"]], [[0] * 11 + [1, 8, 8, 3, 0]]
    before = 3
    for width in widths:
        shape_in, shape_out = [1, 8, 8, before, 0], [1, 8, 8, width, 0]
        operators += [OPERATOR_CODES["Conv2D"], OPERATOR_CODES["Relu"]]
        rows.append([*shape_in, 3, 3, before, width, 1, 1, *shape_out])
        rows.append([*shape_out, 0, 0, 0, 0, 0, 0, *shape_out])
        before = width
    nodes = len(operators)
    return GraphSet(
        graph_id=np.array([f"g{family}{'-'.join(map(str, widths))}"]),
        family=np.array([family]),
        name=np.array([name]),
        position=np.array([position], np.int32),
        operator=np.array(operators, np.uint8),
        columns=np.array(rows, np.int32),
        node_start=np.array([0, nodes]),
        edges=np.stack([np.arange(nodes - 1), np.arange(1, nodes)]).astype(np.int32),
        edge_start=np.array([0, nodes - 1]),
    )


def latency_ms(graphs: GraphSet) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return float64 [G, 2]: the weights of the convolutions and a fixed cost a node, by two laws."""
    weights = np.prod(graphs.columns[:, 5:9].astype(np.float64), axis=1)
    starts = graphs.node_start[:-1]
    total, nodes = np.add.reduceat(weights, starts), np.diff(graphs.node_start)
    return np.stack([1e-3 * total + 0.1 * nodes, 2e-4 * total + 0.5 * nodes], axis=1)


def networks(count: int = 40, seed: int = 0) -> LabelledGraphs:
    """Return `count` networks of each of three families; family `thin` has no latency on the second device."""
    generator = np.random.default_rng(seed)
    sets = []
    for family, high in (("deep", 24), ("thin", 8), ("wide", 64)):
        for position in range(count):
            depth = int(generator.integers(2, 6))
            widths = [int(width) for width in generator.integers(4, high + 1, depth)]
            sets.append(chain(f"{family}_{position}", family, position, widths))
    graphs = concatenate(sets)
    measured = latency_ms(graphs)
    measured[graphs.family == "thin", 1] = np.nan
    return LabelledGraphs(graphs, DEVICES, measured)
