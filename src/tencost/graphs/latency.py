"""What a network takes on a device, before it is compiled: milliseconds, how sure they are, and where they go.

The interval is that of the model's errors on graphs that it did not learn from (:data:`tencost.graphs.bundle.LEVELS`),
of the families that it learnt from: a network that holds what it has never seen may be further off, and what that is is
told beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tencost.graphs.bundle import LEVELS, GraphBundle, device_index
from tencost.graphs.graph_set import GraphSet
from tencost.graphs.operators import INPUT, OPERATORS, OUTPUT, STRIDES, WEIGHT
from tencost.graphs.seen import read_seen

_LOW, _HIGH = LEVELS.index(0.05), LEVELS.index(0.95)
COVERAGE = LEVELS[_HIGH] - LEVELS[_LOW]
"""Share of held-out graphs whose latency lay in their interval."""


@dataclass(frozen=True)
class Cost:
    """One node of the network.

    Attributes:
        node: its number in the graph, from 0.
        operator: what it is.
        shape: its input, weight and output in words.
        latency_ms: its share of the network's latency.
    """

    node: int
    operator: str
    shape: str
    latency_ms: float


@dataclass(frozen=True)
class Answer:
    """The latency of a network on a device.

    Attributes:
        name: of the network.
        hardware: of the device.
        latency_ms: milliseconds.
        low_ms: lower end of the interval; None where the model has no errors of the device to tell from.
        high_ms: upper end.
        unseen: what the model has never seen of the network, a sentence each.
        costs: nodes by falling cost, all that cost something; empty for models that are no sums.
    """

    name: str
    hardware: str
    latency_ms: float
    low_ms: float | None
    high_ms: float | None
    unseen: tuple[str, ...]
    costs: tuple[Cost, ...] = field(default=())

    def to_dict(self, top: int) -> dict[str, Any]:
        """Return JSON values, with the `top` costliest nodes."""
        values = {
            name: getattr(self, name)
            for name in ("name", "hardware", "latency_ms", "low_ms", "high_ms")
        }
        return {
            **values,
            "coverage": round(COVERAGE, 6),
            "unseen": list(self.unseen),
            "costs": [vars(cost) for cost in self.costs[:top]],
        }


def ask(
    bundle: GraphBundle, network: GraphSet, hardware: str, other: Mapping[str, int] | None = None
) -> Answer:
    """Predict one network's latency.

    Args:
        bundle: a model.
        network: one graph.
        hardware: one of the devices that the model was trained for.
        other: operators of the network's file that no operator of ours stands for, by how often.

    Raises:
        BundleError: the model was not trained for that hardware, or does not say what it has seen.
    """
    assert len(network) == 1, "one network at a time"
    column = device_index(bundle.info, hardware)
    latency = float(bundle.model.predict(network)[0, column])
    errors = bundle.info.log_error.get(hardware, [])
    low, high = (float(latency * np.exp(errors[end])) if errors else None for end in (_LOW, _HIGH))
    unseen = read_seen(bundle.folder).unknown(network)
    unseen += [
        f"{name} ({count} times) is no operator that is known here; it counts as nothing"
        for name, count in (other or {}).items()
    ]
    node_costs = getattr(bundle.model, "node_costs", None)
    costs = () if node_costs is None else _costs(network, node_costs(network)[:, column])
    return Answer(str(network.name[0]), hardware, latency, low, high, tuple(unseen), costs)


def _costs(network: GraphSet, latency_ms: NDArray[np.float64]) -> tuple[Cost, ...]:
    order = np.argsort(-latency_ms, kind="stable")
    return tuple(
        Cost(
            int(node),
            OPERATORS[network.operator[node]],
            _shape(network.columns[node]),
            float(latency_ms[node]),
        )
        for node in order
        if latency_ms[node] > 0
    )


def _shape(columns: NDArray[np.int32]) -> str:
    def sizes(part: slice) -> str:
        return "x".join(str(size) for size in columns[part] if size != 0)

    text = f"{sizes(INPUT) or '-'} -> {sizes(OUTPUT) or '-'}"
    if columns[WEIGHT].any():
        text += f", weight {sizes(WEIGHT)}"
    if (columns[STRIDES] > 1).any():
        text += f", stride {columns[STRIDES][0]}"
    return text
