"""TVM 0.27's MLPModel in torch, for training only: its network, loss, optimizer and schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tencost.features.rows.ragged import IntArray, Ragged
from tencost.models.neural.loop import Optimizers, TrainingPlan, fit_network, seeded
from tencost.models.neural.weights import Weights
from tencost.models.programs.neural.ranking_training import (
    BEST,
    Collate,
    MixedBatches,
    RankingTraining,
    Watch,
)
from tencost.models.programs.ranker import LogMetric, Samples
from tencost.models.programs.ranker.losses import RankingMetrics

if TYPE_CHECKING:
    from tencost.models.programs.families.tvm_mlp import TvmMlpConfig

_HIDDEN = 256
"""As in TVM's SegmentSumMLPConfig."""


class TvmNetwork(nn.Module):
    """Rows -> two layers of 256 -> sum per program -> two residual layers -> score."""

    def __init__(self, num_columns: int) -> None:
        super().__init__()
        self.encoder1, self.encoder2 = nn.Linear(num_columns, _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN)
        self.layer0, self.layer1 = nn.Linear(_HIDDEN, _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN)
        self.decoder = nn.Linear(_HIDDEN, 1)

    def forward(self, rows: Tensor, segment: Tensor, size: int) -> Tensor:
        encoded = torch.relu(self.encoder2(torch.relu(self.encoder1(rows))))
        total = encoded.new_zeros(size, _HIDDEN).index_add(0, segment, encoded)
        total = torch.relu(self.layer0(total)) + total
        total = torch.relu(self.layer1(total)) + total
        scores: Tensor = self.decoder(total)[:, 0]
        return scores


def lambda_rank_loss(scores: Tensor, label: Tensor, eps: float = 1e-10) -> Tensor:
    """LambdaLoss over one list as TVM writes it: -sum over pairs of log2(sigmoid ** weight).

    weight = |1 / D_i - 1 / D_j| * |G_i - G_j| with D = log2(1 + rank), G = (2 ** label - 1) / maxDCG,
    over the pairs whose first label is the larger.
    """
    ranked, order = scores.sort(descending=True)
    truth = label[order]
    discount = torch.log2(1.0 + torch.arange(1, len(scores) + 1, dtype=torch.float32))
    best = ((2.0 ** label.sort(descending=True)[0] - 1.0) / discount).sum().clamp(min=eps)
    gain = (2.0**truth - 1.0) / best
    weight = (1.0 / discount[:, None] - 1.0 / discount[None]).abs()
    weight = weight * (gain[:, None] - gain[None]).abs()
    ahead = (ranked[:, None] - ranked[None]).clamp(min=-1e8, max=1e8)
    right = (torch.sigmoid(ahead).clamp(min=eps) ** weight).clamp(min=eps)
    return -torch.log2(right)[truth[:, None] > truth[None]].sum()


def fit_tvm_mlp(
    config: TvmMlpConfig,
    train: Samples,
    valid: Samples,
    rows: Ragged,
    valid_rows: Ragged,
    *,
    seed: int,
    log: LogMetric,
) -> Weights:
    """Train on scaled rows; return the weights of the epoch that ranks the validation split best."""
    label = torch.from_numpy(train.label)

    def loss(scores: Tensor, programs: IntArray) -> Tensor:
        return lambda_rank_loss(scores, label[torch.from_numpy(programs)])

    plan = TrainingPlan(
        epochs=config.epochs,
        gradient_clip=0.5,
        optimizers=lambda network, *_: _adam(network, config.epochs),
        best=BEST,
        accelerator=config.accelerator,
    )
    with seeded(seed, config.num_threads):
        training = RankingTraining(
            TvmNetwork(rows.num_columns),
            MixedBatches(len(train), config.batch_size, seed),
            _collate(rows),
            loss,
            (_collate(valid_rows), len(valid)),
            _watch(valid, config.batch_size),
        )
        return fit_network(training, plan, log).weights


def _adam(network: nn.Module, epochs: int) -> Optimizers:
    optimizer = torch.optim.Adam(network.parameters(), lr=7e-4, weight_decay=1e-6)
    step = max(1, epochs // 10)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=step, gamma=0.8)
    return optimizer, schedule, "epoch"


def _watch(valid: Samples, batch_size: int) -> Watch:
    metrics = RankingMetrics(valid.label, valid.group)
    label = torch.from_numpy(valid.label)

    def watch(scores: npt.NDArray[np.float32]) -> dict[str, float]:
        guess = torch.from_numpy(scores)
        parts = range(0, len(scores), batch_size)
        losses = [
            float(
                lambda_rank_loss(
                    guess[start : start + batch_size], label[start : start + batch_size]
                )
            )
            for start in parts
        ]
        # TVM leaves the last, shorter batch out of its mean.
        mean_loss = float(np.mean(losses[:-1] if len(losses) > 1 else losses))
        return {**metrics(scores), "loss": mean_loss}

    return watch


def _collate(rows: Ragged) -> Collate:
    def collate(programs: IntArray) -> tuple[Tensor, Tensor, int]:
        chosen = rows.take(programs)
        values, segment = torch.from_numpy(chosen.values), torch.from_numpy(chosen.segment_ids)
        return values, segment, len(programs)

    return collate
