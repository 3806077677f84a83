"""Training of graph neural networks and their predictions: labels, batches, loss, schedule, early stopping.

Legend: G graphs, D devices.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR

from tencost.errors import TrainError
from tencost.features.graph.encodings import Encoder
from tencost.models.networks.family import Report, check_labelled
from tencost.models.networks.gnn.graph_data import Batches
from tencost.models.networks.gnn.networks import GraphNetwork
from tencost.models.networks.gnn.propagation import propagation_of
from tencost.models.neural.loop import (
    Optimizers,
    Resume,
    SelectionMetric,
    TrainingPlan,
    fit_network,
    network_device,
    seeded,
)
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs

if TYPE_CHECKING:
    from tencost.models.networks.families.gnn import GnnConfig

Weights = Mapping[str, NDArray[np.float32]]

_log = logging.getLogger(__name__)

_VALID_MAPE = "train/valid_mape"
"""The metric that decides which epoch's weights are the result."""

_NODES_AT_ONCE = 50_000
"""Nodes of the graphs that are predicted together, about: memory does not grow with the number of graphs."""

_BEYOND = 3.0
"""How far beyond the labels learnt from a prediction may lie, as a difference of logarithms: twenty times."""


@dataclass
class Labels:
    """What a network gives and what it means. Deviations are of logarithms (label=log) or of milliseconds (raw).

    Attributes:
        log: whether logarithms are learnt.
        mean, deviation: float32 [D]; the network gives (label - mean) / deviation.
        least, most: float32 [D]; logarithms of the shortest and longest latency learnt from.
    """

    log: bool
    mean: Tensor
    deviation: Tensor
    least: Tensor
    most: Tensor

    @classmethod
    def of(cls, latency_ms: NDArray[np.float64], log: bool) -> Labels:
        """Fit to latencies, [G, D] with NaN; each device has one at least."""
        logarithms = np.log(latency_ms)
        label = logarithms if log else latency_ms
        deviation = np.nanstd(label, axis=0)
        statistics = (
            np.nanmean(label, axis=0),
            np.where(deviation > 1e-6, deviation, 1.0),
            np.nanmin(logarithms, axis=0),
            np.nanmax(logarithms, axis=0),
        )
        return cls(log, *(torch.from_numpy(each.astype(np.float32)) for each in statistics))

    @classmethod
    def empty(cls, log: bool, devices: int) -> Labels:
        return cls(log, *(torch.zeros(devices) for _ in range(4)))

    def encode(self, latency_ms: NDArray[np.float64]) -> Tensor:
        """Return what the network shall give, float32 [G, D]; NaN where nobody measured."""
        label = np.log(latency_ms) if self.log else latency_ms
        mean, deviation = self.mean.double().numpy(), self.deviation.double().numpy()
        return torch.from_numpy(((label - mean) / deviation).astype(np.float32))

    def decode(self, outputs: Tensor) -> NDArray[np.float64]:
        """Return milliseconds, float64 [G, D], positive and finite."""
        label = outputs.double() * self.deviation.double() + self.mean.double()
        low, high = self.least.double() - _BEYOND, self.most.double() + _BEYOND
        if not self.log:
            label = label.clamp(min=1e-300).log()
        return torch.nan_to_num(label).maximum(low).minimum(high).exp().numpy()


