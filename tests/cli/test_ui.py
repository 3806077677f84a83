"""`tencost ui`: the port that it listens on, and what it says before MLflow starts."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tencost import cli
from tencost.cli.servers import _port_to_listen_on


@pytest.fixture
def occupied() -> socket.socket:
    """A port of loopback that somebody listens on."""
    return socket.create_server(("127.0.0.1", 0))


def test_a_port_that_is_taken_is_refused_before_anything_is_promised(
    occupied: socket.socket, toy_project: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(toy_project)
    port = occupied.getsockname()[1]
    with occupied, pytest.raises(SystemExit) as stop:
        cli.main(["ui", "--port", str(port)])
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert f"expected to listen on 127.0.0.1 port {port}" in message
    assert "Address already in use" in message
    assert "http://" not in message


def test_a_folder_where_nothing_has_run_gets_no_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        cli.main(["ui"])
    assert stop.value.code == 2
    assert "nothing has run here. Run `tencost pipeline` in a project" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_default_port_that_is_taken_becomes_another(occupied: socket.socket) -> None:
    port = occupied.getsockname()[1]
    with occupied:
        match = _port_to_listen_on("127.0.0.1", port, or_another=True)
    assert match not in (0, port)


@pytest.mark.slow
def test_the_page_that_it_names_is_served_and_about_training(toy_project: Path) -> None:
    (toy_project / "conf").mkdir()
    (toy_project / "conf" / "config.yaml").write_text("{}\n")
    command = [sys.executable, "-m", "tencost.cli", "ui", "--port", "0"]
    with subprocess.Popen(command, cwd=toy_project, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            match = re.search(r"(http://127\.0\.0\.1:\d+)(/#/experiments/\d+/runs\?\S+)", line)
            assert match is not None, line
            assert match[2].endswith("&workflowType=machine_learning")
            for _ in range(600):
                try:
                    with urllib.request.urlopen(f"{match[1]}/health", timeout=5) as answer:
                        assert answer.read() == b"OK"
                    break
                except OSError:
                    assert process.poll() is None, process.stderr.read()
                    time.sleep(0.1)
            else:
                pytest.fail("the page is not served")
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def test_the_workflow_is_one_that_this_mlflow_knows() -> None:
    mlflow = pytest.importorskip("mlflow")
    from tencost.evaluate.runs_view import WORKFLOW

    scripts = Path(mlflow.__file__).parent / "server" / "js" / "build" / "static" / "js"
    if not scripts.is_dir():
        pytest.skip("this MLflow has no pages")
    main = next(scripts.glob("main.*.js")).read_text()
    assert f'"{WORKFLOW}"' in main
    assert '"workflowType"' in main
