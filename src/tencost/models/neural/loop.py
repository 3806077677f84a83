"""The training loop of all networks, on Lightning's Trainer: deterministic by seed, silent, resumable.

A family gives its network, its batches, its loss and its validation (:class:`Training`), and says how it is trained
(:class:`TrainingPlan`). The loop writes nothing but the checkpoint that a plan asks for, and :func:`seeded` restores
torch's global state (seed, threads, determinism).

Legend: B samples of a batch.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import pytorch_lightning
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn

from tencost.errors import ConfigError, TrainError
from tencost.features.rows.ragged import IntArray
from tencost.models.neural.weights import Weights
from tencost.models.programs.ranker import LogMetric

Optimizers = tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, str]
"""Optimizer, learning-rate schedule, and when it steps: step or epoch."""


class Training(Protocol):
    """A network and the data that it learns from."""

    @property
    def network(self) -> nn.Module:
        """What is trained, in place."""
        ...

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        ...

    def batches(self, epoch: int) -> Iterator[IntArray]:
        """Yield the ids of the samples of each batch, int64 [B]; epochs count from 0."""
        ...

    def loss(self, chosen: IntArray, step: int) -> Tensor:
        """Return a scalar on the CPU to minimise.

        Args:
            chosen: ids of the batch, int64 [B].
            step: optimizer steps so far, over all epochs.
        """
        ...

    def validate(self) -> dict[str, float]:
        """Return the metrics to log after an epoch, by name; the network is in evaluation mode, without gradients.

        Without the plan's best metric in any epoch, the weights of the last epoch are the result.
        """
        ...


@dataclass(frozen=True)
class SelectionMetric:
    """The metric of `validate` that decides which epoch's weights are the result."""

    metric: str
    higher_is_better: bool

    def improves(self, value: float, best: float | None) -> bool:
        """Say whether a value is better than the best so far; NaN never is."""
        if best is None:
            return value == value
        return value > best if self.higher_is_better else value < best


@dataclass(frozen=True)
class Resume:
    """Where an interrupted training continues from.

    Attributes:
        path: of the checkpoint, which is written after each epoch.
        task: identifies the training, as a checkpoint can hold it: text, numbers, lists and dicts of these.
    """

    path: Path
    task: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How a network is trained."""

    epochs: int
    """Passes over the batches at most."""
    optimizers: Callable[[nn.Module, int, Callable[[], float]], Optimizers]
    """Network, total number of steps and a clock (minutes since the start, over all resumed parts) -> optimizer and
    schedule."""
    gradient_clip: float
    """Largest norm of the gradient."""
    best: SelectionMetric | None = None
    """Which epoch's weights are returned; None: the last one's."""
    patience: int = 0
    """Epochs without a better metric before training stops; 0 never stops."""
    max_minutes: float = 0.0
    """Training stops after the epoch in which these minutes are over; 0 never stops."""
    epoch_seed: int | None = None
    """Seeds torch before each epoch, together with its number: a resumed training drops the same units as one that was
    never interrupted. None: one sequence over all epochs."""
    resume: Resume | None = None
    accelerator: str = "cpu"
    """Lightning's accelerator (`model.accelerator`), of which one device is used; losses are computed on the CPU."""


@dataclass(frozen=True)
class TrainingOutcome:
    """The end of a training.

    Attributes:
        weights: of the best epoch, by torch's names.
        epoch: the epoch that they are of, from 1; 0 if no epoch had the best metric.
        epochs: epochs trained, those before an interruption included.
        minutes: time that they took.
    """

    weights: Weights
    epoch: int
    epochs: int
    minutes: float


