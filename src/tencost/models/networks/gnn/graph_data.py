"""Graphs as tensors: batches for training, quickly; and a dataset for users of torch-geometric.

Nodes repeat: the 2.7 million of the CG benchmark's nine thousand graphs are 62,000 different ones. So what nodes say is
embedded once for each distinct row of a batch. Topologies repeat even more: encodings and propagation matrices are
worked out once each, and a batch puts copies of them side by side.

Legend: B graphs in a batch, N nodes, E edges, U distinct rows, k eigenvectors.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from tencost.features.graph.encodings import Encoder, StableEdges
from tencost.features.graph.topology import topologies
from tencost.models.networks.gnn.propagation import Propagation
from tencost.networks.graph.graph_set import GraphSet, Indices


@dataclass(frozen=True)
class GraphBatch:
    """Some graphs, small ones first.

    Attributes:
        chosen: int64 [B]; which graphs of the set these are.
        rows: int32 [U, 17]; operator and columns of the distinct nodes.
        row_of_node: int64 [N].
        graph_of_node: int64 [N], ascending.
        sizes: nodes of each graph, ascending.
        edge_index: int64 [2, E]; source and target, nodes counted over the batch.
        matrices: propagation matrices, float32 CSR [N, N], block by block a graph.
        node_encoding: float32 [N, columns of the encoding].
        edge_products: float32 [E, k], or [E, 2 k] with imaginary parts behind; None where edges are not encoded.
        edge_values: float32 [B, k]; the eigenvalues of each graph; None where edges are not encoded.
        graph_of_edge: int64 [E], ascending.
    """

    chosen: NDArray[np.int64]
    rows: Tensor
    row_of_node: Tensor
    graph_of_node: Tensor
    sizes: tuple[int, ...]
    edge_index: Tensor
    matrices: tuple[Tensor, ...]
    node_encoding: Tensor
    edge_products: Tensor | None
    edge_values: Tensor | None
    graph_of_edge: Tensor

    def __len__(self) -> int:
        return len(self.sizes)

    def to(self, device: torch.device) -> GraphBatch:
        """Return the batch with its tensors on a device."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        moved: dict[str, Any] = {
            name: tensor.to(device) for name, tensor in values.items() if isinstance(tensor, Tensor)
        }
        return replace(self, **moved, matrices=tuple(matrix.to(device) for matrix in self.matrices))


class Batches:
    """Makes batches of a set of graphs.

    Args:
        graphs: the set.
        encoder: encodes its nodes and edges.
        propagation: what the convolutions need of a topology; None: edges are enough.
    """

    def __init__(self, graphs: GraphSet, encoder: Encoder, propagation: Propagation | None) -> None:
        self._distinct, self._of_graph = topologies(graphs)
        self._rows, self._row_of_node = distinct_rows(graphs)
        self._node_start = graphs.node_start
        self._encodings = [
            torch.from_numpy(encoder.encode_nodes(topology)) for topology in self._distinct
        ]
        self._stable: list[tuple[Tensor, Tensor]] = []
        if encoder.edges != "none":
            self._stable = [_stable(encoder.encode_edges(topology)) for topology in self._distinct]
        self._matrices: list[list[csr_array]] = []
        if propagation is not None:
            self._matrices = [propagation(topology) for topology in self._distinct]

    def __len__(self) -> int:
        """Return how many graphs there are."""
        return len(self._of_graph)

    def take(self, indices: Indices) -> GraphBatch:
        """Return some graphs as a batch; it is sorted by size, so that attention has little to pad."""
        chosen = np.asarray(indices, dtype=np.int64)
        sizes = self._node_start[chosen + 1] - self._node_start[chosen]
        order = np.argsort(sizes, kind="stable")
        chosen, sizes = chosen[order], sizes[order]
        spans = zip(self._node_start[chosen], self._node_start[chosen + 1], strict=True)
        every = np.concatenate([self._row_of_node[first:end] for first, end in spans])
        present, row_of_node = np.unique(every, return_inverse=True)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        shapes = self._of_graph[chosen].tolist()
        edges = [
            self._distinct[shape].edges + offset
            for shape, offset in zip(shapes, offsets, strict=False)
        ]
        products = values = None
        if self._stable:
            products = torch.cat([self._stable[shape][0] for shape in shapes])
            values = torch.stack([self._stable[shape][1] for shape in shapes])
        count = len(self._matrices[0]) if self._matrices else 0
        return GraphBatch(
            chosen=chosen,
            rows=torch.from_numpy(self._rows[present]),
            row_of_node=torch.from_numpy(row_of_node.astype(np.int64)),
            graph_of_node=torch.from_numpy(np.repeat(np.arange(len(chosen)), sizes)),
            sizes=tuple(sizes.tolist()),
            edge_index=torch.from_numpy(np.concatenate(edges, axis=1)),
            matrices=tuple(
                block_diagonal([self._matrices[shape][which] for shape in shapes])
                for which in range(count)
            ),
            node_encoding=torch.cat([self._encodings[shape] for shape in shapes]),
            edge_products=products,
            edge_values=values,
            graph_of_edge=torch.from_numpy(
                np.repeat(np.arange(len(chosen)), [each.shape[1] for each in edges])
            ),
        )


def distinct_rows(graphs: GraphSet) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the distinct rows (operator, then columns), int32 [U, 17], and which one each node has, int32 [N]."""
    rows = np.concatenate([graphs.operator[:, None].astype(np.int32), graphs.columns], axis=1)
    # Sorting one hash a row is ten times faster than sorting rows; a collision is found and made good.
    factors = np.random.default_rng(0).integers(2**62, size=rows.shape[1], dtype=np.int64) | 1
    with np.errstate(over="ignore"):
        hashes = (rows * factors).sum(axis=1)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    distinct = rows[first]
    if not (distinct[inverse] == rows).all():
        distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    return distinct, inverse.astype(np.int32)


def block_diagonal(blocks: Sequence[csr_array]) -> Tensor:
    """Return a sparse CSR tensor, float32 with 32-bit indices, with the blocks along its diagonal; at least one."""
    sizes = np.array([block.shape[0] for block in blocks])
    filled = np.array([block.nnz for block in blocks])
    starts, entries = np.cumsum(sizes) - sizes, np.cumsum(filled) - filled
    pointers = [
        block.indptr[1:] + before for block, before in zip(blocks, entries.tolist(), strict=True)
    ]
    columns = [
        block.indices + before for block, before in zip(blocks, starts.tolist(), strict=True)
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(np.concatenate([[0], *pointers]).astype(np.int32)),
            torch.from_numpy(np.concatenate(columns).astype(np.int32)),
            torch.from_numpy(np.concatenate([block.data for block in blocks]).astype(np.float32)),
            size=(int(sizes.sum()), int(sizes.sum())),
            check_invariants=False,
        )


def _stable(edges: StableEdges) -> tuple[Tensor, Tensor]:
    products = edges.products
    parts = [products.real, products.imag] if np.iscomplexobj(products) else [products]
    return torch.from_numpy(np.concatenate(parts, axis=1)), torch.from_numpy(edges.values)
