"""Made-up networks whose latency is a sum over their nodes, and small graph neural networks that learn it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tencost.models.networks.families.gnn import GnnConfig, GnnModel
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs
from tencost.networks.graph.operators import OPERATOR_CODES

DEVICES = ("cortex-a76", "myriad-vpu")


def chains(count: int, seed: int = 0) -> LabelledGraphs:
    """Return networks of convolutions with skips whose latency is a sum over their nodes."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([5, 8, 9, 14], count)
    node_start = np.concatenate([[0], np.cumsum(sizes)])
    edges, edge_counts = [], []
    for size in sizes.tolist():
        pairs = [(node, node + 1) for node in range(size - 1)]
        pairs += [(node, node + 3) for node in range(0, size - 3, 2)]
        edges += sorted(pairs)
        edge_counts.append(len(pairs))
    nodes = int(node_start[-1])
    operators = np.array([OPERATOR_CODES[name] for name in ("Conv2D", "Relu", "Add")])
    operator = operators[rng.integers(0, 3, nodes)].astype(np.uint8)
    columns = np.zeros((nodes, 16), dtype=np.int32)
    columns[:, [0, 11]] = rng.choice([-1, 1], (nodes, 1))
    columns[:, [1, 2, 12, 13]] = rng.choice([7, 14, 28], (nodes, 1))
    columns[:, [3, 7]] = rng.integers(8, 64, (nodes, 1))
    columns[:, [8, 14]] = rng.integers(8, 64, (nodes, 1))
    cost = np.where(operator == OPERATOR_CODES["Conv2D"], columns[:, 3] * columns[:, 8], 50) / 500.0
    graph_of_node = np.repeat(np.arange(count), sizes)
    total = np.bincount(graph_of_node, cost)
    latency = np.stack([total, 3 * total], axis=1)
    latency[::7, 1] = np.nan
    graphs = GraphSet(
        np.array([f"g{index}" for index in range(count)]),
        np.array(["chains"] * count),
        np.array([f"chain {index}" for index in range(count)]),
        np.arange(count, dtype=np.int32),
        operator,
        columns,
        node_start,
        np.array(edges, dtype=np.int32).T,
        np.concatenate([[0], np.cumsum(edge_counts)]),
    )
    return LabelledGraphs(graphs, DEVICES, latency)


TRAIN, VALID = chains(120), chains(30, seed=1)


def silent(name: str, value: float, step: int) -> None:
    """Take a point of a curve and forget it."""


def settings(**values: object) -> GnnConfig:
    small: dict[str, object] = {
        "family": "gnn", "hidden": 16, "layers": 2, "mlp_layers": 2, "epochs": 2, "batch_size": 16,
        "num_threads": 1, "encoding_size": 4, "shapes": "numbers",
    }  # fmt: skip
    return GnnConfig(**{**small, **values})  # type: ignore[arg-type]


def weights_of(model: GnnModel, folder: Path) -> bytes:
    folder.mkdir()
    model.save(folder)
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
