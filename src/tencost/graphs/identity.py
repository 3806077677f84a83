"""Ids of graphs by their content: equal graphs of any family, file or format have the same id."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

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
    found = []
    for graph in range(len(node_start) - 1):
        nodes = slice(node_start[graph], node_start[graph + 1])
        # The number of nodes first: where one array ends and the next begins is part of the content.
        digest = hashlib.sha256(int(nodes.stop - nodes.start).to_bytes(8, "little"))
        digest.update(operator[nodes].data)
        digest.update(columns[nodes].data)
        digest.update(np.sort(pairs[edge_start[graph] : edge_start[graph + 1]]).data)
        found.append("g" + digest.hexdigest()[:ID_LENGTH])
    return np.array(found, dtype=f"<U{ID_LENGTH + 1}")
