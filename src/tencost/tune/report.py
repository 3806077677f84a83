"""`tencost tune report`: how well models ranked from batch to batch, several runs side by side.

Runs with one label are seeds of one thing: a curve is their mean, its band goes from the lowest run to the highest. A
point of the first three curves is a batch of a task, counted from 1: its figures are those of before the model learnt
from it (:mod:`tencost.tune.batches`), averaged over the run's tasks first. The last curve is the network's latency
over programs measured, of all runs from the trial on that each has reached.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tencost.config import Config
from tencost.errors import TuneError
from tencost.tune import batches, curve
from tencost.tune.batches import SCRATCH, BatchLine, read_batch_lines
from tencost.tune.curve import CurvePoint, read_points
from tencost.tune.reporting import draw_chart, print_note, say, write_table_csv
from tencost.tune.roofline.run_files import run_files
from tencost.tune.workfolder import SESSION_FILE

METRICS = {"p_rmse": "p-RMSE", "top_k": "top-k", "spearman": "rank correlation"}
"""Figures of a batch, and their names."""
LATENCY = "total_latency_ms"
ARM_NAMES = {"registered": "as registered", "residual": "corrected", "scratch": "trees alone"}
"""Names of a run's arms, each scored on that run's batches. Without a registered model only the trees know anything."""

Curves = dict[tuple[str, str], dict[int, list[float]]]
"""(label, metric) -> batch of a task, or trials -> the values of the label's runs."""


@dataclass(frozen=True)
class ReportedRun:
    """A tuning run: where it lies, what it tuned, its batches, its latency over programs."""

    name: str
    subject: str
    lines: Sequence[BatchLine]
    points: Sequence[CurvePoint]

    @property
    def label(self) -> str:
        """Its name where the user gives none: by its model and whether that learnt."""
        last = self.lines[-1]
        if last.model == SCRATCH:
            return "from scratch"
        return "pretrained, fine-tuned" if last.learns else "pretrained, frozen"


