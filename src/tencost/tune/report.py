"""`tencost tune report`: what models were worth from batch to batch, several runs side by side.

Runs with one label are seeds of one thing: a curve is their mean, its band goes from the lowest run to the highest. A
point of the first three curves is a batch of a task, counted from 1: its figures are those of before the model learnt
from it (:mod:`tencost.tune.batches`), averaged over the run's tasks first. The last curve is the network's latency
over programs measured, of all runs from the trial on that each has reached.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tencost.config import Config
from tencost.errors import TuneError
from tencost.tune import batches
from tencost.tune.batches import BatchLine, read_lines
from tencost.tune.curve import CurvePoint, read_points
from tencost.tune.inputs import SCRATCH
from tencost.tune.roofline.run_files import run_files
from tencost.writing import whole_file

METRICS = {"p_rmse": "p-RMSE", "top_k": "top-k", "spearman": "rank correlation"}
"""Figures of a batch, and what they are called."""
LATENCY = "total_latency_ms"
CURVE_FILE = "tuning_curve.csv"
SESSION_FILE = "session.json"
ARM_NAMES = {
    "registered": "as registered",
    "residual": "corrected",
    "scratch": "trees alone",
}
"""What the arms of a run are called, each scored on that run's batches. Without a registered model only the trees know
anything."""


@dataclass(frozen=True)
class Run:
    """A tuning run: where it lies, what it tuned, its batches, its latency over programs."""

    name: str
    subject: str
    lines: Sequence[BatchLine]
    points: Sequence[CurvePoint]

    @property
    def label(self) -> str:
        """What it is called where nothing else is said: by its model and whether that learnt."""
        last = self.lines[-1]
        if last.model == SCRATCH:
            return "from scratch"
        return "pretrained, fine-tuned" if last.learns else "pretrained, frozen"


@dataclass(frozen=True)
class Value:
    """A point of a curve: mean, lowest and highest of so many runs; `at` is a batch of a task, or a trial."""

    label: str
    metric: str
    at: int
    mean: float
    low: float
    high: float
    runs: int


def report(
    runs: Sequence[str],
    labels: Sequence[str],
    to: Path,
    cfg: Config,
    root: Path,
    *,
    arms: bool,
    console: Console,
) -> Path:
    """Draw curves of runs into a folder as PNG and CSV, print them, log an MLflow run; return the folder.

    Args:
        runs: work folders, or ids of MLflow runs.
        labels: one for each run; none: each run's own.
        to: the folder.
        cfg: the project's configuration, for the MLflow run.
        root: the project, whose MLflow is meant.
        arms: draw the three models of each run apart, all scored on the same batches.
        console: where the table goes.

    Raises:
        TuneError: a run that is none, or has no batches; runs of different networks or hardware; labels and runs that
            do not match.
    """
    if labels and len(labels) != len(runs):
        raise TuneError(
            f"expected one label for each of the {len(runs)} runs, found {len(labels)}: {', '.join(labels)}. Runs with "
            "the same label are drawn as one curve: --labels pretrained,pretrained,scratch,scratch"
        )
    read = [read_run(run, root) for run in runs]
    subjects = {run.subject for run in read}
    if len(subjects) > 1:
        raise TuneError(
            f"expected runs of one network on one hardware, found {' and '.join(sorted(subjects))}. Their curves say "
            "nothing about each other; draw them one by one."
        )
    named = list(zip(labels or [run.label for run in read], read, strict=True))
    values = [*_batch_values(named, arms=arms), *_latencies(named)]
    title = f"{subjects.pop()}, {len(read)} run{'s' if len(read) > 1 else ''}"
    _write_csv(to / "report.csv", values)
    drawn = plot(values, to / "report.png", title, _top_k_of_chance(read))
    print_values(values, title, console)
    if not drawn:
        console.print("no plot: it needs matplotlib, which is not installed", style="yellow")
    console.print(f"written to {to}", markup=False, highlight=False, soft_wrap=True)
    _track(to, cfg, root, named, values, title)
    return to


def read_run(name: str, root: Path) -> Run:
    """Read a work folder, or what a run left in MLflow.

    Raises:
        ProfileError: it is neither.
        TuneError: it has no batches.
    """
    with run_files(name, (batches.FILE, CURVE_FILE, SESSION_FILE), root) as folder:
        lines = read_lines(folder / batches.FILE)
        points = read_points(folder / CURVE_FILE) if (folder / CURVE_FILE).exists() else []
        if not lines:
            raise TuneError(
                f"run {name}: expected batches in {batches.FILE}, found none. A run writes them since it can be "
                "reported; tune again, or name another run."
            )
        try:
            session = json.loads((folder / SESSION_FILE).read_text(encoding="utf-8"))
            subject = f"{session['network']} on {session['hardware']}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TuneError(
                f"run {name}: expected {SESSION_FILE} of a tuning run, found something else ({error}). "
                "Name the folder that `tencost tune` printed as database."
            ) from error
    return Run(name, subject, lines, points)


def _batch_values(named: Sequence[tuple[str, Run]], *, arms: bool) -> Iterator[Value]:
    """Yield the curves over batches: means over a run's tasks, then over the runs of a label."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for label, run in named:
        for shown, scores in _curves(run, arms=arms):
            for metric in METRICS:
                for at, value in _over_tasks(run.lines, scores, metric):
                    name = f"{label}: {shown}" if shown else label
                    found.setdefault((name, metric, at), []).append(value)
    for (label, metric, at), values in found.items():
        yield _value(label, metric, at, values)


