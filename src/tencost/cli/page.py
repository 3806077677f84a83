"""`tencost report`: a dataset, its leaderboards and tuning runs as one HTML file that can be mailed.

The file names no other: no script, no font, no picture from elsewhere. Plots are SVG in it, whose ink is the text's
colour, so that they follow the reader's light or dark. What is not there is left out, and said in the terminal.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from tencost import __version__
from tencost.config import Config
from tencost.errors import ConfigError, TuneError
from tencost.evaluate.leaderboard_table import figure_text
from tencost.evaluate.plots import PALETTE
from tencost.evaluate.program_board import FLOOR, ORACLE, ProgramBoard
from tencost.evaluate.scoring import HEADINGS
from tencost.store.tables import load_records, load_tasks
from tencost.tune import curve
from tencost.tune.curve import CurvePoint, read_points
from tencost.writing import whole_file

_INK = "#123456"
"""Stands for the text's colour while a plot is drawn."""
_WIDTH = 6.2
_CURVES = 5
"""Models in a plot of curves, beside random order and oracle."""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: its heading.
        facts: lines below it.
        tables: caption, headings, rows of text; the first column is a name, the others are figures.
        plots: caption and SVG.
    """

    title: str
    facts: Sequence[str]
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]]
    plots: Sequence[tuple[str, str]]


def run(cfg: Config, root: Path, *, tuned: Sequence[Path], to: Path) -> Path:
    """Write the page of a dataset; return its path.

    Args:
        cfg: says which dataset.
        root: the project's root.
        tuned: work folders of tuning runs.
        to: the file.

    Raises:
        ConfigError: there is nothing to tell, or the file cannot be written.
        TuneError: a folder is none of a tuning run.
    """
    console = Console(stderr=True)
    sections, missing = [], []
    records = root / cfg.paths.records / cfg.dataset.name
    if (records / "tasks.parquet").is_file():
        sections.append(_dataset(records))
    else:
        missing.append(f"records in {records}")
    paths = sorted((root / cfg.paths.reports / cfg.dataset.name).glob("*/leaderboard.json"))
    sections += [_leaderboard(path) for path in paths]
    if not paths:
        missing.append(f"leaderboards below {root / cfg.paths.reports / cfg.dataset.name}")
    sections += [_tuning(folder) for folder in tuned]
    if not sections:
        raise ConfigError(
            f"expected something of {cfg.dataset.name} to tell, found no {' and no '.join(missing)}. Run `tencost "
            "pipeline`, or name a tuning run: --tuned tuned/<network>-<hardware>"
        )
    for source in missing:
        console.print(f"left out: no {source}", soft_wrap=True)
    try:
        with whole_file(to) as partial:
            partial.write_text(page(cfg.dataset.name, sections), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {to}: {error.strerror or error}") from error
    console.print(f"{to}: {to.stat().st_size / 1024:.0f} KB", soft_wrap=True)
    return to


def page(name: str, sections: Sequence[Section]) -> str:
    """Return the HTML; every text of the data is escaped."""
    from jinja2 import Environment, StrictUndefined

    text = resources.files("tencost.cli").joinpath("page.html.jinja").read_text(encoding="utf-8")
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(text)
    return template.render(name=name, sections=sections, version=__version__)


def _dataset(folder: Path) -> Section:
    records, tasks = load_records(folder), load_tasks(folder)
    good = records.filter(pl.col("status") == "ok")
    spread = (pl.col("run_secs").list.max() - pl.col("run_secs").list.min()) / pl.col("latency_s")
    repeated = spread.filter((pl.col("status") == "ok") & (pl.col("run_secs").list.len() > 1))
    hardware = (
        records.group_by("hardware")
        .agg(
            pl.len(),
            (pl.col("status") == "ok").sum().alias("ok"),
            pl.col("workload_id").n_unique().alias("workloads"),
            repeated.median().alias("median"),
            repeated.quantile(0.9).alias("most"),
        )
        .sort("hardware")
    )
    by_network = (
        records.select("program_id", "networks")
        .explode("networks")
        .select("program_id", pl.col("networks").struct.field("network"))
        .group_by("network")
        .agg(pl.col("program_id").n_unique().alias("programs"))
    )
    work = pl.col("flop") * pl.col("weight")
    networks = (
        tasks.group_by("network")
        .agg(
            pl.len().alias("tasks"),
            pl.col("measured").sum(),
            (work.filter("measured").sum() / work.sum()).alias("share"),
        )
        .join(by_network, on="network", how="left")
        .sort("programs", descending=True, nulls_last=True)
    )
    facts = [
        f"{len(records):,} records of {records['program_id'].n_unique():,} programs and "
        f"{records['workload_id'].n_unique():,} workloads, {networks.height} networks",
    ]
    if len(good):
        facts.append(f"times from {_time(good['latency_s'].min())} to {_time(good['latency_s'].max())}")  # fmt: skip
    return Section(
        f"Dataset {folder.name}",
        facts,
        [
            (
                "Hardware. Spread: (longest - shortest) / median of a record's repeats.",
                ["hardware", "records", "ok", "workloads", "spread, median", "spread, 90 %"],
                [
                    [name, f"{count:,}", f"{ok:,}", f"{workloads:,}", _share(median), _share(most)]
                    for name, count, ok, workloads, median, most in hardware.rows()
                ],
            ),
            (
                "Networks. Measured: tasks that have records; share of flop: of the network's operations, in these.",
                ["network", "tasks", "measured", "share of flop", "programs"],
                [
                    [name, str(count), str(measured), _share(share), f"{programs or 0:,}"]
                    for name, count, measured, share, programs in networks.rows()
                ],
            ),
        ],
        [],
    )


def _leaderboard(path: Path) -> Section:
    board = ProgramBoard.load(path)
    chosen = board.winner()
    facts = [
        f"{board.part} part of {board.split}: {', '.join(board.networks)}",
        "mean ± 95 % interval over seeds, [95 % interval over the test tasks]; higher is better",
    ]
    if chosen is not None:
        facts.insert(0, f"chosen: {chosen.model}")
    rows = []
    for row in board.rows:
        cells = [" ".join(row.labels).strip()]
        for metric in HEADINGS:
            texts = (figure_text(metric, row.metrics.get(metric)), row.over_tasks(metric))
            cells.append(
                " ".join(text.replace(" ", "\N{NO-BREAK SPACE}") for text in texts).strip()
            )
        rows.append(cells)
    plots = [("geo1 with its interval over tasks", _svg(partial(_draw_models, board=board)))]
    for file, caption, label in (
        ("top_k.csv", "Best of the k programs ranked first, as a share of the best", "k"),
        *((f"search-{name}.csv", f"{name}: latency found, ms", "trials") for name in board.networks),
    ):  # fmt: skip
        if (path.parent / "plots" / file).is_file():
            table = pl.read_csv(path.parent / "plots" / file)
            plots.append((caption, _svg(partial(_draw_curves, table=table, label=label))))
    return Section(
        f"Leaderboard {board.hardware}", facts, [("", ["model", *HEADINGS.values()], rows)], plots
    )


def _tuning(folder: Path) -> Section:
    path = folder / curve.FILE
    points = read_points(path) if path.is_file() else []
    if not points:
        raise TuneError(
            f"expected a tuning run with {curve.FILE}, found none in {folder}. Name the work folder of `tencost tune`."
        )
    first, last = points[0], points[-1]
    programs: dict[str, int] = {}
    latest: dict[str, CurvePoint] = {}
    for before, point in itertools.pairwise(points):
        programs[point.task] = programs.get(point.task, 0) + point.trials - before.trials
        latest[point.task] = point
    ranked = [point.spearman for point in points if point.spearman is not None]
    facts = [
        f"{last.trials:,} programs: {first.total_latency_s * 1e3:.4g} ms before, "
        f"{last.total_latency_s * 1e3:.4g} ms after, {first.total_latency_s / last.total_latency_s:.2f} times as fast",
        f"failed: {sum(point.failed for point in points):,}",
    ]
    if ranked:
        facts.append(
            f"rank correlation of the model's scores with speed, mean of batches: {sum(ranked) / len(ranked):.2f}"
        )
    order = sorted(latest.values(), key=lambda point: -(point.task_latency_s or 0.0))
    rows = [
        [point.task, str(programs[point.task]), _time(point.task_latency_s), point.model]
        for point in order
    ]
    return Section(
        f"Tuning run {folder.name}",
        facts,
        [("Tasks, the slowest first", ["task", "programs", "best", "last model"], rows)],
        [("Latency of the tasks' sum, ms", _svg(partial(_draw_tuning, points=points)))],
    )


def _draw_models(axis: Any, board: ProgramBoard) -> float:
    rows = board.models[::-1]
    for place, row in enumerate(rows):
        colour = _INK if row.reference else PALETTE[0]
        if (over := row.tasks.get("geo1")) is not None and not math.isnan(over.low):
            axis.plot([over.low, over.high], [place, place], color=colour, linewidth=3, alpha=0.45)
        axis.plot([row.mean("geo1")], [place], "o", color=colour)
    axis.set_yticks(range(len(rows)), [row.model for row in rows])
    axis.set_ylim(-0.6, len(rows) - 0.4)
    return 0.7 + 0.3 * len(rows)


def _draw_curves(axis: Any, table: pl.DataFrame, label: str) -> float:
    models = [name for name in table.columns[1:] if name not in (FLOOR, ORACLE)]
    for place, name in enumerate(models[:_CURVES]):
        axis.plot(table[label], table[name], color=PALETTE[place], label=name, linewidth=1.6)
    for name, style in ((FLOOR, "--"), (ORACLE, ":")):
        if name in table.columns:
            axis.plot(table[label], table[name], style, color=_INK, label=name.replace("_", " "))
    axis.set_xlabel(label)
    if label == "trials":
        axis.set_yscale("log")
    axis.legend(frameon=False, fontsize=8, labelcolor=_INK)
    return 3.4


def _draw_tuning(axis: Any, points: Sequence[CurvePoint]) -> float:
    milliseconds = [point.total_latency_s * 1e3 for point in points]
    axis.step([point.trials for point in points], milliseconds, where="post", color=PALETTE[0])
    axis.set_xlabel("programs measured")
    axis.set_ylim(bottom=0)
    return 3.0


def _svg(draw: Callable[[Any], float]) -> str:
    """Return a plot as an SVG element as wide as its place; `draw` fills the axes and tells the height in inches."""
    import matplotlib as mpl
    from markupsafe import Markup
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": "tencost", "font.size": 10.0, "text.color": _INK, "grid.alpha": 0.2,
        "axes.edgecolor": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "axes.grid": True,
        "grid.color": _INK, "axes.spines.top": False, "axes.spines.right": False, "font.family": "sans-serif",
    }  # fmt: skip
    with mpl.rc_context(settings):
        figure = Figure(figsize=(_WIDTH, 3.0), layout="constrained")
        figure.set_figheight(draw(figure.subplots()))
        text = io.StringIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=metadata)
    # The element alone: what stands before it names the format's DTD on another host.
    element = text.getvalue().partition("<svg")
    return Markup(f"<svg{element[2]}".replace(_INK, "currentColor"))  # matplotlib escapes its texts


def _share(fraction: float | None) -> str:
    return "" if fraction is None or math.isnan(fraction) else f"{fraction:.1%}"


def _time(seconds: Any) -> str:
    if seconds is None:
        return ""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
