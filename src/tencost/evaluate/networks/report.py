"""Leaderboards of graph models for people: in the terminal, as Markdown, and as a plot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tencost.config.graph_outputs import graph_paths
from tencost.config.schema import PathsConfig
from tencost.evaluate.leaderboard import TEST
from tencost.evaluate.leaderboard_table import markdown_table, print_tables, terminal_table, wide
from tencost.evaluate.networks.board import PARTS, GraphBoard

COLUMNS = {"acc10": "acc10", "acc5": "acc5", "mape": "MAPE", "rmspe": "RMSPE", "tau": "tau"}
"""Metric -> heading in the terminal."""
ALL_COLUMNS = {
    "acc10": "acc10", "acc10_le": "acc10 (<=)", "acc5": "acc5", "acc5_le": "acc5 (<=)", "mape": "MAPE",
    "rmspe": "RMSPE", "rmse": "RMSE ms", "tau": "tau",
}  # fmt: skip
NOTE = (
    "means over families of graphs; mean ± 95 % interval over seeds; acc10: share of graphs with an error below 10 %; "
    "tau: Kendall's, within a family"
)


def print_boards(
    root: Path, paths: PathsConfig, console: Console | None = None, *, hardware: str = ""
) -> int:
    """Print every leaderboard of graphs of a project, or those of one hardware; return how many there are.

    A report in the place of earlier versions counts where the new place has none of that dataset and split.
    """
    pattern = f"*/devices/*/{GraphBoard.FILE}"
    places: dict[str, list[Path]] = {}
    for reports in dict.fromkeys((graph_paths(paths, root).reports, paths.reports)):
        here: dict[str, list[Path]] = {}
        for path in sorted((root / reports).glob(pattern)):
            here.setdefault(path.parents[2].name, []).append(path)
        places = here | places
    printed = [
        path
        for _, paths_of_report in sorted(places.items())
        for path in paths_of_report
        if hardware in ("", path.parent.name)
    ]
    for path in printed:
        print_graph_board(GraphBoard.load(path), console)
    return len(printed)


def print_graph_board(board: GraphBoard, console: Console | None = None) -> None:
    """Print a leaderboard."""
    print_tables(wide(console), [_table(board, part) for part in board.parts], [NOTE])


def graph_board_markdown(board: GraphBoard) -> str:
    """Return the leaderboard as a Markdown section: models, then the best of them family by family."""
    lines = [f"## {board.hardware} ({board.dataset}, {board.split})", ""]
    for part in board.parts:
        count = sum(board.counts[part].values())
        lines += [f"### {part}: {PARTS[part]}, {count} graphs", ""]
        lines += [markdown_table(board, ALL_COLUMNS, part), *_families(board, part), ""]
    return "\n".join([*lines, f"- {NOTE}", ""])


def _families(board: GraphBoard, part: str) -> list[str]:
    """Return acc10 of each model, a line a family, with the averages that the CG benchmark prints."""
    rows = [row for row in board.rows if part in row.families]
    lines = [f"| acc10 | graphs | {' | '.join(row.labels[0] for row in rows)} |"]
    lines.append(f"|{'---|' * (len(rows) + 2)}")
    for family, count in board.counts[part].items():
        figures = [f"{row.families[part][family]['acc10']:.3f}" for row in rows]
        lines.append(f"| {family} | {count} | {' | '.join(figures)} |")
    figures = [f"{row.mean('acc10', part):.3f}" for row in rows]
    name = "id avg" if part == TEST else "ood avg"
    lines.append(f"| {name} | {sum(board.counts[part].values())} | {' | '.join(figures)} |")
    return lines


def _table(board: GraphBoard, part: str) -> Table:
    count = sum(board.counts[part].values())
    title = (
        f"{board.hardware}: {PARTS[part]}, {count} graphs of {len(board.counts[part])} families "
        f"({board.dataset}, {board.split})"
    )
    return terminal_table(board, title, COLUMNS, part)


def scatter(
    path: Path,
    title: str,
    family: NDArray[np.str_],
    predicted_ms: NDArray[np.float64],
    measured_ms: NDArray[np.float64],
) -> None:
    """Draw predicted against measured latency, a colour a family, with the band of 10 %.

    Args:
        path: of the PNG.
        title: above the plot.
        family: str [G].
        predicted_ms: float64 [G].
        measured_ms: float64 [G]; graphs without a latency are left out.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.add_subplot()
    measured = np.isfinite(measured_ms)
    colours = mpl.colormaps["tab20"]
    for index, name in enumerate(np.unique(family[measured])):
        of = measured & (family == name)
        colour = [colours(index % 20)]
        axes.scatter(measured_ms[of], predicted_ms[of], s=9, alpha=0.7, label=str(name), c=colour)
    if measured.any():
        ends = np.array([measured_ms[measured].min(), measured_ms[measured].max()])
        axes.plot(ends, ends, color="0.3", linewidth=1)
        axes.fill_between(
            ends, 0.9 * ends, 1.1 * ends, color="0.85", zorder=0, label="within 10 %", linewidth=0
        )
        axes.legend(fontsize=8, markerscale=2)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms", title=title)
    figure.savefig(path, dpi=110, metadata={"Software": None})
