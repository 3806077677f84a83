from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import get_laplacian, to_dense_adj, to_undirected

from tencost.features.graph.encodings import (
    Encoder,
    Spectrum,
    at_edges,
    at_nodes,
    laplacian,
    magnetic_laplacian,
    random_walk,
    spectrum,
)
from tencost.features.graph.topology import Topology


def random_topology(nodes: int, seed: int = 0) -> Topology:
    """Return a connected acyclic graph without symmetries that matter."""
    rng = np.random.default_rng(seed)
    pairs = {(int(rng.integers(0, target)), target) for target in range(1, nodes)}
    pairs |= {(int(low), int(low + step)) for low, step in rng.integers(1, nodes // 2, (nodes, 2))}
    kept = sorted(pair for pair in pairs if pair[1] < nodes)
    return Topology(nodes, np.array(kept, dtype=np.int32).T)


GRAPH = random_topology(24)
SYMMETRIC = Topology(7, np.array([[0] * 6, [1, 2, 3, 4, 5, 6]], dtype=np.int32))
"""A star: the eigenvalue 1 stands five times."""


def functions(values: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.stack([np.ones_like(values), values, np.exp(-values)], axis=1)


def reordered(topology: Topology, order: NDArray[np.int64]) -> Topology:
    """Return the graph whose node i was node order[i]."""
    return Topology(topology.nodes, np.argsort(order)[topology.edges].astype(np.int32))


def test_the_walk_is_that_of_pyg() -> None:
    edges = to_undirected(torch.from_numpy(GRAPH.edges.astype(np.int64)))
    expected = AddRandomWalkPE(6, "walk")(Data(edge_index=edges, num_nodes=GRAPH.nodes)).walk
    assert random_walk(GRAPH, 6) == pytest.approx(expected.numpy(), abs=1e-6)


def test_the_laplacian_is_that_of_pyg() -> None:
    edges = to_undirected(torch.from_numpy(GRAPH.edges.astype(np.int64)))
    expected = to_dense_adj(
        *[
            get_laplacian(edges, normalization="sym")[0],
            None,
            get_laplacian(edges, normalization="sym")[1],
        ]
    )[0]
    assert laplacian(GRAPH).toarray() == pytest.approx(expected.numpy(), abs=1e-6)


def test_without_charge_the_magnetic_laplacian_is_the_laplacian() -> None:
    assert magnetic_laplacian(GRAPH, 0.0).toarray() == pytest.approx(laplacian(GRAPH).toarray())


def test_the_magnetic_laplacian_is_hermitian_and_has_no_negative_eigenvalue() -> None:
    matrix = magnetic_laplacian(GRAPH, 0.1).toarray()
    assert matrix == pytest.approx(matrix.conj().T)
    values = np.linalg.eigvalsh(matrix)
    assert values.min() > -1e-9
    assert values.max() < 2 + 1e-9
    assert np.abs(matrix.imag).max() > 0.01


def test_reversing_the_edges_conjugates() -> None:
    backwards = Topology(GRAPH.nodes, GRAPH.edges[::-1])
    forth, back = magnetic_laplacian(GRAPH, 0.1), magnetic_laplacian(backwards, 0.1)
    assert back.toarray() == pytest.approx(forth.toarray().conj())
    nodes = [at_nodes(spectrum(matrix, 5)) for matrix in (forth, back)]
    assert nodes[1][:, :5] == pytest.approx(nodes[0][:, :5], abs=1e-4)
    assert nodes[1][:, 5:] == pytest.approx(-nodes[0][:, 5:], abs=1e-4)
    edges = [
        at_edges(GRAPH, spectrum(forth, 5)).read(functions),
        at_edges(GRAPH, spectrum(back, 5)).read(functions),
    ]
    assert edges[1] == pytest.approx(edges[0].conj(), abs=1e-4)


@pytest.mark.parametrize("kind", ["random_walk", "laplacian", "magnetic"])
def test_the_order_of_nodes_does_not_matter(kind: str) -> None:
    order = np.random.default_rng(1).permutation(GRAPH.nodes)
    other = reordered(GRAPH, order)
    edge_kind = "laplacian" if kind == "random_walk" else kind
    encoder = Encoder(kind, edge_kind, 6, 0.1)
    assert encoder.encode_nodes(other) == pytest.approx(
        encoder.encode_nodes(GRAPH)[order], abs=1e-4
    )
    # An edge stands where it stood: only its nodes have other numbers.
    found = encoder.encode_edges(other).read(functions)
    assert found == pytest.approx(encoder.encode_edges(GRAPH).read(functions), abs=1e-4)


def test_edges_do_not_depend_on_signs_phases_and_bases() -> None:
    rng = np.random.default_rng(2)
    values = np.array([0.0, 0.5, 0.5, 0.5, 0.9])
    basis = np.linalg.qr(rng.normal(size=(24, 5)) + 1j * rng.normal(size=(24, 5)))[0]
    turn: Any = np.diag(np.exp(1j * rng.normal(size=5)))
    turn[1:4, 1:4] = np.linalg.qr(rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3)))[0]
    expected = at_edges(GRAPH, Spectrum(values, basis)).read(functions)
    found = at_edges(GRAPH, Spectrum(values, basis @ turn)).read(functions)
    assert found == pytest.approx(expected, abs=1e-4)
    assert np.ptp(np.abs(expected[:, 1])) > 0.01
    # Single products do: what is stable is their sum over an eigenspace.
    single = at_edges(GRAPH, Spectrum(values, basis @ turn)).products
    assert np.abs(single - at_edges(GRAPH, Spectrum(values, basis)).products).max() > 0.01


def test_an_eigenspace_is_kept_as_a_whole_or_not_at_all() -> None:
    found = spectrum(laplacian(SYMMETRIC), 3)
    assert found.values == pytest.approx([0, 0, 0])
    assert np.abs(found.vectors[:, 0]).min() > 0
    assert not found.vectors[:, 1:].any()
    whole = spectrum(laplacian(SYMMETRIC), 6)
    assert whole.values == pytest.approx([0, 1, 1, 1, 1, 1])


@pytest.mark.parametrize("nodes", [1, 3, 6])
@pytest.mark.parametrize("kind", ["random_walk", "laplacian", "magnetic"])
def test_a_small_graph_is_padded_with_zeros_and_keeps_its_nodes(nodes: int, kind: str) -> None:
    chain = np.stack([np.arange(nodes - 1), np.arange(1, nodes)]).astype(np.int32)
    topology = Topology(nodes, chain)
    encoder = Encoder(kind, "magnetic", 6, 0.1)
    found = encoder.encode_nodes(topology)
    assert found.shape == (nodes, encoder.node_columns)
    assert np.isfinite(found).all()
    if kind != "random_walk":
        assert not found[:, nodes:6].any()
    edges = encoder.encode_edges(topology)
    assert edges.products.shape == (nodes - 1, 6)
    assert not edges.products[:, nodes:].any()


def test_nodes_without_edges_are_no_trouble() -> None:
    topology = Topology(4, np.array([[0], [1]], dtype=np.int32))
    for kind in ("random_walk", "laplacian", "magnetic"):
        assert np.isfinite(Encoder(kind, "none", 3, 0.1).encode_nodes(topology)).all()


def test_a_large_graph_has_the_eigenvalues_that_a_dense_solver_finds() -> None:
    topology = random_topology(1200)
    for matrix in (laplacian(topology), magnetic_laplacian(topology, 0.1)):
        found = spectrum(matrix, 4)
        expected = np.linalg.eigvalsh(matrix.toarray())[:4]
        assert found.values == pytest.approx(np.maximum(expected, 0), abs=1e-8)
        residual = matrix @ found.vectors - found.vectors * found.values
        assert np.abs(residual).max() < 1e-7


def test_a_topology_is_encoded_once() -> None:
    encoder = Encoder("laplacian", "laplacian", 4, 0.1)
    first = encoder.encode_nodes(GRAPH)
    again = Topology(GRAPH.nodes, GRAPH.edges.copy())
    assert encoder.encode_nodes(again) is first
    assert encoder.encode_edges(again) is encoder.encode_edges(GRAPH)
