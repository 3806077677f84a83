"""Encodings of where nodes and edges stand in a graph.

* Random walk (Dwivedi et al. 2022, "Graph Neural Networks with Learnable Structural and Positional
  Representations"): how likely a walk over the undirected edges is back after 1, 2, ... steps.
* Laplacian (Dwivedi & Bresson 2021): eigenvectors of the k smallest eigenvalues of the symmetric normalised Laplacian
  of the undirected graph.
* Magnetic Laplacian (Zhang et al. 2021, "MagNet"): the same of a Hermitian matrix whose phases tell the edges'
  directions; q is the charge. q = 0 is the Laplacian, and reversing all edges conjugates.

Eigenvectors are known up to a sign (a phase), and up to a rotation where eigenvalues are equal. What is read at nodes
has a sign of its own choice and no more; what is read at edges is stable (Huang et al. 2024, "On the Stability of
Expressive Positional Encodings for Graphs", SPE): of V diag(phi(lambda)) V* the entries at the edges, for functions phi
of an eigenvalue that the model learns. So eigenspaces are kept or left out as a whole.

Legend: n nodes, E edges, k encoding_size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.sparse.linalg import eigsh

from tencost.features.graph.topology import Topology

ENCODINGS = ("none", "random_walk", "laplacian", "magnetic")
"""What can be said about nodes."""

EDGE_ENCODINGS = ("none", "laplacian", "magnetic")
"""What can be said about edges."""

_DENSE = 1000
"""Up to so many nodes all eigenvectors are computed at once, which finds equal eigenvalues for certain; a tenth of a
second at most."""

_EQUAL = 1e-7
"""Eigenvalues that differ by less are equal."""


@dataclass(frozen=True)
class Spectrum:
    """The smallest eigenvalues of a Laplacian and their eigenvectors.

    Attributes:
        values: float64 [k], ascending, in [0, 2]; 0 where there are fewer eigenvectors.
        vectors: float64 or complex128 [n, k], columns of length 1; 0 where there are fewer.
    """

    values: NDArray[np.float64]
    vectors: NDArray[Any]


@dataclass(frozen=True)
class StableEdges:
    """What stable encodings of edges are made of: sum over j of phi(values[j]) * products[e, j].

    Attributes:
        values: float32 [k]; eigenvalues.
        products: float32 or complex64 [E, k]; V[source, j] * conj(V[target, j]) * n.
    """

    values: NDArray[np.float32]
    products: NDArray[Any]

    def read(self, functions: Callable[[NDArray[np.float32]], NDArray[Any]]) -> NDArray[Any]:
        """Return the encodings [E, M] for M functions of an eigenvalue: [k] -> [k, M]."""
        return self.products @ functions(self.values)


def random_walk(topology: Topology, steps: int) -> NDArray[np.float32]:
    """Return how likely a walk that starts at a node is there again after 1 to `steps` steps: float32 [n, steps]."""
    adjacency = undirected(topology)
    degree = adjacency.sum(axis=1)
    walk = diags_array(np.divide(1.0, degree, out=np.zeros_like(degree), where=degree > 0))
    walk = csr_array(walk @ adjacency)
    returns = np.zeros((topology.nodes, steps), dtype=np.float32)
    power = walk
    for step in range(steps):
        returns[:, step] = power.diagonal()
        power = power @ walk
    return returns


def laplacian(topology: Topology) -> csr_array:
    """Return I - D^-1/2 A D^-1/2 of the undirected graph, float64 [n, n]; 0 in the row of a node without edges."""
    return _normalised(undirected(topology))


def magnetic_laplacian(topology: Topology, q: float) -> csr_array:
    """Return I - D^-1/2 (A_s * exp(2 pi i q (A - A^T))) D^-1/2, Hermitian, complex128 [n, n].

    A_s is the undirected adjacency; an edge u -> v has the phase exp(2 pi i q) at (u, v).
    """
    return _normalised(hermitian_adjacency(topology, q))


def hermitian_adjacency(topology: Topology, q: float) -> csr_array:
    """Return exp(2 pi i q) at (u, v) and its conjugate at (v, u) for an edge u -> v, complex128 [n, n].

    Where edges go both ways it is 1. (MagNet has half of it for one-way edges; in acyclic graphs that cancels.)
    """
    forward = topology.adjacency
    backward = csr_array(forward.T)
    both = forward.multiply(backward)
    turn = np.exp(2j * np.pi * q)
    return csr_array(turn * (forward - both) + np.conj(turn) * (backward - both) + both)


def spectrum(matrix: csr_array, size: int) -> Spectrum:
    """Return the `size` smallest eigenvalues of a Laplacian and their eigenvectors, of whole eigenspaces only.

    A graph with fewer nodes has fewer: the rest is 0. Where the last eigenspace is larger than the room left, it is
    left out, as which of its vectors would stand there is chance.
    """
    nodes = matrix.shape[0]
    count = min(size + 1, nodes)
    if nodes <= _DENSE:
        values, vectors = eigh(matrix.toarray(), subset_by_index=(0, count - 1))
    else:
        start = np.random.default_rng(0).normal(size=nodes)
        # Around a shift below 0 the matrix has an inverse, and the smallest eigenvalues are the largest of that.
        values, vectors = eigsh(matrix.tocsc(), count, sigma=-0.01, v0=start)
        order = np.argsort(values)
        values, vectors = values[order], vectors[:, order]
    retained = min(size, nodes)
    if nodes > size:
        while retained and values[retained] - values[retained - 1] < _EQUAL:
            retained -= 1
    padded = Spectrum(np.zeros(size), np.zeros((nodes, size), dtype=vectors.dtype))
    padded.values[:retained] = np.maximum(values[:retained], 0.0)
    padded.vectors[:, :retained] = vectors[:, :retained]
    return padded


def at_nodes(eigen: Spectrum) -> NDArray[np.float32]:
    """Return eigenvectors as columns, times sqrt(n): float32 [n, k], or [n, 2k] with imaginary parts behind.

    The sign (phase) of each is the one that makes the sum of v |v|^2 real and positive, which does not depend on the
    order of the nodes; where that sum is 0, the largest entry is.
    """
    vectors = eigen.vectors
    size = np.abs(vectors)
    turn = (vectors * size**2).sum(axis=0)
    largest = np.take_along_axis(vectors, size.argmax(axis=0)[None], axis=0)[0]
    turn = np.where(np.abs(turn) > _EQUAL, turn, largest)
    length = np.abs(turn)
    turned = vectors * np.conj(np.divide(turn, length, out=np.ones_like(turn), where=length > 0))
    turned = turned * np.sqrt(len(vectors))
    parts = [turned.real, turned.imag] if np.iscomplexobj(turned) else [turned]
    return np.concatenate(parts, axis=1).astype(np.float32)


def at_edges(topology: Topology, eigen: Spectrum) -> StableEdges:
    """Return what stable encodings of a topology's edges are made of."""
    source, target = topology.edges
    products = eigen.vectors[source] * np.conj(eigen.vectors[target]) * topology.nodes
    kind = np.complex64 if np.iscomplexobj(products) else np.float32
    return StableEdges(eigen.values.astype(np.float32), products.astype(kind))


