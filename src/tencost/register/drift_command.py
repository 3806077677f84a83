"""`tencost register drift`: how model versions rank in production, and when to train again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tencost.config import PathsConfig
from tencost.errors import RegistryError
from tencost.evaluate.leaderboard_table import wide
from tencost.register.drift import Action, Drift, Estimate, History, histories, verdict
from tencost.store.reading import Records
from tencost.store.tables import open_records

_SCALE = 10
"""Characters from 0 to 1 on the scale of the table."""
_COLOURS = {Action.retrain: "bold red", Action.watch: "yellow", Action.keep: "green"}


def run(
    root: Path,
    *,
    model: str | None = None,
    store_uri: str | None = None,
    as_json: bool = False,
    plot: Path | None = None,
    add_to: Path | None = None,
    console: Console | None = None,
) -> None:
    """Print each version's tuning runs, the verdict and what to do next.

    Args:
        root: the project's.
        model: a registered model's name or a version's URI; None: all that the store knows.
        store_uri: the record store; None: the live one.
        as_json: print the same for programs, and nothing else.
        plot: a file that gets a plot.
        add_to: a raw dataset's folder that gets the records behind it, see drift_dataset.py.
        console: where it is printed.

    Raises:
        RegistryError: no such model in the store.
        RecordError: no store.
    """
    store = open_records(store_uri or PathsConfig().live_store(root))
    found = histories(store, model)
    if not found:
        raise _nothing(store, model)
    verdicts = [verdict(item) for item in found]
    if plot is not None:
        from tencost.register.drift_plot import plot_drift

        plot_drift(found, plot)
    if as_json:
        sys.stdout.write(_json(found, verdicts))
        return
    console = wide(console)
    for item, drift in zip(found, verdicts, strict=True):
        _show(item, drift, console, store_uri)
    if plot is not None:
        console.print(f"plot: {plot}", markup=False, highlight=False)
    if add_to is not None:
        _add(store, add_to, model, console)


def _nothing(store: Records, model: str | None) -> RegistryError:
    known = sorted({item.version for item in histories(store)}) if model else []
    return RegistryError(
        f"expected records of tuning runs with {model or 'a registered model'} in {store.uri}, found "
        f"{'those of ' + ', '.join(known) if known else 'none'}. `tencost tune` writes them; another store: --store URI"
    )


def _show(item: History, drift: Drift, console: Console, store: str | None) -> None:
    table = Table(
        title=f"{item.version} on {item.hardware}",
        title_justify="left",
        show_edge=False,
        pad_edge=False,
    )
    for heading in ("started (UTC)", "network", "TVM"):
        table.add_column(heading)
    for heading in ("programs", "rounds", "rank correlation", "95 % interval"):
        table.add_column(heading, justify="right")
    table.add_column("-1" + " " * (_SCALE - 2) + "0" + " " * (_SCALE - 1) + "1", no_wrap=True)
    for run in item.runs:
        missing = run.measured - run.programs
        estimate = run.estimate
        table.add_row(
            _time(run.started),
            run.network,
            run.tvm or "-",
            f"{run.programs}" + (f" of {run.measured}" if missing else ""),
            str(len(run.rankings)),
            "-" if estimate is None else f"{estimate.mean:+.2f}",
            _interval(estimate),
            "" if estimate is None else Text(_bar(estimate)),
        )
    if item.runs:
        console.print(table)
    else:
        console.print(table.title, markup=False, highlight=False, style="italic")
    if item.unscored:
        console.print(f"{item.unscored} records have no scores", highlight=False)
    console.print(Text(drift.action.value, style=_COLOURS.get(drift.action, "bold")))
    for reason in drift.reasons:
        console.print(f"  {reason}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"next: {_next(item, drift, store)}", markup=False, highlight=False, soft_wrap=True
    )
    console.print()


def _add(store: Records, folder: Path, model: str | None, console: Console) -> None:
    from tencost.register.drift_dataset import add_to_dataset

    added = add_to_dataset(store, folder, model)
    text = f"{folder}: added {added.records} records of {added.workloads} workloads, {added.tasks} new tasks"
    if added.without_module:
        text += f"; left out, as their modules are nowhere: {', '.join(added.without_module)}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _next(item: History, drift: Drift, store: str | None) -> str:
    name = item.version.removeprefix("models:/").rpartition("/")[0] or item.version
    place = f" --store {store}" if store else ""
    if drift.action is Action.retrain:
        return (
            f"tencost register drift {name}{place} --add-to measured/<copy of the raw dataset>, then pack it and "
            "tencost pipeline: docs/how-to/drift.md"
        )
    if drift.action is Action.keep:
        return f"nothing; tencost tune model_uri={item.version} goes on"
    return f"tencost tune model_uri={item.version}, then tencost register drift {name}{place}"


def _bar(estimate: Estimate) -> str:
    """Return the interval on a scale from -1 to 1: `-` for the interval, `|` for 0, `o` for the mean."""
    cells = [" "] * (2 * _SCALE + 1)
    if estimate.low is not None and estimate.high is not None:
        first, last = _cell(estimate.low), _cell(estimate.high)
        cells[first : last + 1] = "-" * (last + 1 - first)
    cells[_SCALE] = "|"
    cells[_cell(estimate.mean)] = "o"
    return "".join(cells)


def _cell(value: float) -> int:
    return round((max(-1.0, min(1.0, value)) + 1.0) * _SCALE)


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "-"
    return f"{estimate.low:+.2f} to {estimate.high:+.2f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _json(found: Sequence[History], verdicts: Sequence[Drift]) -> str:
    import orjson

    rows = [
        {
            "version": item.version,
            "hardware": item.hardware,
            "trained_on": item.trained_on,
            "action": drift.action.value,
            "reasons": drift.reasons,
            "recent": _plain(drift.recent),
            "unscored": item.unscored,
            "runs": [
                {
                    "run": run.run,
                    "started": run.started,
                    "network": run.network,
                    "tvm": run.tvm,
                    "rounds": len(run.rankings),
                    "programs": run.programs,
                    "measured": run.measured,
                    "spearman": _plain(run.estimate),
                }
                for run in item.runs
            ],
        }
        for item, drift in zip(found, verdicts, strict=True)
    ]
    return orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def _plain(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
