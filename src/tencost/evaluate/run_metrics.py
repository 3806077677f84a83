"""What `evaluate` adds to MLflow: test figures and plots in each training run, and one run that compares them.

Metrics of a training run: ``evaluate/<metric>`` (mean over seeds), ``evaluate_ci95/<metric>`` (half
width of its interval over seeds), and of the headline metrics ``evaluate_tasks_low/<metric>`` and
``evaluate_tasks_high/<metric>`` (95 % bootstrap over tasks) and ``evaluate/<metric>/<network>``. The headline ones are
those of the model that the run logged, too: what the page of models shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tencost.config import Config
from tencost.evaluate import runs_view
from tencost.evaluate.program_board import ProgramBoard, ProgramRow
from tencost.evaluate.scoring import HEADLINE
from tencost.models.programs.bundle import training_digest
from tencost.tracking import runs as tracking


def log_model_scores(
    root: Path, cfg: Config, row: ProgramRow, predict_ms: float, files: Sequence[Path]
) -> None:
    """Log a model's test figures, prediction time and plots into the run that trained it, where this store has it."""
    from mlflow import MlflowClient

    uri = tracking.setup(root, cfg.experiment_name)
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
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


def log_comparison(root: Path, cfg: Config, board: ProgramBoard, report: Path) -> None:
    """Log the leaderboard, its plots and the main figures of all models as one run."""
    note = (report / "leaderboard.md").read_text()
    tags = {"split": board.split, "mlflow.note.content": note}
    name = f"evaluate {board.hardware}"
    figures = {
        f"evaluate/{name}/{row.model}": row.mean(name) for row in board.rows for name in HEADLINE
    }
    with tracking.start_run(
        cfg, root, stage="evaluate", name=name, tags=tags, parameters={}
    ) as tracked:
        tracked.log_metrics(figures)
        runs_view.write_view(tracked.client, cfg.experiment_name)
        tracked.log_artifacts(report)
