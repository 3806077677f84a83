"""What graphs share: networks of one family differ in their sizes and mostly have the same nodes and edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from tencost.networks.graph.graph_set import GraphSet


@dataclass(frozen=True)
class Topology:
    """Nodes and edges without what they say.

    Attributes:
        nodes: how many there are.
        edges: int32 [2, E]; source and target.
    """

    nodes: int
    edges: NDArray[np.int32]

    @property
    def key(self) -> tuple[int, bytes]:
        """Equal for equal topologies: the same edges in the same order."""
        return self.nodes, np.ascontiguousarray(self.edges).tobytes()

    @property
    def adjacency(self) -> csr_array:
        """float64 [nodes, nodes]: 1 at (source, target), however often the edge is told."""
        source, target = self.edges
        ones = np.ones(len(source))
        matrix = csr_array((ones, (source, target)), shape=(self.nodes, self.nodes))
        matrix.sum_duplicates()
        matrix.data[:] = 1.0
        return matrix


def topologies(graphs: GraphSet) -> tuple[list[Topology], NDArray[np.int64]]:
    """Return the distinct topologies in the order they first stand, and which one each graph has, int64 [G]."""
    places: dict[tuple[int, bytes], int] = {}
    distinct: list[Topology] = []
    of_graph = np.zeros(len(graphs), dtype=np.int64)
    sizes = np.diff(graphs.node_start).tolist()
    starts = graphs.edge_start.tolist()
    for index, nodes in enumerate(sizes):
        topology = Topology(nodes, graphs.edges[:, starts[index] : starts[index + 1]])
        position = places.setdefault(topology.key, len(distinct))
        if position == len(distinct):
            distinct.append(topology)
        of_graph[index] = position
    return distinct, of_graph
