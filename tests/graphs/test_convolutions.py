from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_undirected

from tencost.features.graph.encodings import magnetic_laplacian
from tencost.features.graph.topology import Topology
from tencost.models.networks.gnn.convolutions import ComplexReLU, DGCNConv, DiGCNConv, MagNetConv
from tencost.models.networks.gnn.graph_data import block_diagonal
from tencost.models.networks.gnn.propagation import (
    TELEPORT,
    convolution,
    magnetic,
    neighbours,
    page_rank,
    propagation_of,
    proximities,
)

DIAMOND = Topology(4, np.array([[0, 0, 1, 2], [1, 2, 3, 3]], dtype=np.int32))
"""0 feeds 1 and 2, which feed 3."""

KINDS = ["gcn", "gin", "magnet", "digcn", "dgcn"]


def dense(matrix: csr_array) -> NDArray[Any]:
    return np.asarray(matrix.toarray())


def reversed_edges(topology: Topology) -> Topology:
    return Topology(topology.nodes, topology.edges[::-1])


def test_rows_of_the_adjacency_say_what_reaches_a_node() -> None:
    (forward,) = neighbours(DIAMOND, "directed")
    assert dense(forward).tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0]]
    both = [dense(matrix) for matrix in neighbours(DIAMOND, "bidirectional")]
    assert (both[0] == both[1].T).all()
    (undirected,) = neighbours(DIAMOND, "undirected")
    assert (dense(undirected) == both[0] + both[1]).all()


@pytest.mark.parametrize("direction", ["undirected", "directed"])
def test_gcn_over_a_matrix_is_pygs_over_edges(direction: str) -> None:
    torch.manual_seed(0)
    edges = torch.from_numpy(DIAMOND.edges.astype(np.int64))
    if direction == "undirected":
        edges = to_undirected(edges)
    (matrix,) = convolution(DIAMOND, direction)
    inputs = torch.randn(4, 3)
    theirs = GCNConv(3, 5)
    ours = GCNConv(3, 5, normalize=False)
    ours.load_state_dict(theirs.state_dict())
    found = ours(inputs, block_diagonal([matrix]))
    assert found.detach().numpy() == pytest.approx(theirs(inputs, edges).detach().numpy(), abs=1e-6)


@pytest.mark.parametrize("q", [0.0, 0.1, 0.25])
def test_magnet_is_a_convolution_of_complex_numbers(q: float) -> None:
    """Against the sum over Chebyshev polynomials as the paper has it, computed densely."""
    torch.manual_seed(0)
    convolve = MagNetConv(3, 5, order=3)
    signal = torch.randn(4, 2, 3)
    found = convolve(signal, [block_diagonal([matrix]) for matrix in magnetic(DIAMOND, q)])
    scaled = dense(magnetic_laplacian(DIAMOND, q)) - np.eye(4)
    values = signal.numpy()
    complex_signal = values[:, 0] + 1j * values[:, 1]
    polynomials = [np.eye(4), scaled, 2 * scaled @ scaled - np.eye(4)]
    polynomials.append(2 * scaled @ polynomials[2] - scaled)
    layers = [layer for layer in convolve.weights if isinstance(layer, torch.nn.Linear)]
    weights = [layer.weight.detach().numpy().T for layer in layers]
    expected = sum(
        polynomial @ complex_signal @ weight
        for polynomial, weight in zip(polynomials, weights, strict=True)
    ) + layers[0].bias.detach().numpy() * (1 + 1j)
    assert found[:, 0].detach().numpy() == pytest.approx(expected.real, abs=1e-5)
    assert found[:, 1].detach().numpy() == pytest.approx(expected.imag, abs=1e-5)


def test_the_complex_relu_looks_at_the_real_part_alone() -> None:
    signal = torch.tensor([[[1.0, -1.0], [-2.0, 3.0]]])
    assert ComplexReLU()(signal).tolist() == [[[1.0, 0.0], [-2.0, 0.0]]]


def test_page_rank_is_the_stationary_distribution() -> None:
    (matrix,) = page_rank(DIAMOND)
    found = dense(matrix)
    assert found == pytest.approx(found.T)
    walk = dense(DIAMOND.adjacency) + np.eye(4)
    walk /= walk.sum(axis=1, keepdims=True)
    share = np.full(4, 0.25)
    for _ in range(500):
        share = (1 - TELEPORT) * share @ walk + TELEPORT / 4
    expected = np.sqrt(share)[:, None] * walk / np.sqrt(share)[None, :]
    assert found == pytest.approx((expected + expected.T) / 2)


def test_proximities_are_the_papers() -> None:
    first, fed, feeding = (dense(matrix) for matrix in proximities(DIAMOND))
    assert (np.flatnonzero(first[0]) == [0, 1, 2]).all()
    # 1 and 2 are fed by the same node, and they feed the same node; no others do.
    for second in (fed, feeding):
        assert second[1, 2] > 0
        second = second.copy()
        second[1, 2] = second[2, 1] = 0
        assert (second == np.diag(np.diag(second))).all()
    # sum over k of A[k, 1] A[k, 2] / (degree of k) = 1 / 2; with the self loop a row sums to 3 / 2.
    assert fed[1, 2] == pytest.approx(0.5 / 1.5)
    assert dense(proximities(reversed_edges(DIAMOND))[1]) == pytest.approx(feeding)


def test_digcn_and_dgcn_tell_directions_apart() -> None:
    chain = Topology(3, np.array([[0, 1, 0], [1, 2, 2]], dtype=np.int32))
    torch.manual_seed(0)
    inputs = torch.randn(3, 3)
    for convolve, propagate in ((DiGCNConv(3, 5), page_rank), (DGCNConv(3, 5), proximities)):
        found = [
            convolve(inputs, [block_diagonal([matrix]) for matrix in propagate(topology)])
            for topology in (chain, reversed_edges(chain))
        ]
        assert found[0].shape == (3, 5 if propagate is page_rank else 15)
        assert (found[0] - found[1]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_graphs_side_by_side(kind: str) -> None:
    single = Topology(1, np.zeros((2, 0), dtype=np.int32))
    propagate = propagation_of(kind, "bidirectional", 0.1)
    assert propagate is not None
    parts = [propagate(topology) for topology in (DIAMOND, single, DIAMOND)]
    for blocks in zip(*parts, strict=True):
        whole = block_diagonal(blocks).to_dense().numpy()
        assert whole[:4, :4] == pytest.approx(dense(blocks[0]), abs=1e-6)
        assert whole[5:, 5:] == pytest.approx(dense(blocks[2]), abs=1e-6)
        assert whole[4, 4] == pytest.approx(dense(blocks[1])[0, 0], abs=1e-6)
        assert not whole[:4, 4:].any()
        assert np.isfinite(whole).all()
