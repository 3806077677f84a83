"""Latency as a sum over a network's kernels, each with a learnt cost: several devices at once, sizes as numbers.

A kernel (:mod:`tencost.features.graph.tokens`) costs, on a device::

    ms = flop * exp(a[kind] + f(x)) + moved * exp(b[kind] + g(x)) + exp(c + h(x))

time to compute, to move and to start, as in a roofline (Williams et al., CACM 2009). a, b and c are the device's, a and
b of each kind of kernel; f, g and h are outputs of one network over the kernel's features x, a trunk shared by all
devices and a head each. So sizes beyond those that were learnt scale as arithmetic and traffic do, and families that
share kernels learn from one another. The loss is taken on the logarithm of a network's sum, as relative errors are what
counts, and is nearly absolute, as labels have outliers.

Sums leave much open: in most families every network has as many concatenations as the next, and any kernel could be
the slow one. So a, b and c are learnt first, alone, and the squares of f, g and h are penalised: a difference is told
by kind and size where that explains it. h is penalised most: starting a kernel takes about as long whatever it is.

Hardware that is `tiled` has a matrix unit, for which a compiler cuts convolutions into tiles, and other units for the
rest. Its terms are others (tencost.features.graph.tokens.AMOUNTS): what is read, written and weighed apart, the unit's
cycles, partial sums and tiles, and the kernel, each with a price of its own in each kind of kernel. The prices are one
convex fit (tencost.models.networks.additive.base) that stays as it is; the network bends them like the others.

Several networks from different seeds are averaged: what the sums leave open (which of two kernels that always stand
together is the slow one) they decide differently.

Files: `additive_<k>.safetensors`, one a member.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tencost.config.checking import within
from tencost.config.graphs import GraphModelConfig
from tencost.errors import BundleError
from tencost.features.graph.tokens import (
    AMOUNTS,
    FEATURES,
    INTEGERS,
    KINDS,
    Kernels,
    amounts,
    distinct,
    features,
    find_kernels,
    node_kinds,
)
from tencost.models.networks.family import GraphFamily, Report, check_labelled
from tencost.models.neural.weights import (
    Weights,
    check_weights,
    layer_shapes,
    read_weights,
    write_weights,
)
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs

TERMS = 3
"""Of AMOUNTS, those that count where nothing is tiled: time to compute, to move and to start."""
_START_MS = (1e-7, 2e-7, 5e-3)
"""Milliseconds a FLOP, an element moved and a kernel, before the first fit by the median ratio."""
_SMALLEST_SPREAD = 0.05
"""A feature that hardly varies is not blown up, an indicator least of all: an operator that one family has would tell
that family."""
_INDICATOR_SPREAD = 0.5
_INDICATORS = np.array(
    [
        name.startswith(("kind_", "is_", "after_", "before_", "kernel_", "stride_"))
        for name in FEATURES
    ]
)
_LARGEST_LOG_MS = 50.0
"""A kernel's cost is not told beyond exp(this): damaged or far-off weights would overflow."""
LOG_NOTHING = -2 * _LARGEST_LOG_MS
"""Of an amount, or of its cost, where there is none."""
_LEAST_MS = 1e-9
"""Of a network without a single kernel."""
_ROWS = 50_000
"""Kernels that are priced at a time."""


@dataclass(kw_only=True)
class AdditiveConfig(GraphModelConfig):
    """A learnt cost for each fused kernel, summed over the network."""

    hidden: int = 96
    """Width of the hidden layers."""
    layers: int = 2
    """Hidden layers."""
    members: int = 3
    """Networks that are averaged, each from its own seed."""
    steps: int = 1200
    """Steps of training of each member."""
    batch: int = 128
    """Graphs in a step."""
    learning_rate: float = 3e-3
    """Peak of the one-cycle schedule."""
    weight_decay: float = 0.01
    """AdamW's."""
    penalty: float = 0.001
    """Of the mean squares of f and g."""
    start_penalty: float = 0.03
    """Of the mean square of h."""
    kinds_first: float = 0.3
    """Share of the steps in which a, b and c are learnt alone."""
    kinds_learning_rate: float = 0.03
    """Peak for a, b and c."""
    kinds_weight_decay: float = 0.3
    """AdamW's for a and b of each kind: one that is hardly ever seen stays near the others."""
    tiled: list[str] = field(default_factory=lambda: ["myriad-vpu"])
    """Hardware with a matrix unit whose compiler cuts convolutions into tiles (tencost.features.graph.tiling)."""
    delta: float = 0.05
    """Relative error below which the loss turns from absolute to squared."""
    num_threads: int = 1
    """Threads while training. With more than one the weights depend on how many CPUs the host has."""

    def __post_init__(self) -> None:
        within("model", self, hidden="[1, inf)", layers="[1, inf)", members="[1, inf)")
        within("model", self, steps="[1, inf)", batch="[1, inf)", num_threads="[1, inf)")
        within("model", self, learning_rate="(0, inf)", weight_decay="[0, inf)")
        within("model", self, delta="(0, inf)", kinds_first="[0, 1]")
        within("model", self, penalty="[0, inf)", start_penalty="[0, inf)")
        within("model", self, kinds_learning_rate="(0, inf)", kinds_weight_decay="[0, inf)")