def _curves(run: Run, *, arms: bool) -> Iterator[tuple[str, Sequence[Mapping[str, float | None]]]]:
    """Yield the scores to draw, a mapping a batch, and what they are called beside the run's label."""
    if not arms:
        yield "", [{metric: getattr(line, metric) for metric in METRICS} for line in run.lines]
        return
    known = ["scratch"] if run.lines[-1].model == SCRATCH else list(ARM_NAMES)
    for arm in known:
        shown = ARM_NAMES[arm]
        yield shown, [line.arms.get(arm, {}) for line in run.lines]


def _over_tasks(
    lines: Sequence[BatchLine], scores: Sequence[Mapping[str, float | None]], metric: str
) -> Iterator[tuple[int, float]]:
    """Yield (batch of a task from 1, the mean over the run's tasks that have a figure for it)."""
    count: dict[str, int] = {}
    found: dict[int, list[float]] = {}
    for line, score in zip(lines, scores, strict=True):
        at = count[line.task] = count.get(line.task, 0) + 1
        value = score.get(metric)
        if value is not None:
            found.setdefault(at, []).append(value)
    for at in sorted(found):
        yield at, float(np.mean(found[at]))


def _latencies(named: Sequence[tuple[str, Run]]) -> Iterator[Value]:
    """Yield each label's latency at every trial at which one of its runs has a figure and all have begun."""
    for label in dict.fromkeys(label for label, _ in named):
        curves = [run.points for other, run in named if other == label and run.points]
        trials = sorted({point.trials for points in curves for point in points})
        for at in trials:
            known = [points for points in curves if points[0].trials <= at <= points[-1].trials]
            values = [
                next(one.total_latency_s for one in reversed(points) if one.trials <= at) * 1e3
                for points in known
            ]
            if values:
                yield _value(label, LATENCY, at, values)


def _value(label: str, metric: str, at: int, values: Sequence[float]) -> Value:
    return Value(label, metric, at, float(np.mean(values)), min(values), max(values), len(values))


def _top_k_of_chance(runs: Iterable[Run]) -> tuple[str, float]:
    """Return how the top-k is called, and the share that guessing reaches, over all batches."""
    lines = [line for run in runs for line in run.lines]
    pairs = sorted({(line.k, line.programs) for line in lines}, reverse=True)
    told = f"top-{pairs[0][0]} of {pairs[0][1]}" if len(pairs) == 1 else "top-k"
    return told, float(np.mean([line.k / line.programs for line in lines]))


