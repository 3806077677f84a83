"""A network's latency by a model of graphs: milliseconds, an interval, what the model cannot know, where they go.

The interval (:func:`tencost.graphs.learnt.log_error_bounds`) holds for networks like those that were held out. A
network unlike them is told by the warnings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tencost.errors import GraphError
from tencost.graphs.family import GraphModel
from tencost.graphs.graph_set import GraphSet
from tencost.graphs.learnt import OperatorRange, TrainingRange
from tencost.graphs.operators import COLUMNS, INPUT, OPERATORS, OUTPUT, STRIDES, WEIGHT


@runtime_checkable
class Additive(Protocol):
    """A model whose prediction is a sum over nodes."""

    def node_costs(self, graphs: GraphSet) -> NDArray[np.float64]:
        """Return milliseconds of each node, float64 [N, D]; those of a graph add up to its prediction."""


@dataclass(frozen=True)
class OperatorCost:
    """What one node of a network costs.

    Attributes:
        node: its number in the graph.
        operator: its operator.
        sizes: its shapes, kernel and strides, for a person.
        ms: milliseconds.
        share: of the whole network's.
    """

    node: int
    operator: str
    sizes: str
    ms: float
    share: float


@dataclass(frozen=True)
class Latency:
    """The answer for one device.

    Attributes:
        hardware: the device.
        ms: milliseconds.
        low: lower end of the interval, milliseconds.
        high: upper end.
        coverage: share of networks like those learnt from whose latency is in such an interval.
        warnings: what the training data did not hold, a sentence each, the worst first.
        costliest: operators that cost most; empty for a model that does not add up nodes.
    """

    hardware: str
    ms: float
    low: float
    high: float
    coverage: float
    warnings: tuple[str, ...]
    costliest: tuple[OperatorCost, ...]


def latencies(
    graph: GraphSet,
    model: GraphModel,
    hardware: Sequence[str],
    bounds: NDArray[np.float64],
    learnt: TrainingRange,
    *,
    coverage: float = 0.9,
    top: int = 10,
) -> tuple[Latency, ...]:
    """Predict one network on every device of a model.

    Args:
        graph: one graph.
        model: a trained model.
        hardware: its D devices, in the order of its predictions.
        bounds: float64 [D, 2], as `log_error_bounds` returns them.
        learnt: what the model has learnt from.
        coverage: that the bounds are for.
        top: how many of the costliest operators are listed.

    Raises:
        GraphError: not one graph.
    """
    if len(graph) != 1:
        raise GraphError(f"expected the graph of one network, found {len(graph)}")
    predicted = model.predict(graph)[0]
    told = warnings_for(graph, learnt)
    costs = model.node_costs(graph) if isinstance(model, Additive) else None
    return tuple(
        Latency(
            name,
            float(ms),
            float(ms * np.exp(low)),
            float(ms * np.exp(high)),
            coverage,
            told,
            () if costs is None else costliest(graph, costs[:, device], top),
        )
        for device, (name, ms, (low, high)) in enumerate(
            zip(hardware, predicted, bounds, strict=True)
        )
    )


def warnings_for(graph: GraphSet, learnt: TrainingRange) -> tuple[str, ...]:
    """Return what a network has that the training data do not, a sentence each, the worst first."""
    found: list[tuple[float, str]] = []
    count = len(graph.operator)
    if count > learnt.max_nodes:
        found.append(
            (
                count / max(learnt.max_nodes, 1),
                f"{count} nodes: the largest network learnt from has {learnt.max_nodes}",
            )
        )
    for code in np.unique(graph.operator).tolist():
        name, columns = OPERATORS[code], graph.columns[graph.operator == code]
        known = learnt.operators.get(name)
        if known is None:
            nodes = f"{len(columns)} node{'s' if len(columns) > 1 else ''}"
            found.append((float("inf"), f"{name} ({nodes}): no network learnt from has it"))
            continue
        found += _beyond(name, columns, known)
    return tuple(text for _, text in sorted(found, key=lambda pair: (-pair[0], pair[1])))


def _beyond(
    operator: str, columns: NDArray[np.int32], known: OperatorRange
) -> list[tuple[float, str]]:
    """Return (how many times beyond, sentence) of each column that leaves the range."""
    found = []
    for place, column in enumerate(COLUMNS):
        sizes = columns[:, place][
            columns[:, place] > 0
        ]  # 0: there is no such dimension; -1: not known
        low, high = known.low[place], known.high[place]
        outside = sizes[(sizes < low) | (sizes > high)]
        if not len(outside):
            continue
        far = max(outside.tolist(), key=lambda size: _times(size, low, high))
        told = f"{low} to {high}" if low < high else f"{high}"
        text = f"{operator}: {column} {far}, learnt from {told} ({len(outside)} of {len(columns)} nodes)"
        found.append((_times(far, low, high), text))
    return found


def _times(size: int, low: int, high: int) -> float:
    """Return how many times a size is beyond a range."""
    if size > high:
        return (size + 1) / (max(high, 0) + 1)
    return (low + 1) / (size + 1)


def costliest(
    graph: GraphSet, costs: NDArray[np.float64], top: int = 10
) -> tuple[OperatorCost, ...]:
    """Return the nodes that cost most, the costliest first.

    Args:
        graph: one graph of N nodes.
        costs: float64 [N], milliseconds.
        top: how many.
    """
    whole = float(costs.sum())
    order = np.argsort(-costs, kind="stable")[:top]
    return tuple(
        OperatorCost(
            int(node),
            OPERATORS[graph.operator[node]],
            node_sizes(graph.columns[node]),
            float(costs[node]),
            float(costs[node]) / whole if whole else 0.0,
        )
        for node in order
    )


def node_sizes(columns: NDArray[np.int32]) -> str:
    """Return a node's numbers for a person: input, kernel and strides where it has them, output."""
    words = [_shape(columns[INPUT]), _shape(columns[OUTPUT])]
    kernel, strides = _shape(columns[WEIGHT]), _shape(columns[STRIDES])
    middle = f" {kernel}/{strides}" if kernel and strides else ""
    return f"{words[0] or '()'}{middle} -> {words[1] or '()'}"


def _shape(sizes: NDArray[np.int32]) -> str:
    values = sizes.tolist()
    while values and values[-1] == 0:
        values.pop()
    return "x".join("?" if size < 0 else str(size) for size in values)
