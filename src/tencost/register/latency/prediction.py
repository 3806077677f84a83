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
from tencost.evaluate.networks.left_out import FARTHEST, LeftOut
from tencost.models.networks.bundle.training_range import OperatorRange, TrainingRange
from tencost.models.networks.family import GraphModel
from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.operators import COLUMNS, INPUT, OPERATORS, OUTPUT, STRIDES, WEIGHT


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


def latencies(
    graph: GraphSet,
    model: GraphModel,
    hardware: Sequence[str],
    bounds: NDArray[np.float64],
    learnt: TrainingRange,
    *,
    coverage: float = 0.9,
    top: int = 10,
    unmodelled: Sequence[str] = (),
    left_out: LeftOut | None = None,
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
        unmodelled: operators and settings of the network that its graph cannot state, a sentence each.
        left_out: errors on families held out; None where they were not measured.

    Raises:
        GraphError: not one graph.
    """
    if len(graph) != 1:
        raise GraphError(f"expected the graph of one network, found {len(graph)}")
    predicted = model.predict(graph)[0]
    novelties = _novelties(graph, learnt)
    warnings = (*unmodelled, *(text for _, text in novelties))
    beyond = float("inf") if unmodelled else max((times for times, _ in novelties), default=0.0)
    costs = model.node_costs(graph) if isinstance(model, Additive) else None
    answers = []
    for device, (name, ms) in enumerate(zip(hardware, predicted, strict=True)):
        low, high, basis = interval_bounds(bounds[device], beyond, left_out)
        answers.append(
            Latency(
                name,
                float(ms),
                float(ms * np.exp(low)),
                float(ms * np.exp(high)),
                coverage,
                warnings,
                () if costs is None else costliest(graph, costs[:, device], top),
                basis,
            )
        )
    return tuple(answers)


def interval_bounds(
    bounds: NDArray[np.float64], beyond: float, left_out: LeftOut | None
) -> tuple[float, float, str]:
    """Return the bounds of log(actual / predicted) for a network, and for which networks they hold.

    Args:
        bounds: float64 [2]; on networks like those learnt from, NaN where nobody measured.
        beyond: how many times the network is beyond the sizes learnt from: 0 within them, inf for what no network had.
        left_out: errors on families held out, None where they were not measured.

    Returns:
        Low, high and a sentence; NaN and the reason where no errors were measured on such networks.
    """
    low, high = (float(bound) for bound in bounds)
    if not beyond and left_out is None:
        if np.isnan(low):
            return low, high, "No interval: no network was measured to compare with."
        return (
            low,
            high,
            (
                "The interval holds for networks of the families learnt from only: this model does not hold its "
                "errors on families held out (register one of split=by_family, which holds out two or more)."
            ),
        )
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


def warnings_for(graph: GraphSet, learnt: TrainingRange) -> tuple[str, ...]:
    """Return what a network has that the training data do not, a sentence each, the worst first."""
    return tuple(text for _, text in _novelties(graph, learnt))


def _novelties(graph: GraphSet, learnt: TrainingRange) -> list[tuple[float, str]]:
    """Return (how many times beyond the training data, sentence), the worst first; inf for an operator of its own."""
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
    return sorted(found, key=lambda pair: (-pair[0], pair[1]))


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
