"""The Ranker protocol: what every model family is.

A family's module imports light: torch only inside its training code, so that a bundle is loaded and served without it.
"""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import orjson

from tencost.config import ModelConfig
from tencost.config.parts import FAMILIES
from tencost.errors import BundleError
from tencost.features.rows.ragged import IntArray, Ragged
from tencost.features.rows.spec import FeatureSpec

Scores = npt.NDArray[np.float64]

LogMetric = Callable[[str, float, int], None]
"""Called as ``log(name, value, step)`` while a family trains."""


@dataclass(frozen=True)
class Samples:
    """Labelled programs: features and, for each program, which ranking list it belongs to and how good it is.

    Legend: N programs.

    Attributes:
        features: ragged rows of the N programs.
        label: float32 [N], fastest latency of the group in this split / latency, in [0, 1], higher is faster; a
            program that failed has 0. Groups whose programs all failed are not in the samples.
        group: int64 [N], dense ids of (workload, hardware): ranking losses never compare across groups.
        latency_s: float64 [N], median of run_secs in seconds; NaN for a failed program.
        record_id: the N record ids.
    """

    features: Ragged
    label: npt.NDArray[np.float32]
    group: IntArray
    latency_s: npt.NDArray[np.float64]
    record_id: npt.NDArray[np.str_]

    def __post_init__(self) -> None:
        sizes = {
            len(self.features),
            len(self.label),
            len(self.group),
            len(self.latency_s),
            len(self.record_id),
        }
        assert len(sizes) == 1, f"all parts of Samples must have one length, found {sorted(sizes)}"

    def __len__(self) -> int:
        return len(self.label)

    def take(self, indices: IntArray) -> Samples:
        """Select programs, in the order given."""
        return Samples(
            self.features.take(indices),
            self.label[indices],
            self.group[indices],
            self.latency_s[indices],
            self.record_id[indices],
        )


@runtime_checkable
class Ranker(Protocol):
    """A model family: features in, one raw score a program out; higher means predicted faster.

    Raw scores have no unit and may have any sign; only their order within a group means something. What the tuner
    sees is the calibrated score of :mod:`tencost.models.programs.bundle.calibration`.

    Contract: `predict` is deterministic and scores a program the same alone or in any batch; a program without rows
    scores NaN; `fit` with the same seed on the same machine gives identical scores; after `save` and `load` the
    scores are identical; `load` and `predict` need neither torch nor TVM.
    """

    family: ClassVar[str]

    def __init__(self, config: Any, spec: FeatureSpec) -> None:
        """Make an untrained ranker for features of the given spec."""
        ...

    def fit(self, train: Samples, valid: Samples, *, seed: int, log: LogMetric) -> None:
        """Train on `train`; `valid` decides early stopping and nothing else."""
        ...

    def predict(self, features: Ragged) -> Scores:
        """Return raw scores, float64 [N], higher is faster."""
        ...

    def save(self, folder: Path) -> None:
        """Write the weights (UBJSON, ONNX, safetensors or JSON; never pickle) into an existing folder."""
        ...

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        ...

    def importance(self) -> dict[str, float]:
        """Return column name -> share of the model's gain, summing to 1; empty where the family has none."""
        ...


class RowRanker(ABC):
    """What families share that score a program by its rows alone: one without rows scores NaN, no column counts."""

    def predict(self, features: Ragged) -> Scores:
        out = np.full(len(features), np.nan)
        used = np.flatnonzero(features.lengths)
        if len(used):
            out[used] = self._score(features.take(used))
        return out

    def importance(self) -> dict[str, float]:
        return {}

    @abstractmethod
    def _score(self, features: Ragged) -> npt.NDArray[np.floating]:
        """Return raw scores [N] of programs that have at least one row each."""


@runtime_checkable
class Tunable(Protocol):
    """A ranker that can go on learning from samples of other hardware."""

    def tuned(self, labels: Samples, *, rounds: int, seed: int) -> Ranker:
        """Return a copy that went on learning, so many rounds; the ranker itself stays as it is."""
        ...

    def revalued(self, labels: Samples, scores: Scores | None = None, scale: float = 1.0) -> Ranker:
        """Return a copy whose leaves have other values (:mod:`tencost.models.trees.leaf_values`).

        Args:
            labels: programs of other hardware, at most some thousand.
            scores: float64 [N], of the labels by the whole that the ranker is a part of; None takes its own.
            scale: what one of those scores is worth in the ranker's own.
        """
        ...


