"""The tuning curve: best total latency of the network's tasks against programs measured.

Stored as CSV with a header, one row a measured batch, appended to by resumed runs:

    trials,total_latency_s,task,task_latency_s,failed,spearman,elapsed_s,model
    0,0.0471,,,0,,0.0,
    16,0.0213,fused_matmul_add2,0.00021,0,0.71,9.8,models:/tencost-epyc-avx512-1c/1

total_latency_s is the sum over tasks of weight x the best latency known (before its first batch: that of the default
schedule); spearman is the rank correlation of the cost model's scores with the batch's speeds, empty if undefined.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tencost.errors import TuneError
from tencost.tune.reporting import csv_lines, draw_chart
from tencost.writing import whole_file

if TYPE_CHECKING:
    from tencost.tune.session import MeasuredBatch


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One measured batch; trials 0 is the state before tuning."""

    trials: int
    """Programs measured so far, all runs together."""
    total_latency_s: float
    """Weighted sum of the best latencies known, seconds, lower is better."""
    task: str = ""
    """Task of the batch."""
    task_latency_s: float | None = None
    """Best latency of that task so far, seconds."""
    failed: int = 0
    """Programs of the batch that failed."""
    spearman: float | None = None
    """Rank correlation of score and speed within the batch, before learning from it."""
    elapsed_s: float = 0.0
    """Seconds since this run began to tune."""
    model: str = ""
    """The model that chose the batch."""

    @classmethod
    def of(cls, batch: MeasuredBatch, model: str) -> CurvePoint:
        """Return the point of a batch that a model chose."""
        return cls(
            trials=batch.trials,
            total_latency_s=batch.total_latency_s,
            task=batch.task.name,
            task_latency_s=batch.task_latency_s,
            failed=batch.round.num_failed,
            spearman=batch.round.spearman,
            elapsed_s=round(batch.elapsed_s, 3),
            model=model,
        )


_DECADE_SPAN = 4.0
"""From this ratio of its largest to its smallest latency on, a curve is drawn with a logarithmic axis."""
FILE = "tuning_curve.csv"
COLUMNS = tuple(column.name for column in fields(CurvePoint))


def append_point(path: Path, point: CurvePoint) -> None:
    """Add a row to the CSV, with a header if it is new, in one step; a row that a killed run left half is dropped."""
    whole = _whole_rows(path)
    rows = [astuple(point)] if whole else [COLUMNS, astuple(point)]
    with whole_file(path) as temporary:
        temporary.write_text(whole + csv_lines(rows), encoding="utf-8")


def read_points(path: Path) -> list[CurvePoint]:
    """Read the rows of a curve; an incomplete last row (a run that was killed) is left out.

    Raises:
        TuneError: other columns, or a damaged row.
    """
    rows = list(csv.reader(io.StringIO(_whole_rows(path), newline="")))
    if rows and tuple(rows[0]) != COLUMNS:
        raise TuneError(
            f"{path}: expected the columns {', '.join(COLUMNS)}, found {', '.join(rows[0])}. Move the file away; "
            "tuning goes on without its past curve."
        )
    try:
        return [_point(row) for row in rows[1:] if len(row) == len(COLUMNS)]
    except ValueError as error:
        raise _damaged(path, f"a row without them ({error})") from error


def _damaged(path: Path, content: str) -> TuneError:
    return TuneError(
        f"{path}: expected rows of {', '.join(COLUMNS)}, found {content}. Move the file away; tuning goes on without "
        "its past curve."
    )


def _whole_rows(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        raise _damaged(path, f"bytes that are no text ({error})") from error
    return text[: text.rfind("\n") + 1]


def _point(row: list[str]) -> CurvePoint:
    trials, total, task, best, failed, spearman, elapsed, model = row
    return CurvePoint(
        trials=int(trials),
        total_latency_s=float(total),
        task=task,
        task_latency_s=float(best) if best else None,
        failed=int(failed),
        spearman=float(spearman) if spearman else None,
        elapsed_s=float(elapsed),
        model=model,
    )


def plot_curve(points: Sequence[CurvePoint], path: Path, title: str) -> bool:
    """Draw the curve as PNG; returns False where matplotlib is not installed (tencost[tuner] has none)."""

    def draw(figure: Any) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        trials = [point.trials for point in points]
        latency_ms = [point.total_latency_s * 1e3 for point in points]
        upper.step(trials, latency_ms, where="post", marker=".")
        upper.set_ylabel("total latency of tasks, ms")
        if max(latency_ms, default=1.0) > _DECADE_SPAN * min(latency_ms, default=1.0):
            upper.set_yscale("log")  # of a smaller span it has no numbers that can be read
            upper.yaxis.set_major_formatter("{x:g}")
            upper.yaxis.set_minor_formatter("{x:g}")
            upper.tick_params(axis="y", which="minor", labelsize=7)
        upper.set_title(title)
        upper.grid(visible=True, which="both", alpha=0.3)
        ranked = [(point.trials, point.spearman) for point in points if point.spearman is not None]
        lower.axhline(0.0, color="grey", linewidth=0.8)
        lower.plot([t for t, _ in ranked], [rho for _, rho in ranked], marker=".", linestyle="none")
        lower.set_ylim(-1.05, 1.05)
        lower.set_ylabel("rank corr.")
        lower.set_xlabel("programs measured")
        lower.grid(visible=True, alpha=0.3)

    return draw_chart(path, (7, 4.2), draw)
