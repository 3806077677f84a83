"""The benchmark's models as torch modules over batches of torch-geometric.

Legend: B graphs of a batch.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch_geometric.data import Data

from tencost.compat.cg.data import graph_set
from tencost.compat.cg.settings import CGConfig
from tencost.features.graph.topology import Topology
from tencost.models.networks.gnn.graph_data import Batches
from tencost.models.networks.gnn.networks import GraphNetwork
from tencost.models.networks.gnn.propagation import propagation_of
from tencost.models.networks.gnn.training import encoder_of


class CGModel(nn.Module):
    """Latency of graphs.

    Args:
        config: the benchmark's configuration.
        mean_nodes: nodes of a typical graph to learn from.
        mean_ms: mean of the latencies to learn from.
        deviation_ms: and their standard deviation.
    """

    mean_ms: Tensor
    deviation_ms: Tensor

    def __init__(
        self,
        config: CGConfig,
        mean_nodes: float = 1.0,
        mean_ms: float = 0.0,
        deviation_ms: float = 1.0,
    ) -> None:
        super().__init__()
        settings = config.network()
        self._encoder = encoder_of(settings)
        self._make = None
        if settings.edge_encoding == "none":
            self._make = propagation_of(settings.convolution, settings.direction, settings.q)
        self._made: dict[tuple[int, bytes], list[csr_array]] = {}
        self.network = GraphNetwork(settings, self._encoder, 1, mean_nodes)
        self.register_buffer("mean_ms", torch.tensor([mean_ms], dtype=torch.float32))
        self.register_buffer("deviation_ms", torch.tensor([deviation_ms], dtype=torch.float32))

    def forward(self, batch: Data) -> Tensor:
        """Return milliseconds, float32 [B, 1], of a `Data` or a batch of them as CGDataProcessor has them."""
        graphs = graph_set(batch)
        batches = Batches(graphs, self._encoder, self._propagate if self._make else None)
        ordered = batches.take(np.arange(len(graphs)))
        outputs: Tensor = self.network(ordered)
        place = torch.from_numpy(np.argsort(ordered.chosen))
        return outputs[place] * self.deviation_ms + self.mean_ms

    def _propagate(self, topology: Topology) -> list[csr_array]:
        """Work out each topology once, in however many batches it is."""
        assert self._make is not None
        key = topology.key
        if key not in self._made:
            self._made[key] = self._make(topology)
        return self._made[key]
