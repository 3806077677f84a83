"""Training of one member of the additive model, with torch: graphs are counts of distinct kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tencost.features.graph.tokens import AMOUNTS, amounts, distinct, features, find_kernels
from tencost.models.networks.additive.base import fit_base
from tencost.models.networks.families.additive import (
    GROUPS,
    LOG_NOTHING,
    TERMS,
    cost_groups,
    initial_base,
    log_amounts,
    standardise,
)
from tencost.models.networks.family import Report
from tencost.models.neural.loop import Optimizers, TrainingPlan, fit_network, seeded
from tencost.models.neural.weights import Weights
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs

if TYPE_CHECKING:
    from tencost.models.networks.families.additive import AdditiveConfig

_WITH_KINDS = 2
"""Terms that each kind has its own base of, where it is learnt: time to compute and to move."""
_STEPS_PER_POINT = 50
"""Steps between two points of the training curve."""
_CALIBRATED_ON = 500
"""Graphs that set the scale of each device before the first step."""


@dataclass(frozen=True, eq=False)
class Counts:
    """How often each graph has each distinct kernel, row by row.

    Attributes:
        kernels: int64 [U, columns]; tencost.features.graph.tokens.INTEGERS of each distinct kernel.
        start: int64 [G + 1]; graph i owns entries start[i]:start[i + 1].
        kernel: int64 [M]; index into kernels.
        count: float32 [M].
    """

    kernels: NDArray[np.int64]
    start: NDArray[np.int64]
    kernel: NDArray[np.int64]
    count: NDArray[np.float32]

    @classmethod
    def of(cls, graphs: GraphSet) -> Counts:
        instances = find_kernels(graphs)
        kernels, which = distinct(instances.integers)
        pairs, count = np.unique(instances.graph * len(kernels) + which, return_counts=True)
        graph, kernel = np.divmod(pairs, max(len(kernels), 1))
        start = np.searchsorted(graph, np.arange(len(graphs) + 1))
        return cls(kernels, start, kernel, count.astype(np.float32))

    def batch(self, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], Tensor, Tensor, Tensor]:
        """Return the kernels of some graphs, and of each entry: which of these, which graph, how often."""
        lengths = np.diff(self.start)[chosen]
        entries = np.concatenate([np.arange(self.start[i], self.start[i + 1]) for i in chosen])
        used, which = np.unique(self.kernel[entries], return_inverse=True)
        graph = np.repeat(np.arange(len(chosen)), lengths)
        return (
            used,
            torch.from_numpy(which),
            torch.from_numpy(graph),
            torch.from_numpy(self.count[entries]),
        )


class Costs(nn.Module):
    """The terms of each kernel on each device, as in the text of tencost.models.networks.families.additive."""

    def __init__(self, width: int, tiled: NDArray[np.float32], config: AdditiveConfig) -> None:
        super().__init__()
        widths = [width, *[config.hidden] * config.layers]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        num_devices = tiled.shape[2]
        base = torch.from_numpy(initial_base(num_devices))
        self.tiled = torch.from_numpy(tiled)
        self.head = nn.Linear(config.hidden, len(AMOUNTS) * num_devices)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.base = nn.Parameter(base)
        self.kinds = nn.Parameter(torch.zeros(GROUPS, _WITH_KINDS, num_devices))

    def forward(
        self, inputs: Tensor, group: Tensor, amount: Tensor, *, bend: bool
    ) -> tuple[Tensor, Tensor]:
        """Return milliseconds [K, D], and the mean squares of what the network adds to each term [len(AMOUNTS)].

        Args:
            inputs: standardised features [K, F].
            group: int64 [K]; of tencost.models.networks.families.additive.GROUPS.
            amount: [K, len(AMOUNTS)]; logarithms.
            bend: whether the network takes part; else the kinds speak alone.
        """
        terms = self._bases()[group] + amount[:, :, None]
        if not bend:
            return torch.exp(terms).sum(dim=1), torch.zeros(terms.shape[1])
        hidden = inputs
        for layer in self.layers:
            hidden = nn.functional.silu(layer(hidden))
        bent = self.head(hidden).view(terms.shape)
        return torch.exp(terms + bent).sum(dim=1), bent.square().mean(dim=(0, 2))

    def _bases(self) -> Tensor:
        """Return what a unit of each amount costs in each group of kernels: logarithms [GROUPS, len(AMOUNTS), D]."""
        learnt = self.base + nn.functional.pad(self.kinds, (0, 0, 0, TERMS - _WITH_KINDS))
        learnt = nn.functional.pad(learnt, (0, 0, 0, len(AMOUNTS) - TERMS), value=LOG_NOTHING)
        return torch.where(torch.isnan(self.tiled), learnt, self.tiled)

    def weights(self) -> Weights:
        """Return the parameters as they are served: dense weights [in, out]."""
        weights = {"base": self._bases().detach().numpy()}
        layers = [(f"layer_{index}", layer) for index, layer in enumerate(self.layers)]
        for name, layer in [*layers, ("head", self.head)]:
            assert isinstance(layer, nn.Linear)
            weights[f"{name}.weight"] = layer.weight.detach().numpy().T
            weights[f"{name}.bias"] = layer.bias.detach().numpy()
        return {name: np.ascontiguousarray(value) for name, value in weights.items()}


def fit_tiled(counts: Counts, train: LabelledGraphs, tiled: list[str]) -> NDArray[np.float32]:
    """Return the logarithm of the cost of a unit of each amount on `tiled` hardware; NaN for other hardware.

    Returns:
        float32 [GROUPS, len(AMOUNTS), D].
    """
    costs = np.full((GROUPS, len(AMOUNTS), len(train.hardware)), np.nan, dtype=np.float32)
    counted = [place for place, name in enumerate(AMOUNTS) if name not in ("flop", "moved")]
    if not set(tiled) & set(train.hardware):
        return costs
    graph = np.repeat(np.arange(len(train)), np.diff(counts.start))
    place = graph * GROUPS + cost_groups(counts.kernels)[counts.kernel]
    each = amounts(counts.kernels)[:, counted][counts.kernel] * counts.count[:, None]
    sums = np.zeros((len(train) * GROUPS, len(counted)))
    for column, some in enumerate(each.T):
        sums[:, column] = np.bincount(place, some, len(sums))
    by_graph = sums.reshape(len(train), GROUPS, len(counted))
    for device, name in enumerate(train.hardware):
        if name in tiled:
            latency = train.latency_ms[:, device]
            measured = np.isfinite(latency) & (np.diff(counts.start) > 0)
            costs[:, :, device] = LOG_NOTHING
            costs[:, counted, device] = np.log(fit_base(by_graph[measured], latency[measured]))
    return costs


def train_member(
    counts: Counts,
    latency_ms: NDArray[np.float64],
    config: AdditiveConfig,
    scaler: Weights,
    tiled: NDArray[np.float32],
    *,
    seed: int,
    report: Report,
) -> Weights:
    """Train one member on all graphs.

    Args:
        counts: of G graphs.
        latency_ms: float64 [G, D]; NaN where nobody measured.
        config: sizes and steps.
        scaler: what `standardise` needs; returned with the weights.
        tiled: of `fit_tiled`.
        seed: of the initial weights and the order of graphs.
        report: told the training loss.
    """
    with seeded(seed, config.num_threads):
        network = Costs(len(scaler["scaler.mean"]), tiled, config)
        training = _Training(network, counts, latency_ms, config, scaler, seed, report)
        plan = TrainingPlan(epochs=1, gradient_clip=1.0, optimizers=partial(_optimizers, config))
        fit_network(training, plan, report)
    return scaler | network.weights()


class _Training:
    """One member and its graphs: one epoch of as many batches as there are steps, without validation.

    A :class:`tencost.models.neural.loop.Training`.
    """

    def __init__(
        self,
        network: Costs,
        counts: Counts,
        latency_ms: NDArray[np.float64],
        config: AdditiveConfig,
        scaler: Weights,
        seed: int,
        report: Report,
    ) -> None:
        self.network = network
        self.num_batches = config.steps
        self._counts, self._config, self._report = counts, config, report
        self._inputs = torch.from_numpy(standardise(scaler, features(counts.kernels)))
        self._amount = torch.from_numpy(log_amounts(counts.kernels).astype(np.float32))
        self._groups = torch.from_numpy(cost_groups(counts.kernels))
        self._log_label = torch.from_numpy(np.log(latency_ms).astype(np.float32))
        starts = [name in ("kernels", "tiles") for name in AMOUNTS]
        self._penalty = torch.where(torch.tensor(starts), config.start_penalty, config.penalty)
        labelled = np.isfinite(latency_ms).any(axis=1) & (np.diff(counts.start) > 0)
        self._labelled = np.flatnonzero(labelled)
        self._generator = np.random.default_rng(seed)
        self._calibrate()

    def batches(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        del epoch
        waiting = np.zeros(0, dtype=np.int64)
        for _ in range(self.num_batches):
            if not len(waiting):
                waiting = self._generator.permutation(self._labelled)
            yield waiting[: self._config.batch]
            waiting = waiting[self._config.batch :]

    def loss(self, chosen: NDArray[np.int64], step: int) -> Tensor:
        config = self._config
        error, penalties = self._log_error(chosen, step >= config.kinds_first * config.steps)
        measured = torch.isfinite(error)
        error = torch.where(measured, error, 0.0)
        near = torch.sqrt(error.square() + config.delta**2) - config.delta
        loss = near.sum() / measured.sum() + penalties
        if step % _STEPS_PER_POINT == 0 or step == config.steps - 1:
            self._report("train_loss", float(loss.detach()), step)
        return loss

    def validate(self) -> dict[str, float]:
        return {}

    def _log_error(self, chosen: NDArray[np.int64], bend: bool) -> tuple[Tensor, Tensor]:
        """Return log(prediction / label) [graphs, D], and the penalty of what the network adds."""
        used, which, graph, count = self._counts.batch(chosen)
        cost, squares = self.network(
            self._inputs[used], self._groups[used], self._amount[used], bend=bend
        )
        total = torch.zeros(len(chosen), cost.shape[1])
        total = total.index_add(0, graph, cost[which] * count[:, None])
        return torch.log(total) - self._log_label[chosen], (self._penalty * squares).sum()

    def _calibrate(self) -> None:
        """Shift each device's bases so that the median error is 0."""
        size = min(_CALIBRATED_ON, len(self._labelled))
        some = self._generator.choice(self._labelled, size, replace=False)
        with torch.no_grad():
            error = self._log_error(some, False)[0]
            self.network.base.sub_(torch.nanmedian(error, dim=0).values)


def _optimizers(
    config: AdditiveConfig, network: Costs, steps: int, minutes: Callable[[], float]
) -> Optimizers:
    """Return AdamW with one cycle of the learning rate; bases and kinds have decays and peaks of their own."""
    del minutes
    bending = [*network.layers.parameters(), *network.head.parameters()]
    rate = config.learning_rate
    groups = [
        {"params": bending, "weight_decay": config.weight_decay},
        {"params": [network.base], "weight_decay": 0.0},
        {"params": [network.kinds], "weight_decay": config.kinds_weight_decay},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate)
    peaks = [rate, config.kinds_learning_rate, config.kinds_learning_rate]
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, peaks, total_steps=steps, pct_start=0.1
    )
    return optimizer, schedule, "step"
