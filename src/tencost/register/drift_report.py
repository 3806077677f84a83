"""`tencost register drift`: how model versions rank in production, and when to train again; printed, JSON or a plot."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tencost.config import PathsConfig
from tencost.errors import RegistryError
from tencost.evaluate.interval import Difference
from tencost.evaluate.leaderboard_table import wide
from tencost.register.drift import (
    Action,
    Drift,
    DriftRule,
    TuningRun,
    VersionHistory,
    histories,
    verdict,
)
from tencost.store.reading import StoredRecords
from tencost.store.tables import open_records

_SCALE = 10
"""Characters from 0 to 1 on the scale of the table."""
_COLOURS = {Action.retrain: "bold red", Action.watch: "yellow", Action.keep: "green"}
_LABELS = 24
"""Runs of a plot that are labelled with network and day, at most."""


def run(
    root: Path,
    *,
    model: str | None = None,
    store_uri: str | None = None,
    as_json: bool = False,
    plot: Path | None = None,
    add_to: Path | None = None,
) -> None:
    """Print each version's tuning runs, the verdict and what to do next.

    Args:
        root: the project's.
        model: a registered model's name or a version's URI; None: all that the store knows.
        store_uri: the record store; None: the live one.
        as_json: print the same for programs, and nothing else.
        plot: a file that gets a plot.
        add_to: a raw dataset's folder that gets the records behind it, see drift_dataset.py.

    Raises:
        RegistryError: no such model in the store.
        RecordError: no store.
    """
    store = open_records(store_uri or PathsConfig().live_store(root))
    by_version = histories(store, model)
    if not by_version:
        versions = sorted({history.version for history in histories(store)}) if model else []
        raise RegistryError(
            f"expected records of tuning runs with {model or 'a registered model'} in {store.uri}, found "
            f"{'those of ' + ', '.join(versions) if versions else 'none'}. `tencost tune` writes them; another store: "
            "--store URI"
        )
    verdicts = [verdict(history) for history in by_version]
    if plot is not None:
        plot_drift(by_version, plot)
    if as_json:
        reports = [_json(*pair) for pair in zip(by_version, verdicts, strict=True)]
        option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        sys.stdout.write(orjson.dumps(reports, option=option).decode())
        return
    console = wide()
    for history, drift in zip(by_version, verdicts, strict=True):
        _print(history, drift, console, store_uri)
    if plot is not None:
        console.print(f"plot: {plot}", markup=False, highlight=False)
    if add_to is not None:
        _add(store, add_to, model, console)


def _print(history: VersionHistory, drift: Drift, console: Console, store: str | None) -> None:
    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    title = f"{history.version} on {history.hardware}"
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for heading in ("started (UTC)", "network", "TVM"):
        table.add_column(heading)
    for heading in ("programs", "rounds", "rank correlation", "95 % interval"):
        table.add_column(heading, justify="right")
    table.add_column("-1" + " " * (_SCALE - 2) + "0" + " " * (_SCALE - 1) + "1", no_wrap=True)
    for run in history.runs:
        table.add_row(
            _time(run, "%Y-%m-%d %H:%M") or "-",
            run.network,
            run.tvm or "-",
            f"{run.programs} of {run.measured}"
            if run.measured > run.programs
            else str(run.programs),
            str(len(run.rankings)),
            *_estimate_cells(run.estimate),
        )
    if history.runs:
        console.print(table)
    else:
        console.print(title, markup=False, highlight=False, style="italic")
    if history.unscored:
        line(f"{history.unscored} records have no scores")
    console.print(Text(drift.action.value, style=_COLOURS.get(drift.action, "bold")))
    for reason in drift.reasons:
        line(f"  {reason}")
    line(f"next: {_next(history, drift, store)}")
    console.print()


def _estimate_cells(estimate: Difference | None) -> tuple[str, str, Text]:
    """Return mean, interval, and both on a scale from -1 to 1: `-` for the interval, `|` for 0, `o` for the mean."""
    if estimate is None:
        return "-", "-", Text()
    cells, interval = [" "] * (2 * _SCALE + 1), "-"
    if not math.isnan(estimate.low):
        interval = f"{estimate.low:+.2f} to {estimate.high:+.2f}"
        first, last = _cell(estimate.low), _cell(estimate.high)
        cells[first : last + 1] = "-" * (last + 1 - first)
    cells[_SCALE] = "|"
    cells[_cell(estimate.mean)] = "o"
    return f"{estimate.mean:+.2f}", interval, Text("".join(cells))


def _cell(correlation: float) -> int:
    return round((max(-1.0, min(1.0, correlation)) + 1.0) * _SCALE)


def _time(run: TuningRun, form: str) -> str:
    return "" if run.started is None else datetime.fromtimestamp(run.started, UTC).strftime(form)


def _next(history: VersionHistory, drift: Drift, store: str | None) -> str:
    name = history.version.removeprefix("models:/").rpartition("/")[0] or history.version
    place = f" --store {store}" if store else ""
    if drift.action is Action.retrain:
        return (
            f"tencost register drift {name}{place} --add-to measured/<copy of the raw dataset>, then pack it and "
            "tencost pipeline: docs/how-to/drift.md"
        )
    if drift.action is Action.keep:
        return f"nothing; tencost tune model.onnx model_uri={history.version} goes on"
    return f"tencost tune model.onnx model_uri={history.version}, then tencost register drift {name}{place}"


def _add(store: StoredRecords, folder: Path, model: str | None, console: Console) -> None:
    from tencost.register.drift_dataset import add_to_dataset

    added = add_to_dataset(store, folder, model)
    text = f"{folder}: added {added.records} records of {added.workloads} workloads, {added.tasks} new tasks"
    if added.without_module:
        text += f"; left out, as their modules are nowhere: {', '.join(added.without_module)}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _json(history: VersionHistory, drift: Drift) -> dict[str, Any]:
    return {
        "version": history.version,
        "hardware": history.hardware,
        "trained_on": history.trained_on,
        "action": drift.action,
        "reasons": drift.reasons,
        "recent": _ends(drift.recent),
        "unscored": history.unscored,
        "runs": [
            {
                "run": run.run,
                "started": run.started,
                "network": run.network,
                "tvm": run.tvm,
                "rounds": len(run.rankings),
                "programs": run.programs,
                "measured": run.measured,
                "spearman": _ends(run.estimate),
            }
            for run in history.runs
        ],
    }


def _ends(estimate: Difference | None) -> dict[str, float] | None:
    if estimate is None:
        return None
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}


def plot_drift(by_version: Sequence[VersionHistory], path: Path) -> None:
    """Draw one line a version as a PNG: mean rank correlation of each run, its 95 % interval as a band.

    Runs of all versions share one axis, in order of time. Runs without a round to compare are left out.
    """
    from tencost.evaluate.plots import new_figure, save_figure

    drawn = [history for history in by_version if any(run.rankings for run in history.runs)]
    ranked = [run for history in drawn for run in history.runs if run.rankings]
    ordered = sorted(ranked, key=lambda run: (run.started or 0.0, run.run))
    places = {run.run: place for place, run in enumerate(ordered, start=1)}
    figure, (axis,) = new_figure(1, 1, max(6.0, min(14.0, 0.45 * len(places) + 2)), 4.3)
    floor = DriftRule().floor
    axis.axhline(0.0, color="black", linestyle=":", linewidth=1.2, label="random order")
    axis.axhline(floor, color="#777777", linestyle="--", linewidth=1.2, label=f"floor {floor:g}")
    for index, history in enumerate(drawn):
        _plot_version(axis, history, places, index)
    if len(ordered) <= _LABELS:
        names = [f"{run.network}\n{_time(run, '%m-%d %H:%M')}" for run in ordered]
        rotation = 0 if len(ordered) <= 8 else 60
        axis.set_xticks(range(1, len(ordered) + 1), names, rotation=rotation, fontsize=8)
    axis.set_xlim(0.5, max(1, len(ordered)) + 0.5)
    axis.set_ylim(-1.05, 1.05)
    axis.set_xlabel("tuning runs, in order of time")
    axis.set_ylabel("rank correlation within a round (Spearman)")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, "Ranking in production; mean and 95 % interval over rounds", path)


def _plot_version(axis: Any, history: VersionHistory, places: dict[str, int], index: int) -> None:
    from tencost.evaluate.plots import MARKERS, PALETTE

    estimates = {places[run.run]: run.estimate for run in history.runs if run.estimate is not None}
    x = list(estimates)
    ends = np.array([(mean.mean, mean.low, mean.high) for mean in estimates.values()])
    mean, low, high = np.where(np.isnan(ends), ends[:, :1], ends).T
    colour, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
    label = f"{history.version.removeprefix('models:/')} on {history.hardware}"
    axis.plot(x, mean, color=colour, marker=marker, markersize=4, linewidth=1.6, label=label)
    axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    if len(x) == 1:  # a band of one point has no width
        axis.vlines(x, low, high, color=colour, alpha=0.4, linewidth=4)
