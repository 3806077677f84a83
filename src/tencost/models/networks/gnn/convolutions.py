"""Graph convolutions that torch-geometric does not have, over the matrices of `models.networks.gnn.propagation`.

Legend: N nodes, I inputs and O outputs a node. A matrix is a sparse CSR tensor, float32 [N, N].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class MagNetConv(nn.Module):
    """Chebyshev convolution with the magnetic Laplacian (Zhang et al. 2021, "MagNet").

    Signals are complex; weights are real and the same for both parts, as in the authors' code.
    """

    def __init__(self, inputs: int, outputs: int, order: int = 1) -> None:
        super().__init__()
        self.outputs = outputs
        self.weights = nn.ModuleList(
            nn.Linear(inputs, outputs, bias=term == 0) for term in range(order + 1)
        )

    def forward(self, signal: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """Convolve.

        Args:
            signal: float32 [N, 2, I]; real and imaginary part.
            matrices: real and imaginary part of the scaled Laplacian, as `propagation.magnetic` gives them.

        Returns:
            float32 [N, 2, O].
        """
        before, now = signal, signal
        out: Tensor = self.weights[0](signal)
        for term, weight in enumerate(list(self.weights)[1:]):
            spread = _complex_product(matrices, now)
            before, now = now, spread if term == 0 else 2.0 * spread - before
            out = out + weight(now)
        return out


class ComplexReLU(nn.Module):
    """Keeps a complex number where its real part is not negative, 0 elsewhere (MagNet)."""

    def forward(self, signal: Tensor) -> Tensor:
        """Map float32 [N, 2, I]."""
        return signal * (signal[:, :1] >= 0)


class DiGCNConv(nn.Module):
    """Convolution over personalised PageRank (Tong et al. 2020, "Digraph Inception Convolutional Networks").

    The convolution of the paper's equation 4, without the inception block over longer paths.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """Map float32 [N, I] to [N, O]; matrices as `propagation.page_rank` gives them."""
        (matrix,) = matrices
        return matrix @ self.linear(inputs) + self.bias


class DGCNConv(nn.Module):
    """Convolution over first- and second-order proximity (Tong et al. 2020, "Directed Graph Convolutional Network").

    The three share their weights; what they give is put side by side, second-order parts times a weight of their own
    each.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.balance = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """Map float32 [N, I] to [N, 3 O]; matrices as `propagation.proximities` gives them."""
        mixed = self.linear(inputs)
        first, fed, feeding = (matrix @ mixed + self.bias for matrix in matrices)
        return torch.cat([first, self.balance[0] * fed, self.balance[1] * feeding], dim=1)


def _complex_product(matrices: Sequence[Tensor], signal: Tensor) -> Tensor:
    real, imaginary = matrices
    flat = signal.flatten(1)
    by_real, by_imaginary = (real @ flat).view_as(signal), (imaginary @ flat).view_as(signal)
    turned = torch.stack([-by_imaginary[:, 1], by_imaginary[:, 0]], dim=1)
    return by_real + turned
