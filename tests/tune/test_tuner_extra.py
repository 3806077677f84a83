"""What tencost[tuner] has is enough to load a bundle and to run `tencost tune`; nothing else is imported.

The processes started here, and the workers that they start, find no package that tencost[tuner] does not install.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from installed import environment_of
from relax_networks import two_layers
from tencost.networks.sources.saved import save_network

ABSENT = {
    "torch", "torchvision", "lightning", "pytorch_lightning", "transformers", "dvc", "deltalake", "duckdb",
    "polars", "pyarrow", "pandas", "matplotlib", "zstandard", "optuna", "joblib", "sklearn",
}  # fmt: skip
"""Not in tencost[tuner], whatever else is not."""
SCRIPT = """
import sys
import tencost, tvm
from tencost.programs.trace.intrinsics import register_cpu_intrinsics  # only to save this test 17 s
from tencost.workers.runner import WarmBuilder, WarmRunner
from tvm import te
from tvm.s_tir import meta_schedule as ms

register_cpu_intrinsics()
a = te.placeholder((32, 32), name="A")
k = te.reduce_axis((0, 32), name="k")
c = te.compute((32, 32), lambda i, j: te.sum(a[i, k] * a[k, j], axis=k), name="c")
model = tencost.load_cost_model(sys.argv[1])
database = ms.tune_tir(
    te.create_prim_func([a, c]), target={"kind": "llvm", "num-cores": 1}, work_dir=sys.argv[2],
    max_trials_global=8, num_trials_per_iter=4, cost_model=model, builder=WarmBuilder(), runner=WarmRunner(),
    strategy=ms.search_strategy.EvolutionarySearch(population_size=8, init_min_unmeasured=4, genetic_num_iters=1),
    num_tuning_cores=1,
)
assert len(database) == 8 and len(model.history) == 2, (len(database), model.history)
"""
QUICK = (
    "tuner.trials=8", "tuner.population=8", "tuner.generations=1", "tuner.min_mflop=0.003", "tuner.number=1",
    "tuner.repeat=1", "tuner.min_repeat_ms=0", "jobs=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def tuner_only(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment for processes that find nothing beyond tencost[tuner]."""
    return environment_of(tmp_path_factory.mktemp("tuner"), "tuner", also_absent=ABSENT)


def run(
    arguments: list[str], environment: dict[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.tvm
@pytest.mark.parametrize("family", ["xgb", "tlp"])
def test_a_bundle_is_loaded_and_steers_a_search(
    tmp_path: Path,
    tuner_only: dict[str, str],
    make_bundle: Callable[[str], Path],
    family: str,
) -> None:
    done = run(["-c", SCRIPT, str(make_bundle(family)), str(tmp_path)], tuner_only)
    assert done.returncode == 0, done.stderr[-3000:]


def test_nothing_else_is_found(tuner_only: dict[str, str]) -> None:
    code = (
        "import importlib.util as u, sys; import numpy; "
        f"print([name for name in {sorted(ABSENT)!r} if u.find_spec(name)])"
    )
    assert run(["-c", code], tuner_only).stdout == "[]\n"
    assert "'torch', " in run(["-c", code]).stdout
    assert "No module named 'torch'" in run(["-c", "import torch"], tuner_only).stderr


@pytest.mark.tvm
def test_tencost_tune_runs_to_the_end(
    tmp_path: Path,
    tuner_only: dict[str, str],
    make_bundle: Callable[[str], Path],
    mlflow_database: Path,
) -> None:
    shutil.copytree(make_bundle("xgb"), tmp_path / "model")
    save_network(two_layers(), tmp_path / "small.npz")
    (tmp_path / "mlruns").mkdir()
    shutil.copy(mlflow_database, tmp_path / "mlruns" / "mlflow.db")  # making one takes seconds
    words = ["network=saved", "network.path=small.npz", "hardware=local", "model_uri=model", *QUICK]
    done = run(["-m", "tencost.cli", "tune", *words], tuner_only, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    told = done.stderr
    assert told.count("a live record store needs polars, which is not installed") == 1
    assert told.count("no plots: they need matplotlib, which is not installed") == 1
    assert told.count("pip install 'tencost[pipeline]'") == 2
    assert "Traceback" not in told

    folder = tmp_path / "tuned" / "small-local"
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert (report["network"], report["model"], report["trials"]) == ("small", "model", 8)
    assert report["max_rel_error"] < 1e-4
    assert report["network_latency_s"] > 0
    assert report["network_rules_latency_s"] > 0
    assert len((folder / "database_tuning_record.json").read_text().splitlines()) == 8
    assert not list(folder.glob("*.png"))
    assert not (tmp_path / "data").exists()
    with sqlite3.connect(tmp_path / "mlruns" / "mlflow.db") as connection:
        runs = connection.execute("select name, status from runs").fetchall()
    connection.close()
    assert runs == [("tune · small-local", "FINISHED")]


READ = """
import sys
from tencost.config import NetworkConfig
from tencost.networks.network import load_network

network = load_network(NetworkConfig(name="mine", source="onnx", path=sys.argv[1]))
print([array.shape for array in network.expected], [len(array) for array in network.expected])
"""


@pytest.mark.tvm
def test_an_onnx_file_is_read(tmp_path: Path, tuner_only: dict[str, str]) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    weights = numpy_helper.from_array(np.eye(4, 6, dtype="float32"), "w")
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (2, 4)), ("y", (2, 6)))
    )
    graph = helper.make_graph(nodes, "mine", [x], [y], [weights])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "mine.onnx")
    done = run(["-c", READ, str(tmp_path / "mine.onnx")], tuner_only)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[(2, 6)] [2]\n"


def test_importing_tencost_loads_nothing_heavy() -> None:
    code = (
        "import sys, tencost; "
        "assert not {'tvm', 'torch', 'numpy', 'xgboost', 'mlflow'} & set(sys.modules)"
    )
    done = run(["-c", code])
    assert done.returncode == 0, done.stderr
