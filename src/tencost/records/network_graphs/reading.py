"""Reading whole networks with their latencies: what a format gives, and the gate that every graph passes.

A format parses; whether what it parsed is a network's graph the gate decides, the same for all formats. A graph that
is not is a Reject with file, line and reason; a latency that is none leaves its graph there, with NaN. The graphs
around it are kept, and keep their positions.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tencost.config.parts import GRAPH_FORMATS
from tencost.errors import GraphError
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs, concatenate
from tencost.networks.graph.identity import graph_ids
from tencost.networks.graph.operators import COLUMNS
from tencost.records.reading.protocol import About, Format
from tencost.records.reading.report import SHOWN, in_words
from tencost.store.rejects import GraphReject as GraphReject
from tencost.store.rejects import Places as Places

MAX_NODES = 20_000
"""Nodes of a graph at most; the largest of CG has 551, and some models need memory for each pair of nodes."""
_UNKNOWN = -1
"""A size that is not known; nothing may be below it."""


@dataclass(frozen=True, eq=False)
class ReadGraphs:
    """Graphs of networks from a folder, with their places in it.

    Attributes:
        labelled: the graphs. Before the gate their ids may be empty, their edges any numbers, and nodes unsorted.
        nodes: where each graph's nodes stand.
        edges: where each graph's edges stand.
        rejects: what was left out.
        notes: what is as it should not be but costs no graph, a sentence each.
    """

    labelled: LabelledGraphs
    nodes: Places
    edges: Places
    rejects: tuple[GraphReject, ...] = ()
    notes: tuple[str, ...] = ()


class GraphFormat(Format):
    """A layout of a folder of networks, recognized by the names of its files."""

    @abstractmethod
    def read(self, path: Path, about: About, /) -> Iterator[ReadGraphs]:
        """Yield everything in a folder at once, families sorted, each in the order of its file.

        Raises:
            GraphError: nothing at all can be read.
        """


def read_folder(folder: Path) -> ReadGraphs:
    """Return every network of a folder in any known layout: sorted by family, in the order of the file in each.

    Raises:
        GraphError: no folder, none of the layouts or several of them, or no graph in it that can be used.
    """
    if not folder.is_dir():
        raise GraphError(
            f"expected a folder of networks at {folder}, found {'a file' if folder.exists() else 'nothing'}. "
            "Name it with dataset.source=..., or fetch it: tencost fetch"
        )
    formats: dict[str, GraphFormat] = GRAPH_FORMATS.all()
    fitting = [candidate for candidate in formats.values() if candidate.recognizes(folder, b"")]
    if len(fitting) != 1:
        listing = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        layouts = " or ".join(candidate.layout for candidate in fitting or formats.values())
        quantity = "only one of" if fitting else "one of"
        raise GraphError(f"expected {quantity} {layouts} in {folder}, found {listing}")
    read = gate(next(fitting[0].read(folder, About(folder.name, "", None))))
    if not len(read.labelled):
        reasons = "; ".join(map(in_words, read.rejects[:SHOWN]))
        raise GraphError(f"expected networks that can be used in {folder}, found none. {reasons}")
    return read


def gate(read: ReadGraphs) -> ReadGraphs:
    """Select the valid graphs, sort their nodes topologically, and compute their ids.

    Rejected are graphs of no or too many nodes, with sizes below -1, with edges to nodes that are not there, and
    cyclic ones. Latencies that are not positive numbers are rejected alone.
    """
    graphs = read.labelled.graphs
    reasons: dict[int, tuple[Places, int, str]] = {}
    for graph, position, reason in _bad_nodes(graphs):
        reasons.setdefault(graph, (read.nodes, position, reason))
    for graph, position, reason in _bad_edges(graphs):
        reasons.setdefault(graph, (read.edges, position, reason))
    orders: dict[int, NDArray[np.int64]] = {}
    backward = np.flatnonzero(graphs.edges[0] >= graphs.edges[1])
    for graph in np.unique(graphs.graph_of_edge[backward]).tolist():
        if graph not in reasons:
            orders[graph], cyclic = _topological_order(graphs, graph)
            if cyclic is not None:
                source, target = graphs.edges[:, graphs.edge_start[graph] + cyclic].tolist()
                reason = (
                    f"expected a graph without cycles, found one through the edge {source},{target}"
                )
                reasons[graph] = (read.edges, cyclic, reason)
    rejects = [
        _reject(places, position, graphs, graph, reason)
        for graph, (places, position, reason) in sorted(reasons.items())
    ]
    usable = np.setdiff1d(np.arange(len(graphs)), np.array(list(reasons), dtype=np.int64))
    usable = usable[np.argsort(graphs.family[usable], kind="stable")]
    graphs = _sorted(
        graphs, {graph: order for graph, order in orders.items() if graph not in reasons}
    )
    labelled = replace(read.labelled, graphs=graphs)
    nodes, edges = read.nodes, read.edges
    if len(usable) < len(graphs) or (np.diff(usable) < 0).any():
        labelled, nodes, edges = labelled.take(usable), nodes.take(usable), edges.take(usable)
    labelled, bad = _good_latencies(labelled, nodes)
    graphs = labelled.graphs
    ids = graph_ids(
        graphs.operator, graphs.columns, graphs.node_start, graphs.edges, graphs.edge_start
    )
    labelled = replace(labelled, graphs=replace(graphs, graph_id=ids))
    notes = (*read.notes, *_without_latencies(labelled))
    return ReadGraphs(labelled, nodes, edges, (*read.rejects, *rejects, *bad), notes)


def _bad_nodes(graphs: GraphSet) -> Iterator[tuple[int, int, str]]:
    """Yield (graph, its node, reason)."""
    counts = np.diff(graphs.node_start)
    for graph in np.flatnonzero((counts < 1) | (counts > MAX_NODES)).tolist():
        yield graph, 0, f"expected a graph of 1 to {MAX_NODES:,} nodes, found {counts[graph]:,}"
    if graphs.columns.size and graphs.columns.min() < _UNKNOWN:
        of_node = graphs.graph_of_node
        for node in np.flatnonzero((graphs.columns < _UNKNOWN).any(axis=1)).tolist():
            graph = int(of_node[node])
            smallest = int(graphs.columns[node].min())
            position = int(node - graphs.node_start[graph])
            yield (
                graph,
                position,
                f"expected sizes from -1 (not known), found {smallest} in node {position}",
            )


def _bad_edges(graphs: GraphSet) -> Iterator[tuple[int, int, str]]:
    """Yield (graph, its edge, reason)."""
    of_edge = graphs.graph_of_edge
    counts = np.diff(graphs.node_start)[of_edge]
    outside = (graphs.edges < 0).any(axis=0) | (graphs.edges >= counts).any(axis=0)
    for edge in np.flatnonzero(outside).tolist():
        graph = int(of_edge[edge])
        source, target = graphs.edges[:, edge].tolist()
        reason = f"expected nodes from 0 to {counts[edge] - 1}, found the edge {source},{target}"
        yield graph, int(edge - graphs.edge_start[graph]), reason


def _topological_order(graphs: GraphSet, graph: int) -> tuple[NDArray[np.int64], int | None]:
    """Return the nodes with sources before targets, as near to their own order as can be; and an edge of a cycle."""
    count = int(graphs.node_start[graph + 1] - graphs.node_start[graph])
    edges = graphs.edges[:, graphs.edge_start[graph] : graphs.edge_start[graph + 1]]
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(count), ()))
    for source, target in edges.T.tolist():
        sorter.add(target, source)
    try:
        sorter.prepare()
    except CycleError as error:
        source, target = error.args[1][:2]
        cyclic = np.flatnonzero((edges[0] == source) & (edges[1] == target))
        return np.zeros(0, np.int64), int(cyclic[0])
    ready, order = sorted(sorter.get_ready()), []
    while ready:
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
        for node in sorter.get_ready():
            heapq.heappush(ready, node)
    return np.array(order, dtype=np.int64), None


def _sorted(graphs: GraphSet, orders: dict[int, NDArray[np.int64]]) -> GraphSet:
    """Return the graphs with the nodes of some in another order, and these graphs' edges by target."""
    if not orders:
        return graphs
    operator, columns, edges = graphs.operator.copy(), graphs.columns.copy(), graphs.edges.copy()
    for graph, order in orders.items():
        nodes = slice(graphs.node_start[graph], graphs.node_start[graph + 1])
        edge_span = slice(graphs.edge_start[graph], graphs.edge_start[graph + 1])
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        operator[nodes] = operator[nodes][order]
        columns[nodes] = columns[nodes][order]
        moved = place[edges[:, edge_span]]
        edges[:, edge_span] = moved[:, np.argsort(moved[1], kind="stable")]
    return replace(graphs, operator=operator, columns=columns, edges=edges)


