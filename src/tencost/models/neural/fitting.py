"""One training loop for the neural families: Lightning on the CPU, or another accelerator; deterministic, silent.

It writes nothing into the working directory and leaves torch's global state (seed, threads,
determinism) as it found it. The ranking losses are those of :mod:`tencost.models.programs.losses`, the same
for trees and networks: their gradient on the scores is multiplied with the scores, which gives
autograd exactly that gradient.

Legend: N programs of a part, B programs of a batch.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytorch_lightning
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn

from tencost.errors import ConfigError
from tencost.features.ragged import IntArray
from tencost.models.neural.settings import NeuralConfig
from tencost.models.programs.losses import RankingLoss, RankingMetrics
from tencost.models.programs.ranker import LogMetric, Samples

Collate = Callable[[IntArray], tuple[Any, ...]]
"""Program ids, int64 [B] -> the network's inputs."""

Loss = Callable[[Tensor, IntArray], Tensor]
"""Scores [B] and program ids [B] -> a scalar to minimise."""

Watch = Callable[[npt.NDArray[np.float32]], dict[str, float]]
"""Scores of the validation split [N] -> metrics; `choice`, higher is better, picks the epoch."""

Optimizers = tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, str]
"""Optimizer, learning-rate schedule, and when it steps: step or epoch."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a network is trained."""

    epochs: int
    """Passes over the training split at most."""
    patience: int
    """Epochs without a better `choice` before it stops; 0 never stops."""
    gradient_clip: float
    """Largest norm of the gradient."""
    optimizers: Callable[[nn.Module, int], Optimizers]
    """Network and total number of steps -> optimizer and schedule."""
    accelerator: str = "cpu"
    """Lightning's accelerator, of which one device is used; losses are computed on the CPU."""


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


class GroupLoss:
    """A loss of :mod:`tencost.models.programs.losses` over batches of whole groups, per program."""

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


def one_cycle(learning_rate: float, weight_decay: float) -> Callable[[nn.Module, int], Optimizers]:
    """AdamW with one cycle of the learning rate, up over 15 % of the steps, then down."""

    def make(network: nn.Module, steps: int) -> Optimizers:
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=learning_rate, weight_decay=weight_decay
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, learning_rate, total_steps=steps, pct_start=0.15
        )
        return optimizer, schedule, "step"

    return make


def plan_of(config: NeuralConfig) -> Plan:
    """Return the plan that a configuration describes."""
    return Plan(
        epochs=config.epochs,
        patience=config.patience,
        gradient_clip=config.gradient_clip,
        optimizers=one_cycle(config.learning_rate, config.weight_decay),
        accelerator=config.accelerator,
    )


def ranking_watch(valid: Samples) -> Watch:
    """Watch the ranking metrics of a validation split."""
    return RankingMetrics(valid.label, valid.group)


class _Module(pytorch_lightning.LightningModule):
    """The network, its loss and the watch over the validation split, as Lightning wants them."""

    def __init__(
        self,
        network: nn.Module,
        collate: Collate,
        loss: Loss,
        validate: Callable[[], dict[str, float]],
        plan: Plan,
        log_metric: LogMetric,
    ) -> None:
        super().__init__()
        self.network = network
        self._collate, self._loss, self._validate, self._plan = collate, loss, validate, plan
        self._log_metric = log_metric
        self.best = -np.inf
        self.best_epoch = 0
        self.best_weights: dict[str, Tensor] | None = None

    def training_step(self, programs: IntArray, _: int) -> Tensor:
        inputs = _on(self.device, self._collate(programs))
        return self._loss(self.network(*inputs).cpu(), programs)

    def on_train_epoch_end(self) -> None:
        found = self._validate()
        for name, value in found.items():
            self._log_metric(f"train/valid_{name}", value, self.current_epoch + 1)
        if "choice" in found and found["choice"] > self.best:
            self.best, self.best_epoch = found["choice"], self.current_epoch
            self.best_weights = copied(self.network)
        waited = self.current_epoch - self.best_epoch
        if self._plan.patience and self.best_weights is not None and waited >= self._plan.patience:
            self.trainer.should_stop = True

    def configure_optimizers(self) -> Any:
        steps = int(self.trainer.estimated_stepping_batches)
        optimizer, schedule, interval = self._plan.optimizers(self.network, steps)
        return [optimizer], [{"scheduler": schedule, "interval": interval}]


