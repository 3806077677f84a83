"""Graph neural networks of latency: embed nodes, convolve along edges, add up over a graph, read off the devices.

Legend: B graphs, N nodes, E edges, H hidden, D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, GINConv, GINEConv, GPSConv

from tencost.features.graph.encodings import Encoder
from tencost.models.networks.gnn.convolutions import ComplexReLU, DGCNConv, DiGCNConv, MagNetConv
from tencost.models.networks.gnn.embedding import (
    NumberEmbedding,
    StableEdgeEmbedding,
    WordEmbedding,
)
from tencost.models.networks.gnn.graph_data import GraphBatch

if TYPE_CHECKING:
    from tencost.models.networks.families.gnn import GnnConfig

EDGE_FUNCTIONS = 8
"""Functions of an eigenvalue that an edge's encoding is made of."""

LARGEST = 20.0
"""pool=log_sum: logarithms of what a node adds are cut there, far beyond what is met."""

Way = tuple[Tensor, Tensor | None]
"""One way of reading the edges: an edge index or a CSR matrix, and attributes of the edges, float32 [E, A]."""


class EachWay(nn.Module):
    """A convolution for each way of reading the edges; their mean counts (BI of the CG benchmark)."""

    def __init__(self, make: Callable[[], nn.Module], ways: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(make() for _ in range(ways))

    def forward(self, nodes: Tensor, ways: Sequence[Way]) -> Tensor:
        """Map [N, H] to [N, H]."""
        outputs = [
            convolution(nodes, edges)
            if attributes is None
            else convolution(nodes, edges, attributes)
            for convolution, (edges, attributes) in zip(self.convolutions, ways, strict=True)
        ]
        return torch.stack(outputs).mean(dim=0) if len(outputs) > 1 else outputs[0]


class GpsLayer(GPSConv):
    """GPS layer (Rampášek et al. 2022): torch-geometric's, with attention over graphs of about the same size at a time.

    Padding a whole batch to its largest graph would make most of the work padding.
    """

    def forward(self, nodes: Tensor, ways: Sequence[Way], sizes: Sequence[int]) -> Tensor:
        """Map [N, H] to [N, H]; sizes of the graphs, ascending."""
        local = self.norm1(self._drop(self.conv(nodes, ways)) + nodes)
        everywhere = self.norm2(self._drop(self._attend(nodes, sizes)) + nodes)
        mixed = local + everywhere
        out: Tensor = self.norm3(mixed + self.mlp(mixed))
        return out

    def _drop(self, values: Tensor) -> Tensor:
        return functional.dropout(values, p=self.dropout, training=self.training)

    def _attend(self, nodes: Tensor, sizes: Sequence[int]) -> Tensor:
        # Performer counts padding as keys, so that a graph's latency would depend on the graphs beside it.
        slack = 1.0 if self.attn_type == "performer" else 1.1
        parts, first = [], 0
        for group in similar(sizes, slack):
            end = first + sum(group)
            parts.append(self._attend_group(nodes[first:end], group))
            first = end
        return torch.cat(parts)

    def _attend_group(self, nodes: Tensor, sizes: Sequence[int]) -> Tensor:
        if sizes[0] == sizes[-1]:
            dense, present = nodes.view(len(sizes), sizes[0], -1), None
        else:
            each = torch.tensor(sizes, device=nodes.device)
            present = torch.arange(sizes[-1], device=nodes.device)[None, :] < each[:, None]
            dense = nodes.new_zeros(*present.shape, nodes.shape[1])
            dense = dense.masked_scatter(present[:, :, None], nodes)
        if self.attn_type == "performer":
            return torch.flatten(self.attn(dense), 0, 1)
        padding = None if present is None else ~present
        attended = self.attn(dense, dense, dense, key_padding_mask=padding, need_weights=False)[0]
        return torch.flatten(attended, 0, 1) if present is None else attended[present]


def similar(sizes: Sequence[int], slack: float) -> Iterator[list[int]]:
    """Cut ascending sizes into runs whose largest is at most `slack` times their smallest."""
    group: list[int] = []
    for size in sizes:
        if group and size > group[0] * slack:
            yield group
            group = []
        group.append(size)
    if group:
        yield group


class GraphNetwork(nn.Module):
    """Nodes -> convolutions -> sum over each graph -> layers -> one number a device.

    Args:
        config: what it is made of.
        encoder: how nodes and edges are encoded.
        devices: D.
        mean_nodes: nodes of a typical graph; sums over graphs are divided by it.
    """

    mean_nodes: Tensor

    def __init__(
        self, config: GnnConfig, encoder: Encoder, devices: int, mean_nodes: float = 1.0
    ) -> None:
        super().__init__()
        hidden = config.hidden
        self.config = config
        self.embed = (NumberEmbedding if config.shapes == "numbers" else WordEmbedding)(hidden)
        self.encoding = nn.Linear(encoder.node_columns, hidden) if encoder.node_columns else None
        self.edge_embedding: StableEdgeEmbedding | None = None
        edge_columns = 0
        if config.edge_encoding != "none":
            self.edge_embedding = StableEdgeEmbedding(EDGE_FUNCTIONS)
            edge_columns = EDGE_FUNCTIONS * (2 if config.edge_encoding == "magnetic" else 1)
        self.layers = nn.ModuleList(_layer(config, edge_columns) for _ in range(config.layers))
        normed = 0 if config.convolution in ("gps", "performer", "magnet") else config.layers
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(normed))
        self.unwind = nn.Linear(2 * hidden, hidden) if config.convolution == "magnet" else None
        # Costs of nodes are orders of magnitude apart: what is added up are exponentials, what is read on logarithms.
        self.costs = nn.Linear(hidden, hidden) if config.pool == "log_sum" else None
        widths = [hidden] * config.mlp_layers + [devices]
        self.head = nn.ModuleList(
            nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths)
        )
        self.register_buffer("mean_nodes", torch.tensor([mean_nodes], dtype=torch.float32))

    def forward(self, batch: GraphBatch) -> Tensor:
        """Return float32 [B, D], graphs in the batch's order."""
        nodes = functional.embedding(batch.row_of_node, self.embed(batch.rows))
        if self.encoding is not None:
            nodes = nodes + self.encoding(batch.node_encoding)
        total = self._pool(self._convolve(nodes, batch), batch)
        for layer in self.head[:-1]:
            total = self._drop(torch.relu(layer(total)))
        out: Tensor = self.head[-1](total)
        return out

    def _pool(self, nodes: Tensor, batch: GraphBatch) -> Tensor:
        """Return what a graph's nodes add up to, float32 [B, H]."""
        if self.costs is not None:
            nodes = self.costs(nodes).clamp(-LARGEST, LARGEST).exp()
        total = nodes.new_zeros(len(batch), nodes.shape[1])
        total = total.index_add(0, batch.graph_of_node, nodes) / self.mean_nodes
        return total if self.costs is None else total.log()

    def _convolve(self, nodes: Tensor, batch: GraphBatch) -> Tensor:
        kind = self.config.convolution
        if kind == "magnet":
            signal = torch.stack([nodes, nodes], dim=1)
            for layer in self.layers:
                signal = signal + self._drop(layer(signal, batch.matrices))
            assert self.unwind is not None
            return torch.relu(self.unwind(signal.flatten(1)))
        if kind in ("digcn", "dgcn"):
            return self._stack(nodes, batch.matrices)
        ways = self._ways(batch)
        if kind in ("gps", "performer"):
            for layer in self.layers:
                nodes = layer(nodes, ways, batch.sizes)
            return nodes
        return self._stack(nodes, ways)

    def _stack(self, nodes: Tensor, edges: Any) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            nodes = nodes + self._drop(torch.relu(norm(layer(nodes, edges))))
        return nodes

    def _ways(self, batch: GraphBatch) -> list[Way]:
        attributes: Tensor | None = None
        if self.edge_embedding is not None:
            assert batch.edge_products is not None
            assert batch.edge_values is not None
            attributes = self.edge_embedding(
                batch.edge_products, batch.edge_values, batch.graph_of_edge
            )
        if attributes is None and batch.matrices:
            return [(matrix, None) for matrix in batch.matrices]
        forward, backward = batch.edge_index, batch.edge_index.flip(0)
        conjugate = None if attributes is None else self._conjugate(attributes)
        if self.config.direction == "directed":
            return [(forward, attributes)]
        if self.config.direction == "bidirectional":
            return [(forward, attributes), (backward, conjugate)]
        both = None
        if attributes is not None and conjugate is not None:
            both = torch.cat([attributes, conjugate])
        return [(torch.cat([forward, backward], dim=1), both)]

    def _conjugate(self, attributes: Tensor) -> Tensor:
        """Return the attributes of the edges reversed: imaginary parts with the other sign."""
        if attributes.shape[1] == EDGE_FUNCTIONS:
            return attributes
        real, imaginary = attributes.chunk(2, dim=1)
        return torch.cat([real, -imaginary], dim=1)

    def _drop(self, values: Tensor) -> Tensor:
        rate = self.config.dropout
        return functional.dropout(values, rate, self.training) if rate else values


