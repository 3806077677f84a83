"""`tencost tune report`: runs side by side, from work folders and from MLflow."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tencost.config.composition import compose
from tencost.errors import ProfileError, TuneError
from tencost.tune.batches import BatchLine, append_batch_line
from tencost.tune.curve import CurvePoint, append_point
from tencost.tune.report import Curves, ahead, report_runs

PROJECT = Path(__file__).resolve().parents[2]
Make = Callable[..., Path]


@pytest.fixture
def root(tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(PROJECT)
    (tmp_path / "mlruns").mkdir()
    shutil.copy(mlflow_database, tmp_path / "mlruns" / "mlflow.db")
    return tmp_path


def make_run(
    folder: Path,
    errors: dict[str, list[float]],
    *,
    model: str = "models:/m/1",
    final_s: float = 1e-3,
    network: str = "net",
) -> Path:
    """Write a work folder whose tasks had these p-RMSE, batch by batch; tasks take turns."""
    folder.mkdir(parents=True)
    session = {"network": network, "hardware": "here", "version": 1, "target": {}, "untuned_s": {}}
    (folder / "session.json").write_text(json.dumps(session))
    append_point(folder / "tuning_curve.csv", CurvePoint(trials=0, total_latency_s=4e-3))
    trials = 0
    for at in range(max(map(len, errors.values()))):
        for task, values in errors.items():
            if at < len(values):
                trials += 16
                append_batch_line(folder / "batches.jsonl", line(trials, task, values[at], model))
                append_point(
                    folder / "tuning_curve.csv",
                    CurvePoint(trials=trials, total_latency_s=final_s, task=task),
                )
    return folder


def line(trials: int, task: str, error: float, model: str) -> BatchLine:
    arms = {"scratch": {"p_rmse": 0.9, "top_k": 0.5, "spearman": 0.0}}
    if model != "scratch":
        arms |= {
            "registered": {"p_rmse": error + 0.1, "top_k": 0.5, "spearman": 0.0},
            "residual": {"p_rmse": error, "top_k": 0.5, "spearman": 0.0},
        }
    return BatchLine(
        trials=trials, task=task, programs=16, failed=0, k=8, model=model, learns=True, arm="residual", p_rmse=error,
        top_k=0.75, spearman=None, kendall=None, arms=arms, task_latency_s=1e-3, total_latency_s=1e-3,
    )  # fmt: skip


def reported(root: Path, runs: list[Path | str], *labels: str, arms: bool = False) -> Any:
    """Report runs; return the rows of report.csv by (label, metric, batch or trials), and what was printed."""
    cfg, _ = compose([])
    out = io.StringIO()
    folder = report_runs(
        [str(run) for run in runs], labels, root / "out", cfg, root, arms=arms, console=Console(file=out, width=200)
    )  # fmt: skip
    with (folder / "report.csv").open(newline="") as file:
        found = {
            (row["label"], row["metric"], int(row["batch_or_trials"])): (
                float(row["mean"]), float(row["low"]), float(row["high"]), int(row["runs"]),
            )
            for row in csv.DictReader(file)
        }  # fmt: skip
    assert (folder / "report.png").read_bytes()[:4] == b"\x89PNG"
    return found, out.getvalue()


def test_seeds_become_a_band_and_labels_come_from_the_models(root: Path) -> None:
    runs = [
        make_run(root / "a", {"x": [0.2, 0.1], "y": [0.4, 0.1]}, final_s=1e-3),
        make_run(root / "b", {"x": [0.1, 0.1], "y": [0.1, 0.3]}, final_s=3e-3),
        make_run(root / "c", {"x": [0.5, 0.4, 0.3]}, model="scratch"),
    ]
    found, told = reported(root, [*runs])
    assert found["pretrained, fine-tuned", "p_rmse", 1] == (
        pytest.approx(0.2), pytest.approx(0.1), pytest.approx(0.3), 2,
    )  # fmt: skip
    assert found["pretrained, fine-tuned", "p_rmse", 2][0] == pytest.approx(0.15)
    assert [found["from scratch", "p_rmse", at][0] for at in (1, 2, 3)] == [0.5, 0.4, 0.3]
    assert ("pretrained, fine-tuned", "p_rmse", 3) not in found
    assert not any(metric == "spearman" for _, metric, _ in found)
    assert found["pretrained, fine-tuned", "total_latency_ms", 0] == (4.0, 4.0, 4.0, 2)
    assert found["pretrained, fine-tuned", "total_latency_ms", 64] == (2.0, 1.0, 3.0, 2)
    assert "net on here, 3 runs" in told
    assert (
        "pretrained, fine-tuned is ahead of from scratch in p-RMSE at 2 of 2 batches (1-2), top-k at 0 of 2 batches"
        in told
    )
    with sqlite3.connect(root / "mlruns" / "mlflow.db") as connection:
        names = {name for (name,) in connection.execute("select distinct key from metrics")}
        status = connection.execute("select status from runs").fetchall()
    connection.close()
    assert {"report/0/p_rmse", "report/1/p_rmse", "report/0/total_latency_ms"} <= names
    assert status == [("FINISHED",)]
    kept = {path.name for path in (root / "mlruns" / "artifacts").rglob("*") if path.is_file()}
    assert {"report.csv", "report.png"} <= kept


def test_labels_are_one_a_run(root: Path) -> None:
    runs: list[Path | str] = [make_run(root / name, {"x": [0.2]}) for name in "ab"]
    found, _ = reported(root, runs, "old", "new")
    assert {label for label, _, _ in found} == {"old", "new"}
    with pytest.raises(TuneError, match=r"expected one label for each of the 2 runs, found 1"):
        reported(root, runs, "old")


def test_the_models_of_a_run_apart(root: Path) -> None:
    runs: list[Path | str] = [
        make_run(root / "a", {"x": [0.2]}),
        make_run(root / "b", {"x": [0.6]}, model="scratch"),
    ]
    found, _ = reported(root, runs, "with", "without", arms=True)
    firsts = {label: value[0] for (label, metric, at), value in found.items() if metric == "p_rmse"}
    assert firsts == {
        "with: as registered": pytest.approx(0.3),
        "with: corrected": 0.2,
        "with: trees alone": 0.9,
        "without: trees alone": 0.9,
    }


def test_a_run_of_mlflow_is_read_as_its_folder_is(root: Path) -> None:
    from tencost.tracking.runs import start_run

    folder = make_run(root / "a", {"x": [0.2, 0.1]})
    cfg, _ = compose([])
    with start_run(cfg, root, stage="tune") as tracked:
        for file in folder.iterdir():
            tracked.log_artifact(file)
    assert reported(root, [tracked.run_id])[0] == reported(root, [folder])[0]


def test_runs_that_say_nothing_about_each_other(root: Path) -> None:
    runs: list[Path | str] = [
        make_run(root / name, {"x": [0.2]}, network=name) for name in ("a", "b")
    ]
    with pytest.raises(
        TuneError, match=r"runs of one network on one hardware, found a on here and b"
    ):
        reported(root, runs)


def test_what_is_no_run(root: Path) -> None:
    with pytest.raises(ProfileError, match=r"expected a work folder .* found 'nothing'"):
        reported(root, ["nothing"])
    empty = make_run(root / "a", {"x": [0.2]})
    (empty / "batches.jsonl").unlink()
    with pytest.raises(TuneError, match=r"expected batches in batches.jsonl, found none"):
        reported(root, [empty])


def test_where_one_is_ahead() -> None:
    curves: Curves = {
        (label, "p_rmse"): {at: [mean] for at, mean in enumerate(means, start=1)}
        for label, means in {"a": [0.1, 0.2, 0.3, 0.1], "b": [0.2, 0.3, 0.2, 0.4, 0.1]}.items()
    }
    (line,) = ahead(curves)
    assert line.startswith(
        "a is ahead of b in p-RMSE at 3 of 4 batches (1-2 4), top-k at 0 of 0 batches"
    )
    del curves["b", "p_rmse"]
    assert ahead(curves) == []
