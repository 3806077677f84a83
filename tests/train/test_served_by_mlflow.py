"""`mlflow models serve` with a model as training logs it: MLflow's own server, asked over HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tencost import __version__
from tencost.features.rows.ragged import Ragged
from tencost.models.programs.bundle import load_bundle
from tencost.models.programs.bundle.pyfunc_model import requirement, save_pyfunc
from tencost.models.programs.families.xgb import XgbConfig
from tencost.tracking.provenance import installed_versions

PROGRAMS = Ragged(
    np.array([[0.31, 0.7], [0.62, 0.1], [0.93, 0.4], [0.5, 0.5]], np.float32),
    np.array([0, 0, 1, 3, 4]),
)


def post(url: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.fixture
def model(tmp_path: Path, train_toy: Callable[..., Path]) -> tuple[Path, Path]:
    """A model's folder, and the bundle in it; the first of its example's programs has no rows."""
    config = XgbConfig(family="xgb", reads=["toy"], num_rounds=4, num_threads=1)
    folder = tmp_path / "model"
    trained = train_toy("xgb", config, seeds=(0,), versions=installed_versions())
    save_pyfunc(folder, trained / "seed0", PROGRAMS)
    return folder, folder / "artifacts" / "seed0"


@pytest.mark.slow
def test_mlflow_serves_a_model(model: tuple[Path, Path], tmp_path: Path) -> None:
    folder, bundle = model
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["models", "serve", "-m", str(folder), "--env-manager", "local", "-p", str(port)]
    log = (tmp_path / "log").open("w+")
    # Its server is a child of a shell: both are ended as one group.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *words],
        stdout=log, stderr=log, start_new_session=True, env={**os.environ, "PATH": path},
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        example = json.loads((folder / "serving_input_example.json").read_text())
        code, found = post(f"{url}/invocations", example)
        log.seek(0)
        assert code == 200, (found, log.read())
        wanted = load_bundle(bundle).scores(PROGRAMS.take(np.array([1, 2])))
        assert [one["score"] for one in found["predictions"]] == wanted.tolist()
        code, found = post(
            f"{url}/invocations", {"dataframe_split": {"columns": ["program"], "data": [[1]]}}
        )
        assert code == 400
        assert "speed" in found["message"]
        assert post(f"{url}/invocations", example)[0] == 200
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)
        log.close()


def test_a_model_without_programs_has_no_example(
    tmp_path: Path, train_toy: Callable[..., Path]
) -> None:
    config = XgbConfig(family="xgb", reads=["toy"], num_rounds=4, num_threads=1)
    bundle = train_toy("xgb", config, seeds=(0,)) / "seed0"
    empty = Ragged(np.zeros((0, 2), np.float32), np.array([0, 0]))
    for name, programs in (("none", None), ("empty", empty)):
        save_pyfunc(tmp_path / name, bundle, programs)
        assert not list((tmp_path / name).glob("*input_example*"))


def test_its_environment_names_what_it_needs(model: tuple[Path, Path]) -> None:
    """A bare tencost has neither the libraries of the families nor TVM."""
    requirements = (model[0] / "requirements.txt").read_text().split()
    assert f"tencost[tuner]=={__version__}" in requirements


def test_a_version_that_nobody_knows_is_not_asked_for() -> None:
    assert requirement("tuner", {"tencost": "0.1.0"}) == "tencost[tuner]==0.1.0"
    assert requirement("graphs", {}) == "tencost[graphs]"


@pytest.mark.parametrize(("asked", "told"), [(None, False), ("tencost[tuner]==0", True)])
def test_mlflow_finds_nothing_wrong_with_its_environment(
    asked: str | None, told: bool, model: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    import mlflow.pyfunc

    if asked is not None:
        requirements = model[0] / "requirements.txt"
        written = f"tencost[tuner]=={__version__}"
        requirements.write_text(requirements.read_text().replace(written, asked))
    capfd.readouterr()
    mlflow.pyfunc.load_model(str(model[0]))
    assert ("required: tencost[tuner]" in capfd.readouterr().err) is told
