"""Boosted trees on what a network's operators add up to: a baseline that does not look at how they are connected.

A graph's row counts each operator and sums its FLOP, and the elements it reads, writes and weighs; convolutions are
also summed by the side of their kernel. Sums enter as log(1 + sum), the target is the logarithm of the milliseconds,
one booster a device.

Files: `model_<d>.ubj` (XGBoost UBJSON), devices in the order of training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tencost.config.checking import within
from tencost.config.graphs import GraphModelConfig
from tencost.errors import BundleError
from tencost.features.graph.tokens import INTEGERS, KINDS, kernel_flop, node_integers, node_kinds
from tencost.models.networks.family import GraphFamily, Report, check_labelled
from tencost.models.trees.booster import load_booster, predict_rows, tree_parameters
from tencost.networks.graph.graph_set import GraphSet, LabelledGraphs
from tencost.networks.graph.operators import OPERATORS

_SIDES = (1, 3, 5, 7)
"""Sides of a convolution's kernel that have sums of their own; the last stands for all larger ones."""
_LARGEST_LOG_MS = 50.0
"""Predictions beyond exp(this) are not told: a damaged booster would overflow."""


@dataclass(kw_only=True)
class SummedConfig(GraphModelConfig):
    """Boosted trees on sums over a network's operators. Does not look at the structure."""

    num_rounds: int = 800
    """Boosting rounds at most."""
    early_stopping_rounds: int = 50
    """Stop when the validation graphs have not improved for so many rounds; 0 never stops."""
    max_depth: int = 7
    """Depth of a tree."""
    eta: float = 0.05
    """Learning rate."""
    min_child_weight: float = 3.0
    """Least sum of hessians in a leaf."""
    subsample: float = 0.7
    """Share of graphs drawn per tree."""
    colsample: float = 0.5
    """Share of columns drawn per tree."""
    max_bin: int = 256
    """Histogram bins a column."""
    num_threads: int = 2
    """Threads while training; predictions are made on one."""

    def __post_init__(self) -> None:
        within("model", self, num_rounds="[1, inf)", early_stopping_rounds="[0, inf)")
        within("model", self, max_depth="[1, inf)", eta="(0, 1]", max_bin="[2, inf)")
        within("model", self, min_child_weight="[0, inf)", num_threads="[1, inf)")
        within("model", self, subsample="(0, 1]", colsample="(0, 1]")


class SummedModel:
    """One booster a device."""

    def __init__(self, config: SummedConfig, num_devices: int) -> None:
        self._config = config
        self._num_devices = num_devices
        self._boosters: list[Any] = []

    def fit(
        self, train: LabelledGraphs, valid: LabelledGraphs, *, seed: int, report: Report
    ) -> None:
        import xgboost

        rows, valid_rows = summed_rows(train.graphs), summed_rows(valid.graphs)
        parameters = tree_parameters(self._config, seed, self._config.min_child_weight)
        self._boosters = []
        check_labelled(train)
        for device, name in enumerate(train.hardware):
            chosen = np.isfinite(train.latency_ms[:, device])
            watched = np.isfinite(valid.latency_ms[:, device])
            data = self._matrix(rows[chosen], train.latency_ms[chosen, device])
            watch = [(data, "train")]
            stop = None
            if watched.any():
                watch.append(
                    (self._matrix(valid_rows[watched], valid.latency_ms[watched, device]), "valid")
                )
                stop = self._config.early_stopping_rounds or None
            curve: dict[str, dict[str, list[float]]] = {}
            booster = xgboost.train(
                {**parameters, "objective": "reg:squarederror"},
                data,
                num_boost_round=self._config.num_rounds,
                evals=watch,
                evals_result=curve,
                early_stopping_rounds=stop,
                verbose_eval=False,
            )
            for step in range(0, booster.num_boosted_rounds(), 10):
                for part, values in curve.items():
                    report(f"{part}_log_rmse_{name}", values["rmse"][step], step)
            best = booster[: booster.best_iteration + 1] if stop else booster
            best.set_attr(best_iteration=None, best_score=None)
            self._boosters.append(best)

    def predict(self, graphs: GraphSet) -> NDArray[np.float64]:
        rows = summed_rows(graphs)
        columns = [
            predict_rows(booster, rows) if len(rows) else np.zeros(0) for booster in self._boosters
        ]
        log_ms = np.column_stack(columns).astype(np.float64)
        return np.exp(np.clip(log_ms, -_LARGEST_LOG_MS, _LARGEST_LOG_MS))

    def save(self, folder: Path) -> None:
        for device, booster in enumerate(self._boosters):
            booster.save_model(str(folder / f"model_{device}.ubj"))

    def load(self, folder: Path) -> None:
        boosters = []
        for device in range(self._num_devices):
            path = folder / f"model_{device}.ubj"
            if not path.is_file():
                raise BundleError(
                    f"{path}: expected the trees of device {device + 1} of {self._num_devices}, found no file. "
                    "Pull or train the model again."
                )
            booster = load_booster(path)
            if booster.num_features() != len(COLUMNS):
                raise BundleError(
                    f"{path}: expected trees over {len(COLUMNS)} columns, found {booster.num_features()}. "
                    "Train the model again with this version."
                )
            boosters.append(booster)
        self._boosters = boosters

    def _matrix(self, rows: NDArray[np.float32], latency_ms: NDArray[np.float64]) -> Any:
        import xgboost

        return xgboost.DMatrix(rows, label=np.log(latency_ms), nthread=self._config.num_threads)


_AMOUNTS = ("count", "flop", "in_elements", "out_elements", "weights")
COLUMNS = (
    *(f"{name}.{amount}" for name in OPERATORS for amount in _AMOUNTS),
    *(f"conv_{side}.{amount}" for side in _SIDES for amount in _AMOUNTS),
    *(f"all.{amount}" for amount in _AMOUNTS),
)
"""What the columns of a graph's row are sums of."""


def summed_rows(graphs: GraphSet) -> NDArray[np.float32]:
    """Return log(1 + sum) of what each operator of a graph amounts to: float32 [G, len(COLUMNS)]."""
    integers = node_integers(graphs)
    at = {name: integers[:, INTEGERS.index(name)] for name in INTEGERS}
    amounts = (np.ones(len(integers)), kernel_flop(integers), *(at[name] for name in _AMOUNTS[2:]))
    graph = graphs.graph_of_node
    side = np.searchsorted(_SIDES, np.minimum(at["kernel_h"], _SIDES[-1]))
    conv = np.flatnonzero(node_kinds(integers) == KINDS.index("conv"))
    everything = np.arange(len(integers))
    parts = []
    for groups, chosen, group in (
        (len(OPERATORS), everything, at["operator"]),
        (len(_SIDES), conv, side[conv]),
        (1, everything, np.zeros(len(integers), dtype=np.int64)),
    ):
        where = graph[chosen] * groups + group
        sums = [
            np.bincount(where, amount[chosen], minlength=len(graphs) * groups) for amount in amounts
        ]
        parts.append(np.stack(sums, axis=1).reshape(len(graphs), groups * len(_AMOUNTS)))
    return np.log1p(np.concatenate(parts, axis=1)).astype(np.float32)


FAMILY = GraphFamily(
    config=SummedConfig,
    make=SummedModel,
    for_tests=SummedConfig(family="summed", num_rounds=60, early_stopping_rounds=0, num_threads=1),
)