def fit_network(training: Training, plan: TrainingPlan, log: LogMetric) -> TrainingOutcome:
    """Train, and return the weights of the epoch that did best on the validation split.

    Call it inside :func:`seeded`, where the network was made. The network is on the CPU afterwards, with the weights
    of the last epoch.

    Args:
        training: network, batches, loss and validation.
        plan: optimizer, epochs, patience.
        log: called with each metric of `validate`, its value and the epoch (from 1).

    Raises:
        ConfigError: this host has no such accelerator.
        TrainError: the checkpoint is damaged or of another training.
        KeyboardInterrupt: Ctrl-C or SIGTERM, at once.
    """
    checkpoint = None if plan.resume is None else _checkpoint(plan.resume)
    module = _Module(training, plan, log)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # Lightning remarks on missing workers and loggers; there are none on purpose.
        warnings.simplefilter("ignore")
        trainer = _trainer(plan)
        try:
            batches = _Batches(training, trainer)
            trainer.fit(module, batches, ckpt_path=checkpoint, weights_only=True)
        except SystemExit as exit_:
            # Lightning turns Ctrl-C into an exit with code 1, which would end the MLflow run as FAILED, not KILLED.
            if isinstance(exit_.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise
    training.network.cpu()
    weights = module.best_weights or _copied(training.network)
    return TrainingOutcome(
        {name: tensor.numpy() for name, tensor in weights.items()},
        module.best_epoch,
        trainer.current_epoch,
        module.minutes(),
    )


def network_device(network: nn.Module) -> torch.device:
    """Return the device that a network is on."""
    return next(network.parameters()).device


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


class _Module(pytorch_lightning.LightningModule):
    """A training and its plan, as Lightning expects them.

    The module steps the optimizer itself: Lightning's own stepping calls twice as many hooks, which a network of two
    milliseconds a step feels.
    """

    automatic_optimization = False

    def __init__(self, training: Training, plan: TrainingPlan, log_metric: LogMetric) -> None:
        super().__init__()
        self.network = training.network
        self._training, self._plan, self._log_metric = training, plan, log_metric
        self._best_value: float | None = None
        self.best_epoch = 0
        self.best_weights: dict[str, Tensor] = {}
        self._seconds_before = 0.0
        self._start = time.monotonic()
        self._on_sigterm = signal.getsignal(signal.SIGTERM)

    def minutes(self) -> float:
        return (self._seconds_before + time.monotonic() - self._start) / 60.0

    def on_train_start(self) -> None:
        # Lightning's own handler would hold SIGTERM back until the end of the epoch.
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and self._on_sigterm is not None:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def on_train_epoch_start(self) -> None:
        if self._plan.epoch_seed is not None:
            torch.manual_seed(self._plan.epoch_seed * 1_000_003 + self.current_epoch)
        self.network.train()

    def training_step(self, chosen: IntArray, batch: int) -> None:
        step = self.current_epoch * self._training.num_batches + batch
        loss = self._training.loss(chosen, step)
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.network.parameters(), self._plan.gradient_clip)
        self._optimizer.step()
        if self._interval == "step":
            self._schedule.step()

    def on_train_epoch_end(self) -> None:
        epoch, plan = self.current_epoch + 1, self._plan
        if self._interval == "epoch":
            self._schedule.step()
        self.network.eval()
        with torch.no_grad():
            metrics = self._training.validate()
        for name, value in metrics.items():
            self._log_metric(name, value, epoch)
        if plan.best is not None and plan.best.metric in metrics:
            value = metrics[plan.best.metric]
            if plan.best.improves(value, self._best_value):
                self._best_value, self.best_epoch = value, epoch
                self.best_weights = _copied(self.network)
        late = plan.max_minutes and self.minutes() >= plan.max_minutes
        hopeless = plan.patience and self.best_epoch and epoch - self.best_epoch >= plan.patience
        if late or hopeless:
            self.trainer.should_stop = True
        if plan.resume is not None:
            self.trainer.save_checkpoint(plan.resume.path)

    def configure_optimizers(self) -> Any:
        steps = self._plan.epochs * self._training.num_batches
        optimizers = self._plan.optimizers(self.network, steps, self.minutes)
        self._optimizer, self._schedule, self._interval = optimizers
        return [self._optimizer], [self._schedule]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert self._plan.resume is not None
        best = {"error": self._best_value, "epoch": self.best_epoch, "weights": self.best_weights}
        task = self._plan.resume.task
        checkpoint["tencost"] = {"task": task, "best": best, "minutes": self.minutes()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["tencost"]
        self._best_value, self.best_epoch = state["best"]["error"], state["best"]["epoch"]
        self.best_weights = state["best"]["weights"]
        self._seconds_before = 60.0 * state["minutes"]


class _Batches:
    """Batches of the current epoch, in the form of a DataLoader."""

    def __init__(self, training: Training, trainer: pytorch_lightning.Trainer) -> None:
        self._training, self._trainer = training, trainer

    def __len__(self) -> int:
        return self._training.num_batches

    def __iter__(self) -> Iterator[IntArray]:
        # A generator: Lightning asks for the first epoch's iterator before it knows at which epoch it continues.
        yield from self._training.batches(self._trainer.current_epoch)


def _trainer(plan: TrainingPlan) -> pytorch_lightning.Trainer:
    """Return Lightning's Trainer with everything switched off that costs time or prints."""
    if plan.accelerator != "cpu":  # cuBLAS is deterministic with a workspace of this size only
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        return pytorch_lightning.Trainer(
            accelerator=plan.accelerator,
            devices=1,
            deterministic=True,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            num_sanity_val_steps=0,
            max_epochs=plan.epochs,
        )
    except MisconfigurationException as error:
        raise ConfigError(
            f"model.accelerator={plan.accelerator}: expected such a device on this host and a PyTorch that was built "
            f"for it, found none ({str(error).splitlines()[0]}). Use model.accelerator=cpu, or install PyTorch for it "
            "(requirements-cuda.lock)"
        ) from error


def _checkpoint(resume: Resume) -> Path | None:
    """Return the checkpoint to continue from, if there is one."""
    path = resume.path
    if not path.is_file():
        return None
    try:
        task = dict(torch.load(path, weights_only=True)["tencost"]["task"])
    except (
        OSError,
        RuntimeError,
        UnpicklingError,
        KeyError,
        TypeError,
        ValueError,
        EOFError,
    ) as error:
        why = str(error).partition("\n")[0]
        raise TrainError(
            f"{path}: expected a checkpoint of an interrupted training, found {why}. Delete the folder to begin "
            "again."
        ) from error
    if task != resume.task:
        changed = ", ".join(name for name in resume.task if task.get(name) != resume.task[name])
        raise TrainError(
            f"{path}: expected the training that was interrupted, found another one ({changed} changed). Delete the "
            "folder to begin again."
        )
    return path


def _copied(network: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a network's weights on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