class Member(Protocol):
    """One of the models that a composed one averages.

    Attributes:
        config, spec: what it is, and what it sees of the features.
        ranker: the model.
        divisor: what its raw scores are divided by, so that all members count alike.
    """

    config: ModelConfig
    spec: FeatureSpec
    ranker: Ranker
    divisor: float

    def seen(self, samples: Samples) -> Samples:
        """Return samples with what it sees of their features."""
        ...


@runtime_checkable
class Composed(Protocol):
    """A ranker that averages others, each of which can be trained for itself (:mod:`tencost.train.fit.members`)."""

    @property
    def members(self) -> Sequence[Member]:
        """The models, in order."""
        ...


@dataclass(frozen=True)
class Family:
    """A model family, described by its own module as ``FAMILY``; its name is the module's."""

    config: type[ModelConfig]
    """Its settings; a file of conf/model/ spells them out."""
    ranker: Callable[[Any, FeatureSpec], Ranker]
    """The class that learns and ranks."""
    for_tests: ModelConfig
    """Settings with which it learns a toy problem in seconds."""
    folds: int = 5
    """Folds of networks that it is tried on at most while a family is chosen; a slow one is tried on fewer."""
    features: str = ""
    """Of a reference: the feature kind without which it cannot be trained; empty: there is none such."""
    learns: bool = True
    """False for one that has nothing to learn: it is ready before a worker process would be."""


def make_ranker(config: ModelConfig, spec: FeatureSpec) -> Ranker:
    """Make an untrained ranker of the family that the configuration names.

    Raises:
        ConfigError: no such family.
    """
    family: Family = FAMILIES.load(config.family)
    return family.ranker(config, spec)


def reference_features(name: str) -> str:
    """Return the feature kind that a reference family cannot be trained without; empty for none."""
    family: Family = FAMILIES.load(name)
    return family.features


def member_log(log: LogMetric, member: int) -> LogMetric:
    """Log the first of several averaged models under the metric's own name, others beside it."""

    def log_member(name: str, value: float, step: int) -> None:
        log(name if member == 0 else f"{name}_model{member}", value, step)

    return log_member


def save_part(ranker: Ranker, folder: Path, prefix: str) -> None:
    """Save a part of a model into the model's folder: each of its files with a prefix."""
    with tempfile.TemporaryDirectory() as scratch:
        ranker.save(Path(scratch))
        for path in Path(scratch).iterdir():
            shutil.copyfile(path, folder / f"{prefix}{path.name}")


def load_part(ranker: Ranker, folder: Path, prefix: str) -> None:
    """Read what `save_part` wrote."""
    with tempfile.TemporaryDirectory() as scratch:
        for path in folder.glob(f"{prefix}*"):
            shutil.copyfile(path, Path(scratch) / path.name.removeprefix(prefix))
        ranker.load(Path(scratch))


def read_divisors(path: Path, expected: int) -> list[float]:
    """Read the divisors of a model's parts from ``{"divisors": [...]}``, one positive number a part.

    Raises:
        BundleError: missing, something else, or for another number of parts than configured.
    """
    try:
        divisors = [float(value) for value in orjson.loads(path.read_bytes())["divisors"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(
            f'{path}: expected {{"divisors": [numbers]}}, found something else ({error}). Pull or train it again.'
        ) from error
    if len(divisors) != expected or not all(0.0 < value < float("inf") for value in divisors):
        raise BundleError(
            f"{path}: expected {expected} divisors as configured, each positive; found {divisors[:8]}. Pull or train "
            "the model again."
        )
    return divisors


def check_width(path: Path, spec: FeatureSpec, width: int, expected: int) -> None:
    """Refuse weights that were trained on another number of columns than this code makes of the features.

    Earlier releases trained on first, sum and maximum of the one row of `ansor_tiles` and `configuration`: on more
    columns, of other meaning.

    Raises:
        BundleError: the numbers differ.
    """
    if width != expected:
        raise BundleError(
            f"{path}: expected a model of {expected} columns a program, as {spec.name} (kind {spec.kind}) is summed up "
            f"now, found one of {width}. Train it again, or use the tencost release that wrote it."
        )