def fit_network(
    network: nn.Module,
    batches: Any,
    collate: Collate,
    loss: Loss,
    valid: tuple[Collate, int],
    watch: Watch,
    plan: Plan,
    log: LogMetric,
) -> dict[str, npt.NDArray[np.float32]]:
    """Train, and return the weights of the epoch that did best on the validation split.

    Call it inside :func:`seeded`, where the network was made.

    Args:
        network: its forward takes what `collate` returns and gives scores, float32 [B].
        batches: iterable with a length; gives program ids of the training split.
        collate: inputs for programs of the training split.
        loss: what is minimised.
        valid: inputs for programs of the validation split, and how many there are.
        watch: judges scores of the validation split.
        plan: optimizer, epochs, patience.
        log: called with `train/valid_<metric>`, value and epoch (from 1).

    Raises:
        ConfigError: this host has no such accelerator.
    """
    valid_collate, valid_size = valid

    def validate() -> dict[str, float]:
        network.eval()
        with torch.no_grad():
            inputs = _on(module.device, valid_collate(np.arange(valid_size)))
            scores = network(*inputs).cpu().numpy()
        network.train()
        return watch(scores)

    module = _Module(network, collate, loss, validate, plan, log)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # Lightning remarks on missing workers and loggers; there are none on purpose.
        warnings.simplefilter("ignore")
        trainer = trainer_on(
            plan.accelerator,
            "model.accelerator",
            max_epochs=plan.epochs,
            gradient_clip_val=plan.gradient_clip,
            enable_checkpointing=False,
        )
        trainer.fit(module, train_dataloaders=batches)
    network.cpu()
    state = module.best_weights if module.best_weights is not None else copied(network)
    return {name: tensor.numpy() for name, tensor in state.items()}


def trainer_on(accelerator: str, field: str, **settings: Any) -> pytorch_lightning.Trainer:
    """Return Lightning's Trainer on one device of an accelerator: deterministic, silent, without a logger.

    Args:
        accelerator: cpu, gpu, cuda, mps or auto.
        field: the setting that names it, for the message.
        settings: further arguments of Trainer.

    Raises:
        ConfigError: this host has none.
    """
    if accelerator != "cpu":  # cuBLAS is deterministic with a workspace of this size only
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        return pytorch_lightning.Trainer(
            accelerator=accelerator,
            devices=1,
            deterministic=True,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            **settings,
        )
    except MisconfigurationException as error:
        raise ConfigError(
            f"{field}={accelerator}: expected such a device on this host and a PyTorch that was built for it, found "
            f"none ({str(error).splitlines()[0]}). Use {field}=cpu, or install PyTorch for it (requirements-cuda.lock)"
        ) from error


def _on(device: torch.device, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a network's inputs, its tensors on a device."""
    return tuple(one.to(device) if isinstance(one, Tensor) else one for one in inputs)


def copied(network: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a network's weights on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}


@contextmanager
def seeded(seed: int, num_threads: int) -> Iterator[None]:
    """Seed torch and set its threads; put seed, threads and determinism back afterwards."""
    threads = torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(num_threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(strict)


def mean_scores(
    members: Sequence[npt.NDArray[np.float64]], divisors: Sequence[float]
) -> npt.NDArray[np.float64]:
    """Average the members' scores, each divided by its own spread: float64 [N]."""
    total = np.zeros_like(members[0])
    for scores, divisor in zip(members, divisors, strict=True):
        total += scores / divisor
    return np.asarray(total / len(members))
