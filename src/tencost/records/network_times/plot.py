"""Networks' times over time as a PNG: a panel for each network on a host, a line for each engine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tencost.records.network_times.regress import REGRESSED, Change, Since, Verdict
from tencost.records.network_times.runs import Run
from tencost.writing import whole_file

PANELS = 24
"""Panels at most; those of regressed networks come first."""
_COLUMNS = 3
_RED = "#d62728"
_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def plot_changes(changes: Sequence[Change], since: Since, path: Path) -> int:
    """Draw medians of all runs with their quartiles, regressed new runs in red; return the number of panels left out.

    A dashed line marks where new runs begin.

    Raises:
        OSError: the file cannot be written.
    """
    panels: dict[tuple[object, ...], list[Change]] = {}
    for change in changes:
        run = change.since[-1]
        panels.setdefault((run.network, run.hardware, run.cores, run.host), []).append(change)
    drawn = list(panels.values())[:PANELS]
    columns = min(_COLUMNS, len(drawn))
    rows = -(-len(drawn) // columns)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.6 * columns + 0.6, 3.0 * rows + 0.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False)
        for place, panel in zip(axes.flat, drawn, strict=False):
            _panel(place, panel, since)
        for place in list(axes.flat)[len(drawn) :]:
            place.set_visible(False)
        figure.suptitle(
            f"Median latency of each run, bars: quartiles; red: slower than before {since.label}"
        )
        with whole_file(path) as temporary:
            # matplotlib writes its version into a PNG; without it the bytes outlive an upgrade.
            figure.savefig(temporary, format="png", dpi=110, metadata={"Software": None})
    return len(panels) - len(drawn)


def _panel(axis: Any, panel: Sequence[Change], since: Since) -> None:
    for number, change in enumerate(sorted(panel, key=lambda change: change.since[-1].engine)):
        runs = [run for run in change.runs if not run.failed]
        times, middle, low, high = _points(runs)
        color = f"C{number % 10}" if number % 10 != 3 else "C9"  # C3 is the red of what regressed
        label = runs[-1].engine if runs else change.since[-1].engine
        if change.ratio is not None:
            label += f" {change.ratio.value:.3f} [{change.ratio.low:.3f}, {change.ratio.high:.3f}]"
        axis.errorbar(
            times, middle, yerr=[low, high], color=color, marker="o", markersize=3.5,
            linewidth=1.2, elinewidth=0.8, label=f"{label} {change.verdict}",
        )  # fmt: skip
        if change.verdict in REGRESSED:
            new = [
                run for run in change.since if not run.failed and change.verdict is Verdict.slower
            ]
            late, slow, _, _ = _points(new)
            axis.plot(late, slow, color=_RED, marker="o", markersize=5, linestyle="none", zorder=5)
            for run in change.since:
                if run.failed:
                    axis.axvline(_when(run), color=_RED, linewidth=1.0)
    first = min(change.since[0].timestamp or 0.0 for change in panel)
    cut = first if since.timestamp is None else since.timestamp
    axis.axvline(datetime.fromtimestamp(cut, UTC), color="#777777", linestyle="--", linewidth=1.0)
    run = panel[0].since[-1]
    cores = f", {run.cores} cores" if run.cores > 1 else ""
    axis.set_title(f"{run.network} on {run.hardware}{cores} ({run.host})", fontsize=9)
    axis.set_ylabel("ms")
    axis.set_ylim(bottom=0)
    axis.tick_params(axis="x", labelrotation=30, labelsize=7)
    axis.legend(fontsize=7, loc="lower left")


def _points(runs: Sequence[Run]) -> tuple[list[datetime], Any, Any, Any]:
    """Return times of day, medians in ms, and how far the quartiles lie below and above them."""
    ends = np.asarray([np.quantile(run.seconds, (0.25, 0.5, 0.75)) for run in runs]).reshape(-1, 3)
    low, middle, high = 1e3 * ends.T
    return [_when(run) for run in runs], middle, middle - low, high - middle


def _when(run: Run) -> datetime:
    return datetime.fromtimestamp(run.timestamp or 0.0, UTC)
