"""What the neural families share: inputs, averaging, files. Trained with torch, served with NumPy.

Files of a family: `network_<k>.safetensors` with the weights of each network, `scaler.safetensors` with the
standardisation of its inputs, `network.json` with each network's divisor (the standard deviation of its scores on the
training split; networks are averaged after division by it).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import orjson

from tencost.features.rows.ragged import IntArray, Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.summary import (
    constants,
    num_constant_columns,
    summarize_programs,
    summary_names,
    with_derived,
)
from tencost.models.neural.settings import NeuralConfig
from tencost.models.neural.weights import Weights, check_weights, read_weights, write_weights
from tencost.models.programs.neural.layers import Array, Scaler
from tencost.models.programs.ranker import (
    LogMetric,
    RowRanker,
    Samples,
    Scores,
    check_width,
    member_log,
    read_divisors,
)
from tencost.models.programs.ranker.labels import featurized


@dataclass(frozen=True)
class NetworkInputs:
    """What a network reads of N programs, standardised.

    Attributes:
        rows: the columns that differ by row, and amounts derived from them.
        beside: float32 [N, columns], what is read beside the rows; None for nothing.
    """

    rows: Ragged
    beside: Array | None


InTorch = tuple[Callable[[int, int], Any], Callable[[NetworkInputs], Callable[[IntArray], Any]]]
"""(columns of a row, columns beside the rows) -> a network; inputs -> (places of programs -> its arguments)."""


class NetworkRanker(RowRanker):
    """Networks that are averaged, each from its own seed."""

    family: ClassVar[str] = ""
    untransposed: ClassVar[tuple[str, ...]] = ()
    """Weights that are served as torch stores them; other matrices are transposed."""

    def __init__(self, config: Any, spec: FeatureSpec) -> None:
        self._config: NeuralConfig = config
        self._spec = spec
        self._rows: Scaler | None = None
        self._beside: Scaler | None = None
        self.networks: list[Weights] = []
        self._divisors: list[float] = []

    @abstractmethod
    def _in_torch(self) -> InTorch:
        """Return what a network is trained with; imports torch."""

    @abstractmethod
    def _forward(self, weights: Weights, inputs: NetworkInputs) -> Array:
        """Score programs, each with at least one row: float32 [N]."""

    @abstractmethod
    def _shapes(self, rows: int, beside: int, most: int) -> dict[str, tuple[int, ...]]:
        """Name every weight that is served and its shape.

        Args:
            rows: columns of a row.
            beside: columns beside the rows; 0 for nothing.
            most: number of weights found; no need to name many more.
        """

    def fit(self, train: Samples, valid: Samples, *, seed: int, log: LogMetric) -> None:
        from tencost.models.programs.neural.ranking_training import fit_ranking_network

        train, valid = featurized(train), featurized(valid)
        self.fit_scalers(train.features)
        inputs, valid_inputs = self.inputs(train.features), self.inputs(valid.features)
        make, collate = self._in_torch()
        beside = 0 if inputs.beside is None else inputs.beside.shape[1]
        self.networks, self._divisors = [], []
        for member in range(self._config.num_models):
            weights = fit_ranking_network(
                self._config,
                partial(make, inputs.rows.num_columns, beside),
                train,
                valid,
                collate(inputs),
                collate(valid_inputs),
                seed=seed * 1000 + member,
                log=member_log(log, member),
            )
            self.networks.append(served(weights, self.untransposed))
            scores = self._forward(self.networks[-1], inputs)
            self._divisors.append(max(float(scores.std()), 1e-12))

    def _score(self, features: Ragged) -> Scores:
        inputs = self.inputs(features)
        total = np.zeros(len(features))
        for weights, divisor in zip(self.networks, self._divisors, strict=True):
            total += self._forward(weights, inputs).astype(np.float64) / divisor
        return total / len(self.networks)

    def save(self, folder: Path) -> None:
        assert self._rows is not None, "fit or load before save"
        scalers = {"rows.mean": self._rows.mean, "rows.inverse": self._rows.inverse}
        if self._beside is not None:
            scalers["beside.mean"] = self._beside.mean
            scalers["beside.inverse"] = self._beside.inverse
        write_weights(folder / "scaler.safetensors", scalers)
        for index, weights in enumerate(self.networks):
            write_weights(folder / f"network_{index}.safetensors", weights)
        (folder / "network.json").write_bytes(orjson.dumps({"divisors": self._divisors}))

    def load(self, folder: Path) -> None:
        self._divisors = read_divisors(folder / "network.json", self._config.num_models)
        path = folder / "scaler.safetensors"
        scalers = read_weights(path)
        rows, beside = num_rows_columns(self._spec), num_beside(self._spec, self._config.beside)
        if "beside.mean" in scalers:
            check_width(path, self._spec, scalers["beside.mean"].size, beside)
        shapes = {"rows.mean": (rows,), "rows.inverse": (rows,)}
        if beside:
            shapes |= {"beside.mean": (beside,), "beside.inverse": (beside,)}
        check_weights(path, scalers, shapes)
        self._rows = Scaler(scalers["rows.mean"], scalers["rows.inverse"])
        self._beside = Scaler(scalers["beside.mean"], scalers["beside.inverse"]) if beside else None
        self.networks = []
        for index in range(len(self._divisors)):
            path = folder / f"network_{index}.safetensors"
            weights = read_weights(path)
            check_weights(path, weights, self._shapes(rows, beside, len(weights)))
            self.networks.append(weights)

    def fit_scalers(self, features: Ragged) -> None:
        """Fit the standardisation of inputs on programs that have rows."""
        self._rows = Scaler.fit(own_rows(features, self._spec).values)
        beside = beside_rows(features, self._spec, self._config.beside)
        self._beside = None if beside is None else Scaler.fit(beside)

    def inputs(self, features: Ragged) -> NetworkInputs:
        """Standardise the inputs of programs that have rows."""
        assert self._rows is not None, "fit or load before predict"
        rows = own_rows(features, self._spec)
        standard = Ragged(self._rows(rows.values), rows.offsets)
        beside = beside_rows(features, self._spec, self._config.beside)
        if self._beside is None or beside is None:
            return NetworkInputs(standard, None)
        return NetworkInputs(standard, self._beside(beside))


def own_rows(features: Ragged, spec: FeatureSpec) -> Ragged:
    """Return the columns that differ by row, and the amounts derived from them."""
    count = len(spec.columns) - num_constant_columns(spec)
    derived = with_derived(features, spec)
    columns = np.r_[0:count, len(spec.columns) : derived.num_columns]
    return Ragged(np.ascontiguousarray(derived.values[:, columns]), derived.offsets)


def num_rows_columns(spec: FeatureSpec) -> int:
    """Count the columns of :func:`own_rows`."""
    row = Ragged(np.zeros((1, len(spec.columns)), np.float32), np.array([0, 1], np.int64))
    return own_rows(row, spec).num_columns


def beside_rows(features: Ragged, spec: FeatureSpec, beside: str) -> Array | None:
    """Return what is read beside the rows of programs: float32 [N, columns], None for nothing."""
    if beside == "summary":
        return summarize_programs(features, spec)
    if beside == "constants" and num_constant_columns(spec):
        return constants(features, spec)
    return None


def num_beside(spec: FeatureSpec, beside: str) -> int:
    """Count the columns of :func:`beside_rows`."""
    if beside == "summary":
        return len(summary_names(spec))
    return num_constant_columns(spec) if beside == "constants" else 0


def served(weights: Weights, keep: tuple[str, ...] = ()) -> Weights:
    """Turn torch's layers [out, in] into C-contiguous [in, out]; vectors and `keep` stay."""
    return {
        name: np.ascontiguousarray(array.T) if array.ndim == 2 and name not in keep else array
        for name, array in weights.items()
    }