@dataclass
class TrainedGnn:
    """A network that can predict.

    Attributes:
        config: its settings.
        network: in evaluation mode.
        labels: what it gives.
        encoder: encodes graphs, and remembers those it has met.
        epoch: that it is of, counted from 1.
    """

    config: GnnConfig
    network: GraphNetwork
    labels: Labels
    encoder: Encoder
    epoch: int

    @classmethod
    def empty(cls, config: GnnConfig, devices: int, epoch: int) -> TrainedGnn:
        """Return one whose weights are still to be filled."""
        encoder = encoder_of(config)
        with seeded(0, config.num_threads):
            network = GraphNetwork(config, encoder, devices).eval()
        labels = Labels.empty(config.label == "log", devices)
        return cls(config, network, labels, encoder, epoch)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return all that predictions depend on beside the settings, by name."""
        parameters = {name: value.numpy() for name, value in self.network.state_dict().items()}
        return {
            **parameters,
            **{f"labels.{name}": value.numpy() for name, value in self._told().items()},
        }

    def fill(self, weights: Weights) -> None:
        """Take over weights with the names and shapes of `weights()`."""
        for name, value in self._told().items():
            value.copy_(torch.from_numpy(weights[f"labels.{name}"]))
        state = {
            name: torch.from_numpy(np.array(weights[name])) for name in self.network.state_dict()
        }
        self.network.load_state_dict(state)

    def predict(self, graphs: GraphSet) -> NDArray[np.float64]:
        """Return milliseconds, float64 [G, D]."""
        latency_ms = np.zeros((len(graphs), len(self.labels.mean)))
        if len(graphs):
            with seeded(0, self.config.num_threads):
                batches = graph_batches(self.config, graphs, self.encoder)
                outputs = run(self.network, batches, np.diff(graphs.node_start))
            latency_ms = self.labels.decode(outputs)
        return latency_ms

    def _told(self) -> dict[str, Tensor]:
        labels = self.labels
        return {name: getattr(labels, name) for name in ("mean", "deviation", "least", "most")}


def encoder_of(config: GnnConfig) -> Encoder:
    """Return the encoder that a configuration describes."""
    return Encoder(config.encoding, config.edge_encoding, config.encoding_size, config.q)


def graph_batches(config: GnnConfig, graphs: GraphSet, encoder: Encoder) -> Batches:
    """Return what makes batches of graphs for the configured network."""
    propagation = None
    if config.edge_encoding == "none":
        propagation = propagation_of(config.convolution, config.direction, config.q)
    return Batches(graphs, encoder, propagation)


def run(network: GraphNetwork, batches: Batches, sizes: NDArray[np.int64]) -> Tensor:
    """Return the network's outputs for all graphs, float32 [G, D]; sizes [G] are their nodes."""
    network.eval()
    device = network_device(network)
    order = np.argsort(sizes, kind="stable")
    part = np.cumsum(sizes[order]) // _NODES_AT_ONCE
    outputs: Tensor | None = None
    with torch.no_grad():
        for chosen in np.split(order, np.flatnonzero(np.diff(part)) + 1):
            batch = batches.take(chosen)
            output = network(batch.to(device)).cpu()
            if outputs is None:
                outputs = torch.zeros(len(sizes), output.shape[1])
            outputs[torch.from_numpy(batch.chosen)] = output
    assert outputs is not None
    return outputs


def annealed(progress: float) -> float:
    """Return which part of the step size is left when such a part of the training is over: half a cosine, 1 to 0."""
    return (1.0 + math.cos(math.pi * min(progress, 1.0))) / 2.0


class _Training:
    """A graph network and its graphs; a :class:`tencost.models.neural.loop.Training`.

    The order of graphs depends on the seed and the epoch alone, so that a training can be continued.
    """

    def __init__(
        self,
        config: GnnConfig,
        network: GraphNetwork,
        labels: Labels,
        train: tuple[Batches, Tensor],
        valid: tuple[Batches, LabelledGraphs],
        seed: int,
    ) -> None:
        self.network = network
        self._config, self._labels, self._seed = config, labels, seed
        self._train_batches, self._target = train
        self._valid_batches, self._valid = valid
        self._epoch = 0
        self._losses: list[Tensor] = []

    @property
    def num_batches(self) -> int:
        return -(-len(self._target) // self._config.batch_size)

    def batches(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        self._epoch, self._losses = epoch, []
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._target))
        for start in range(0, len(order), self._config.batch_size):
            yield order[start : start + self._config.batch_size]

    def loss(self, chosen: NDArray[np.int64], step: int) -> Tensor:
        del step
        batch = self._train_batches.take(chosen)
        target = self._target[torch.from_numpy(batch.chosen)]
        measured = torch.isfinite(target)
        outputs = self.network(batch.to(network_device(self.network))).cpu()
        error = (outputs - torch.nan_to_num(target)) * measured
        # A device's part is its share of the labels, so that sparse devices do not weigh more a graph.
        loss = (error.abs() if self._labels.log else error**2).sum() / measured.sum()
        self._losses.append(loss.detach())
        return loss

    def validate(self) -> dict[str, float]:
        loss = float(torch.stack(self._losses).mean())
        if not np.isfinite(loss):
            raise TrainError(
                f"expected a finite loss, found {loss} in epoch {self._epoch + 1}: lower model.learning_rate "
                f"({self._config.learning_rate})"
            )
        outputs = run(self.network, self._valid_batches, np.diff(self._valid.graphs.node_start))
        error = np.abs(self._labels.decode(outputs) / self._valid.latency_ms - 1.0)
        return {"train/loss": loss, _VALID_MAPE: float(np.nanmean(error))}