class _Magnetic(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.convolution, self.activation = MagNetConv(hidden, hidden), ComplexReLU()

    def forward(self, signal: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        out: Tensor = self.activation(self.convolution(signal, matrices))
        return out


class _Proximity(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.convolution, self.fuse = DGCNConv(hidden, hidden), nn.Linear(3 * hidden, hidden)

    def forward(self, nodes: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        out: Tensor = self.fuse(torch.relu(self.convolution(nodes, matrices)))
        return out


def _layer(config: GnnConfig, edge_columns: int) -> nn.Module:
    hidden, kind = config.hidden, config.convolution
    if kind == "magnet":
        return _Magnetic(hidden)
    if kind == "digcn":
        return DiGCNConv(hidden, hidden)
    if kind == "dgcn":
        return _Proximity(hidden)
    ways = 2 if config.direction == "bidirectional" else 1
    convolutions = EachWay(lambda: _convolution(config, edge_columns), ways)
    if kind not in ("gps", "performer"):
        return convolutions
    return GpsLayer(
        hidden,
        convolutions,
        heads=config.heads,
        dropout=config.dropout,
        norm="layer_norm",
        norm_kwargs={"mode": "node"},
        attn_type="performer" if kind == "performer" else "multihead",
        attn_kwargs={"head_channels": hidden // config.heads} if kind == "performer" else None,
    )


def _convolution(config: GnnConfig, edge_columns: int) -> Any:
    hidden = config.hidden
    if config.convolution == "gcn":
        return GCNConv(hidden, hidden, normalize=False)
    if config.convolution == "gat":
        return GATConv(hidden, hidden // config.heads, config.heads, edge_dim=edge_columns or None)
    layers = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
    return GINEConv(layers, edge_dim=edge_columns) if edge_columns else GINConv(layers)
