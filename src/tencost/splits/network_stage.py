"""The stage `graphs splits`: which graphs are learnt from and which are kept for testing."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tencost.config import Config
from tencost.config.folders import Folders
from tencost.networks.graph import table
from tencost.splits import networks as splits


def run(cfg: Config, root: Path) -> None:
    """Divide the graphs of data/graphs/<dataset> by cfg.graph_split.

    Raises:
        GraphError: no graphs there, families that the dataset does not have, or an empty part.
    """
    folders = Folders(cfg, root)
    labelled = table.load_graphs(folders.graphs)
    parts = splits.divide_graphs(labelled.graphs, cfg.graph_split)
    splits.save_parts(folders.split, labelled.graphs, parts)
    leaked = splits.leaks(labelled.graphs, parts)
    console = Console(stderr=True)
    sizes = ", ".join(f"{name} {len(rows)}" for name, rows in parts.items())
    console.print(f"{cfg.graph_split_name}: {sizes}", highlight=False)
    if len(leaked):
        console.print(
            f"{len(leaked)} test graphs are also learnt from, graph for graph: figures on this split flatter",
            style="yellow",
        )
