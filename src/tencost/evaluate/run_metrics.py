"""What `evaluate` adds to MLflow: test figures and plots in each training run, and one run that compares them.

Metrics of a training run: ``evaluate/<metric>`` (mean over seeds), ``evaluate_ci95/<metric>`` (half
width of its interval over seeds), and of the headline metrics ``evaluate_tasks_low/<metric>`` and
``evaluate_tasks_high/<metric>`` (95 % bootstrap over tasks) and ``evaluate/<metric>/<network>``. The headline ones are
those of the model that the run logged, too: what the page of models shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tencost.config import Config
from tencost.evaluate import runs_view
from tencost.evaluate.program_board import ProgramBoard, ProgramRow
from tencost.evaluate.scoring import HEADLINE
from tencost.models.programs.bundle import training_digest
from tencost.tracking import orphaned_runs
from tencost.tracking import runs as tracking


def log_model_scores(
    root: Path, cfg: Config, row: ProgramRow, predict_ms: float, files: Sequence[Path]
) -> None:
    """Log a model's test figures, prediction time and plots into the run that trained it, where this store has it."""
    client = _client(root, cfg.experiment_name)
    run_id = tracking.training_run(client, cfg.experiment_name, training_digest(root / row.folder))
    if run_id is None:
        Console(stderr=True).print(
            f"{row.model}: the run that trained it is not in this MLflow store (restored from DVC's cache, or "
            "made elsewhere), so its figures are in the report only"
        )
        return
    figures = {**_run_metrics(row), "evaluate/predict_ms_per_1000": predict_ms}
    headline = {f"evaluate/{name}": figures.pop(f"evaluate/{name}") for name in HEADLINE}
    run = tracking.TrackedRun(client, run_id)
    run.log_metrics(figures)
    run.log_metrics(headline, model_id=tracking.logged_model(client, run_id))
    for path in files:
        client.log_artifact(run_id, str(path), "plots")


def _run_metrics(row: ProgramRow) -> dict[str, float]:
    """Return the metrics of a training run."""
    figures = {}
    for name, interval in row.metrics.items():
        figures[f"evaluate/{name}"] = interval.mean
        figures[f"evaluate_ci95/{name}"] = interval.half_width
    for name, over in row.tasks.items():
        figures[f"evaluate_tasks_low/{name}"] = over.low
        figures[f"evaluate_tasks_high/{name}"] = over.high
    for network, means in row.networks.items():
        figures |= {f"evaluate/{name}/{network}": means[name] for name in HEADLINE}
    return figures


def log_comparison(root: Path, cfg: Config, board: ProgramBoard, report: Path) -> str:
    """Log the leaderboard, its plots and the main figures of all models as one run; return its id."""
    client = _client(root, cfg.experiment_name)
    experiment = client.get_experiment_by_name(cfg.experiment_name)
    tags = {
        "tencost.stage": "evaluate",
        "hardware": board.hardware,
        "dataset": board.dataset,
        "split": board.split,
        "mlflow.note.content": (report / "leaderboard.md").read_text(),
        **orphaned_runs.process_tags(),
    }
    name = f"evaluate {board.hardware}"
    run_id = str(client.create_run(experiment.experiment_id, run_name=name, tags=tags).info.run_id)
    figures = {
        f"evaluate/{name}/{row.model}": row.mean(name) for row in board.rows for name in HEADLINE
    }
    tracking.TrackedRun(client, run_id).log_metrics(figures)
    runs_view.write_view(client, cfg.experiment_name)
    client.log_artifacts(run_id, str(report))
    client.set_terminated(run_id)
    return run_id


def _client(root: Path, experiment: str) -> Any:
    from mlflow import MlflowClient

    uri = tracking.setup(root, experiment)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)
