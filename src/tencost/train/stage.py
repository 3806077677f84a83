"""The stage `train`: a model family once a seed -> one bundle a seed, and an MLflow run.

It is the same for models of programs (:mod:`tencost.train.programs`) and of whole networks
(:mod:`tencost.train.networks.stage`), which say what is learnt from, how, and what is logged beyond that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console

from tencost.config import Config
from tencost.errors import ConfigError
from tencost.tracking.provenance import code_digest
from tencost.tracking.runs import BUNDLES_TAG, CODE_TAG, TrackedRun
from tencost.writing import scratch_beside, whole_folder


class FittedModel(Protocol):
    """The model of one seed."""

    @property
    def seconds(self) -> float:
        """Training time, wall clock."""
        ...


T = TypeVar("T", bound=FittedModel)


@dataclass(frozen=True)
class DatasetFacts:
    """What MLflow shows of the data that a model learns from.

    Attributes:
        digest: of the data, at most 36 characters are kept.
        source: where it lies.
        counts: numbers of samples by name; metrics of the run, too.
        profile: what is shown besides.
    """

    digest: str
    source: Mapping[str, str]
    counts: Mapping[str, int]
    profile: Mapping[str, Any]


@dataclass(frozen=True)
class Logged:
    """What a subject has for the end of the MLflow run.

    Attributes:
        metrics: final figures by name; NaN is left out.
        model_id: the logged model that they are of, too; None where no model was logged.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    model_id: str | None = None


@dataclass
class TrainingSubject(ABC, Generic[T]):
    """One training of one configuration.

    Attributes:
        cfg: the configuration.
        root: the project's root.
    """

    cfg: Config
    root: Path

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The folder of the bundles, seed<k>/ each."""

    @abstractmethod
    def read(self) -> None:
        """Read what is learnt from, and refuse what cannot be learnt from or judged afterwards.

        Raises:
            ConfigError, SplitError, TrainError: nothing has been written.
        """

    @abstractmethod
    def start_run(self) -> AbstractContextManager[TrackedRun]:
        """Start the MLflow run."""

    @abstractmethod
    def facts(self) -> DatasetFacts:
        """Return what the model learns from."""

    @abstractmethod
    def fit(self, tracked: TrackedRun) -> Sequence[T]:
        """Train once a seed, in the order of cfg.seeds."""

    @abstractmethod
    def save(self, trained: Sequence[T], folder: Path) -> None:
        """Write the bundles, and what evaluation reads beside them, into an empty folder."""

    @abstractmethod
    def digest(self) -> str:
        """Return the digest of the bundles written, by which a folder finds its run."""

    @abstractmethod
    def log(self, tracked: TrackedRun, trained: Sequence[T]) -> Logged:
        """Log curves, plots and models."""

    @abstractmethod
    def summary(self, trained: Sequence[T]) -> Iterable[str]:
        """Yield the lines that are printed at the end."""


def run(subject: TrainingSubject[T]) -> tuple[str, Sequence[T]]:
    """Train once a seed, write the bundles, log the run, print a summary.

    Returns:
        The id of the MLflow run, and the model of each seed, in their order.

    Raises:
        ConfigError: seeds that are not all different, or what `TrainingSubject.read` refuses.
        SplitError, TrainError: see `TrainingSubject.read`.
        OSError: the folder of the bundles cannot be written; it is raised before anything is trained.
    """
    cfg = subject.cfg
    if not cfg.seeds or len(set(cfg.seeds)) != len(cfg.seeds):
        raise ConfigError(f"seeds must be different whole numbers, at least one; found {cfg.seeds}")
    subject.read()
    with scratch_beside(subject.folder):
        pass  # hours of training are not to end at a folder that cannot be written
    with subject.start_run() as tracked:
        facts = subject.facts()
        profile = {**facts.counts, **facts.profile}
        tracked.log_dataset(cfg.dataset.name, facts.digest, facts.source, profile)
        tracked.log_metrics({f"train/{name}": float(count) for name, count in facts.counts.items()})
        trained = subject.fit(tracked)
        with whole_folder(subject.folder) as partial:
            subject.save(trained, partial)
        tracked.set_tag(CODE_TAG, code_digest())
        tracked.set_tag(BUNDLES_TAG, subject.digest())
        tracked.log_artifacts(subject.folder, "bundles")
        logged = subject.log(tracked, trained)
        seconds = sum(seed.seconds for seed in trained)
        metrics = {**logged.metrics, "train/fit_seconds": seconds}
        tracked.log_metrics(metrics, model_id=logged.model_id)
    console = Console(stderr=True)
    for line in subject.summary(trained):
        console.print(line, highlight=False)
    return tracked.run_id, trained
