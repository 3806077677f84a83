"""Every seed of a model trained, and every fold, side by side on the cores, here or on a cluster."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from tencost.config import ExecutionConfig, ExecutionKind, ModelConfig
from tencost.config.parts import FAMILIES
from tencost.errors import TrainError
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.ranker import Family, Ranker, Samples, Scores, make_ranker
from tencost.models.programs.ranker.losses import RankingMetrics
from tencost.tracking.runs import MetricPoint
from tencost.train.data.folds import FoldSamples, fold_programs, without
from tencost.workers.parallel.mapping import Rescue, in_order
from tencost.workers.parallel.workers import open_workers


@dataclass(frozen=True)
class TrainedSeed:
    """One seed's model.

    Attributes:
        seed: what it was trained with.
        ranker: the model.
        points: what it logged while it trained.
        valid: validation metrics by name; empty where no validation group has two programs.
        seconds: training time, wall clock.
        spread: standard deviation of its raw scores over the programs that it learnt from, more than 0; None where
            nobody has computed it.
    """

    seed: int
    ranker: Ranker
    points: list[MetricPoint]
    valid: dict[str, float]
    seconds: float
    spread: float | None


@dataclass(frozen=True)
class Tried:
    """A fold as a model that was trained without it scores it.

    Attributes:
        fold: its position among the job's folds.
        train, valid: raw scores, float64, of its programs of the train and of the valid part; NaN without rows.
        seconds: training time, wall clock.
        spread: as a seed's.
    """

    fold: int
    train: Scores
    valid: Scores
    seconds: float
    spread: float | None


@dataclass(frozen=True)
class SeedJob:
    """What a worker needs to train one seed, or one seed without a fold."""

    config: ModelConfig
    spec: FeatureSpec
    train: Samples
    valid: Samples
    folds: tuple[FoldSamples, ...] = ()


_Outcome = tuple[int, list[MetricPoint], dict[str, float], float, float]
_Unit = tuple[int, int | None]
"""A seed, and the fold that is left out."""
_Sent = tuple[_Outcome, dict[str, bytes]]
"""What a worker says of a training, and the files that its model was saved as."""


def train_seeds(
    job: SeedJob,
    seeds: Sequence[int],
    jobs: int | None,
    label: str,
    execution: ExecutionConfig | None = None,
) -> tuple[list[TrainedSeed], list[Tried]]:
    """Train all seeds, then the first seed without each fold of the job; return both in the order given.

    Args:
        job: family, features and data.
        seeds: whole numbers, all different.
        jobs: worker processes; None uses every core the process may run on. Of few programs the first seed is trained
            in this process, and everything where workers would not save time.
        label: what the progress line calls the model.
        execution: where the workers are; on a cluster all is trained there.

    Raises:
        TrainError: a training's workers died again and again (most often for want of memory).
    """
    console = Console(stderr=True)
    count = jobs or len(os.sched_getaffinity(0))
    units: list[_Unit] = [(seed, None) for seed in seeds]
    units += [(seeds[0], fold) for fold in range(len(job.folds))]
    trained: list[TrainedSeed] = []
    tried: list[Tried] = []
    if execution is not None and execution.kind is not ExecutionKind.local:
        return _in_workers(job, units, jobs, label, console, execution)
    if min(count, len(units)) > 1 and _surely_long(job):
        return _in_workers(job, units, min(count, len(units)), label, console)
    while units:
        saved = 0.0
        if trained:
            saved = trained[0].seconds * len(units) * (1 - 1 / min(count, len(units)))
        if saved > WORKER_START_SECONDS:
            more, more_tried = _in_workers(job, units, min(count, len(units)), label, console)
            return [*trained, *more], [*tried, *more_tried]
        seed, fold = units.pop(0)
        with console.status(f"training {label} · {_called(seed, fold)}"):
            if fold is None:
                trained.append(_trained(*_fit(job, seed)))
            else:
                tried.append(_try(job, seed, fold))
    return trained, tried


def train_each(
    trainings: Sequence[SeedJob], seed: int, jobs: int | None, label: str
) -> list[TrainedSeed]:
    """Train one model of each job with one seed, side by side where that saves time; return them in the order given.

    Args:
        trainings: families, features and data; no folds.
        seed: of all of them.
        jobs: worker processes; None uses every core the process may run on.
        label: what the progress line calls them.

    Raises:
        TrainError: a training's workers died again and again (most often for want of memory).
    """
    count = min(jobs or len(os.sched_getaffinity(0)), len(trainings))
    if count <= 1 or not any(_surely_long(job) for job in trainings):
        return [_trained(*_fit(job, seed)) for job in trainings]

    def died(which: int, reason: str) -> Sequence[_Sent]:
        raise TrainError(
            f"{label}, its {trainings[which].config.family}: {reason} each time it was tried, most often for want of "
            "memory. Train one at a time: jobs=1"
        )

    workers = open_workers(_work_each, (tuple(trainings), seed), None, count, TRAINING_LIMIT_S)
    sent = [
        result
        for results in in_order(workers, list(range(len(trainings))), Rescue(died))
        for result in results
    ]
    return [_received(job, *result) for job, result in zip(trainings, sent, strict=True)]


TRAINING_LIMIT_S = 4 * 3600.0
"""Seconds that one training may take before its worker is thought to hang."""

WORKER_START_SECONDS = 5.0
"""What a worker needs to start and to import; workers are used where they save more."""

MANY_PROGRAMS = 2000
"""From so many programs to learn from on, workers save time whatever the family: nobody waits for a first training
while the other cores idle, and this process needs none of what a family imports to train."""


def _surely_long(job: SeedJob) -> bool:
    family: Family = FAMILIES.load(job.config.family)
    return family.learns and len(job.train) >= MANY_PROGRAMS


def _called(seed: int, fold: int | None) -> str:
    return f"seed {seed}" if fold is None else f"without fold {fold + 1}"


def _in_workers(
    job: SeedJob,
    units: Sequence[_Unit],
    jobs: int | None,
    label: str,
    console: Console,
    execution: ExecutionConfig | None = None,
) -> tuple[list[TrainedSeed], list[Tried]]:
    def died(unit: _Unit, reason: str) -> Sequence[_Sent | Tried]:
        raise TrainError(
            f"{label}, {_called(*unit)}: {reason} each time it was tried, most often for want of memory. Train one "
            "seed at a time: jobs=1"
        )

    trained: list[TrainedSeed] = []
    tried: list[Tried] = []
    with console.status(f"training {label}: 0 of {len(units)} trainings") as status:
        workers = open_workers(_work, job, execution, jobs, TRAINING_LIMIT_S)
        for results in in_order(workers, units, Rescue(died)):
            for result in results:
                if isinstance(result, Tried):
                    tried.append(result)
                else:
                    trained.append(_received(job, *result))
            finished = len(trained) + len(tried)
            status.update(f"training {label}: {finished} of {len(units)} trainings")
    return trained, tried


def _work(job: SeedJob, unit: _Unit) -> list[_Sent | Tried]:
    seed, fold = unit
    return [_try(job, seed, fold)] if fold is not None else [_sent(job, seed)]


def _work_each(task: tuple[tuple[SeedJob, ...], int], which: int) -> list[_Sent]:
    trainings, seed = task
    return [_sent(trainings[which], seed)]


def _sent(job: SeedJob, seed: int) -> _Sent:
    ranker, outcome = _fit(job, seed)
    with tempfile.TemporaryDirectory(prefix="tencost-train-") as scratch:
        ranker.save(Path(scratch))
        files = [path for path in Path(scratch).rglob("*") if path.is_file()]
        sent = {str(path.relative_to(scratch)): path.read_bytes() for path in files}
        return outcome, sent


def _received(job: SeedJob, outcome: _Outcome, files: dict[str, bytes]) -> TrainedSeed:
    ranker = make_ranker(job.config, job.spec)
    with tempfile.TemporaryDirectory(prefix="tencost-train-") as scratch:
        for name, content in files.items():
            path = Path(scratch) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        ranker.load(Path(scratch))
    return _trained(ranker, outcome)


def _fit(job: SeedJob, seed: int) -> tuple[Ranker, _Outcome]:
    ranker = make_ranker(job.config, job.spec)
    points: list[MetricPoint] = []
    start = time.perf_counter()
    ranker.fit(
        job.train,
        job.valid,
        seed=seed,
        log=lambda name, value, step: points.append(MetricPoint(name, value, step)),
    )
    seconds = time.perf_counter() - start
    valid = RankingMetrics(job.valid.label, job.valid.group)(ranked(ranker, job.valid))
    return ranker, (seed, points, valid, seconds, spread(ranker, job.train))


def _try(job: SeedJob, seed: int, fold: int) -> Tried:
    ranker = make_ranker(job.config, job.spec)
    train, valid = without(job.train, job.valid, job.folds[fold])
    start = time.perf_counter()
    ranker.fit(train, valid, seed=seed, log=lambda *_: None)
    seconds = time.perf_counter() - start
    parts = [
        ranker.predict(part.features)
        for part in fold_programs(job.train, job.valid, job.folds[fold])
    ]
    return Tried(fold, parts[0], parts[1], seconds, spread(ranker, train))


def _trained(ranker: Ranker, outcome: _Outcome) -> TrainedSeed:
    seed, points, valid, seconds, width = outcome
    return TrainedSeed(seed, ranker, points, valid, seconds, width)


def ranked(ranker: Ranker, samples: Samples) -> Scores:
    """Raw scores with programs that cannot be featurized last."""
    scores: Scores = np.nan_to_num(ranker.predict(samples.features), nan=-np.inf)
    return scores


def spread(ranker: Ranker, samples: Samples) -> float:
    """Return the standard deviation of a model's raw scores over programs with rows: the scale that blends use."""
    return max(float(np.nanstd(ranker.predict(samples.features))), 1e-12)
