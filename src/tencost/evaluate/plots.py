"""Plots of an evaluation: PNGs to look at, with CSVs beside them that `dvc plots` can compare.

    lost_time.png, lost_time.csv    where the winner loses its time; columns network, task, lost_ms, share
    leaderboard.png                 the headline figures of every model, with intervals over seeds and over tasks
    top_k.png, top_k.csv            top-k score for k = 1..32; columns k, one a model, random_floor, oracle
    search.png, search-<net>.csv    latency of a network against trials; columns trials, one a model, ...
    predicted-<model>.png, .csv     predicted score against measured label; columns network, measured, predicted
    importance-<model>.png, .csv    share of the model's gain by column, the 20 largest; columns column, share

Colours are Okabe and Ito's, which colour-blind readers can tell apart. Files repeat byte for byte.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tencost.evaluate import metrics
from tencost.evaluate import replayed_search as search
from tencost.evaluate.metrics import Floats
from tencost.evaluate.program_board import FLOOR, ORACLE, ProgramBoard
from tencost.evaluate.scoring import CURVE_STEPS, HEADINGS, SeedScore
from tencost.evaluate.truth import Truth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_GREY = "#777777"
_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
}
_TOP_COLUMNS = 20
_TOP_TASKS = 20


Curves = Mapping[str, Sequence[SeedScore]]
"""Model -> its seeds."""


def plot_leaderboard(board: ProgramBoard, folder: Path) -> None:
    """Bars of the headline figures with their intervals; the floor is a line."""
    figure, axes = new_figure(1, len(HEADINGS), 2.6, 0.6 + 0.36 * max(3, len(board.models)))
    for axis, (metric, heading) in zip(axes, HEADINGS.items(), strict=True):
        rows = board.models[::-1]
        means = [row.mean(metric) for row in rows]
        spread = [np.nan_to_num(row.metrics[metric].half_width) for row in rows]
        colours = [_GREY if row.reference else PALETTE[0] for row in rows]
        axis.barh(range(len(rows)), means, xerr=spread, color=colours, height=0.66, capsize=2.5)
        for place, row in enumerate(rows):
            if metric in row.tasks:
                ends = [row.tasks[metric].low, row.tasks[metric].high]
                axis.plot(ends, [place, place], color=PALETTE[4], linewidth=4.0, alpha=0.7)
        axis.set_yticks(range(len(rows)), [row.model for row in rows])
        axis.set_xlabel(heading)
        floor = next(row.mean(metric) for row in board.rows if row.model == FLOOR)
        axis.axvline(floor, color=PALETTE[1], linestyle="--", linewidth=1.2, label="random order")
        axis.axvline(1.0, color="black", linestyle=":", linewidth=1.2, label="oracle")
        axis.grid(axis="y", visible=False)
    for axis in axes[1:]:
        axis.tick_params(labelleft=False)
    for axis in axes:
        axis.set_xlim(max(-0.5, axis.get_xlim()[0]), 1.05)  # one bad seed must not squeeze the rest
    handles, names_shown = axes[0].get_legend_handles_labels()
    figure.legend(handles, names_shown, loc="outside lower center", ncols=2, fontsize=8)
    title = (
        f"{board.hardware}: {board.part} part of {board.split}; mean, 95 % interval over seeds (black) and over tasks "
        "(yellow); higher is better"
    )
    save_figure(figure, title, folder / "leaderboard.png")


def plot_top_k(curves: Curves, floor: SeedScore, folder: Path, hardware: str) -> None:
    """Top-k score (mean over networks) against k, models, random floor and oracle."""
    colours = _colours(curves)
    steps = np.arange(1, CURVE_STEPS + 1)
    figure, (axis,) = new_figure(1, 1, 6.0, 3.8)
    table: dict[str, Iterable[float]] = {"k": steps}
    for model, seeds in curves.items():
        stack = np.stack([seed.top_k for seed in seeds])
        table[model] = stack.mean(axis=0)
        _line(axis, steps, stack, colours[model], model, every=6)
    axis.plot(steps, floor.top_k, color=_GREY, linestyle="--", label="random order, expected")
    axis.axhline(1.0, color="black", linestyle=":", linewidth=1.2, label="oracle")
    table |= {FLOOR: floor.top_k, ORACLE: np.ones(CURVE_STEPS)}
    axis.set_xscale("log", base=2)
    axis.set_xticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    axis.set_xlabel("k: best-ranked programs measured per task")
    axis.set_ylabel("top-k score (best latency / latency found)")
    axis.legend(loc="lower right", fontsize=8)
    _write_csv(folder / "top_k.csv", table)
    title = f"{hardware}: how good are the k best-ranked programs?"
    save_figure(figure, title, folder / "top_k.png")


def plot_search(truth: Truth, curves: Curves, folder: Path, hardware: str) -> None:
    """Latency of each network while every task measures its programs in predicted order."""
    figure, axes = _panels(len(truth.networks), 4.4, 3.2)
    colours = _colours(curves)
    for index, (network, axis) in enumerate(zip(truth.networks, axes, strict=True)):
        of = truth.stratum == index
        weight, optimum = truth.weight[of], float(truth.weight[of] @ truth.optimum_s[of])
        random_ms = 1e3 * (weight @ truth.random_best[of])
        trials = search.trials_at_step(truth.num_programs[of], len(random_ms))
        drawn = max(2, min(len(trials), 2 * int(truth.cutoffs[index])))
        table: dict[str, Iterable[float]] = {"trials": trials[:drawn]}
        for model, seeds in curves.items():
            stack = np.stack([1e3 * (weight @ seed.best[of, :drawn]) for seed in seeds])
            table[model] = stack.mean(axis=0)
            _line(axis, trials[:drawn], stack, colours[model], model, every=max(1, drawn // 6))
        axis.plot(
            trials[:drawn], random_ms[:drawn], color=_GREY, linestyle="--", label="random order"
        )
        axis.axhline(1e3 * optimum, color="black", linestyle=":", linewidth=1.2, label="optimum")
        table |= {FLOOR: random_ms[:drawn], ORACLE: np.full(drawn, 1e3 * optimum)}
        axis.set_title(network, fontsize=9)
        axis.set_xlabel("trials (recorded programs, all tasks)")
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.tick_params(axis="y", which="minor", labelsize=7)
        axis.set_ylabel("latency of its scored tasks, ms")
        _write_csv(folder / f"search-{network}.csv", table)
    axes[0].legend(fontsize=7)
    title = f"{hardware}: replayed search, every task in turn measures its best-ranked program"
    save_figure(figure, title, folder / "search.png")


def plot_predicted(truth: Truth, score: Floats, model: str, folder: Path, hardware: str) -> None:
    """Calibrated score against label, one panel a network; failed programs are left out."""
    figure, axes = _panels(len(truth.networks), 3.4, 3.2)
    lines: list[tuple[str, float, float]] = []
    for index, (network, axis) in enumerate(zip(truth.networks, axes, strict=True)):
        tasks = [task for task in truth.tasks if task.network == network]
        measured = np.concatenate([metrics.labels(truth.latency_s[task.rows]) for task in tasks])
        predicted = np.concatenate([score[task.rows] for task in tasks])
        works = measured > 0
        measured, predicted = measured[works], predicted[works]
        lines += [(network, x, y) for x, y in zip(measured, predicted, strict=True)]
        axis.plot([0, 1], [0, 1], color=_GREY, linestyle="--", linewidth=1)
        if len(measured) > 1000:
            axis.hexbin(measured, predicted, gridsize=32, bins="log", cmap="cividis", mincnt=1)
        else:
            axis.scatter(
                measured, predicted, s=7, alpha=0.5, color=PALETTE[index % 6], linewidths=0
            )
        axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), box_aspect=1)
        axis.set_title(f"{network}, {len(measured)} programs", fontsize=9)
        axis.set_xlabel("measured: fastest / latency")
        axis.set_ylabel("predicted score")
    network_column, measured_column, predicted_column = zip(*lines, strict=True)
    table = {"network": network_column, "measured": measured_column, "predicted": predicted_column}
    _write_csv(folder / f"predicted-{model}.csv", table)
    title = f"{model} on {hardware}: predicted against measured"
    save_figure(figure, title, folder / f"predicted-{model}.png")


def plot_importance(shares: dict[str, float], model: str, folder: Path) -> None:
    """Bars of the columns with the largest share of the model's gain."""
    largest = sorted(shares.items(), key=lambda pair: (-pair[1], pair[0]))[:_TOP_COLUMNS]
    names = [name for name, _ in largest]
    figure = _bars(names, [share for _, share in largest], PALETTE[0], 8)
    figure.axes[0].set_xlabel("share of the model's gain, %")
    table = {"column": names, "share": [share for _, share in largest]}
    _write_csv(folder / f"importance-{model}.csv", table)
    title = f"{model}: the {len(names)} columns it uses most"
    save_figure(figure, title, folder / f"importance-{model}.png")


