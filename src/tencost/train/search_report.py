"""What the search for settings leaves in its run in MLflow: the best trial, a table and a plot of all trials."""

from __future__ import annotations

import shlex
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import polars as pl
from optuna.importance import PedAnovaImportanceEvaluator
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
    search.png, the values over each setting, and importance.png, what each setting is worth.

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
        _write_table(Path(scratch) / "trials.csv", trials)
        _draw(study, Path(scratch))
        for path in Path(scratch).iterdir():
            run.log_artifact(path)
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
    rows = [
        {"trial": trial.number, "value": trial.value, "note": trial.user_attrs.get(NOTE, "")}
        | trial.params
        for trial in trials
    ]
    pl.from_dicts(rows, infer_schema_length=None).write_csv(path)


def _draw(study: optuna.Study, folder: Path) -> None:
    """Draw search.png, the values over each setting, and importance.png."""
    import matplotlib.pyplot as plt
    from optuna.visualization.matplotlib import plot_param_importances, plot_slice

    evaluator = PedAnovaImportanceEvaluator()
    plt.switch_backend("Agg")
    with warnings.catch_warnings(action="ignore"):  # experimental, and of few trials
        panels = {
            "search": plot_slice(study),
            "importance": plot_param_importances(study, evaluator=evaluator),
        }
    for name, axes in panels.items():
        figure = np.asarray(axes, dtype=object).flat[0].figure
        figure.savefig(folder / f"{name}.png", dpi=120, bbox_inches="tight")
        plt.close(figure)