def report_runs(
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
    runs_read = [read_run(run, root) for run in runs]
    subjects = {run.subject for run in runs_read}
    if len(subjects) > 1:
        raise TuneError(
            f"expected runs of one network on one hardware, found {' and '.join(sorted(subjects))}. Their curves say "
            "nothing about each other; draw them one by one."
        )
    labelled = list(zip(labels or [run.label for run in runs_read], runs_read, strict=True))
    curves = curves_of(labelled, arms=arms)
    title = f"{subjects.pop()}, {_plural(len(runs_read), 'run')}"
    rows = [
        (label, metric, at, float(np.mean(values)), min(values), max(values), len(values))
        for (label, metric), points in curves.items()
        for at, values in sorted(points.items())
    ]
    header = ("label", "metric", "batch_or_trials", "mean", "low", "high", "runs")
    write_table_csv(to / "report.csv", header, rows)
    drawn = plot_runs(curves, to / "report.png", title, _top_k_of_chance(runs_read))
    print_curves(curves, title, console)
    if not drawn:
        print_note(console, "no plot: it needs matplotlib, which is not installed")
    say(console, f"written to {to}")
    _track(to, cfg, root, labelled, curves, title)
    return to


def read_run(name: str, root: Path) -> ReportedRun:
    """Read a work folder, or what a run left in MLflow.

    Raises:
        ProfileError: it is neither.
        TuneError: it has no batches.
    """
    with run_files(name, (batches.FILE, curve.FILE, SESSION_FILE), root) as folder:
        lines = read_batch_lines(folder / batches.FILE)
        points = read_points(folder / curve.FILE) if (folder / curve.FILE).exists() else []
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
    return ReportedRun(name, subject, lines, points)


def curves_of(labelled: Sequence[tuple[str, ReportedRun]], *, arms: bool) -> Curves:
    """Return the curves over batches, means over a run's tasks, and that over trials of runs with labels.

    Args:
        labelled: label and run.
        arms: a curve for each arm of a run, its name behind the run's label.
    """
    curves: Curves = defaultdict(lambda: defaultdict(list))
    for label, run in labelled:
        for name, scores in _scores(run, label, arms=arms):
            for metric in METRICS:
                for batch, value in _over_tasks(run.lines, scores, metric):
                    curves[name, metric][batch].append(value)
    for label in dict.fromkeys(label for label, _ in labelled):
        runs = [run.points for other, run in labelled if other == label and run.points]
        for trials in sorted({point.trials for points in runs for point in points}):
            # Of each run that has begun and not ended the latest latency by then.
            values = [
                next(p for p in reversed(points) if p.trials <= trials).total_latency_s * 1e3
                for points in runs
                if points[0].trials <= trials <= points[-1].trials
            ]
            if values:
                curves[label, LATENCY][trials] = values
    return curves


def _scores(
    run: ReportedRun, label: str, *, arms: bool
) -> Iterator[tuple[str, Sequence[Mapping[str, float | None]]]]:
    """Yield names of curves, and the scores to draw of each, a mapping a batch."""
    if not arms:
        yield label, [{metric: getattr(line, metric) for metric in METRICS} for line in run.lines]
        return
    for arm in ["scratch"] if run.lines[-1].model == SCRATCH else ARM_NAMES:
        yield f"{label}: {ARM_NAMES[arm]}", [line.arms.get(arm, {}) for line in run.lines]


def _over_tasks(
    lines: Sequence[BatchLine], scores: Sequence[Mapping[str, float | None]], metric: str
) -> Iterator[tuple[int, float]]:
    """Yield (batch of a task from 1, the mean over the run's tasks that have a figure for it)."""
    batches_of: dict[str, int] = defaultdict(int)
    values: dict[int, list[float]] = defaultdict(list)
    for line, score in zip(lines, scores, strict=True):
        batches_of[line.task] += 1
        value = score.get(metric)
        if value is not None:
            values[batches_of[line.task]].append(value)
    for batch in sorted(values):
        yield batch, float(np.mean(values[batch]))


def _top_k_of_chance(runs: Sequence[ReportedRun]) -> tuple[str, float]:
    """Return the name of the top-k, and the share that guessing reaches, over all batches."""
    lines = [line for run in runs for line in run.lines]
    pairs = {(line.k, line.programs) for line in lines}
    name = "top-{} of {}".format(*pairs.pop()) if len(pairs) == 1 else "top-k"
    return name, float(np.mean([line.k / line.programs for line in lines]))


def plot_runs(curves: Curves, path: Path, title: str, chance: tuple[str, float]) -> bool:
    """Draw all curves as PNG; returns False where matplotlib is not installed (tencost[tuner] has none)."""
    top_k, guessed = chance
    titles = {**METRICS, "top_k": top_k, LATENCY: "total latency of tasks, ms"}
    labels = sorted({label for label, _ in curves})

    def draw(figure: Any) -> None:
        panels = figure.subplots(2, 2)
        for axes, (metric, name) in zip(panels.flat, titles.items(), strict=True):
            for label, points in _of_metric(curves, metric).items():
                color = f"C{labels.index(label) % 10}"
                at, values = list(points), list(points.values())
                axes.plot(at, list(map(np.mean, values)), color=color, marker=".", label=label)
                low, high = list(map(min, values)), list(map(max, values))
                axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
            axes.set_title(name)
            axes.grid(visible=True, alpha=0.3)
            axes.set_xlabel("programs measured" if metric == LATENCY else "batch of a task")
        panels[0, 1].axhline(guessed, color="grey", linewidth=0.8, linestyle="--")
        panels[1, 0].axhline(0.0, color="grey", linewidth=0.8, linestyle="--")
        panels[1, 1].set_yscale("log")
        panels[0, 0].legend(fontsize="small")
        figure.suptitle(f"{title}; before the model sees a batch; bands: lowest and highest run")

    return draw_chart(path, (10, 7), draw, dpi=110)


def _of_metric(curves: Curves, metric: str) -> dict[str, dict[int, list[float]]]:
    """Return a metric's points by label, in order."""
    return {
        label: dict(sorted(points.items()))
        for (label, other), points in curves.items()
        if other == metric
    }


def print_curves(curves: Curves, title: str, console: Console) -> None:
    """Print p-RMSE, top-k and rank correlation batch by batch, and the latency at the end."""
    labels = _labels(curves)
    table = Table(title=f"{title}: before the model sees a batch (mean of runs and tasks)")
    table.add_column("batch of a task", justify="right")
    for label in labels:
        table.add_column(f"{label}\np-RMSE, top-k, rank", justify="right")
    for batch in sorted(
        {at for key, points in curves.items() if key[1] in METRICS for at in points}
    ):
        cells = []
        for label in labels:
            figures = (curves.get((label, metric), {}).get(batch) for metric in METRICS)
            cells.append("  ".join(f"{np.mean(f):5.3f}" if f else "  -- " for f in figures))
        table.add_row(str(batch), *cells)
    console.print(table)
    for line in ahead(curves):
        say(console, line)
    for label, points in _of_metric(curves, LATENCY).items():
        trials, values = list(points.items())[-1]
        spread = f"{np.mean(values):.4g} ms [{min(values):.4g}, {max(values):.4g}]"
        say(
            console,
            f"{label}: {spread} after {trials} programs, {_plural(len(values), 'run')}",
        )


def _labels(curves: Curves) -> list[str]:
    return list(dict.fromkeys(label for label, metric in curves if metric in METRICS))


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"


def ahead(curves: Curves) -> list[str]:
    """Return a line for each label but the first: at which batches the first one is better, figure by figure."""
    first, *others = _labels(curves)
    lines = []
    for other in others:
        parts = []
        for metric, name in METRICS.items():
            ours, theirs = (curves.get((label, metric), {}) for label in (first, other))
            both = sorted(ours.keys() & theirs)
            sign = -1 if metric == "p_rmse" else 1
            gains = {at: sign * (np.mean(ours[at]) - np.mean(theirs[at])) for at in both}
            better = [at for at in both if gains[at] > 0]
            parts.append(f"{name} at {len(better)} of {len(both)} batches{_spans(better)}")
        lines.append(f"{first} is ahead of {other} in {', '.join(parts)}")
    return lines


def _spans(numbers: Sequence[int]) -> str:
    """Return ascending numbers as spans: 1-4, 6."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    text = " ".join("-".join(str(end) for end in span) for span in spans)
    return f" ({text})" if text else ""


def _track(
    to: Path,
    cfg: Config,
    root: Path,
    labelled: Sequence[tuple[str, ReportedRun]],
    curves: Curves,
    title: str,
) -> None:
    from tencost.tracking.runs import MetricPoint, start_run

    labels = list(dict.fromkeys(label for label, _ in curves))
    parameters: dict[str, Any] = {
        f"run.{place}": f"{label}: {run.name}" for place, (label, run) in enumerate(labelled)
    }
    parameters |= {f"label.{place}": label for place, label in enumerate(labels)}
    with start_run(
        cfg,
        root,
        stage="tune report",
        name=f"tune report · {title}",
        tags={"hardware": labelled[0][1].subject.rpartition(" on ")[2], "dataset": "none"},
        parameters=parameters,
    ) as tracked:
        tracked.log_points(
            [
                MetricPoint(f"report/{labels.index(label)}/{metric}", float(np.mean(values)), at)
                for (label, metric), points in curves.items()
                for at, values in sorted(points.items())
            ]
        )
        for file in (to / "report.csv", to / "report.png"):
            if file.exists():
                tracked.log_artifact(file)
