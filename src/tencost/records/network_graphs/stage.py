"""The stage `graphs records`: a raw dataset of networks with latencies -> tables, and what was rejected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console

from tencost.config import Config
from tencost.config.folders import Folders
from tencost.errors import ConfigError
from tencost.networks.graph import table
from tencost.records.network_graphs.reading import read_folder
from tencost.records.reading.report import SHOWN, Rejects, report


def run(cfg: Config, root: Path) -> None:
    """Read data/raw/<dataset> and write data/graphs/<dataset>.

    Raises:
        ConfigError: the dataset was not fetched.
        GraphError: nothing in it can be used.
    """
    folders = Folders(cfg, root)
    if not folders.raw.is_dir():
        raise ConfigError(
            f"expected the raw dataset in {folders.raw}, found none. Bring it: tencost fetch dataset={cfg.dataset.name}"
        )
    networks = read_folder(folders.raw)
    table.save_graphs(
        folders.graphs, networks.labelled, sources=networks.nodes, rejects=networks.rejects
    )
    graphs, latency = networks.labelled.graphs, networks.labelled.latency_ms
    rows = {}
    for family in np.unique(graphs.family):
        counts = np.isfinite(latency[graphs.family == family]).sum(axis=0)
        pairs = zip(networks.labelled.hardware, counts, strict=True)
        devices = ", ".join(f"{device} {count}" for device, count in pairs)
        number = (graphs.family == family).sum()
        rows[str(family)] = f"{number} graphs; with a latency: {devices}"
    rejects = Rejects(folders.graphs / table.REJECTS, None, len(networks.rejects))
    rejects.first += networks.rejects[:SHOWN]
    report(rows, networks.notes, rejects, Console(stderr=True))