class AdditiveModel:
    """Members that are averaged; see the module's text."""

    def __init__(self, config: AdditiveConfig, num_devices: int) -> None:
        self._config = config
        self._num_devices = num_devices
        self._members: list[Weights] = []

    def fit(
        self, train: LabelledGraphs, valid: LabelledGraphs, *, seed: int, report: Report
    ) -> None:
        from tencost.models.networks.additive.training import Counts, fit_tiled, train_member

        check_labelled(train)
        counts = Counts.of(train.graphs)
        scaler = _scaler(features(counts.kernels))
        tiled = fit_tiled(counts, train, self._config.tiled)
        self._members = []
        for member in range(self._config.members):
            weights = train_member(
                counts,
                train.latency_ms,
                self._config,
                scaler,
                tiled,
                seed=seed * 1000 + member,
                report=report if member == 0 else _silent,
            )
            self._members.append(weights)
            self._report_valid(valid, report, member)

    def predict(self, graphs: GraphSet) -> NDArray[np.float64]:
        kernels = find_kernels(graphs)
        cost = self._kernel_costs(kernels)
        return np.maximum(_totals(cost, kernels.graph, len(graphs)), _LEAST_MS)

    def node_costs(self, graphs: GraphSet) -> NDArray[np.float64]:
        """Return what each node costs: milliseconds, float64 [N, D]; a graph's nodes sum to its prediction.

        A kernel's whole cost stands at its root; what is folded into it, and constants, cost nothing.
        """
        kernels = find_kernels(graphs)
        costs = np.zeros((len(graphs.operator), self._num_devices))
        costs[kernels.root] = self._kernel_costs(kernels)
        return costs

    def save(self, folder: Path) -> None:
        for index, weights in enumerate(self._members):
            write_weights(folder / f"additive_{index}.safetensors", weights)

    def load(self, folder: Path) -> None:
        members = []
        for index in range(self._config.members):
            path = folder / f"additive_{index}.safetensors"
            weights = read_weights(path)
            check_weights(path, weights, self._shapes())
            if (weights["scaler.low"] > weights["scaler.high"]).any():
                raise BundleError(
                    f"{path}: expected scaler.low <= scaler.high, found the contrary. Pull or train the model again."
                )
            members.append(weights)
        self._members = members

    def _kernel_costs(self, instances: Kernels) -> NDArray[np.float64]:
        """Return milliseconds of each kernel: float64 [K, D]."""
        assert self._members, "fit or load before predict"
        kernels, which = distinct(instances.integers)
        parts = [np.zeros((0, self._num_devices))]
        for first in range(0, len(kernels), _ROWS):
            some = kernels[first : first + _ROWS]
            matrix, amount = features(some), log_amounts(some)
            group = cost_groups(some)
            costs = [cost_of(weights, matrix, group, amount) for weights in self._members]
            parts.append(np.mean(costs, axis=0))
        everything: NDArray[np.float64] = np.concatenate(parts)[which]
        return everything

    def _report_valid(self, valid: LabelledGraphs, report: Report, member: int) -> None:
        """Report the share of validation graphs whose error is below 10 %, with the members so far."""
        if not len(valid):
            return
        error = np.abs(self.predict(valid.graphs) / valid.latency_ms - 1)
        for device, name in enumerate(valid.hardware):
            measured = np.isfinite(error[:, device])
            if measured.any():
                report(f"valid_acc10_{name}", float((error[measured, device] < 0.1).mean()), member)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        width, hidden = len(FEATURES), self._config.hidden
        shapes: dict[str, tuple[int, ...]] = {
            f"scaler.{name}": (width,) for name in ("mean", "inverse", "low", "high")
        }
        shapes["base"] = (GROUPS, len(AMOUNTS), self._num_devices)
        for layer in range(self._config.layers):
            shapes |= layer_shapes(f"layer_{layer}", width if layer == 0 else hidden, hidden)
        return shapes | layer_shapes("head", hidden, len(AMOUNTS) * self._num_devices)