def _good_latencies(
    labelled: LabelledGraphs, nodes: Places
) -> tuple[LabelledGraphs, list[GraphReject]]:
    latency = labelled.latency_ms
    bad = ~np.isnan(latency) & ~(np.isfinite(latency) & (latency > 0))
    if not bad.any():
        return labelled, []
    rejects = [
        _reject(
            nodes,
            0,
            labelled.graphs,
            graph,
            bad_latency(labelled.hardware[device], latency[graph, device]),
        )
        for graph, device in np.argwhere(bad).tolist()
    ]
    return replace(labelled, latency_ms=np.where(bad, np.nan, latency)), rejects


def _reject(
    places: Places, position: int, graphs: GraphSet, graph: int, reason: str
) -> GraphReject:
    file, line = str(places.file[graph]), int(places.line[graph]) + position * places.step
    return GraphReject(file, line, reason, str(graphs.family[graph]), int(graphs.position[graph]))


def bad_latency(hardware: str, latency: object) -> str:
    """Return the reason of an invalid latency."""
    return f"expected milliseconds above 0 on {hardware}, found {str(latency)[:40]!r}; the graph is kept without it"


def _without_latencies(labelled: LabelledGraphs) -> Iterator[str]:
    has_latency = ~np.isnan(labelled.latency_ms)
    for family in np.unique(labelled.graphs.family).tolist():
        measured = has_latency[labelled.graphs.family == family].any(axis=0)
        without = [
            name
            for name, any_known in zip(labelled.hardware, measured, strict=True)
            if not any_known
        ]
        if without:
            yield f"{family} has no latency on {', '.join(without)}"


