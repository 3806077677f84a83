"""What seeds logged while they learnt: averaged for MLflow's charts, and drawn for its artifacts.

``learning_curves.png``: a panel for each figure (``valid_pairwise``, ``loss``, ...), a thin line for each seed of each
member of a bag or a blend, their mean over the seeds that got so far as a thick one; the step is a round of trees, or
an epoch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tencost.tracking.runs import MetricPoint

FILE = "learning_curves.png"
_MEMBER = re.compile(r"(_model\d+|_member\d+)+$")
_COLUMNS = 3
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def mean_curves(seeds: Iterable[Sequence[MetricPoint]]) -> list[MetricPoint]:
    """Average the curves of several seeds, step by step, over the seeds that reached the step."""
    values: Mapping[tuple[str, int], list[float]] = defaultdict(list)
    for points in seeds:
        for point in points:
            values[point.name, point.step].append(point.value)
    return [
        MetricPoint(name, float(np.mean(figures)), step) for (name, step), figures in values.items()
    ]


def plot_curves(seeds: Sequence[Sequence[MetricPoint]], title: str, folder: Path) -> Path | None:
    """Draw the curves into a folder; return the file, None where no figure has two steps."""
    means = _by_name(mean_curves(seeds))
    panels: dict[str, list[str]] = defaultdict(list)
    for name, points in means.items():
        if len(points) > 1:
            panels[_MEMBER.sub("", name)].append(name)
    if not panels:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    each = [_by_name(points) for points in seeds]
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.8 * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (panel, names) in zip(axes, sorted(panels.items()), strict=False):
        for index, name in enumerate(sorted(names)):
            colour = _COLOURS[index % len(_COLOURS)]
            for curves in each:
                axis.plot(*_xy(curves.get(name, [])), color=colour, linewidth=0.6, alpha=0.35)
            axis.plot(*_xy(means[name]), color=colour, linewidth=1.6, label=_member(name))
        axis.set_title(panel.removeprefix("train/"), fontsize=9)
        axis.set_xlabel("round or epoch", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25, linewidth=0.6)
        if len(names) > 1:
            axis.legend(fontsize=7, frameon=False)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    many = "" if len(seeds) == 1 else f", {len(seeds)} seeds and their mean"
    figure.suptitle(f"{title}{many}", fontsize=10)
    path = folder / FILE
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path


def _by_name(points: Sequence[MetricPoint]) -> dict[str, list[MetricPoint]]:
    curves: dict[str, list[MetricPoint]] = defaultdict(list)
    for point in points:
        curves[point.name].append(point)
    return {name: sorted(curve, key=lambda point: point.step) for name, curve in curves.items()}


def _xy(points: Sequence[MetricPoint]) -> tuple[list[int], list[float]]:
    return [point.step for point in points], [point.value for point in points]


def _member(name: str) -> str:
    match = _MEMBER.search(name)
    return match.group()[1:].replace("_", ", ") if match else "the first"
