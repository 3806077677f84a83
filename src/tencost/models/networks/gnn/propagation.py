"""What one layer of message passing does to a graph's nodes, as sparse matrices: row i says what reaches node i.

They depend on the topology alone, so that each distinct one is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.sparse.linalg import spsolve

from tencost.features.graph.encodings import hermitian_adjacency, undirected
from tencost.features.graph.topology import Topology

Propagation = Callable[[Topology], list[csr_array]]
"""Topology -> matrices [n, n]."""

TELEPORT = 0.1
"""digcn: probability that the walk starts anew, as in the paper."""


def neighbours(topology: Topology, direction: str) -> list[csr_array]:
    """Return the adjacency, one matrix a way of reading the edges: 1 at (target, source)."""
    forward = csr_array(topology.adjacency.T)
    if direction == "undirected":
        return [undirected(topology)]
    return [forward] if direction == "directed" else [forward, csr_array(forward.T)]


def convolution(topology: Topology, direction: str) -> list[csr_array]:
    """Return D^-1/2 (A + I) D^-1/2, D the row sums (Kipf & Welling 2017), one matrix a way of reading the edges."""
    return [_symmetric(matrix) for matrix in neighbours(topology, direction)]


def magnetic(topology: Topology, q: float) -> list[csr_array]:
    """Return the real and the imaginary part of L - I, L the magnetic Laplacian (Zhang et al. 2021, "MagNet").

    That is the Laplacian scaled to [-1, 1] for Chebyshev polynomials, its largest eigenvalue taken as 2.
    """
    hermitian = -_scaled(hermitian_adjacency(topology, q))
    return [csr_array(hermitian.real), csr_array(hermitian.imag)]


def page_rank(topology: Topology) -> list[csr_array]:
    """Return the propagation of DiGCN (Tong et al. 2020, "Digraph Inception Convolutional Networks").

    (Pi^1/2 P Pi^-1/2 + Pi^-1/2 P^T Pi^1/2) / 2: P is the random walk along the edges and self loops, Pi the diagonal
    of its personalised PageRank, the stationary distribution of the walk that starts anew with TELEPORT.
    """
    nodes = topology.nodes
    walk = topology.adjacency + eye_array(nodes)
    walk = csr_array(diags_array(1.0 / walk.sum(axis=1)) @ walk)
    system = eye_array(nodes) - (1.0 - TELEPORT) * walk.T
    share = np.atleast_1d(spsolve(system.tocsc(), np.full(nodes, TELEPORT / nodes)))
    root = np.sqrt(share)
    half = diags_array(root) @ walk @ diags_array(1.0 / root)
    return [csr_array((half + half.T) / 2.0)]


def proximities(topology: Topology) -> list[csr_array]:
    """Return the three propagations of DGCN (Tong et al. 2020, "Directed Graph Convolutional Network").

    First-order proximity (an edge either way), second-order in-proximity (nodes fed by the same nodes) and
    out-proximity (nodes that feed the same nodes), each with self loops and symmetrically normalised.
    """
    forward = topology.adjacency
    backward = csr_array(forward.T)
    by_out, by_in = (
        diags_array(np.divide(1.0, total, out=np.zeros_like(total), where=total > 0))
        for total in (forward.sum(axis=1), forward.sum(axis=0))
    )
    fed_alike = backward @ by_out @ forward
    feeding_alike = forward @ by_in @ backward
    return [
        _symmetric(csr_array(each)) for each in (undirected(topology), fed_alike, feeding_alike)
    ]


def propagation_of(kind: str, direction: str, q: float) -> Propagation | None:
    """Return the function that computes the propagation of a kind of convolution; None where edges are enough."""
    propagations: dict[str, Propagation] = {
        "gcn": partial(convolution, direction=direction),
        "gin": partial(neighbours, direction=direction),
        "gps": partial(neighbours, direction=direction),
        "performer": partial(neighbours, direction=direction),
        "magnet": partial(magnetic, q=q),
        "digcn": page_rank,
        "dgcn": proximities,
    }
    return propagations.get(kind)


def _symmetric(weights: csr_array) -> csr_array:
    without = weights - diags_array(weights.diagonal())
    return _scaled(csr_array(without + eye_array(weights.shape[0])))


def _scaled(weights: csr_array) -> csr_array:
    degree = np.abs(weights).sum(axis=1)
    root = np.divide(1.0, np.sqrt(degree), out=np.zeros_like(degree), where=degree > 0)
    scale: Any = diags_array(root)
    return csr_array(scale @ weights @ scale)