def _optimizers(
    config: GnnConfig, network: nn.Module, steps: int, minutes: Callable[[], float]
) -> Optimizers:
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    if config.schedule == "step":
        return optimizer, StepLR(optimizer, 100, 0.95), "epoch"
    limit = config.max_minutes
    if not limit:
        return optimizer, CosineAnnealingLR(optimizer, steps), "step"

    def share(step: int) -> float:
        return annealed(max(step / steps, minutes() / limit))

    return optimizer, LambdaLR(optimizer, share), "step"


def fit_gnn(
    config: GnnConfig,
    train: LabelledGraphs,
    valid: LabelledGraphs,
    *,
    seed: int,
    report: Report,
    resume: Path | None = None,
) -> TrainedGnn:
    """Train a network, and return it as it was in the epoch with the smallest validation MAPE.

    Graphs without any label are left out, labels that are missing count nothing.

    Args:
        config: its settings.
        train: what is learnt from.
        valid: what the epoch is chosen by.
        seed: of weights, order and dropout. The same seed gives the same weights, unless max_minutes ends it.
        report: called with train/loss and train/valid_mape at the end of each epoch, counted from 1.
        resume: a folder that is written after each epoch; a training of the same settings and graphs that was
            interrupted goes on from there. None keeps nothing.

    Raises:
        ConfigError: this host has no such accelerator.
        TrainError: a device or the validation part without labels, a loss that is not finite, or a `resume` folder of
            another training.
    """
    check_labelled(train, "to learn from ")
    if not np.isfinite(valid.latency_ms).any():
        check_labelled(valid, "for validation ")
    train, valid = (
        part.take(np.flatnonzero(np.isfinite(part.latency_ms).any(axis=1)))
        for part in (train, valid)
    )
    labels = Labels.of(train.latency_ms, config.label == "log")
    encoder = encoder_of(config)
    task = _task(config, train, valid, seed)
    plan = TrainingPlan(
        epochs=config.epochs,
        patience=config.patience,
        gradient_clip=config.gradient_clip,
        optimizers=partial(_optimizers, config),
        best=SelectionMetric(_VALID_MAPE, higher_is_better=False),
        max_minutes=config.max_minutes,
        epoch_seed=seed,
        resume=None if resume is None else Resume(resume / "training.ckpt", task),
        accelerator=config.accelerator,
    )
    with seeded(seed, config.num_threads):
        mean_nodes = len(train.graphs.operator) / len(train)
        network = GraphNetwork(config, encoder, len(train.hardware), mean_nodes)
        training = _Training(
            config,
            network,
            labels,
            (graph_batches(config, train.graphs, encoder), labels.encode(train.latency_ms)),
            (graph_batches(config, valid.graphs, encoder), valid),
            seed,
        )
        outcome = fit_network(training, plan, report)
    network.load_state_dict(
        {name: torch.from_numpy(value) for name, value in outcome.weights.items()}
    )
    if outcome.epochs < config.epochs:
        _log.warning(
            "training ended after %d of %d epochs and %.1f minutes (max_minutes %g, patience %d)",
            outcome.epochs, config.epochs, outcome.minutes, config.max_minutes, config.patience,
        )  # fmt: skip
    report("train/epochs", float(outcome.epochs), outcome.epochs)
    return TrainedGnn(config, network.eval(), labels, encoder, outcome.epoch)


def _task(
    config: GnnConfig, train: LabelledGraphs, valid: LabelledGraphs, seed: int
) -> dict[str, Any]:
    """Return what makes a training the same training, in words that a checkpoint can hold."""
    sizes = [len(train), len(train.graphs.operator), len(valid), len(valid.graphs.operator)]
    settings = asdict(config)
    for changes_nothing in ("max_minutes", "patience", "num_threads", "reference"):
        del settings[changes_nothing]
    return {"settings": settings, "seed": seed, "hardware": list(train.hardware), "sizes": sizes}
