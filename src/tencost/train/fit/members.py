"""Families that are made of others (`blend`): each member is trained for itself, or taken where that was done already.

A pipeline trains the network and the trees that a blend averages as models of their own, too: on the same records, with
the same seeds and folds. What `train` leaves of them (bundles, run.json, folds.parquet) is all that a blend needs. It
is taken where training again would repeat it to the letter: the same settings, columns, records, split, programs and
folds, by the same code and versions. What differs in any of these is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tencost.config import ExecutionConfig
from tencost.errors import BundleError
from tencost.models.manifest import check_files
from tencost.models.programs.bundle import BundleInfo, plain_config, read_info
from tencost.models.programs.ranker import Composed, Ranker, Samples, Scores, make_ranker
from tencost.models.programs.ranker.losses import RankingMetrics
from tencost.tracking.provenance import code_digest, installed_versions
from tencost.tracking.runs import MetricPoint
from tencost.train.data.folds import FILE as FOLDS_FILE
from tencost.train.data.folds import fold_programs
from tencost.train.data.run_file import FILE as RUN_FILE
from tencost.train.data.run_file import RunFile
from tencost.train.fit.seeds import SeedJob, TrainedSeed, Tried, ranked, train_each, train_seeds

_ELSEWHERE = ("reads", "pool", "reference")
"""Settings that say where a family is used, not what it learns; what `pool` chooses is in the hash of the records."""


@dataclass(frozen=True)
class Earlier:
    """Trainings that may be taken, and what they must be of.

    Attributes:
        folder: has a folder of bundles for each model.
        hardware: that the models are for.
        dataset_hash, split_hash: of the records and the split learnt from.
        folds: the networks of each fold.
        code: says what code made a folder of bundles (`provenance.code_digest`); None where nobody knows.
    """

    folder: Path
    hardware: str
    dataset_hash: str
    split_hash: str
    folds: tuple[tuple[str, ...], ...]
    code: Callable[[Path], str | None]


@dataclass(frozen=True)
class _Part:
    """A member's trainings, one a seed and one a fold, and the folder they were taken from."""

    trained: list[TrainedSeed]
    tried: list[Tried]
    folder: Path | None


def train_members(
    job: SeedJob,
    seeds: Sequence[int],
    jobs: int | None,
    label: str,
    execution: ExecutionConfig | None,
    earlier: Earlier,
) -> tuple[list[TrainedSeed], list[Tried], list[str]]:
    """Train a composed family as :func:`tencost.train.fit.seeds.train_seeds` trains others, member by member.

    Args:
        job: the family's, with features and data.
        seeds: whole numbers, all different.
        jobs: worker processes, as there.
        label: what the progress line calls the model.
        execution: where the workers are.
        earlier: what was trained before.

    Returns:
        As there, and the names of the trainings that were reused.
    """
    shell = make_ranker(job.config, job.spec)
    assert isinstance(shell, Composed)
    parts = []
    for member in shell.members:
        member_job = SeedJob(
            member.config, member.spec, member.seen(job.train), member.seen(job.valid), job.folds
        )
        part = _taken(member_job, seeds, earlier)
        if part is None:
            name = f"{label}, its {member.config.family}"
            part = _Part(*train_seeds(member_job, seeds, jobs, name, execution), None)
        parts.append(part)
    trained = [_composed(job, [part.trained[at] for part in parts]) for at in range(len(seeds))]
    tried = [_averaged([part.tried[at] for part in parts]) for at in range(len(job.folds))]
    return trained, tried, [part.folder.name for part in parts if part.folder is not None]


def fit_members(job: SeedJob, seed: int, jobs: int | None, label: str) -> Ranker:
    """Train a composed model with one seed as its own `fit` does, its members side by side.

    Args:
        job: the family's, with features and data; no folds.
        seed: of all members.
        jobs: worker processes; None uses every core the process may run on.
        label: what messages call the model.
    """
    ranker = make_ranker(job.config, job.spec)
    assert isinstance(ranker, Composed)
    trainings = [
        SeedJob(member.config, member.spec, member.seen(job.train), member.seen(job.valid))
        for member in ranker.members
    ]
    parts = train_each(trainings, seed, jobs, label)
    for member, part in zip(ranker.members, parts, strict=True):
        member.ranker, member.divisor = part.ranker, _spread(part)
    return ranker


