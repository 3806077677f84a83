"""SIGTERM, as `docker stop` and batch schedulers send it: runs end as KILLED, and the same command goes on."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG = 2_000_000
PATIENCE_S = 180.0

pytestmark = pytest.mark.slow


def words(rounds: int = LONG) -> list[str]:
    return [
        "score_test=false", "model=xgb", "features.name=toy", "features.kind=trace", "features.relations=false",
        "model.reads=[toy]", f"model.num_rounds={rounds}", "model.num_models=1", "dataset=toy", "hardware=toy-1c",
        "seeds=[0]",
    ]  # fmt: skip


@pytest.fixture
def project(toy_project: Path) -> Path:
    shutil.copytree(ROOT / "conf", toy_project / "conf")
    (toy_project / "conf" / "dataset" / "toy.yaml").write_text("name: toy\nsource: toy\n")
    (toy_project / "conf" / "hardware" / "toy-1c.yaml").write_text(
        "name: toy-1c\ntarget: {kind: llvm}\n"
    )
    return toy_project


def statuses(project: Path, stage: str = "train") -> list[str]:
    """Return the status of each run of a stage, the oldest first."""
    with sqlite3.connect(project / "mlruns" / "mlflow.db") as database:
        rows = database.execute(
            "SELECT status FROM runs JOIN tags USING (run_uuid) WHERE key = 'tencost.stage' AND value = ? "
            "ORDER BY start_time",
            [stage],
        ).fetchall()
    database.close()
    return [status for (status,) in rows]


def start(project: Path, *command: str, ignored: bool = False) -> subprocess.Popen[str]:
    """Start a command, with SIGINT ignored if so, as nohup and `&` in a script do."""
    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
    return subprocess.Popen(
        [sys.executable, "-m", "tencost.cli", *command],
        cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, handler),
    )  # fmt: skip


def wait_until(process: subprocess.Popen[str], when: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not when():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            pytest.fail(process.communicate()[1])
        time.sleep(0.05)


def terminate(process: subprocess.Popen[str]) -> str:
    """Send SIGTERM; return what the command says, and see that none of its processes stays."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    try:
        _, told = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 143, told
    assert "Traceback" not in told
    assert "ended by SIGTERM; what was finished is kept" in told
    assert psutil.wait_procs(children, timeout=30)[1] == []
    return told


def test_a_training_ends_as_killed(project: Path) -> None:
    process = start(project, "train", *words())
    wait_until(process, lambda: statuses(project) == ["RUNNING"])
    terminate(process)
    assert statuses(project) == ["KILLED"]
    again = start(project, "train", *words(4))
    assert again.communicate()[0] is None
    assert again.returncode == 0
    assert statuses(project) == ["KILLED", "FINISHED"]


def test_where_ctrl_c_is_ignored_it_is_not_named(project: Path) -> None:
    process = start(project, "train", *words(), ignored=True)
    wait_until(process, lambda: statuses(project) == ["RUNNING"])
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert process.poll() is None
    assert "Ctrl-C" not in terminate(process)
    assert statuses(project) == ["KILLED"]


@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]])
def test_a_sweep_and_its_jobs_end_as_killed(project: Path, launcher: list[str]) -> None:
    process = start(project, "train", "-m", *words(), "model.eta=0.1,0.2", *launcher)
    wait_until(process, lambda: "RUNNING" in statuses(project))
    terminate(process)
    assert statuses(project, "sweep") == ["KILLED"]
    assert set(statuses(project)) == {"KILLED"}


STAGE = """
import signal, sys, time
from pathlib import Path

def end(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, end)
try:
    Path("begun").touch()
    while not Path("quick").exists():
        time.sleep(0.05)
    Path("out").write_text("whole")
except KeyboardInterrupt:
    time.sleep(1.0)
    Path("put_away").touch()
    sys.exit(143)
"""


def test_the_pipeline_lets_its_stage_put_its_things_away(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("{}\n")
    (tmp_path / "params.yaml").write_text("hardware: []\nfeatures: []\nmodels: {}\nseeds: '0'\n")
    (tmp_path / "stage.py").write_text(STAGE)
    (tmp_path / "dvc.yaml").write_text(
        f"stages:\n  first:\n    cmd: {sys.executable} stage.py\n    outs: [out]\n"
        "  second:\n    cmd: cp out copy\n    deps: [out]\n    outs: [copy]\n"
    )
    dvc = [sys.executable, "-m", "dvc"]
    subprocess.run([*dvc, "init", "--no-scm", "--quiet"], cwd=tmp_path, check=True)
    process = start(tmp_path, "pipeline")
    wait_until(process, (tmp_path / "begun").exists)
    terminate(process)
    assert (tmp_path / "put_away").exists()
    assert not (tmp_path / "copy").exists()
    (tmp_path / "quick").touch()
    again = start(tmp_path, "pipeline")
    _, told = again.communicate()
    assert again.returncode == 0, told
    assert (tmp_path / "copy").read_text() == "whole"
