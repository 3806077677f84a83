"""Training of networks that rank programs: batches of whole groups, ranking losses, validation by ranking metrics.

The ranking losses are those of :mod:`tencost.models.programs.ranker.losses`, the same for trees and networks: their
gradient on the scores is multiplied with the scores, which gives autograd exactly that gradient.

Legend: N programs of a part, B programs of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tencost.features.rows.ragged import IntArray
from tencost.models.neural.loop import (
    Optimizers,
    SelectionMetric,
    TrainingPlan,
    fit_network,
    network_device,
    seeded,
)
from tencost.models.neural.settings import NeuralConfig
from tencost.models.neural.weights import Weights
from tencost.models.programs.ranker import LogMetric, Samples
from tencost.models.programs.ranker.losses import RankingLoss, RankingMetrics

Collate = Callable[[IntArray], tuple[Any, ...]]
"""Program ids, int64 [B] -> the network's inputs."""

Loss = Callable[[Tensor, IntArray], Tensor]
"""Scores [B] and program ids [B] -> a scalar to minimise."""

Watch = Callable[[npt.NDArray[np.float32]], dict[str, float]]
"""Scores of the validation split [N] -> metrics."""

BEST = SelectionMetric("train/valid_choice", higher_is_better=True)
"""The epoch whose weights a ranker has is chosen by RankingMetrics' `choice`."""


@dataclass
class RankingTraining:
    """A network that scores programs; a :class:`tencost.models.neural.loop.Training`.

    Attributes:
        network: its forward takes what `collate` returns and gives scores, float32 [B].
        order: batches of programs of the training split.
        collate: inputs for programs of the training split.
        score_loss: what is minimised.
        valid: inputs for programs of the validation split, and how many there are.
        watch: judges scores of the validation split.
    """

    network: nn.Module
    order: TaskBatches | MixedBatches
    collate: Collate
    score_loss: Loss
    valid: tuple[Collate, int]
    watch: Watch

    @property
    def num_batches(self) -> int:
        return len(self.order)

    def batches(self, epoch: int) -> Iterator[IntArray]:
        del epoch  # the order goes on drawing from its own generator
        return iter(self.order)

    def loss(self, chosen: IntArray, step: int) -> Tensor:
        del step
        return self.score_loss(self._scores(self.collate(chosen)), chosen)

    def validate(self) -> dict[str, float]:
        valid_collate, valid_size = self.valid
        metrics = self.watch(self._scores(valid_collate(np.arange(valid_size))).numpy())
        return {f"train/valid_{name}": value for name, value in metrics.items()}

    def _scores(self, inputs: tuple[Any, ...]) -> Tensor:
        """Return scores on the CPU, float32 [B]."""
        device = network_device(self.network)
        moved = (value.to(device) if isinstance(value, Tensor) else value for value in inputs)
        scores: Tensor = self.network(*moved).cpu()
        return scores


class TaskBatches:
    """Batches of whole groups, in an order that changes every epoch with the seed."""

    def __init__(self, group: IntArray, groups_per_batch: int, seed: int) -> None:
        order = np.argsort(group, kind="stable")
        cuts = np.flatnonzero(np.diff(group[order])) + 1
        members = [programs for programs in np.split(order, cuts) if len(programs) > 1]
        self._members = members or [order]
        self._size = groups_per_batch
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return -(-len(self._members) // self._size)

    def __iter__(self) -> Iterator[IntArray]:
        order = self._rng.permutation(len(self._members))
        for start in range(0, len(order), self._size):
            chosen = order[start : start + self._size]
            yield np.concatenate([self._members[index] for index in chosen])


class MixedBatches:
    """Random batches that mix tasks, as TVM does it."""

    def __init__(self, size: int, batch_size: int, seed: int) -> None:
        self._size, self._batch_size = size, batch_size
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return -(-self._size // self._batch_size)

    def __iter__(self) -> Iterator[IntArray]:
        order = self._rng.permutation(self._size)
        for start in range(0, self._size, self._batch_size):
            yield order[start : start + self._batch_size]


class GroupLoss:
    """A loss of :mod:`tencost.models.programs.ranker.losses` over batches of whole groups, per program."""

    def __init__(self, config: NeuralConfig, samples: Samples, seed: int) -> None:
        self._group = samples.group
        self._position = np.zeros(len(samples), np.int64)
        self._losses: dict[int, RankingLoss] = {}
        for group in np.unique(samples.group).tolist():
            members = np.flatnonzero(samples.group == group)
            self._position[members] = np.arange(len(members))
            label = samples.label[members]
            self._losses[group] = RankingLoss(
                config.objective,
                label,
                np.zeros(len(label), np.int64),
                power=config.label_power,
                temperature=config.temperature,
                seed=seed,
            )

    def __call__(self, scores: Tensor, programs: IntArray) -> Tensor:
        groups = self._group[programs]
        raw = scores.detach().numpy().astype(np.float64)
        gradient = np.zeros(len(programs))
        for group in np.unique(groups).tolist():
            inside = np.flatnonzero(groups == group)
            inside = inside[np.argsort(self._position[programs[inside]])]
            gradient[inside] = self._losses[group](raw[inside])[0]
        scaled = torch.from_numpy((gradient * 4.0 / len(programs)).astype(np.float32))
        return (scores * scaled).sum()


def fit_ranking_network(
    config: NeuralConfig,
    make_network: Callable[[], nn.Module],
    train: Samples,
    valid: Samples,
    collate: Collate,
    valid_collate: Collate,
    *,
    seed: int,
    log: LogMetric,
) -> Weights:
    """Train a network by a ranking loss over whole groups.

    Args:
        config: hyper-parameters.
        make_network: called with torch's generator seeded.
        train: labels and groups of the training split.
        valid: labels and groups of the validation split.
        collate: inputs for programs of the training split.
        valid_collate: inputs for programs of the validation split.
        seed: of weights, dropout and batch order.
        log: receives the validation metrics of each epoch.

    Returns:
        The weights by name, of the epoch that did best on the validation split.
    """
    with seeded(seed, config.num_threads):
        training = RankingTraining(
            make_network(),
            TaskBatches(train.group, config.tasks_per_batch, seed),
            collate,
            GroupLoss(config, train, seed),
            (valid_collate, len(valid)),
            RankingMetrics(valid.label, valid.group),
        )
        plan = TrainingPlan(
            epochs=config.epochs,
            patience=config.patience,
            gradient_clip=config.gradient_clip,
            optimizers=lambda network, steps, _: _one_cycle(network, steps, config),
            best=BEST,
            accelerator=config.accelerator,
        )
        return fit_network(training, plan, log).weights


def _one_cycle(network: nn.Module, steps: int, config: NeuralConfig) -> Optimizers:
    """Return AdamW with one cycle of the learning rate, up over 15 % of the steps, then down."""
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.learning_rate, total_steps=steps, pct_start=0.15
    )
    return optimizer, schedule, "step"
