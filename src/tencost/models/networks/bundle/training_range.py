"""What a model has learnt from, and how far off it was on what it did not learn from: a bundle says both.

The bounds are those of a split conformal prediction (Lei et al., "Distribution-free predictive inference for
regression", JASA 2018): quantiles of the log errors on graphs that were held out, corrected for how many those are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tencost.errors import BundleError
from tencost.networks.graph.graph_set import GraphSet
from tencost.networks.graph.operators import COLUMNS, OPERATORS


@dataclass(frozen=True)
class OperatorRange:
    """What the training data hold of an operator.

    Attributes:
        nodes: how many nodes.
        low: least number of each column, 16; sizes that are not known (-1) do not count.
        high: greatest number of each column, 16.
    """

    nodes: int
    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True)
class TrainingRange:
    """What a model has learnt from.

    Attributes:
        graphs: how many graphs.
        max_nodes: nodes of the largest.
        operators: operator -> its range; one that is not there was never seen.
    """

    graphs: int
    max_nodes: int
    operators: dict[str, OperatorRange]


def training_range(graphs: GraphSet) -> TrainingRange:
    """Return how many nodes each operator has in graphs, and the bounds of its columns."""
    operators = {}
    for code in np.unique(graphs.operator).tolist():
        columns = graphs.columns[graphs.operator == code]
        least = np.where(columns < 0, np.iinfo(np.int32).max, columns).min(axis=0)
        high = columns.max(axis=0)
        low = np.minimum(least, np.maximum(high, 0))  # a column that is never known
        operators[OPERATORS[code]] = OperatorRange(
            len(columns), tuple(low.tolist()), tuple(high.tolist())
        )
    sizes = np.diff(graphs.node_start)
    return TrainingRange(len(graphs), int(sizes.max(initial=0)), operators)


def range_from_json(values: Mapping[str, Any]) -> TrainingRange:
    """Read a range from JSON values, the fields of the dataclasses by name.

    Raises:
        BundleError: it is something else.
    """
    try:
        operators = {
            str(name): OperatorRange(
                int(bounds["nodes"]),
                tuple(map(int, bounds["low"])),
                tuple(map(int, bounds["high"])),
            )
            for name, bounds in values["operators"].items()
        }
        limits = TrainingRange(int(values["graphs"]), int(values["max_nodes"]), operators)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(
            f"expected what a model was trained on (graphs, max_nodes, operators), found something else: {error}"
        ) from error
    for name, bounds in operators.items():
        if len(bounds.low) != len(COLUMNS) or len(bounds.high) != len(COLUMNS):
            raise BundleError(
                f"expected {len(COLUMNS)} bounds of operator {name}, found {len(bounds.low)} and {len(bounds.high)}"
            )
    return limits


def log_error_bounds(
    actual_ms: NDArray[np.float64], predicted_ms: NDArray[np.float64], coverage: float = 0.9
) -> NDArray[np.float64]:
    """Return the bounds of log(actual / predicted) on graphs that were held out.

    With n graphs the bounds are the errors of rank floor((n + 1) (1 - coverage) / 2) and of the rank as far from the
    other end; with too few graphs for that (19 for 90 %) the outermost errors.

    Args:
        actual_ms: float64 [G, D]; NaN where nobody measured.
        predicted_ms: float64 [G, D].
        coverage: share that is to lie between the bounds.

    Returns:
        float64 [D, 2]; NaN for a device without a latency.
    """
    bounds = np.full((actual_ms.shape[1], 2), np.nan)
    for device in range(actual_ms.shape[1]):
        error = np.log(actual_ms[:, device] / predicted_ms[:, device])
        error = np.sort(error[np.isfinite(error)])
        if len(error):
            rank = max(int((len(error) + 1) * (1 - coverage) / 2), 1)
            bounds[device] = error[rank - 1], error[-rank]
    return bounds
