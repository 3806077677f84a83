"""What a family of graph models must do: learn latencies from labelled graphs, predict, be saved and loaded.

A family is one module of :mod:`tencost.models.networks.families` that describes itself in `FAMILY`. Its configuration
imports without torch; `predict` of a loaded bundle needs neither torch nor torch-geometric, but for the family `gnn`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tencost.config.graphs import GraphModelConfig
from tencost.errors import TrainError
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs

Report = Callable[[str, float, int], None]
"""Takes a point of a training curve: name, value, step."""


def check_labelled(part: LabelledGraphs, purpose: str = "") -> None:
    """Refuse graphs of which a device has no latency at all.

    Raises:
        TrainError: it names the devices.
    """
    measured = np.isfinite(part.latency_ms).any(axis=0)
    if not measured.all():
        without = np.array(part.hardware)[~measured]
        raise TrainError(
            f"expected graphs {purpose}with a latency on {', '.join(without)}, found none"
        )


class GraphModel(Protocol):
    """A model of latency. Several devices are learnt together, where the family can."""

    def fit(
        self, train: LabelledGraphs, valid: LabelledGraphs, *, seed: int, report: Report
    ) -> None:
        """Learn from `train`, choose (epochs, sizes) by `valid`; both have the same devices in the same order.

        Raises:
            TrainError: there is nothing to learn from.
        """

    def predict(self, graphs: GraphSet) -> NDArray[np.float64]:
        """Return milliseconds, float64 [G, D], devices in the order of `fit`; positive and finite."""

    def save(self, folder: Path) -> None:
        """Write the weights, flat in `folder`: .safetensors, .ubj and .json only; the same training the same bytes."""

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            BundleError: a file is missing or does not fit the settings.
        """


@dataclass(frozen=True)
class GraphFamily:
    """A family of graph models.

    Attributes:
        config: its dataclass of settings.
        make: settings, number of devices -> a model that is not trained yet.
        for_tests: settings that train in a second.
        additive: whether a prediction is a sum over nodes, so that the costliest operators can be told.
    """

    config: type[GraphModelConfig]
    make: Callable[[Any, int], GraphModel]
    for_tests: GraphModelConfig
    additive: bool = False
