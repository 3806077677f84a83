"""Runs of killed processes are closed by the next command that connects; those of other processes are left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tencost.tracking.runs import EXPERIMENT, parent_run, setup

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="only Linux tells processes apart"
)

HOLDER = """
import sys
from pathlib import Path
from tencost.tracking.runs import parent_run
with parent_run(Path(sys.argv[1]), "a sweep") as run_id:
    print(run_id, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(toy_project: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds a run open until its standard input ends, and the run's id."""
    setup(toy_project)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(toy_project)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        assert run_id
        yield process, run_id
        process.kill()


def status_of(root: Path, run_id: str) -> str:
    uri = f"sqlite:///{root / 'mlruns' / 'mlflow.db'}"
    return str(MlflowClient(tracking_uri=uri).get_run(run_id).info.status)


def test_a_killed_run_is_closed_by_the_next_command(
    toy_project: Path, holder: tuple[subprocess.Popen[str], str]
) -> None:
    process, run_id = holder
    setup(toy_project)
    assert status_of(toy_project, run_id) == "RUNNING"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert status_of(toy_project, run_id) == "RUNNING"
    setup(toy_project, "another experiment")
    run = MlflowClient(tracking_uri=setup(toy_project)).get_run(run_id)
    assert run.info.status == "KILLED"
    assert run.info.end_time
    assert run.data.tags["error"] == "its process ended without closing it"


def test_a_killed_run_is_closed_on_a_server_s_store(
    toy_project: Path,
    holder: tuple[subprocess.Popen[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process, run_id = holder
    process.kill()
    process.wait()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{toy_project / 'mlruns' / 'mlflow.db'}")
    setup(tmp_path)
    assert status_of(toy_project, run_id) == "KILLED"


def test_a_run_that_ended_keeps_its_status(
    toy_project: Path, holder: tuple[subprocess.Popen[str], str]
) -> None:
    process, run_id = holder
    process.communicate()
    setup(toy_project)
    assert status_of(toy_project, run_id) == "FINISHED"


def edited(client: Any, run_id: str, **changes: Any) -> None:
    about = json.loads(client.get_run(run_id).data.tags["tencost.process"])
    assert set(changes) <= set(about)
    client.set_tag(run_id, "tencost.process", json.dumps({**about, **changes}))


@pytest.mark.parametrize(
    ("changes", "closed"),
    [
        ({}, False),
        ({"start": 1}, True),
        ({"boot": "the one before"}, True),
        ({"host": "another", "start": 1}, False),
        ({"host": "another", "boot": "another"}, False),
        ({"space": "pid:[1]", "start": 1}, False),
        ({"pid": "?"}, False),
    ],
)
def test_only_a_process_that_is_certainly_gone_loses_its_run(
    toy_project: Path, changes: dict[str, Any], closed: bool
) -> None:
    client = MlflowClient(tracking_uri=setup(toy_project))
    with parent_run(toy_project, "a sweep") as run_id:
        edited(client, run_id, **changes)
        setup(toy_project)
        assert client.get_run(run_id).info.status == ("KILLED" if closed else "RUNNING")
    experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
    foreign = client.create_run(experiment).info.run_id
    setup(toy_project)
    assert client.get_run(foreign).info.status == "RUNNING"
