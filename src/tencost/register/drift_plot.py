"""The rank correlation of model versions against their tuning runs, as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from tencost.evaluate.plots import MARKERS, PALETTE
from tencost.register.drift import History, Rule, TuningRun

_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
}
_LABELS = 24
"""Runs that are labelled with network and day."""


def plot_drift(histories: Sequence[History], path: Path, rule: Rule | None = None) -> None:
    """Draw one line a version: mean rank correlation of each run, its 95 % interval as a band.

    Runs of all versions share one axis, in order of time. Runs without a round to compare are left out.
    """
    rule = rule or Rule()
    drawn = [item for item in histories if any(run.rankings for run in item.runs)]
    everything = [run for item in drawn for run in item.runs if run.rankings]
    places = {run.run: place for place, run in enumerate(sorted(everything, key=_when), start=1)}
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(max(6.0, min(14.0, 0.45 * len(places) + 2)), 4.6))
        figure.set_layout_engine("constrained")
        axis = figure.subplots()
        axis.axhline(0.0, color="black", linestyle=":", linewidth=1.2, label="random order")
        axis.axhline(
            rule.floor,
            color="#777777",
            linestyle="--",
            linewidth=1.2,
            label=f"floor {rule.floor:g}",
        )
        for index, item in enumerate(drawn):
            _line(axis, item, places, index)
        ordered = sorted(everything, key=_when)
        if len(ordered) <= _LABELS:
            names = [f"{run.network}\n{_day(run)}" for run in ordered]
            turned = 0 if len(ordered) <= 8 else 60
            axis.set_xticks(range(1, len(ordered) + 1), names, rotation=turned, fontsize=8)
        axis.set_xlim(0.5, max(1, len(ordered)) + 0.5)
        axis.set_ylim(-1.05, 1.05)
        axis.set_xlabel("tuning runs, in order of time")
        axis.set_ylabel("rank correlation within a round (Spearman)")
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        axis.set_title("Ranking in production; mean and 95 % interval over rounds", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, format="png", metadata={"Software": None})


def _line(axis: Any, item: History, places: dict[str, int], index: int) -> None:
    shown = [(places[run.run], run.estimate) for run in item.runs if run.rankings]
    points = [(place, found) for place, found in shown if found is not None]
    colour, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
    x, mean = [place for place, _ in points], [found.mean for _, found in points]
    label = f"{item.version.removeprefix('models:/')} on {item.hardware}"
    axis.plot(x, mean, color=colour, marker=marker, markersize=4, linewidth=1.6, label=label)
    low = [found.mean if found.low is None else found.low for _, found in points]
    high = [found.mean if found.high is None else found.high for _, found in points]
    axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    if len(points) == 1:  # a band of one point has no width
        axis.vlines(x, low, high, color=colour, alpha=0.4, linewidth=4)


def _when(run: TuningRun) -> tuple[float, str]:
    return run.started or 0.0, run.run


def _day(run: TuningRun) -> str:
    if run.started is None:
        return ""
    return datetime.fromtimestamp(run.started, UTC).strftime("%m-%d %H:%M")
