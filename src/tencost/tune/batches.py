"""How well each measured batch was predicted before the model learnt from it: `batches.jsonl` of a work folder.

A line of JSON a batch, appended to by resumed runs, the oldest first:

    {"trials": 16, "task": "fused_dense", "programs": 16, "failed": 0, "k": 8, "model": "models:/tencost-x/1",
     "learns": true, "arm": "residual", "p_rmse": 0.19, "top_k": 0.62, "spearman": 0.55, "kendall": 0.41,
     "arms": {"registered": {"p_rmse": 0.2, "top_k": 0.62, "spearman": 0.5}, "residual": {...}},
     "task_latency_s": 1.2e-4, "total_latency_s": 0.0213}

    trials      programs measured in all, this batch included: grows from line to line
    k           see `top_k_size`; of random scores top_k is k / programs
    arm         who ranked the batch, see guard.py; p_rmse, top_k, spearman and kendall are this arm's
    arms        the same batch scored by every arm that could, on what it knew before the batch
    p_rmse      root of the mean squared difference of score and label, lower is better
    top_k       share of the k fastest programs among the k with the best scores, in [0, 1]
    spearman    rank correlation of score and speed, in [-1, 1]; null where there is none

A label is the fastest latency of the batch / latency, 0 for a failed program, as in MetaSchedule's XGBModel, whose
p-rmse and a-peak these lines are the like of; all three figures are null where every program failed. A line that a
killed run left half written is dropped by the next one; a line of programs that the database lost is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tencost.errors import TuneError
from tencost.evaluate.metrics import Floats, labels
from tencost.writing import whole_file

if TYPE_CHECKING:
    from tencost.tune.session import MeasuredBatch

FILE = "batches.jsonl"
SCRATCH = "scratch"
"""model_uri of a run without a registered model; the name of its model."""
TOP = 32
"""Programs that a top-k of a large batch looks at, as in tvm_oraa's top-32 of 64 and of 128."""


@dataclass(frozen=True)
class Score:
    """What an arm's scores of a batch were worth; None where that cannot be said."""

    p_rmse: float | None
    top_k: float | None
    spearman: float | None


@dataclass(frozen=True, kw_only=True)
class BatchLine:
    """A line of the file; see the module's docstring."""

    trials: int
    task: str
    programs: int
    failed: int
    k: int
    model: str
    learns: bool
    arm: str
    p_rmse: float | None
    top_k: float | None
    spearman: float | None
    kendall: float | None
    arms: Mapping[str, Mapping[str, float | None]]
    task_latency_s: float
    total_latency_s: float

    @classmethod
    def of(cls, batch: MeasuredBatch, model: str, *, learns: bool) -> BatchLine:
        """Return the line of a batch that was ranked, by a model that learns or does not."""
        ranked = batch.round
        return cls(
            trials=batch.trials,
            task=batch.task.name,
            programs=ranked.num_measured,
            failed=ranked.num_failed,
            k=top_k_size(ranked.num_measured),
            model=model,
            learns=learns,
            arm=ranked.arm.value,
            **asdict(ranked.score(ranked.arm)),
            kendall=ranked.kendall,
            arms={arm.value: asdict(score) for arm, score in ranked.scores.items()},
            task_latency_s=batch.task_latency_s,
            total_latency_s=batch.total_latency_s,
        )


def top_k_size(programs: int) -> int:
    """Return the k of a batch's top-k: 32; half of a batch that has fewer than 64 programs, at least 1."""
    return min(TOP, max(1, programs // 2))


def judge_scores(score: Floats, latency_s: Floats) -> Score:
    """Compare scores with what was measured.

    Args:
        score: float64 [N] in (0, 1], higher is predicted faster.
        latency_s: float64 [N], seconds; NaN for a failed program.
    """
    if len(score) == 0 or np.isnan(latency_s).all():
        return Score(None, None, None)
    label = labels(latency_s)
    return Score(
        float(np.sqrt(np.mean((score - label) ** 2))),
        overlap(score, label, top_k_size(len(score))),
        correlation("spearmanr", score, np.nan_to_num(1.0 / latency_s, nan=0.0)),
    )


def overlap(score: Floats, label: Floats, k: int) -> float:
    """Return the expected share of the k highest labels among the k highest scores, ties broken at random.

    Equal scores for all programs give k / N, what guessing gives. (MetaSchedule's MLP model takes the lowest of both.)

    Args:
        score: float64 [N].
        label: float64 [N], higher is faster.
        k: in [1, N].
    """
    return float(_chances(score, k) @ _chances(label, k)) / k


def correlation(statistic: str, score: Floats, speed: Floats) -> float | None:
    """Return a rank correlation of scipy.stats by its name; None for fewer than 3 programs or no differences."""
    from scipy import stats

    if len(score) < 3 or np.ptp(score) == 0 or np.ptp(speed) == 0:
        return None
    return float(getattr(stats, statistic)(score, speed).statistic)


def _chances(value: Floats, k: int) -> Floats:
    """Return each value's chance to be among the k highest, float64 [N], summing to k."""
    limit = np.sort(value)[-k]
    above, tied = value > limit, value == limit
    return np.where(above, 1.0, np.where(tied, (k - above.sum()) / tied.sum(), 0.0))


def append_batch_line(path: Path, line: BatchLine) -> None:
    """Add a line; what a killed run left half written, and lines of programs that are measured again, are dropped."""
    earlier = [text for text in _whole_lines(path) if (_trials(text) or 0) < line.trials]
    with whole_file(path) as temporary:
        lines = [*earlier, json.dumps(asdict(line))]
        temporary.write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")


def read_batch_lines(path: Path) -> list[BatchLine]:
    """Read a file's lines; without one that a killed run left half written.

    Raises:
        TuneError: a line says something else.
    """
    lines = []
    for number, text in enumerate(_whole_lines(path), start=1):
        try:
            lines.append(_line(json.loads(text)))
        except (TypeError, ValueError, AttributeError) as error:
            raise TuneError(
                f"{path}, line {number}: expected a batch as `tencost tune` writes it, found {text[:80]} ({error}). "
                "Move the file away; the run's other batches are lost to the report, nothing else is."
            ) from error
    return lines


def _line(values: dict[str, Any]) -> BatchLine:
    line = BatchLine(**values)
    numbers = (line.trials, line.programs, line.failed, line.k, line.total_latency_s)
    if not all(isinstance(value, int | float) for value in numbers):
        raise TypeError("a number is missing")
    if not all(isinstance(value, dict) for value in (line.arms, *line.arms.values())):
        raise TypeError("arms are no mapping")
    return line


def _whole_lines(path: Path) -> list[str]:
    """Return the lines without those at the end that are no JSON object with `trials`, which a kill left."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    while lines and _trials(lines[-1]) is None:
        lines.pop()
    return lines


def _trials(line: str) -> int | None:
    try:
        trials = json.loads(line)["trials"]
    except (ValueError, TypeError, KeyError):
        return None
    return trials if isinstance(trials, int) else None