def one_graph(
    family: str,
    name: str,
    position: int,
    operator: NDArray[np.uint8],
    columns: NDArray[np.int32],
    edges: NDArray[np.int32],
) -> GraphSet:
    """Return a set of one graph without an id, which the gate computes; arrays as in GraphSet."""
    return GraphSet(
        np.array([""]),
        np.array([family]),
        np.array([name]),
        np.array([position], np.int32),
        operator,
        columns,
        np.array([0, len(operator)], np.int64),
        edges,
        np.array([0, edges.shape[1]], np.int64),
    )


def join_graph_sets(parts: Sequence[GraphSet]) -> GraphSet:
    """Return the graphs of all sets, one set after the other; there may be no set."""
    nothing = one_graph(
        "", "", 0, np.zeros(0, np.uint8), np.zeros((0, len(COLUMNS)), np.int32), np.zeros((2, 0), np.int32)
    )  # fmt: skip
    return concatenate([nothing.take([]), *parts])


def plain_or_gzipped(folder: Path, name: str) -> Path | None:
    """Return a file of a folder, or the same with `.gz` behind its name; of both the plain one, None without."""
    candidates = (folder / name, folder / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def places(files: Sequence[str], lines: Sequence[int] | NDArray[np.int64], step: int) -> Places:
    """Make places of a file and a line a graph."""
    return Places(np.array(files, dtype=np.str_), np.asarray(lines, dtype=np.int64), step)
