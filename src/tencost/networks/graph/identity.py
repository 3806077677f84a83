"""Which graphs are the same: ids by content, and keys that the order of nodes does not change.

NASBench201's 2,000 graphs of the CG benchmark have 1,570 contents as they are listed, 1,489 with edges in any order,
and 1,291 with nodes in any order, too: networks that no model of graphs can tell apart.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from tencost.networks.graph.graph_set import GraphSet

ID_LENGTH = 32
"""Hex digits of an id, behind its `g`."""


def graph_ids(
    operator: NDArray[np.uint8],
    columns: NDArray[np.int32],
    node_start: NDArray[np.int64],
    edges: NDArray[np.int32],
    edge_start: NDArray[np.int64],
) -> NDArray[np.str_]:
    """Return the id of each graph: `g` and a sha256 over its operators, their columns and its edges, in any order.

    Nodes count in their order: the same network with its nodes listed otherwise has another id.

    Args:
        operator: uint8 [N], as all arguments laid out as in GraphSet.
        columns: int32 [N, 16].
        node_start: int64 [G + 1].
        edges: int32 [2, E], nodes counted within their graph.
        edge_start: int64 [G + 1].
    """
    # One number an edge, by target first: sorted, they are the same whatever the order that they were written in.
    pairs = (edges[1].astype("<i8") << 32) | edges[0]
    operator = np.ascontiguousarray(operator)
    columns = np.ascontiguousarray(columns, dtype="<i4")
    ids = []
    for graph in range(len(node_start) - 1):
        nodes = slice(node_start[graph], node_start[graph + 1])
        # The number of nodes first: where one array ends and the next begins is part of the content.
        digest = hashlib.sha256(int(nodes.stop - nodes.start).to_bytes(8, "little"))
        digest.update(operator[nodes].data)
        digest.update(columns[nodes].data)
        digest.update(np.sort(pairs[edge_start[graph] : edge_start[graph + 1]]).data)
        ids.append("g" + digest.hexdigest()[:ID_LENGTH])
    return np.array(ids, dtype=f"<U{ID_LENGTH + 1}")


def shape_keys(graphs: GraphSet) -> NDArray[np.uint64]:
    """Return a number for each graph, the same for graphs that differ in the order of their nodes and edges only.

    A node's number is made of its operator and columns and of the numbers of all nodes before it, then of those behind
    it (Weisfeiler and Leman's refinement, which on an acyclic graph needs one pass forth and one back); a graph's of
    all its nodes'. Graphs that message passing cannot tell apart have the same key; others by a chance of 2^-64.

    Returns:
        uint64 [G].
    """
    hashes = graphs.operator.astype(np.uint64)
    for place in range(graphs.columns.shape[1]):
        hashes = _mixed(hashes) + graphs.columns[:, place].astype(np.int64).view(np.uint64)
    source, target = graphs.global_edges
    forth = _passed(hashes, source, target)
    both = _mixed(_passed(forth, target, source))
    keys = np.zeros(len(graphs), dtype=np.uint64)
    np.add.at(keys, graphs.graph_of_node, both)
    return _mixed(keys)


def _passed(
    hashes: NDArray[np.uint64], source: NDArray[np.int64], target: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return numbers of nodes made of their own and of those of all nodes before them."""
    count = len(hashes)
    order = np.argsort(source, kind="stable")
    target = target[order]
    sent = np.bincount(source, minlength=count)
    start = np.cumsum(sent) - sent
    waiting = np.bincount(target, minlength=count)
    received = np.zeros(count, dtype=np.uint64)
    number = np.zeros(count, dtype=np.uint64)
    last = np.empty(count, dtype=np.int64)
    ready = np.flatnonzero(waiting == 0)
    while len(ready):  # nodes of one depth of all graphs at once
        number[ready] = _mixed(_mixed(hashes[ready]) + received[ready])
        lengths = sent[ready]
        shift = start[ready] - (np.cumsum(lengths) - lengths)
        reached = target[np.arange(lengths.sum()) + np.repeat(shift, lengths)]
        np.add.at(received, reached, np.repeat(_mixed(number[ready] + _ONE), lengths))
        np.subtract.at(waiting, reached, 1)
        ready = reached[waiting[reached] == 0]
        places = np.arange(len(ready))
        last[ready] = places
        ready = ready[last[ready] == places]  # once each; far faster than np.unique
    return number


_ONE = np.uint64(1)


def _mixed(number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return numbers that every bit of the given ones changes (the finalizer of SplitMix64)."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9) + _ONE
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
