"""Networks left out in turn: by what a family is chosen before a test network is looked at.

The networks of a split's training side (its train and valid parts) are divided into folds; a family is trained once a
fold without the fold's workloads, which are then scored: all variants of a network (``resnet_50``, ``resnet_50-b4``)
are in one fold, and a workload that several folds have is left out with each of them, as `splits` does for the test
networks. The first seed alone is trained: the folds, not the seeds, say how sure a choice is.

What `train` writes of it, beside the bundles: ``folds.parquet`` with the columns fold (int32), record_id and raw
(float64, higher is predicted faster, null for a program without rows), of the model's own hardware; and the networks of
each fold in run.json.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from tencost.models.programs.ranker import Samples
from tencost.models.programs.ranker.labels import dense_groups

FILE = "folds.parquet"
"""Beside the bundles of a model."""
_LEAST_FOLDS = 2


@dataclass(frozen=True)
class Fold:
    """Networks that are left out together.

    Attributes:
        networks: their names, sorted.
        workloads: what they compute on the training side.
    """

    networks: tuple[str, ...]
    workloads: frozenset[str]


@dataclass(frozen=True)
class FoldSamples:
    """A fold of some samples: which programs of the train and of the valid part it has.

    Attributes:
        train: bool [N], of the train part.
        valid: bool [M], of the valid part.
    """

    train: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]


def divide_networks(
    tasks: pl.DataFrame, workloads: Collection[str], count: int
) -> tuple[Fold, ...]:
    """Divide the networks that have some of the workloads into folds of about as many workloads each.

    Args:
        tasks: network, workload_id: all tasks of every network.
        workloads: those of the training side that were measured.
        count: folds at most.

    Returns:
        The same for the same networks and workloads; none where fewer than two folds are asked for or can be made.
    """
    measured = tasks.filter(pl.col("workload_id").is_in(list(workloads)))
    of_network: dict[str, set[str]] = {}
    for network, workload in measured.select("network", "workload_id").iter_rows():
        of_network.setdefault(network, set()).add(workload)
    stems: dict[str, list[str]] = {}
    for network in sorted(of_network):
        stems.setdefault(network.split("-")[0], []).append(network)
    sizes = {
        stem: len(set().union(*(of_network[network] for network in names)))
        for stem, names in stems.items()
    }
    count = min(count, len(stems))
    if count < _LEAST_FOLDS:
        return ()
    filled: list[list[str]] = [[] for _ in range(count)]
    for stem in sorted(stems, key=lambda stem: (-sizes[stem], stem)):
        emptiest = min(range(count), key=lambda at: sum(sizes[stem] for stem in filled[at]))
        filled[emptiest].append(stem)
    folds = []
    for inside in filled:
        networks = sorted(name for stem in inside for name in stems[stem])
        union = frozenset[str]().union(*(of_network[name] for name in networks))
        folds.append(Fold(tuple(networks), union))
    return tuple(folds)


def samples_without_folds(
    folds: Sequence[Fold], records: pl.DataFrame, train: Samples, valid: Samples
) -> tuple[FoldSamples, ...]:
    """Return the samples that each fold leaves out; none for a fold that would leave nothing to learn from.

    Args:
        folds: as `divide_networks` made them.
        records: record_id, workload_id of at least the samples' records.
        train: that part of the split.
        valid: that part of the split.
    """
    workload = dict(records.select("record_id", "workload_id").iter_rows())

    def inside(samples: Samples, fold: Fold) -> npt.NDArray[np.bool_]:
        in_fold = [workload[record] in fold.workloads for record in samples.record_id.tolist()]
        return np.array(in_fold, dtype=np.bool_)

    parts = [FoldSamples(inside(train, fold), inside(valid, fold)) for fold in folds]
    return tuple(
        FoldSamples(np.zeros_like(part.train), np.zeros_like(part.valid))
        if part.train.all()
        else part
        for part in parts
    )


def without(train: Samples, valid: Samples, fold: FoldSamples) -> tuple[Samples, Samples]:
    """Return what is learnt from and what is watched without a fold: the former, too, where no validation is left."""
    learn = _taken(train, ~fold.train)
    return learn, _taken(valid, ~fold.valid) if not fold.valid.all() else learn


def fold_programs(train: Samples, valid: Samples, fold: FoldSamples) -> tuple[Samples, Samples]:
    """Return the programs of a fold, of the train and of the valid part; either may be empty."""
    return _taken(train, fold.train), _taken(valid, fold.valid)


def _taken(samples: Samples, mask: npt.NDArray[np.bool_]) -> Samples:
    part = samples.take(np.flatnonzero(mask))
    return replace(part, group=dense_groups(part.group.astype(np.str_)))
