"""Every seed of a model trained, side by side on the cores: seeds know nothing of each other."""

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
class Job:
    """What a worker needs to train one seed."""

    config: ModelConfig
    spec: FeatureSpec
    train: Samples
    valid: Samples


_Outcome = tuple[int, list[Point], dict[str, float], float]


def train_seeds(job: Job, seeds: Sequence[int], jobs: int | None, label: str) -> list[Trained]:
    """Train all seeds and return them in the order given.

    Args:
        job: family, features and data.
        seeds: whole numbers, all different.
        jobs: worker processes; None uses every core the process may run on. The first seed is trained in this
            process, and all of them where workers would not save time.
        label: what the progress line calls the model.

    Raises:
        TrainError: a worker died (most often for want of memory).
    """
    console = Console(stderr=True)
    count = jobs or len(os.sched_getaffinity(0))
    trained: list[Trained] = []
    for seed in seeds:
        rest = seeds[len(trained) :]
        saved = trained[0].seconds * len(rest) * (1 - 1 / min(count, len(rest))) if trained else 0.0
        if saved > WORKER_START_SECONDS:
            return [*trained, *_in_workers(job, rest, min(count, len(rest)), label, console)]
        with console.status(f"training {label} · seed {seed}"):
            trained.append(_trained(*_fit(job, seed)))
    return trained


WORKER_START_SECONDS = 5.0
"""What a worker needs to start and to import; workers are used where they save more."""


def _in_workers(
    job: Job, seeds: Sequence[int], count: int, label: str, console: Console
) -> list[Trained]:
    found: dict[int, Trained] = {}
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="tencost-train-") as scratch,
        console.status(f"training {label}: 0 of {len(seeds)} seeds") as status,
        ProcessPoolExecutor(count, context, initializer=_receive, initargs=(job,)) as pool,
    ):
        futures = {}
        for seed in seeds:
            folder = Path(scratch) / str(seed)
            folder.mkdir()
            futures[pool.submit(_fit_and_save, seed, folder)] = folder
        try:
            for future in as_completed(futures):
                outcome = future.result()
                ranker = make_ranker(job.config, job.spec)
                ranker.load(futures[future])
                found[outcome[0]] = _trained(ranker, outcome)
                status.update(f"training {label}: {len(found)} of {len(seeds)} seeds")
        except BrokenProcessPool as error:
            raise TrainError(
                f"a worker that trained {label} died, most often for want of memory. Train one seed at a time: jobs=1"
            ) from error
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
    return [found[seed] for seed in seeds]


_received: list[Job] = []


def _receive(job: Job) -> None:
    prepare_worker()
    _received[:] = [job]


def _fit_and_save(seed: int, folder: Path) -> _Outcome:
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


def _trained(ranker: Ranker, outcome: _Outcome) -> Trained:
    seed, points, valid, seconds = outcome
    return Trained(seed, ranker, points, valid, seconds)


def ranked(ranker: Ranker, samples: Samples) -> Scores:
    """Raw scores with programs that cannot be featurized last."""
    scores: Scores = np.nan_to_num(ranker.predict(samples.features), nan=-np.inf)
    return scores
