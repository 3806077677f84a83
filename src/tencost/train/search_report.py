"""What the search for settings leaves in its run in MLflow: the best trial, a table and a plot of all trials."""

from __future__ import annotations

import csv
import shlex
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial
from rich.console import Console

from tencost.tracking import runs as tracking
from tencost.tracking.runs import TrackedRun
from tencost.workers.parallel.search import NOTE, Search, best_trial, ended_trials


def log_search(
    root: Path,
    run_id: str,
    search: Search,
    study: optuna.Study,
    metric: str,
    words: Callable[[Mapping[str, Any]], Sequence[str]],
) -> None:
    """Log a search to its parent run and print its best trial, where a trial has a value.

    The run gets the best settings (`best.*`), the curves `search/value` and `search/best`, trials.csv with all trials,
    and search.png, which shows their values over the order of the trials and over each setting, and what the settings
    are worth.

    Args:
        root: the project's root.
        run_id: the parent run.
        search: how settings were searched.
        study: the trials.
        metric: name of the best value among the run's metrics.
        words: returns the words of a command line that trains some settings; the tag `best`.
    """
    from mlflow import MlflowClient

    trials = ended_trials(study)
    valued = [trial for trial in trials if trial.value is not None]
    if not valued:
        return
    best = best_trial(study)
    run = TrackedRun(MlflowClient(tracking_uri=tracking.setup(root)), run_id)
    choose = max if search.maximize else min
    so_far = valued[0].value or 0.0
    for trial in valued:
        so_far = choose(so_far, trial.value or 0.0)
        values = {"search/value": trial.value or 0.0, "search/best": so_far}
        run.log_metrics(values, trial.number)
    failed = len(trials) - len(valued)
    run.log_metrics({metric: so_far, "trials": len(trials), "failed": failed})
    for name, value in {**best.params, "trial": best.number}.items():
        run.client.log_param(run_id, f"best.{name}", str(value))
    run.set_tag("search", search.name)
    run.set_tag("best", shlex.join(words(best.params)))
    with tempfile.TemporaryDirectory(prefix="tencost-") as scratch:
        table, plot = Path(scratch) / "trials.csv", Path(scratch) / "search.png"
        _write_table(table, trials)
        _plot(plot, study, valued, best, metric)
        run.log_artifact(table)
        run.log_artifact(plot)
    settings = " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in best.params.items()
    )
    Console(stderr=True).print(
        f"{search.name}: {len(trials)} trials{f', {failed} failed' if failed else ''}, the best is {best.number} with "
        f"{metric} {best.value:.4f}: {settings}",
        soft_wrap=True,
        highlight=False,
    )


def _write_table(path: Path, trials: Sequence[FrozenTrial]) -> None:
    names = sorted({name for trial in trials for name in trial.params})
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", "value", *names, "note"])
        for trial in trials:
            settings = [trial.params.get(name) for name in names]
            writer.writerow([trial.number, trial.value, *settings, trial.user_attrs[NOTE]])


def _plot(
    path: Path, study: optuna.Study, trials: Sequence[FrozenTrial], best: FrozenTrial, metric: str
) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    names = list(best.params)
    with mpl.rc_context({"font.size": 8.0, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(2.6 * (2 + len(names)), 2.6), layout="constrained")
        panels = figure.subplots(1, 2 + len(names), squeeze=False)[0]
        for axis, name in zip(panels, ["trial", *names], strict=False):
            for group, color, size in ((trials, "#0072B2", 4), ([best], "#D55E00", 7)):
                places = [
                    trial.number if name == "trial" else trial.params[name] for trial in group
                ]
                numeric = all(isinstance(place, int | float) for place in places)
                places = places if numeric else [str(place) for place in places]
                values = [trial.value for trial in group]
                axis.plot(places, values, "o", color=color, markersize=size)
            if getattr(best.distributions.get(name), "log", False):
                axis.set_xscale("log")
            axis.set_xlabel(name)
        panels[0].set_ylabel(metric)
        with warnings.catch_warnings(category=UserWarning, action="ignore"):  # of few trials
            importance = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        panels[-1].barh(list(importance), list(importance.values()), color="#0072B2")
        panels[-1].set_xlabel("importance")
        figure.savefig(path, dpi=120)
