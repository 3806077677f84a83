"""A dataset of graphs with its split, read once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tencost.config import Config
from tencost.config.folders import Folders
from tencost.errors import ConfigError
from tencost.networks.graph import table
from tencost.networks.graph.graph_set import LabelledGraphs
from tencost.splits import networks as splits
from tencost.splits.networks import GraphParts


@dataclass(frozen=True)
class GraphData:
    """Graphs, latencies and split of a configuration."""

    cfg: Config
    root: Path

    @property
    def folders(self) -> Folders:
        """Where things lie."""
        return Folders(self.cfg, self.root)

    @cached_property
    def labelled(self) -> LabelledGraphs:
        """All graphs of the dataset."""
        return table.load_graphs(self.folders.graphs)

    @cached_property
    def parts(self) -> GraphParts:
        """Rows of each part of the split."""
        if not self.folders.split.is_dir():
            raise ConfigError(
                f"expected a split in {self.folders.split}, found none. Make it: tencost graphs splits "
                f"dataset={self.cfg.dataset.name} split={self.cfg.graph_split_name}"
            )
        return splits.load_parts(self.folders.split, self.labelled.graphs)

    def part(self, name: str) -> LabelledGraphs:
        """Return the graphs of a part: train, valid, test or test_ood."""
        return self.labelled.take(dict(self.parts.items())[name])

    @cached_property
    def dataset_hash(self) -> str:
        """Of graphs and latencies, hex."""
        digest = hashlib.sha256("\n".join(self.labelled.hardware).encode())
        digest.update("\n".join(self.labelled.graphs.graph_id.tolist()).encode())
        digest.update(np.ascontiguousarray(self.labelled.latency_ms).tobytes())
        return digest.hexdigest()

    @cached_property
    def split_hash(self) -> str:
        """Of which graph is on which side, hex."""
        digest = hashlib.sha256()
        for name, rows in self.parts.items():
            ids: NDArray[np.str_] = np.sort(self.labelled.graphs.graph_id[rows])
            digest.update("\n".join([name, *ids.tolist()]).encode())
        return digest.hexdigest()