def _composed(job: SeedJob, parts: Sequence[TrainedSeed]) -> TrainedSeed:
    """Return a seed's model, of its members."""
    ranker = make_ranker(job.config, job.spec)
    assert isinstance(ranker, Composed)
    points = []
    for index, (member, part) in enumerate(zip(ranker.members, parts, strict=True)):
        member.ranker, member.divisor = part.ranker, _spread(part)
        points += [
            MetricPoint(f"{point.name}_member{index}", point.value, point.step)
            for point in part.points
        ]
    raw = ranked(ranker, job.valid)
    return TrainedSeed(
        seed=parts[0].seed,
        ranker=ranker,
        points=points,
        valid=RankingMetrics(job.valid.label, job.valid.group)(raw),
        seconds=sum(part.seconds for part in parts),
        spread=None,
    )


def _averaged(parts: Sequence[Tried]) -> Tried:
    """Return a fold's scores, of the members' scores."""

    def mean(scores: Sequence[Scores]) -> Scores:
        scaled = [score / _spread(part) for score, part in zip(scores, parts, strict=True)]
        total: Scores = np.sum(scaled, axis=0)
        return total / len(parts)

    return Tried(
        fold=parts[0].fold,
        train=mean([part.train for part in parts]),
        valid=mean([part.valid for part in parts]),
        seconds=sum(part.seconds for part in parts),
        spread=None,
    )


def _spread(part: TrainedSeed | Tried) -> float:
    assert part.spread is not None, "a member is made of others itself, which nobody has asked for"
    return part.spread


def _taken(job: SeedJob, seeds: Sequence[int], earlier: Earlier) -> _Part | None:
    """Return a member's trainings from a folder that has them; None where no folder has."""
    for path in sorted(earlier.folder.glob(f"*/{RUN_FILE}")):
        try:
            part = _of_folder(path.parent, job, seeds, earlier)
        except (BundleError, OSError, pl.exceptions.PolarsError):
            continue  # Another command reports a folder that is old or damaged; here the member is trained again.
        if part is not None:
            return part
    return None


def _of_folder(folder: Path, job: SeedJob, seeds: Sequence[int], earlier: Earlier) -> _Part | None:
    run = RunFile.read(folder)
    folds = run.folds[: len(job.folds)]
    if (
        run.programs != num_programs(job.train, job.valid)
        or run.seeds[:1] != tuple(seeds[:1])
        or not set(seeds) <= set(run.seeds)
        or folds != earlier.folds
        or len(run.fold_spread) < len(folds)
        or not {str(seed) for seed in seeds} <= set(run.spread)
    ):
        return None
    trained = []
    for seed in seeds:
        bundle = folder / f"seed{seed}"
        info = read_info(bundle)
        if not _same(info, job, seed, earlier):
            return None
        check_files(bundle, info.files)
        ranker = make_ranker(job.config, job.spec)
        ranker.load(bundle)
        valid = {name.removeprefix("valid_"): value for name, value in info.metrics.items()}
        trained.append(TrainedSeed(seed, ranker, [], valid, 0.0, run.spread[str(seed)]))
    if earlier.code(folder) != code_digest():
        return None
    return _Part(trained, _tried(folder, job, run), folder)


def _same(info: BundleInfo, job: SeedJob, seed: int, earlier: Earlier) -> bool:
    """Say whether training a member with a seed would make this bundle."""

    def learns(settings: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in _ELSEWHERE}

    spec = replace(job.spec, name=info.feature_spec.name)
    return (
        info.seed == seed
        and info.family == job.config.family
        and learns(info.model_config) == learns(plain_config(job.config))
        and info.feature_spec.digest == spec.digest
        and info.hardware == earlier.hardware
        and (info.dataset_hash, info.split_hash) == (earlier.dataset_hash, earlier.split_hash)
        and info.versions == installed_versions()
    )


def _tried(folder: Path, job: SeedJob, run: RunFile) -> list[Tried]:
    if not job.folds:
        return []
    scores = pl.read_parquet(folder / FOLDS_FILE)
    tried = []
    for at, fold in enumerate(job.folds):
        raw_scores = dict(
            scores.filter(pl.col("fold") == at).select("record_id", "raw").iter_rows()
        )

        def raw(samples: Samples, raw_scores: dict[str, float | None] = raw_scores) -> Scores:
            return np.array(
                [raw_scores.get(record) for record in samples.record_id.tolist()], np.float64
            )

        train, valid = fold_programs(job.train, job.valid, fold)
        tried.append(Tried(at, raw(train), raw(valid), 0.0, run.fold_spread[at]))
    return tried


def num_programs(train: Samples, valid: Samples) -> tuple[int, int]:
    """Count the programs with rows to learn from, and to watch."""
    learnt, watched = (int(np.count_nonzero(part.features.lengths)) for part in (train, valid))
    return learnt, watched
