"""Attention over schedule steps in torch, for training only; tlp.py serves its weights.

Legend: N programs of a batch, T steps of its longest program, H hidden width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from tencost.features.rows.ragged import IntArray
from tencost.models.programs.neural.layers import MASKED, POOL_SCALE
from tencost.models.programs.neural.network_ranker import NetworkInputs
from tencost.models.programs.neural.ranking_training import Collate

if TYPE_CHECKING:
    from tencost.models.programs.families.tlp import TlpConfig


class AttentionBlock(nn.Module):
    """Multi-head self-attention, then two layers, each around a normalised residual."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.project = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)

    def forward(self, steps: Tensor, absent: Tensor) -> Tensor:
        """Map steps [N, T, H]; absent [N, T] is MASKED at padding, 0 elsewhere."""
        batch, length, hidden = steps.shape
        size = hidden // self.heads
        split = self.qkv(self.norm1(steps)).view(batch, length, 3, self.heads, size)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2)) / size**0.5 + absent[:, None, None, :]
        mixed = (weights.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, hidden)
        steps = steps + self.project(mixed)
        out: Tensor = steps + self.narrow(torch.relu(self.wide(self.norm2(steps))))
        return out


class AttentionNetwork(nn.Module):
    """Steps -> two layers and a position -> attention -> sum and maximum -> head -> score."""

    def __init__(
        self, num_columns: int, num_beside: int, max_steps: int, config: TlpConfig
    ) -> None:
        super().__init__()
        hidden, wide = config.hidden, 2 * config.hidden
        self.encode1, self.encode2 = nn.Linear(num_columns, hidden), nn.Linear(hidden, hidden)
        self.position = nn.Parameter(torch.randn(max_steps, hidden) * 0.02)
        blocks = [AttentionBlock(hidden, config.heads) for _ in range(config.layers)]
        self.blocks = nn.ModuleList(blocks)
        self.beside1 = nn.Linear(num_beside, wide) if num_beside else None
        self.beside2 = nn.Linear(wide, wide) if num_beside else None
        self.head1 = nn.Linear(wide * (2 if num_beside else 1), wide)
        self.head2 = nn.Linear(wide, 1)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, steps: Tensor, present: Tensor, beside: Tensor | None) -> Tensor:
        """Score programs: steps [N, T, columns], present [N, T] is 1 at steps, 0 at padding."""
        absent = (1.0 - present) * MASKED
        hidden = self.encode2(torch.relu(self.encode1(steps))) + self.position[: steps.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, absent)
        total = (hidden * present[:, :, None]).sum(1) / POOL_SCALE
        largest = (hidden + absent[:, :, None]).max(1)[0]
        pooled = torch.cat([total, largest], dim=1)
        if self.beside1 is not None and self.beside2 is not None:
            encoded = torch.relu(self.beside2(self.dropout(torch.relu(self.beside1(beside)))))
            pooled = torch.cat([pooled, encoded], dim=1)
        scores: Tensor = self.head2(self.dropout(torch.relu(self.head1(pooled))))[:, 0]
        return scores


def collated_steps(inputs: NetworkInputs) -> Collate:
    """Return what gives the network some programs, by their places among all."""

    def collate(programs: IntArray) -> tuple[Tensor, Tensor, Tensor | None]:
        chosen = inputs.rows.take(programs)
        lengths = chosen.lengths
        present = np.arange(lengths.max()) < lengths[:, None]
        padded = np.zeros((*present.shape, chosen.num_columns), np.float32)
        padded[present] = chosen.values
        beside = None if inputs.beside is None else torch.from_numpy(inputs.beside[programs])
        return torch.from_numpy(padded), torch.from_numpy(present.astype(np.float32)), beside

    return collate