def cost_of(
    weights: Weights,
    matrix: NDArray[np.float32],
    group: NDArray[np.int64],
    amount: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return what one member says that kernels cost: milliseconds, float64 [K, D]."""
    hidden = standardise(weights, matrix).astype(np.float64)
    layer = 0
    while f"layer_{layer}.weight" in weights:
        hidden = hidden @ weights[f"layer_{layer}.weight"] + weights[f"layer_{layer}.bias"]
        hidden = hidden / (1 + np.exp(np.minimum(-hidden, 500.0)))  # SiLU
        layer += 1
    out = hidden @ weights["head.weight"] + weights["head.bias"]
    out = out.reshape(len(out), len(AMOUNTS), -1) + weights["base"][group]
    out += amount[:, :, None]
    cost: NDArray[np.float64] = np.exp(np.clip(out, -_LARGEST_LOG_MS, _LARGEST_LOG_MS)).sum(axis=1)
    return cost


def log_amounts(integers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the logarithms of AMOUNTS, LOG_NOTHING where there is none: float64 [K, len(AMOUNTS)]."""
    quantities = amounts(integers)
    return np.log(quantities, out=np.full(quantities.shape, LOG_NOTHING), where=quantities > 0)


GROUPS = len(KINDS) + 1
"""Kinds of kernels that have an a and a b of their own; what works element by element is one, and convolutions of
single pixels are one more."""


_GROUP = np.arange(len(KINDS))
_GROUP[[KINDS.index(name) for name in ("norm", "activation")]] = KINDS.index("add")


def cost_groups(integers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which of GROUPS each kernel belongs to: int64 [K]."""
    kinds = _GROUP[node_kinds(integers)]
    pointwise = (kinds == KINDS.index("conv")) & (
        integers[:, INTEGERS.index("kernel_h")] * integers[:, INTEGERS.index("kernel_w")] <= 1
    )
    return np.where(pointwise, GROUPS - 1, kinds)


def standardise(weights: Weights, matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return features within the range that was learnt, centred and scaled; 0 where nothing varied: [K, F]."""
    inside = np.clip(matrix, weights["scaler.low"], weights["scaler.high"])
    return (inside - weights["scaler.mean"]) * weights["scaler.inverse"]


def _scaler(matrix: NDArray[np.float32]) -> Weights:
    low, high = matrix.min(axis=0), matrix.max(axis=0)
    smallest = np.where(_INDICATORS, _INDICATOR_SPREAD, _SMALLEST_SPREAD)
    spread = np.maximum(matrix.std(axis=0, dtype=np.float64), smallest)
    return {
        "scaler.mean": matrix.mean(axis=0, dtype=np.float64).astype(np.float32),
        "scaler.inverse": np.where(high > low, 1 / spread, 0).astype(np.float32),
        "scaler.low": low,
        "scaler.high": high,
    }


def initial_base(num_devices: int) -> NDArray[np.float32]:
    """Return the logarithms of a, b and c before anything was learnt: float32 [3, D]."""
    return np.tile(np.log(np.array(_START_MS, dtype=np.float32))[:, None], (1, num_devices))


def _totals(
    cost: NDArray[np.float64], graph: NDArray[np.int64], num_graphs: int
) -> NDArray[np.float64]:
    """Sum rows of each graph: float64 [G, D]."""
    return np.stack(
        [np.bincount(graph, weights=column, minlength=num_graphs) for column in cost.T], axis=1
    )


def _silent(name: str, value: float, step: int) -> None:
    del name, value, step


def _make(config: Any, num_devices: int) -> AdditiveModel:
    return AdditiveModel(config, num_devices)


FAMILY = GraphFamily(
    config=AdditiveConfig,
    make=_make,
    for_tests=AdditiveConfig(
        family="additive", hidden=16, layers=1, members=2, steps=60, batch=32, num_threads=1
    ),
    additive=True,
)
