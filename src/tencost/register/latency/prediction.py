"""A network's latency by a model of graphs: milliseconds, an interval, what the model cannot know, where they go.

Nothing in a graph proves that it is of a family that was learnt from: a new family may be made of known operators in
known sizes. So the interval is that of families that were held out (:mod:`tencost.evaluate.networks.left_out`) wherever
those errors were measured, and `basis` says how narrow it is for a network of the families learnt from
(:func:`tencost.models.networks.bundle.training_range.log_error_bounds`). A network with an operator that no network had
gets no interval, as no error was ever measured on such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tencost.errors import GraphError
from tencost.evaluate.networks.left_out import FARTHEST, FamilyErrorBounds
from tencost.models.networks.bundle.training_range import OperatorRange, TrainingRange
from tencost.models.networks.family import GraphModel
from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.operators import COLUMNS, INPUT, OPERATORS, OUTPUT, STRIDES, WEIGHT

COVERAGE = 0.9
"""Share of networks whose latency is in an interval."""


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
        low: lower end of the interval, milliseconds; NaN where there is no interval.
        high: upper end.
        coverage: share of networks whose latency is in such an interval.
        warnings: what the training data did not hold, a sentence each, the worst first.
        costliest: operators that cost most; empty for a model that does not add up nodes.
        basis: for which networks the interval holds, or why there is none.
    """

    hardware: str
    ms: float
    low: float
    high: float
    coverage: float
    warnings: tuple[str, ...]
    costliest: tuple[OperatorCost, ...]
    basis: str = ""


def predict_latency(
    graph: GraphSet,
    model: GraphModel,
    hardware: str,
    device: int,
    bounds: tuple[float, float],
    learnt: TrainingRange,
    *,
    top: int = 10,
    unmodelled: Sequence[str] = (),
    left_out: FamilyErrorBounds | None = None,
) -> Latency:
    """Predict one network on one device of a model.

    Args:
        graph: one graph.
        model: a trained model.
        hardware: the device.
        device: its position in the model's predictions.
        bounds: of log(actual / predicted), as `log_error_bounds` returns them for COVERAGE; NaN where nobody measured.
        learnt: what the model has learnt from.
        top: how many of the costliest operators are listed.
        unmodelled: operators and settings of the network that its graph cannot state, a sentence each.
        left_out: errors on families held out; None where they were not measured.

    Raises:
        GraphError: not one graph.
    """
    if len(graph) != 1:
        raise GraphError(f"expected the graph of one network, found {len(graph)}")
    ms = float(model.predict(graph)[0, device])
    novel = novelties(graph, learnt)
    beyond = float("inf") if unmodelled else max((times for times, _ in novel), default=0.0)
    low, high, basis = interval_bounds(bounds, beyond, left_out)
    costs: tuple[OperatorCost, ...] = ()
    if isinstance(model, Additive):
        costs = costliest(graph, model.node_costs(graph)[:, device], top)
    return Latency(
        hardware,
        ms,
        float(ms * np.exp(low)),
        float(ms * np.exp(high)),
        COVERAGE,
        (*unmodelled, *(text for _, text in novel)),
        costs,
        basis,
    )


def interval_bounds(
    bounds: tuple[float, float], beyond: float, left_out: FamilyErrorBounds | None
) -> tuple[float, float, str]:
    """Return the bounds of log(actual / predicted) for a network, and for which networks they hold.

    Args:
        bounds: on networks like those learnt from, NaN where nobody measured.
        beyond: how many times the network is beyond the sizes learnt from: 0 within them, inf for what no network had.
        left_out: errors on families held out, None where they were not measured.

    Returns:
        Low, high and a sentence; NaN and the reason where no errors were measured on such networks.
    """
    low, high = bounds
    if not beyond and left_out is None:
        basis = (
            "The interval holds for networks of the families learnt from only: this model does not hold its "
            "errors on families held out (register one of split=by_family, which holds out two or more)."
        )
        if np.isnan(low):
            basis = "No interval: no network was measured to compare with."
        return low, high, basis
    if beyond == float("inf"):
        reason = "how far off the model is on what no network learnt from has was never measured."
    elif left_out is None:
        reason = (
            "sizes are beyond those learnt from, and this model does not hold its errors on families held out "
            "(register one of split=by_family, which holds out two or more)."
        )
    elif beyond > FARTHEST:
        reason = (
            f"a size is {beyond:.0f} times beyond those learnt from; "
            f"errors were measured up to {FARTHEST:.0f} times."
        )
    else:
        basis = f"The interval is for families never learnt, from errors on {', '.join(left_out.families)}."
        if not beyond and not np.isnan(low):
            ends = f"{np.expm1(low):+.1%} to {np.expm1(high):+.1%}"
            basis += f" For a network of the families learnt from it is {ends}."
        return float(np.fmin(low, left_out.low)), float(np.fmax(high, left_out.high)), basis
    return float("nan"), float("nan"), f"No interval: {reason}"


def novelties(graph: GraphSet, learnt: TrainingRange) -> list[tuple[float, str]]:
    """Return what a network has that the training data do not, the worst first.

    Returns:
        How many times beyond the training data, inf for an operator that no network had, and a sentence.
    """
    novel: list[tuple[float, str]] = []
    count = len(graph.operator)
    if count > learnt.max_nodes:
        text = f"{count} nodes: the largest network learnt from has {learnt.max_nodes}"
        novel.append((count / max(learnt.max_nodes, 1), text))
    for code in np.unique(graph.operator).tolist():
        name, columns = OPERATORS[code], graph.columns[graph.operator == code]
        if name in learnt.operators:
            novel += _beyond(name, columns, learnt.operators[name])
        else:
            nodes = f"{len(columns)} node{'s' if len(columns) > 1 else ''}"
            novel.append((float("inf"), f"{name} ({nodes}): no network learnt from has it"))
    return sorted(novel, key=lambda pair: (-pair[0], pair[1]))


def _beyond(
    operator: str, columns: NDArray[np.int32], learnt: OperatorRange
) -> list[tuple[float, str]]:
    """Return (how many times beyond, sentence) of each column that leaves the range."""
    beyond = []
    for column, sizes, low, high in zip(COLUMNS, columns.T, learnt.low, learnt.high, strict=True):
        # 0: there is no such dimension; -1: not known
        outside = sizes[(sizes > 0) & ((sizes < low) | (sizes > high))].tolist()
        if not outside:
            continue
        farthest = max(outside, key=lambda size: _times(size, low, high))
        range_text = f"{low} to {high}" if low < high else f"{high}"
        text = f"{operator}: {column} {farthest}, learnt from {range_text} ({len(outside)} of {len(columns)} nodes)"
        beyond.append((_times(farthest, low, high), text))
    return beyond


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
    before, after = _shape(columns[INPUT]) or "()", _shape(columns[OUTPUT]) or "()"
    kernel, strides = _shape(columns[WEIGHT]), _shape(columns[STRIDES])
    middle = f" {kernel}/{strides}" if kernel and strides else ""
    return f"{before}{middle} -> {after}"


def _shape(sizes: NDArray[np.int32]) -> str:
    return "x".join("?" if size < 0 else str(size) for size in np.trim_zeros(sizes, "b").tolist())
