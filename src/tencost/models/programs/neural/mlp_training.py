"""The segment-sum MLP in torch, for training only; :mod:`tencost.models.programs.families.mlp` serves its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tencost.features.rows.ragged import IntArray
from tencost.models.neural.settings import NeuralConfig
from tencost.models.neural.weights import Weights
from tencost.models.programs.neural.network_ranker import NetworkInputs
from tencost.models.programs.neural.ranking_training import Collate, fit_ranking_network
from tencost.models.programs.ranker import LogMetric, Samples


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
        encoded = torch.relu(self.rows2(self.dropout(torch.relu(self.rows1(rows)))))
        total = encoded.new_zeros(size, self.hidden).index_add(0, segment, encoded)
        if self.beside1 is not None and self.beside2 is not None:
            encoded = torch.relu(self.beside2(self.dropout(torch.relu(self.beside1(beside)))))
            total = torch.cat([total, encoded], dim=1)
        scores: Tensor = self.head2(self.dropout(torch.relu(self.head1(total))))[:, 0]
        return scores


def fit_mlp(
    config: NeuralConfig,
    train: Samples,
    valid: Samples,
    inputs: NetworkInputs,
    valid_inputs: NetworkInputs,
    *,
    seed: int,
    log: LogMetric,
) -> Weights:
    """Train one network.

    Args:
        config: hyper-parameters.
        train: labels and groups of the training split.
        valid: labels and groups of the validation split.
        inputs: what the network reads of the training split.
        valid_inputs: what it reads of the validation split.
        seed: of weights, dropout and batch order.
        log: receives the validation metrics of each epoch.

    Returns:
        The weights by name, of the epoch that did best on the validation split.
    """
    num_beside = 0 if inputs.beside is None else inputs.beside.shape[1]
    return fit_ranking_network(
        config,
        lambda: SegmentSumNetwork(inputs.rows.num_columns, num_beside, config),
        train,
        valid,
        _collate(inputs),
        _collate(valid_inputs),
        seed=seed,
        log=log,
    )


def _collate(inputs: NetworkInputs) -> Collate:
    def collate(programs: IntArray) -> tuple[Tensor, Tensor, int, Tensor | None]:
        rows = inputs.rows.take(programs)
        beside = None if inputs.beside is None else torch.from_numpy(inputs.beside[programs])
        values, segment = torch.from_numpy(rows.values), torch.from_numpy(rows.segment_ids)
        return values, segment, len(programs), beside

    return collate
