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
    found = read_folder(folders.raw)
    table.save_graphs(folders.graphs, found.labelled, sources=found.nodes, rejects=found.rejects)
    graphs, latency = found.labelled.graphs, found.labelled.latency_ms
    console = Console(stderr=True)
    for name in np.unique(graphs.family):
        own = graphs.family == name
        known = ", ".join(
            f"{device} {int(count)}"
            for device, count in zip(
                found.labelled.hardware, np.isfinite(latency[own]).sum(axis=0), strict=True
            )
        )
        console.print(
            f"{name}: {int(own.sum())} graphs; with a latency: {known}",
            highlight=False,
            soft_wrap=True,
        )
    for note in found.notes:
        console.print(note, highlight=False, soft_wrap=True)
    if found.rejects:
        console.print(
            f"{len(found.rejects)} rejects, listed in {folders.graphs / table.REJECTS}; the first:",
            style="yellow",
        )
        for item in found.rejects[:3]:
            console.print(
                f"  {item.file}:{item.line}: {item.reason}", highlight=False, soft_wrap=True
            )
