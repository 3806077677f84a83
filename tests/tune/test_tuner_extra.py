"""What tencost[tuner] has is enough to load a bundle and tune; nothing else may be imported on the way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ABSENT = (
    "torch", "torchvision", "lightning", "pytorch_lightning", "transformers", "dvc", "deltalake", "duckdb",
    "polars", "pyarrow", "pandas", "matplotlib", "onnx", "onnxscript", "zstandard", "optuna", "joblib", "sklearn",
)  # fmt: skip
BLOCK = f"""
import importlib.abc, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}: not part of tencost[tuner]", name=name)
sys.meta_path.insert(0, Absent())
"""
SCRIPT = """
import sys
import tencost, tvm
from tencost.features.intrinsics import register_cpu_intrinsics  # only to save this test 17 s
from tencost.measure.runner import WarmBuilder, WarmRunner
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


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.tvm
@pytest.mark.parametrize("family", ["xgb", "tlp"])
def test_a_bundle_is_loaded_and_steers_a_search(
    tmp_path: Path, make_bundle: Callable[[str], Path], family: str
) -> None:
    done = run(BLOCK + SCRIPT, str(make_bundle(family)), str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]


def test_importing_tencost_loads_nothing_heavy() -> None:
    code = (
        "import sys, tencost; "
        "assert not {'tvm', 'torch', 'numpy', 'xgboost', 'mlflow'} & set(sys.modules)"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