def plot_losses(board: ProgramBoard, folder: Path) -> None:
    """Bars of the tasks in which the winner loses most; nothing where it loses nowhere."""
    if not board.losses:
        return
    largest = board.losses[:_TOP_TASKS]
    names = [f"{loss.network} {loss.task[:40]}" for loss in largest]
    figure = _bars(names, [loss.share for loss in largest], PALETTE[1], 7)
    figure.axes[0].set_xlabel("share of the time lost by the program ranked first, %")
    columns = ("network", "task", "lost_ms", "share")
    table = {name: [getattr(loss, name) for loss in board.losses] for name in columns}
    _write_csv(folder / "lost_time.csv", table)
    title = f"{board.hardware}: where the winner loses its time, {len(board.losses)} tasks"
    save_figure(figure, title, folder / "lost_time.png")


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure of rows x columns axes, width x height inches each, in the project's style."""
    import matplotlib as mpl  # here: training loads this module and plots nothing
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(columns * width, rows * height + 0.3), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.ravel())


def _bars(names: Sequence[str], shares: Sequence[float], colour: str, fontsize: int) -> Figure:
    """Return horizontal bars of shares in percent, the first on top."""
    figure, (axis,) = new_figure(1, 1, 6.0, 0.8 + 0.22 * len(names))
    axis.barh(range(len(names)), [100 * share for share in shares], color=colour, height=0.7)
    axis.set_yticks(range(len(names)), names, fontsize=fontsize)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    return figure


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many axes, three in a row."""
    columns = min(3, count)
    figure, axes = new_figure(math.ceil(count / columns), columns, width, height)
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def _colours(curves: Curves) -> dict[str, int]:
    """Number the models by name, so that a model keeps its colour whatever its rank."""
    return {name: index for index, name in enumerate(sorted(curves))}


def _line(axis: Axes, x: Any, stack: Floats, index: int, label: str, every: int) -> None:
    colour = PALETTE[index % len(PALETTE)]
    marker = MARKERS[index % len(MARKERS)]
    style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "markevery": every}
    axis.plot(x, stack.mean(axis=0), linewidth=1.6, label=label, **style)
    if len(stack) > 1:
        axis.fill_between(
            x, stack.min(axis=0), stack.max(axis=0), color=colour, alpha=0.12, linewidth=0
        )


def save_figure(figure: Figure, title: str, path: Path) -> None:
    """Write a figure with a title as a PNG, the same bytes each time."""
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130, metadata={"Software": None})


def _write_csv(path: Path, table: dict[str, Any]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table)
        for row in zip(*table.values(), strict=True):
            writer.writerow(
                [
                    cell if isinstance(cell, str | int | np.integer) else f"{cell:.6g}"
                    for cell in row
                ]
            )
