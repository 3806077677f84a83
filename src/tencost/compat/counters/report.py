"""Tables and plots of the experiments, for people: in the terminal, as Markdown, as PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tencost.compat.counters import pretraining as networks
from tencost.compat.counters import transfer as workloads
from tencost.compat.counters.transfer import Leak, Outcome
from tencost.evaluate.interval import Interval
from tencost.evaluate.leaderboard_table import wide
from tencost.evaluate.plots import PALETTE, new_figure, save_figure


@dataclass
class Grid:
    """A table that is printed and written: its title, its columns' headings, its rows."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Add a row."""
        assert len(cells) == len(self.headings)
        self.rows.append(cells)

    def print(self, console: Console | None = None) -> None:
        """Print it."""
        table = Table(title=self.title, title_justify="left", show_edge=False, pad_edge=False)
        for heading in self.headings:
            table.add_column(heading)
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))
        console = wide(console)
        console.print(table)
        console.print()

    def markdown(self) -> str:
        """Return it as Markdown."""
        lines = [f"| {' | '.join(row)} |" for row in (self.headings, *self.rows)]
        return "\n".join([self.title, "", lines[0], f"|{'---|' * len(self.headings)}", *lines[1:]])


def write_report(
    report: Path, figures: Path, grids: Sequence[Grid], sentences: Sequence[str], **contents: object
) -> None:
    """Write tables and sentences as Markdown to `report`, and the contents, dataclasses too, as JSON to `figures`."""
    text = [grid.markdown() for grid in grids] + [f"- {sentence}" for sentence in sentences]
    report.write_text("\n\n".join(text) + "\n", encoding="utf-8")
    figures.write_bytes(orjson.dumps(contents, option=orjson.OPT_INDENT_2) + b"\n")


def print_report(grids: Sequence[Grid], notes: Sequence[str]) -> None:
    """Print tables and notes."""
    console = Console()
    for grid in grids:
        grid.print(console)
    for note in notes:
        console.print(note, style="dim", soft_wrap=True, markup=False)


def transfer_grid(outcomes: Sequence[Outcome], settings: workloads.Settings) -> Grid:
    """Return the table of the experiment: a row an ordered pair, a column for each arm."""
    arms = list(dict.fromkeys(outcome.arm for outcome in outcomes))
    grid = Grid(
        f"Share of the {settings.top} fastest of {settings.programs} programs found; mean ± 95 % interval over "
        f"{len(settings.seeds)} seeds of {settings.draws} draws; chance {settings.chance:.2f}",
        ("learnt from", "asked about", *arms),
    )
    cells = {(outcome.source, outcome.target, outcome.arm): outcome for outcome in outcomes}
    for source, target in _pairs(outcomes):
        label = "itself (control)" if source == target else target
        grid.add(source, label, *(_outcome_text(cells[source, target, arm]) for arm in arms))
    return grid


def leak_grid(leaks: Sequence[Leak], settings: workloads.Settings) -> Grid:
    """Return the table of what columns that tell run time do to the score."""
    grid = Grid(
        f"What columns that tell the run time do: share of the {settings.top} fastest of {settings.programs} found, "
        "the same model, parts and draws",
        ("columns", "number", "within a workload", "gain", "across workloads", "gain"),
    )
    for leak in leaks:
        name = f"with {leak.column}" if leak.column else "without any of them"
        across = (
            [] if math.isnan(leak.across) else [f"{leak.across:.3f}", f"{leak.gain_across:+.3f}"]
        )
        cells = [f"{leak.within:.3f}", f"{leak.gain_within:+.3f}", *(across or ["", ""])]
        if not leak.column:  # the others are compared with it
            cells[1] = cells[3] = ""
        grid.add(name, str(leak.columns), *cells)
    return grid


def plot_transfer(
    path: Path, outcomes: Sequence[Outcome], settings: workloads.Settings, title: str
) -> None:
    """Draw a group of bars for each pair of workloads, a bar for each arm, with intervals and chance as a line."""
    figure, (axes,) = new_figure(1, 1, 8.5, 3.9)
    arms = list(dict.fromkeys(outcome.arm for outcome in outcomes))
    pairs = _pairs(outcomes)
    width = 0.84 / len(arms)
    for index, arm in enumerate(arms):
        tops = {(each.source, each.target): each.top for each in outcomes if each.arm == arm}
        means = [tops[pair].mean for pair in pairs]
        spread = np.nan_to_num([tops[pair].half_width for pair in pairs])
        places = np.arange(len(pairs)) - 0.42 + width * (index + 0.5)
        colour = PALETTE[index % len(PALETTE)]
        axes.bar(places, means, width * 0.92, yerr=spread, capsize=2, color=colour, label=arm)
    axes.axhline(settings.chance, color="black", linestyle=":", linewidth=1.2, label="chance")
    names = [
        f"{source}\nitself (control)" if source == target else f"{source}\n-> {target}"
        for source, target in pairs
    ]
    axes.set_xticks(range(len(pairs)), names)
    axes.set_ylim(0.0, 1.05)
    axes.set_ylabel(f"share of the {settings.top} fastest of {settings.programs} found")
    axes.grid(axis="x", visible=False)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    save_figure(figure, title, path)


def pretraining_grid(
    summaries: Sequence[networks.Summary],
    settings: networks.Settings,
    differences: Sequence[tuple[str, Interval]],
) -> Grid:
    """Return the table of the experiment: a row a model, then differences between two of them."""
    count = len(summaries[0].steps)
    steps = sorted({0, 1, 2, count // 2, count - 1} & set(range(count)))
    grid = Grid(
        f"Share of the {settings.top} fastest of each batch of {settings.batch} programs, before the model saw it; "
        f"mean ± 95 % interval over {len(settings.seeds)} seeds; chance {settings.chance:.2f}",
        ("model", "all batches", "all but the first", *(f"batch {step + 1}" for step in steps)),
    )
    for summary in summaries:
        figures = [summary.every, summary.later, *(summary.steps[step] for step in steps)]
        grid.add(summary.arm, *(figure.text(".3f") for figure in figures))
    for name, interval in differences:
        grid.add(name, interval.text("+.3f"), *([""] * (1 + len(steps))))
    return grid


def plot_pretraining(
    path: Path, summaries: Sequence[networks.Summary], settings: networks.Settings, title: str
) -> None:
    """Draw the share of each batch against programs measured before it, a line a model, with bands over seeds."""
    figure, (axes,) = new_figure(1, 1, 6.4, 3.9)
    for index, summary in enumerate(summaries):
        means = np.array([step.mean for step in summary.steps])
        spread = np.nan_to_num([step.half_width for step in summary.steps])
        seen = settings.batch * np.arange(len(means))
        colour = PALETTE[index]
        axes.plot(seen, means, color=colour, marker="o", markersize=3.5, label=summary.arm)
        axes.fill_between(
            seen, means - spread, means + spread, color=colour, alpha=0.16, linewidth=0
        )
    axes.axhline(settings.chance, color="black", linestyle=":", linewidth=1.2, label="chance")
    axes.set_xlabel("programs of the workload measured before")
    axes.set_ylabel(f"share of the {settings.top} fastest of {settings.batch} found")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    save_figure(figure, title, path)


def _pairs(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Return the pairs of different workloads first, then the controls."""
    pairs = dict.fromkeys((outcome.source, outcome.target) for outcome in outcomes)
    return sorted(pairs, key=lambda pair: pair[0] == pair[1])


def _outcome_text(outcome: Outcome) -> str:
    return outcome.reason or f"{outcome.top.text('.3f')} ({outcome.columns})"
