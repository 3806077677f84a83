"""Which programs are labelled: tasks that are unlike each other first, then what models of the labels disagree about.

Only programs of one task are compared, so a task gets several: spread over the model's own order of them, the one it
likes best first, and closer together where it likes them. Tasks are picked farthest first by the means of their columns
(Gonzalez 1985), so that few of them cover what there is. Of the uncertain ones, a task is worth what corrections learnt
from resampled tasks disagree about the order of its programs (query by committee, Seung et al. 1992).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tencost.adapt.pool import LabelPool
from tencost.features.rows.ragged import FloatArray, IntArray
from tencost.models.programs.ranker import Scores

_TOWARDS_BEST = 1.5
"""Power of the even spacing over the model's order: more programs where the model likes them."""


def diverse(pool: LabelPool, columns: FloatArray, count: int, per_task: int, seed: int) -> IntArray:
    """Return positions of programs to label, in order; the first n of a larger choice are the choice of n.

    Args:
        pool: what may be labelled.
        columns: float32 [N, C], what programs are compared by.
        count: how many; at most len(pool).
        per_task: programs of a task before another task's turn.
        seed: of the first task and of what is taken once every task had a turn.
    """
    generator = np.random.default_rng(seed)
    tasks = _far_apart(_task_means(pool, columns), generator)
    return _in_turns(pool, tasks, pool.score, count, per_task, generator)


def uncertain(
    pool: LabelPool,
    committee: Sequence[Scores],
    labelled: IntArray,
    count: int,
    per_task: int,
    seed: int,
) -> IntArray:
    """Return positions of further programs, those of the most disputed tasks.

    Args:
        pool: what may be labelled.
        committee: scores of all programs by several models, float64 [N] each, on one scale.
        labelled: positions that are labelled already.
        count: how many more.
        per_task: programs of a task.
        seed: of what is taken once every task had a turn.
    """
    opinions = np.stack([_centred(scores, pool.group) for scores in committee])
    dispute = opinions.var(axis=0)
    free = np.ones(len(pool), bool)
    free[labelled] = False
    of_task = np.bincount(pool.group[free], weights=dispute[free], minlength=pool.num_tasks)
    mean = of_task / np.maximum(np.bincount(pool.group[free], minlength=pool.num_tasks), 1)
    tasks = np.argsort(-mean, kind="stable")
    generator = np.random.default_rng(seed)
    return _in_turns(pool, tasks, opinions.mean(axis=0), count, per_task, generator, free)


def _task_means(pool: LabelPool, columns: FloatArray) -> Scores:
    spread = columns.std(axis=0)
    used = spread > 1e-6
    standard = (columns[:, used] - columns[:, used].mean(axis=0)) / spread[used]
    count = np.bincount(pool.group, minlength=pool.num_tasks)
    means = np.zeros((pool.num_tasks, standard.shape[1]))
    np.add.at(means, pool.group, standard)
    return np.asarray(means / count[:, None], np.float64)


def _far_apart(points: Scores, generator: np.random.Generator) -> IntArray:
    """Order points so that each is the farthest from those before it."""
    order = [int(generator.integers(len(points)))]
    nearest = np.full(len(points), np.inf)
    for _ in range(len(points) - 1):
        nearest = np.minimum(nearest, ((points - points[order[-1]]) ** 2).sum(axis=1))
        nearest[order] = -1.0
        order.append(int(np.argmax(nearest)))
    return np.asarray(order, np.int64)


def _in_turns(
    pool: LabelPool,
    tasks: IntArray,
    score: Scores,
    count: int,
    per_task: int,
    generator: np.random.Generator,
    free: npt.NDArray[np.bool_] | None = None,
) -> IntArray:
    """Take `per_task` programs of each task in order, and go round again until there are enough.

    A task with one program has its turn last: it teaches nothing.
    """
    queues: list[list[int]] = []
    for task in tasks:
        of_task = pool.group == task
        members = np.flatnonzero(of_task if free is None else of_task & free)
        if len(members):
            ranked = members[np.argsort(-score[members], kind="stable")]
            queues.append(_spread_over(ranked, per_task, generator))
    queues.sort(key=lambda queue: len(queue) < 2)
    longest = max(map(len, queues), default=0)
    chosen = [
        program
        for turn in range(0, longest, per_task)
        for queue in queues
        for program in queue[turn : turn + per_task]
    ]
    return np.asarray(chosen[:count], np.int64)


def _spread_over(ranked: IntArray, per_task: int, generator: np.random.Generator) -> list[int]:
    """Order a task's programs, best first: those spread over the ranks, then the others at random."""
    shares = np.linspace(0.0, 1.0, per_task) ** _TOWARDS_BEST
    first = np.unique(np.round(shares * (len(ranked) - 1)).astype(np.int64))
    others = np.setdiff1d(np.arange(len(ranked)), first)
    order = np.concatenate([first, generator.permutation(others)])
    return [int(program) for program in ranked[order]]


def _centred(scores: Scores, group: IntArray) -> Scores:
    count = np.maximum(np.bincount(group), 1)
    return scores - (np.bincount(group, weights=scores) / count)[group]
