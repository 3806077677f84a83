"""Small networks as graphs, made up from a seed: chains with skips that begin with a Placeholder."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs
from tencost.networks.graph.identity import graph_ids
from tencost.networks.graph.operators import COLUMNS, OPERATOR_CODES, OPERATORS

CG_DEVICES = ("cortex-a76", "adreno-630", "adreno-640", "myriad-vpu")


def small_graphs(
    counts: Mapping[str, int],
    seed: int = 0,
    hardware: tuple[str, ...] = CG_DEVICES,
    missing: float = 0.1,
    nodes: tuple[int, int] = (1, 9),
) -> LabelledGraphs:
    """Return graphs of each family, sorted by family, as :func:`read_folder` would give them back."""
    rng = np.random.default_rng(seed)
    families = [family for family, count in sorted(counts.items()) for _ in range(count)]
    positions = [place for _, count in sorted(counts.items()) for place in range(count)]
    sizes = rng.integers(nodes[0], nodes[1] + 1, len(families))
    operator = rng.integers(1, len(OPERATORS), sizes.sum()).astype(np.uint8)
    columns = rng.integers(-1, 300, (sizes.sum(), len(COLUMNS))).astype(np.int32)
    start = np.concatenate([[0], np.cumsum(sizes)])
    operator[start[:-1]] = OPERATOR_CODES["Placeholder"]
    edges: list[tuple[int, int]] = []
    edge_counts = []
    for size in sizes.tolist():
        own = [(target - 1, target) for target in range(1, size)]
        own += [(int(rng.integers(target - 1)), target) for target in range(2, size, 3)]
        edges += sorted(own, key=lambda edge: edge[1])
        edge_counts.append(len(own))
    pairs = np.array(edges, dtype=np.int32).reshape(-1, 2).T
    edge_start = np.concatenate([[0], np.cumsum(edge_counts)]).astype(np.int64)
    latency = rng.uniform(1.0, 500.0, (len(families), len(hardware)))
    latency[rng.random(latency.shape) < missing] = np.nan
    graphs = GraphSet(
        graph_ids(operator, columns, start, pairs, edge_start),
        np.array(families, dtype=np.str_),
        np.array([f"{family}/{place}" for family, place in zip(families, positions, strict=True)]),
        np.array(positions, dtype=np.int32),
        operator,
        columns,
        start,
        pairs,
        edge_start,
    )
    return LabelledGraphs(graphs, hardware, latency)


def assert_equal(found: LabelledGraphs, expected: LabelledGraphs, rounding: float = 0.0) -> None:
    """Compare all arrays; latencies up to a relative difference."""
    assert found.hardware == expected.hardware
    for name in vars(expected.graphs):
        ours, theirs = getattr(found.graphs, name), getattr(expected.graphs, name)
        assert ours.dtype.kind == theirs.dtype.kind, name
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    np.testing.assert_allclose(found.latency_ms, expected.latency_ms, rtol=rounding)