def _write_csv(path: Path, values: Sequence[Value]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["label", "metric", "batch_or_trials", "mean", "low", "high", "runs"])
    for one in values:
        writer.writerow([one.label, one.metric, one.at, one.mean, one.low, one.high, one.runs])
    with whole_file(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")


def curves(values: Sequence[Value], metric: str) -> dict[str, list[Value]]:
    """Return a metric's points by label, in order."""
    found: dict[str, list[Value]] = {}
    for one in values:
        if one.metric == metric:
            found.setdefault(one.label, []).append(one)
    return {label: sorted(points, key=lambda one: one.at) for label, points in found.items()}


def plot(values: Sequence[Value], path: Path, title: str, chance: tuple[str, float]) -> bool:
    """Draw all curves as PNG; returns False where matplotlib is not installed (tencost[tuner] has none)."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2)
    top_k, guessed = chance
    titles = {**METRICS, "top_k": top_k, LATENCY: "total latency of tasks, ms"}
    labels = sorted({one.label for one in values})
    for axes, (metric, name) in zip(panels.flat, titles.items(), strict=True):
        for label, points in curves(values, metric).items():
            at = [one.at for one in points]
            color = f"C{labels.index(label) % 10}"
            axes.plot(at, [one.mean for one in points], color=color, marker=".", label=label)
            low, high = ([getattr(one, end) for one in points] for end in ("low", "high"))
            axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
        axes.set_title(name)
        axes.grid(visible=True, alpha=0.3)
        axes.set_xlabel("programs measured" if metric == LATENCY else "batch of a task")
    panels[0, 1].axhline(guessed, color="grey", linewidth=0.8, linestyle="--")
    panels[1, 0].axhline(0.0, color="grey", linewidth=0.8, linestyle="--")
    panels[1, 1].set_yscale("log")
    panels[0, 0].legend(fontsize="small")
    figure.suptitle(f"{title}; before the model sees a batch; bands: lowest and highest run")
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    return True


def print_values(values: Sequence[Value], title: str, console: Console) -> None:
    """Print p-RMSE, top-k and rank correlation batch by batch, and the latency at the end."""
    labels = list(dict.fromkeys(one.label for one in values if one.metric in METRICS))
    table = Table(title=f"{title}: before the model sees a batch (mean of runs and tasks)")
    table.add_column("batch of a task", justify="right")
    for label in labels:
        table.add_column(f"{label}\np-RMSE, top-k, rank", justify="right")
    at_all = sorted({one.at for one in values if one.metric in METRICS})
    means = {(one.label, one.metric, one.at): one.mean for one in values}
    for at in at_all:
        cells = [
            "  ".join(_told(means.get((label, metric, at))) for metric in METRICS)
            for label in labels
        ]
        table.add_row(str(at), *cells)
    console.print(table)
    for told in ahead(values):
        console.print(told, markup=False, highlight=False, soft_wrap=True)
    for label, points in curves(values, LATENCY).items():
        last = points[-1]
        console.print(
            f"{label}: {last.mean:.4g} ms [{last.low:.4g}, {last.high:.4g}] after {last.at} programs, "
            f"{last.runs} run{'s' if last.runs > 1 else ''}",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def ahead(values: Sequence[Value]) -> list[str]:
    """Return a line for each label but the first: at which batches the first one is better, figure by figure."""
    labels = list(dict.fromkeys(one.label for one in values if one.metric in METRICS))
    means = {(one.label, one.metric, one.at): one.mean for one in values}
    lines = []
    for other in labels[1:]:
        parts = []
        for metric, name in METRICS.items():
            both = [at for label, of, at in means if (label, of) == (labels[0], metric)]
            both = sorted(at for at in both if (other, metric, at) in means)
            sign = -1 if metric == "p_rmse" else 1
            better = [
                at
                for at in both
                if sign * (means[labels[0], metric, at] - means[other, metric, at]) > 0
            ]
            parts.append(f"{name} at {len(better)} of {len(both)} batches{_spans(better)}")
        lines.append(f"{labels[0]} is ahead of {other} in {', '.join(parts)}")
    return lines


def _spans(numbers: Sequence[int]) -> str:
    """Return ascending numbers as spans: 1-4, 6."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    told = " ".join("-".join(str(end) for end in span) for span in spans)
    return f" ({told})" if told else ""


def _told(value: float | None) -> str:
    return "  -- " if value is None else f"{value:5.3f}"


def _track(
    to: Path,
    cfg: Config,
    root: Path,
    named: Sequence[tuple[str, Run]],
    values: Sequence[Value],
    title: str,
) -> None:
    from tencost.tracking.runs import Point, start_run

    told = {f"run.{place}": f"{label}: {run.name}" for place, (label, run) in enumerate(named)}
    places = {
        label: place for place, label in enumerate(dict.fromkeys(one.label for one in values))
    }
    described: dict[str, Any] = {f"label.{place}": label for label, place in places.items()}
    with start_run(
        cfg,
        root,
        stage="tune report",
        name=f"tune report · {title}",
        tags={"hardware": named[0][1].subject.rpartition(" on ")[2], "dataset": "none"},
        parameters={**told, **described},
    ) as tracked:
        tracked.log_points(
            [Point(f"report/{places[one.label]}/{one.metric}", one.mean, one.at) for one in values]
        )
        for file in (to / "report.csv", to / "report.png"):
            if file.exists():
                tracked.log_artifact(file)
