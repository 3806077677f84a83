"""Graphs of networks as flat arrays, and their latencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tencost.networks.graph.operators import COLUMNS

_PER_GRAPH = ("graph_id", "family", "name", "position")
_PER_NODE = ("operator", "columns")

Indices = NDArray[np.int64] | Sequence[int]


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Some networks' graphs. Graph i owns nodes node_start[i]:node_start[i + 1], and edges likewise.

    Attributes:
        graph_id: str [G]; of the content: two graphs with the same nodes and edges have the same id.
        family: str [G]; what the networks are variants of (resnets, mobilenetv2s).
        name: str [G]; what a person calls the graph.
        position: int32 [G]; where it stood in its family's file, counted before anything was rejected.
        operator: uint8 [N]; codes of tencost.networks.graph.operators.OPERATORS.
        columns: int32 [N, 16]; tencost.networks.graph.operators.COLUMNS.
        node_start: int64 [G + 1].
        edges: int32 [2, E]; source and target, nodes counted within their graph. Acyclic; source < target.
        edge_start: int64 [G + 1].
    """

    graph_id: NDArray[np.str_]
    family: NDArray[np.str_]
    name: NDArray[np.str_]
    position: NDArray[np.int32]
    operator: NDArray[np.uint8]
    columns: NDArray[np.int32]
    node_start: NDArray[np.int64]
    edges: NDArray[np.int32]
    edge_start: NDArray[np.int64]

    def __post_init__(self) -> None:
        graphs, nodes = len(self.graph_id), len(self.operator)
        assert len(self.family) == len(self.name) == len(self.position) == graphs
        assert self.columns.shape == (nodes, len(COLUMNS))
        assert len(self.node_start) == len(self.edge_start) == graphs + 1
        assert self.node_start[-1] == nodes
        assert self.edges.shape == (2, self.edge_start[-1])

    def __len__(self) -> int:
        return len(self.graph_id)

    @property
    def graph_of_node(self) -> NDArray[np.int64]:
        """Which graph each node is of: int64 [N]."""
        return np.repeat(np.arange(len(self)), np.diff(self.node_start))

    @property
    def graph_of_edge(self) -> NDArray[np.int64]:
        """Which graph each edge is of: int64 [E]."""
        return np.repeat(np.arange(len(self)), np.diff(self.edge_start))

    @property
    def global_edges(self) -> NDArray[np.int64]:
        """Edges with nodes counted over the whole set: int64 [2, E]."""
        offset: NDArray[np.int64] = self.node_start[self.graph_of_edge]
        return self.edges + offset

    def take(self, indices: Indices) -> GraphSet:
        """Return some of the graphs, in the order of their indices."""
        chosen = np.asarray(indices, dtype=np.int64)
        nodes = _ranges(self.node_start, chosen)
        edges = _ranges(self.edge_start, chosen)
        return GraphSet(
            **{field: getattr(self, field)[chosen] for field in _PER_GRAPH},
            **{field: getattr(self, field)[nodes] for field in _PER_NODE},
            node_start=_starts(np.diff(self.node_start)[chosen]),
            edges=self.edges[:, edges],
            edge_start=_starts(np.diff(self.edge_start)[chosen]),
        )

    def batches(self, size: int) -> Iterator[GraphSet]:
        """Yield the graphs in order, `size` at a time."""
        for first in range(0, len(self), size):
            yield self.take(np.arange(first, min(first + size, len(self))))


def concatenate(sets: Sequence[GraphSet]) -> GraphSet:
    """Return the graphs of all sets, one set after the other; at least one set."""

    def joined(field: str, axis: int = 0) -> NDArray[Any]:
        return np.concatenate([getattr(graphs, field) for graphs in sets], axis=axis)

    return GraphSet(
        **{field: joined(field) for field in (*_PER_GRAPH, *_PER_NODE)},
        node_start=_starts(np.concatenate([np.diff(graphs.node_start) for graphs in sets])),
        edges=joined("edges", axis=1),
        edge_start=_starts(np.concatenate([np.diff(graphs.edge_start) for graphs in sets])),
    )


@dataclass(frozen=True, eq=False)
class LabelledGraphs:
    """Graphs and how long each takes.

    Attributes:
        graphs: G graphs.
        hardware: D names of devices.
        latency_ms: float64 [G, D], milliseconds; NaN where nobody measured.
    """

    graphs: GraphSet
    hardware: tuple[str, ...]
    latency_ms: NDArray[np.float64]

    def __post_init__(self) -> None:
        assert self.latency_ms.shape == (len(self.graphs), len(self.hardware))

    def __len__(self) -> int:
        return len(self.graphs)

    def take(self, indices: Indices) -> LabelledGraphs:
        """Return some of the graphs with their labels, in the order of their indices."""
        chosen = np.asarray(indices, dtype=np.int64)
        return LabelledGraphs(self.graphs.take(chosen), self.hardware, self.latency_ms[chosen])


def _ranges(starts: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions start..end of each chosen group, one group after the other."""
    lengths = np.diff(starts)[chosen]
    shift = starts[chosen] - _starts(lengths)[:-1]
    return np.arange(lengths.sum()) + np.repeat(shift, lengths)


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts
