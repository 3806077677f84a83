"""The wheel and tencost[tuner]'s packages tune an operator, offline and without a registry."""

from __future__ import annotations

import hashlib
import os
import runpy
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from installed import environment_of
from tencost.register.champions import FOLDER

ROOT = Path(__file__).resolve().parents[2]
NO_NETWORK = {f"{name}_proxy": "http://127.0.0.1:9" for name in ("http", "https", "all")}
MINUTES = 5
WORDS = [
    "network=onnx", "network.path=matmul.onnx", "hardware=local", "tuner.trials=8", "tuner.population=16",
    "tuner.generations=1", "tuner.number=1", "tuner.repeat=1", "tuner.min_repeat_ms=0", "jobs=1",
]  # fmt: skip

pytestmark = [pytest.mark.tvm, pytest.mark.slow]


def write_matmul(path: Path) -> None:
    """Write an ONNX file of one product, [64, 64] times [64, 128]."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (64, 64)), ("y", (64, 128)))
    )
    weights = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "matmul", [x], [y], [numpy_helper.from_array(weights, "w")])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = ROOT / "benchmarks" / "tuner_versions.py"
    return Path(runpy.run_path(str(script))["build"](tmp_path_factory.mktemp("wheel") / "built"))


def test_the_wheel_has_the_champions(wheel: Path) -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert files
    with zipfile.ZipFile(wheel) as archive:
        for path in files:
            member = archive.read(str(Path("tencost", "champions") / path.relative_to(FOLDER)))
            assert hashlib.sha256(member).digest() == hashlib.sha256(path.read_bytes()).digest()
    assert wheel.stat().st_size < 8e6


def test_five_minutes_to_a_tuned_operator(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    (tmp_path / "hidden").mkdir()
    environment = environment_of(tmp_path / "hidden", "tuner") | NO_NETWORK
    environment |= {
        "PYTHONPATH": os.pathsep.join((str(tmp_path / "hidden"), str(installed))),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    empty = tmp_path / "empty"
    empty.mkdir()
    write_matmul(empty / "matmul.onnx")
    where = "import tencost; print(tencost.__file__)"
    started = time.monotonic()
    loaded, tuned = (
        subprocess.run(
            [sys.executable, *words],
            cwd=empty, env=environment, capture_output=True, text=True, timeout=60 * MINUTES, check=False,
        )
        for words in (["-c", where], ["-m", "tencost.cli", "tune", *WORDS])
    )  # fmt: skip
    assert loaded.stdout.startswith(str(installed)), loaded.stderr
    assert tuned.returncode == 0, tuned.stderr[-3000:]
    assert time.monotonic() - started < 60 * MINUTES
    assert "packaged with tencost, trained on" in tuned.stderr
    assert "model packaged:/tencost-" in tuned.stderr
    database = empty / "tuned" / "matmul-local" / "database_tuning_record.json"
    assert len(database.read_text().splitlines()) == 8
