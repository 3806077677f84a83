"""Value of labels of new hardware: an adapted model's figures by number of labels, beside a native model's.

Pure: programs, truth and models in, figures out. The native model is of the same family and learns from every record of
the new hardware in the train part; a model from scratch learns from the same labels as the adapted one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tencost.adapt.fitting import SourceModel, adapt
from tencost.adapt.pool import LabelPool
from tencost.config import AdaptMode
from tencost.evaluate.interval import Interval, seed_interval
from tencost.evaluate.scoring import score_records
from tencost.evaluate.truth import Truth
from tencost.features.rows.ragged import IntArray, Ragged
from tencost.models.programs.ranker import Ranker

FIGURES = ("top1", "top5", "pairwise", "geo1")
NATIVE = "native"
Choose = Callable[[LabelPool, SourceModel, int, int], IntArray]
"""(pool, model, how many, seed) -> positions of what is labelled."""


@dataclass(frozen=True)
class Point:
    """One model, judged on the test part.

    Attributes:
        mode: residual, fine_tune, scratch, or native.
        labels: programs that it learnt from; of the native model, all there are.
        seed: of the source, the choice and what is random.
        figures: name of FIGURES -> value.
    """

    mode: str
    labels: int
    seed: int
    figures: dict[str, float]


@dataclass(frozen=True)
class Summary:
    """The seeds of one mode and number of labels: values, and shares of the native model's mean, in per cent."""

    mode: str
    labels: int
    value: dict[str, Interval]
    share: dict[str, Interval]


def curve(
    pool: LabelPool,
    source: SourceModel,
    test: tuple[Truth, Ragged],
    counts: Sequence[int],
    modes: Sequence[AdaptMode],
    choose: Choose,
    seed: int,
) -> list[Point]:
    """Adapt with each number of labels and judge; more labels than there are take all, once.

    Args:
        pool: labelled programs of the new hardware, none of the test part.
        source: the model to start from.
        test: the test part of the new hardware, and its programs' features in its order.
        counts: numbers of labels.
        modes: what is compared; scratch has no point without labels.
        choose: which programs are labelled.
        seed: see :class:`Point`.
    """
    truth, features = test
    points = []
    for count in sorted({min(size, len(pool)) for size in counts}):
        chosen = choose(pool, source, count, seed) if count else np.zeros(0, np.int64)
        labels = pool.labelled(chosen)
        for mode in modes:
            if count == 0 and mode is AdaptMode.scratch:
                continue
            ranker = adapt(source, mode, labels, seed).ranker
            points.append(Point(mode.value, count, seed, judged(ranker, truth, features)))
    return points


def judged(ranker: Ranker, truth: Truth, features: Ragged) -> dict[str, float]:
    """Return the figures of a model on a test part."""
    raw = ranker.predict(features)
    overall = asdict(score_records(truth, raw, np.nan_to_num(raw)).overall)
    return {name: overall[name] for name in FIGURES}


def summarized(points: Sequence[Point]) -> list[Summary]:
    """Average over seeds: native first, then by mode and labels."""
    natives = [point for point in points if point.mode == NATIVE]
    middle = {name: float(np.mean([point.figures[name] for point in natives])) for name in FIGURES}
    keys = dict.fromkeys(
        (point.mode, point.labels)
        for point in sorted(points, key=lambda point: point.mode != NATIVE)
    )
    summaries = []
    for mode, labels in keys:
        figures_by_seed = [
            point.figures for point in points if (point.mode, point.labels) == (mode, labels)
        ]
        value = {
            name: seed_interval([figures[name] for figures in figures_by_seed]) for name in FIGURES
        }
        share = {
            name: seed_interval(
                [100.0 * figures[name] / middle[name] for figures in figures_by_seed]
            )
            for name in FIGURES
        }
        summaries.append(Summary(mode, labels, value, share))
    return summaries
