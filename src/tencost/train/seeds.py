"""Every seed of a model trained, and every fold, side by side on the cores: trainings know nothing of each other."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from tencost.config import ModelConfig
from tencost.errors import TrainError
from tencost.features.parallel import prepare_worker
from tencost.features.spec import FeatureSpec
from tencost.train.folds import LeftOut, held, without
from tencost.train.losses import RankingMetrics
from tencost.train.ranker import Ranker, Samples, Scores, make_ranker
from tencost.train.tracking import Point


@dataclass(frozen=True)
class Trained:
    """One seed's model.

    Attributes:
        seed: what it was trained with.
        ranker: the model.
        points: what it logged while it trained.
        valid: validation metrics by name; empty where no validation group has two programs.
        seconds: training time, wall clock.
    """

    seed: int
    ranker: Ranker
    points: list[Point]
    valid: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class Tried:
    """A fold as a model that was trained without it scores it.

    Attributes:
        fold: its position among the job's folds.
        train, valid: raw scores, float64, of its programs of the train and of the valid part; NaN without rows.
        seconds: training time, wall clock.
    """

    fold: int
    train: Scores
    valid: Scores
    seconds: float


@dataclass(frozen=True)
class Job:
    """What a worker needs to train one seed, or one seed without a fold."""

    config: ModelConfig
    spec: FeatureSpec
    train: Samples
    valid: Samples
    folds: tuple[LeftOut, ...] = ()


_Outcome = tuple[int, list[Point], dict[str, float], float]
_Unit = tuple[int, int | None]
"""A seed, and the fold that is left out."""


def train_seeds(
    job: Job, seeds: Sequence[int], jobs: int | None, label: str
) -> tuple[list[Trained], list[Tried]]:
    """Train all seeds, then the first seed without each fold of the job; return both in the order given.

    Args:
        job: family, features and data.
        seeds: whole numbers, all different.
        jobs: worker processes; None uses every core the process may run on. The first seed is trained in this
            process, and everything where workers would not save time.
        label: what the progress line calls the model.

    Raises:
        TrainError: a worker died (most often for want of memory).
    """
    console = Console(stderr=True)
    count = jobs or len(os.sched_getaffinity(0))
    units: list[_Unit] = [(seed, None) for seed in seeds]
    units += [(seeds[0], fold) for fold in range(len(job.folds))]
    trained: list[Trained] = []
    tried: list[Tried] = []
    while units:
        saved = 0.0
        if trained:
            saved = trained[0].seconds * len(units) * (1 - 1 / min(count, len(units)))
        if saved > WORKER_START_SECONDS:
            more, found = _in_workers(job, units, min(count, len(units)), label, console)
            return [*trained, *more], [*tried, *found]
        seed, fold = units.pop(0)
        with console.status(f"training {label} · {_called(seed, fold)}"):
            if fold is None:
                trained.append(_trained(*_fit(job, seed)))
            else:
                tried.append(_try(job, seed, fold))
    return trained, tried


WORKER_START_SECONDS = 5.0
"""What a worker needs to start and to import; workers are used where they save more."""


def _called(seed: int, fold: int | None) -> str:
    return f"seed {seed}" if fold is None else f"without fold {fold + 1}"


def _in_workers(
    job: Job, units: Sequence[_Unit], count: int, label: str, console: Console
) -> tuple[list[Trained], list[Tried]]:
    trained: dict[int, Trained] = {}
    tried: dict[int, Tried] = {}
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="tencost-train-") as scratch,
        console.status(f"training {label}: 0 of {len(units)} trainings") as status,
        ProcessPoolExecutor(count, context, initializer=_receive, initargs=(job,)) as pool,
    ):
        futures = {}
        for seed, fold in units:
            folder = Path(scratch) / _called(seed, fold)
            folder.mkdir()
            futures[pool.submit(_work, seed, fold, folder)] = folder
        try:
            for future in as_completed(futures):
                outcome = future.result()
                if isinstance(outcome, Tried):
                    tried[outcome.fold] = outcome
                else:
                    ranker = make_ranker(job.config, job.spec)
                    ranker.load(futures[future])
                    trained[outcome[0]] = _trained(ranker, outcome)
                done = len(trained) + len(tried)
                status.update(f"training {label}: {done} of {len(units)} trainings")
        except BrokenProcessPool as error:
            raise TrainError(
                f"a worker that trained {label} died, most often for want of memory. Train one seed at a time: jobs=1"
            ) from error
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
    return (
        [trained[seed] for seed, fold in units if fold is None],
        [tried[fold] for _, fold in units if fold is not None],
    )


_received: list[Job] = []


def _receive(job: Job) -> None:
    prepare_worker()
    _received[:] = [job]


def _work(seed: int, fold: int | None, folder: Path) -> _Outcome | Tried:
    if fold is not None:
        return _try(_received[0], seed, fold)
    ranker, outcome = _fit(_received[0], seed)
    ranker.save(folder)
    return outcome


def _fit(job: Job, seed: int) -> tuple[Ranker, _Outcome]:
    ranker = make_ranker(job.config, job.spec)
    points: list[Point] = []
    start = time.perf_counter()
    ranker.fit(
        job.train,
        job.valid,
        seed=seed,
        log=lambda name, value, step: points.append(Point(name, value, step)),
    )
    seconds = time.perf_counter() - start
    valid = RankingMetrics(job.valid.label, job.valid.group)(ranked(ranker, job.valid))
    return ranker, (seed, points, valid, seconds)


def _try(job: Job, seed: int, fold: int) -> Tried:
    ranker = make_ranker(job.config, job.spec)
    train, valid = without(job.train, job.valid, job.folds[fold])
    start = time.perf_counter()
    ranker.fit(train, valid, seed=seed, log=lambda *_: None)
    seconds = time.perf_counter() - start
    parts = [ranker.predict(part.features) for part in held(job.train, job.valid, job.folds[fold])]
    return Tried(fold, parts[0], parts[1], seconds)


def _trained(ranker: Ranker, outcome: _Outcome) -> Trained:
    seed, points, valid, seconds = outcome
    return Trained(seed, ranker, points, valid, seconds)


def ranked(ranker: Ranker, samples: Samples) -> Scores:
    """Raw scores with programs that cannot be featurized last."""
    scores: Scores = np.nan_to_num(ranker.predict(samples.features), nan=-np.inf)
    return scores