@dataclass
class Encoder:
    """Encodes topologies; each distinct one once, however many graphs have it.

    Attributes:
        nodes: one of ENCODINGS.
        edges: one of EDGE_ENCODINGS.
        size: steps of the walk, or eigenvectors.
        q: charge of the magnetic Laplacian.
    """

    nodes: str
    edges: str
    size: int
    q: float
    _nodes: dict[tuple[int, bytes], NDArray[np.float32]] = field(default_factory=dict, repr=False)
    _edges: dict[tuple[int, bytes], StableEdges] = field(default_factory=dict, repr=False)

    @property
    def node_columns(self) -> int:
        """How many numbers a node has."""
        return {"none": 0, "magnetic": 2 * self.size}.get(self.nodes, self.size)

    def encode_nodes(self, topology: Topology) -> NDArray[np.float32]:
        """Return float32 [n, node_columns]."""
        key = topology.key
        if key not in self._nodes:
            self._nodes[key] = self._encode_nodes(topology)
        return self._nodes[key]

    def encode_edges(self, topology: Topology) -> StableEdges:
        """Return what the edges' encodings are made of; `edges` must not be "none"."""
        key = topology.key
        if key not in self._edges:
            eigen = spectrum(self._laplacian(self.edges, topology), self.size)
            self._edges[key] = at_edges(topology, eigen)
        return self._edges[key]

    def _encode_nodes(self, topology: Topology) -> NDArray[np.float32]:
        if self.nodes == "none":
            return np.zeros((topology.nodes, 0), dtype=np.float32)
        if self.nodes == "random_walk":
            return random_walk(topology, self.size)
        return at_nodes(spectrum(self._laplacian(self.nodes, topology), self.size))

    def _laplacian(self, kind: str, topology: Topology) -> csr_array:
        return magnetic_laplacian(topology, self.q) if kind == "magnetic" else laplacian(topology)


def undirected(topology: Topology) -> csr_array:
    """Return 1 where there is an edge either way, float64 [n, n]."""
    adjacency = topology.adjacency
    return csr_array(adjacency.maximum(adjacency.T))


def _normalised(weights: csr_array) -> csr_array:
    degree = np.abs(weights).sum(axis=1)
    root = np.divide(1.0, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0)
    scale = diags_array(root)
    identity = diags_array((degree > 0).astype(np.float64)) @ eye_array(weights.shape[0])
    return csr_array(identity - scale @ weights @ scale)
