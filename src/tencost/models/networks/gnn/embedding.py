"""What a node says (an operator and sixteen numbers) and where an edge stands, as vectors.

Legend: R rows, H hidden, E edges, k eigenvectors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tencost.networks.graph.operators import COLUMNS, OPERATORS

_BATCH, _SIZE, _KERNEL, _STRIDE = 1024, 8192, 256, 32
"""Words a column has, by what it means: AlexNet's and VGG's 6,963 channels fit; what is larger is one word."""

_WORDS = (
    64,  # operators; there are fewer, so that some can be appended
    *(_BATCH, _SIZE, _SIZE, _SIZE, _SIZE),
    *(_KERNEL, _KERNEL, _SIZE, _SIZE, _STRIDE, _STRIDE),
    *(_BATCH, _SIZE, _SIZE, _SIZE, _SIZE),
)

assert len(_WORDS) == 1 + len(COLUMNS)
assert len(OPERATORS) <= _WORDS[0]


class WordEmbedding(nn.Module):
    """A vector for each value of each column, side by side, then a linear layer.

    All columns share one table; -1 (unknown) is a word, too.
    """

    offsets: Tensor
    last: Tensor

    def __init__(self, hidden: int) -> None:
        super().__init__()
        words = torch.tensor(_WORDS)
        self.register_buffer("offsets", words.cumsum(0) - words, persistent=False)
        self.register_buffer("last", words - 1, persistent=False)
        width = max(2, hidden // len(_WORDS))
        self.table = nn.Embedding(int(words.sum()), width)
        nn.init.normal_(self.table.weight, std=0.3)
        self.mix = nn.Linear(width * len(_WORDS), hidden)

    def forward(self, rows: Tensor) -> Tensor:
        """Map int32 [R, 17] to [R, H]."""
        shifted = rows.long()
        shifted[:, 1:] += 1
        words = shifted.clamp(min=0).minimum(self.last) + self.offsets
        out: Tensor = self.mix(self.table(words).flatten(1))
        return out


class NumberEmbedding(nn.Module):
    """A vector for the operator beside logarithms of the numbers, then two layers.

    Sizes that nobody has seen lie between or beyond those seen; they are no words without a meaning.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.operator = nn.Embedding(_WORDS[0], hidden)
        self.numbers = nn.Linear(2 * len(COLUMNS), hidden)
        self.mix = nn.Linear(hidden, hidden)

    def forward(self, rows: Tensor) -> Tensor:
        """Map int32 [R, 17] to [R, H]."""
        operator, numbers = rows[:, 0].long(), rows[:, 1:]
        logarithms = numbers.clamp(min=0).float().log1p()
        read = self.numbers(torch.cat([logarithms, (numbers < 0).float()], dim=1))
        out: Tensor = self.mix(torch.relu(read + self.operator(operator)))
        return out


class StableEdgeEmbedding(nn.Module):
    """Stable encodings of edges (Huang et al. 2024, SPE) with learnt functions of an eigenvalue.

    Gives real parts, then imaginary parts where the products have them.
    """

    def __init__(self, functions: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.functions = nn.Sequential(
            nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, functions)
        )

    def forward(self, products: Tensor, values: Tensor, graph_of_edge: Tensor) -> Tensor:
        """Map products [E, k] or [E, 2 k], eigenvalues [B, k] and graphs [E] to [E, functions] or twice as wide."""
        weights = self.functions(values[:, :, None])[graph_of_edge]
        parts = products.view(len(products), -1, values.shape[1])
        out: Tensor = torch.bmm(parts, weights).flatten(1)
        return out
