"""The floor: every network takes as long as the middle one that was learnt from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from tencost.config.graphs import GraphModelConfig
from tencost.errors import BundleError
from tencost.models.networks.family import GraphFamily, Report, check_labelled
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs


@dataclass(kw_only=True)
class ConstantConfig(GraphModelConfig):
    """The median latency of each device, whatever the network. The floor."""


class ConstantModel:
    """The median of each device."""

    def __init__(self, config: ConstantConfig, num_devices: int) -> None:
        del config
        self._ms = np.full(num_devices, np.nan)

    def fit(
        self, train: LabelledGraphs, valid: LabelledGraphs, *, seed: int, report: Report
    ) -> None:
        del valid, seed, report
        check_labelled(train)
        self._ms = np.nanmedian(train.latency_ms, axis=0)

    def predict(self, graphs: GraphSet) -> NDArray[np.float64]:
        return np.tile(self._ms, (len(graphs), 1))

    def save(self, folder: Path) -> None:
        (folder / "constant.json").write_bytes(orjson.dumps({"latency_ms": self._ms.tolist()}))

    def load(self, folder: Path) -> None:
        path = folder / "constant.json"
        try:
            latencies = np.array(orjson.loads(path.read_bytes())["latency_ms"], dtype=np.float64)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BundleError(
                f'{path}: expected {{"latency_ms": [numbers]}}, found {error}'
            ) from error
        if (
            latencies.shape != self._ms.shape
            or not (np.isfinite(latencies) & (latencies > 0)).all()
        ):
            raise BundleError(
                f"{path}: expected {len(self._ms)} positive latencies, found {latencies.tolist()}"
            )
        self._ms = latencies


FAMILY = GraphFamily(
    config=ConstantConfig,
    make=ConstantModel,
    for_tests=ConstantConfig(family="constant"),
)
