"""The segment-sum MLP in torch, for training only; :mod:`tencost.models.programs.families.mlp` serves its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tencost.features.rows.ragged import IntArray
from tencost.models.neural.settings import NeuralConfig
from tencost.models.programs.neural.network_ranker import NetworkInputs
from tencost.models.programs.neural.ranking_training import Collate


class SegmentSumNetwork(nn.Module):
    """Rows -> two layers -> sum per program; constants -> two layers; both -> head -> score."""

    def __init__(self, num_columns: int, num_beside: int, config: NeuralConfig) -> None:
        super().__init__()
        hidden, dropout = config.hidden, config.dropout
        self.rows1, self.rows2 = nn.Linear(num_columns, hidden), nn.Linear(hidden, hidden)
        self.beside1 = nn.Linear(num_beside, hidden) if num_beside else None
        self.beside2 = nn.Linear(hidden, hidden) if num_beside else None
        self.head1 = nn.Linear(hidden * (2 if num_beside else 1), hidden)
        self.head2 = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(dropout)
        self.hidden = hidden

    def forward(self, rows: Tensor, segment: Tensor, size: int, beside: Tensor | None) -> Tensor:
        encoded = torch.relu(self.rows1(rows))
        if self.training and self.dropout.p > 0:
            # One mask for all rows of a program: to draw one for each row took longer than the layer itself.
            mask = self.dropout(encoded.new_ones(size, self.hidden))
            encoded = encoded * mask[segment]
        encoded = torch.relu(self.rows2(encoded))
        total = encoded.new_zeros(size, self.hidden).index_add(0, segment, encoded)
        if self.beside1 is not None and self.beside2 is not None:
            encoded = torch.relu(self.beside2(self.dropout(torch.relu(self.beside1(beside)))))
            total = torch.cat([total, encoded], dim=1)
        scores: Tensor = self.head2(self.dropout(torch.relu(self.head1(total))))[:, 0]
        return scores


def collated_sums(inputs: NetworkInputs) -> Collate:
    """Return what gives the network some programs, by their places among all."""

    def collate(programs: IntArray) -> tuple[Tensor, Tensor, int, Tensor | None]:
        rows = inputs.rows.take(programs)
        beside = None if inputs.beside is None else torch.from_numpy(inputs.beside[programs])
        values, segment = torch.from_numpy(rows.values), torch.from_numpy(rows.segment_ids)
        return values, segment, len(programs), beside

    return collate
