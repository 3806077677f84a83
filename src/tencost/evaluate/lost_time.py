"""Which tasks a model loses its time in: w_t (chosen_t - best_t), as a share of the sum over tasks.

Chosen is the program that the model ranks first (top-1), a mean over seeds; best the fastest recorded one. Where one
task makes up nearly all, a score says how that task went and little of the rest: look at its records before the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tencost.evaluate.scoring import SeedScore
from tencost.evaluate.truth import Truth

MOST = 0.8
"""The tasks that make up this share are named first."""
NAMED = 5
"""Tasks that are named at most."""


@dataclass(frozen=True, kw_only=True)
class TaskLoss:
    """What one task of a network costs a model.

    Attributes:
        network: name of the network.
        task: name of the task.
        workload_id: what is computed.
        weight: how often the network computes it.
        chosen_ms: latency of the program ranked first, mean over seeds, milliseconds a call.
        best_ms: the fastest recorded program, milliseconds a call.
        share: of the time lost in all tasks of all networks, in [0, 1].
        network_share: of the time lost in its network, in [0, 1]; decides that network's top-1 score.
    """

    network: str
    task: str
    workload_id: str
    weight: float
    chosen_ms: float
    best_ms: float
    share: float
    network_share: float

    @property
    def lost_ms(self) -> float:
        """Milliseconds that the network loses in it."""
        return self.weight * (self.chosen_ms - self.best_ms)


def task_losses(
    truth: Truth, seeds: Sequence[SeedScore], names: Mapping[tuple[str, str], str]
) -> tuple[TaskLoss, ...]:
    """Return the tasks in which a model loses time, the largest loss first; none if it loses nowhere.

    Args:
        truth: the tasks.
        seeds: the model's seeds.
        names: (network, workload_id) -> name of the task; those without one are called by the id's beginning.
    """
    chosen_s = np.mean([seed.best[:, 0] for seed in seeds], axis=0)
    lost_s = truth.weight * (chosen_s - truth.optimum_s)
    network_s = np.bincount(truth.stratum, weights=lost_s)[truth.stratum]
    losses = [
        TaskLoss(
            network=task.network,
            task=names.get((task.network, task.workload_id), task.workload_id[:12]),
            workload_id=task.workload_id,
            weight=task.weight,
            chosen_ms=1e3 * float(chosen_s[index]),
            best_ms=1e3 * float(truth.optimum_s[index]),
            share=float(lost_s[index] / lost_s.sum()),
            network_share=float(lost_s[index] / network_s[index]),
        )
        for index, task in enumerate(truth.tasks)
        if lost_s[index] > 0
    ]
    return tuple(sorted(losses, key=lambda loss: (-loss.share, loss.network, loss.task)))


def decisive(losses: Sequence[TaskLoss]) -> Sequence[TaskLoss]:
    """Return the first of them that make up MOST of the lost time, NAMED at most."""
    total = 0.0
    for count, loss in enumerate(losses[:NAMED], start=1):
        total += loss.share
        if total >= MOST:
            return losses[:count]
    return losses[:NAMED]
