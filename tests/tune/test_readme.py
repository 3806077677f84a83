"""The script in the README runs as it is printed, in a project whose registry has the model that it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

import tencost
from tencost.programs.starting_points import StartBook
from tencost.programs.trace.instructions import trace_values
from tencost.register import registry
from tencost.register.start_records import ship
from tencost.tracking import runs as tracking

README = Path(__file__).resolve().parents[2] / "README.md"
HARDWARE = "local"
"""What load_cost_model() looks for first."""

pytestmark = pytest.mark.tvm


def script() -> str:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    return next(block for block in blocks if "load_cost_model" in block)


@pytest.fixture
def shipped(
    tmp_path: Path,
    make_bundle: Callable[..., Path],
    candidates: Sequence[Any],
    target: dict[str, Any],
) -> Path:
    """A bundle with starting points of programs that were compiled for this host."""
    programs = [
        ("0" * 32, 1e-4 * (1 + place), trace_values(one.sch.trace))
        for place, one in enumerate(candidates[:8])
    ]
    book = StartBook.of(HARDWARE, target, programs)
    return ship(make_bundle("xgb", HARDWARE), book, tmp_path / "shipped")


@pytest.fixture
def project(
    tmp_path: Path, mlflow_database: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A project whose registry has that bundle as the champion of the README's hardware."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = tmp_path / "project"
    (root / "mlruns").mkdir(parents=True)
    (root / "mlruns" / "mlflow.db").write_bytes(mlflow_database.read_bytes())
    client = registry.connect(tracking.setup(root))
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
    version, _ = registry.register_offer(
        client,
        registry.bundle_offer(shipped, "a test"),
        run_id=client.create_run(experiment).info.run_id,
        description="a test",
    )
    registry.promote(client, version)
    return root


def with_a_gelu(printed: str) -> str:
    """Return the script for a product with a GELU behind it, whose erf TVM leaves to libm, and for fewer programs."""
    changes = {
        'tvm.IRModule({"main": te.create_prim_func([a, b, c])})': "gelu_of(c)",
        "max_trials_global=64": "max_trials_global=16",
        "num_trials_per_iter=16": "num_trials_per_iter=8",
        "x @ y": "(x @ y) * (1 + special.erf(x @ y))",
    }
    for before, after in changes.items():
        assert printed.count(before) == 1, before
        printed = printed.replace(before, after)
    head = """
from scipy import special

def gelu_of(c):
    d = te.compute(c.shape, lambda i, j: c[i, j] * (1.0 + te.erf(c[i, j])), name="gelu")
    return tvm.IRModule({"main": te.create_prim_func([a, b, d])})
"""
    return head + printed


@pytest.mark.parametrize("variant", ["as printed", "with a GELU"])
def test_the_script_runs_as_it_is_printed(
    variant: str, project: Path, target: dict[str, Any]
) -> None:
    text, trials, batch = script(), 64, 16
    if variant == "with a GELU":
        text, trials, batch = with_a_gelu(text), 16, 8
    check = f"""
import json, sys
assert len(database) == {trials}, len(database)
rounds = [finished.num_measured for finished in model.history]
assert sum(rounds) == {trials} and max(rounds) <= {batch}, rounds
found = {{key: value for key, value in json.loads(str(model.target)).items() if key in {target!r}}}
assert found == {target!r}, found
loaded = [name for name in sys.modules if name.startswith("tvm.s_tir.tensor_intrin.")]
assert "tvm.s_tir.tensor_intrin.x86" in loaded and "tvm.s_tir.tensor_intrin.cuda" not in loaded, loaded
from tencost.workers.worker import build
code = [
    built.mod.inspect_source("asm")
    for built in (tvm.compile(fastest.mod, target=model.target), build(fastest.mod, {target!r}))
]
assert "erff" not in code[0] and code[0] == code[1], "the workers compile otherwise"
"""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:tencost", "-c", text + check],
        cwd=project,
        env={**os.environ, "XDG_CACHE_HOME": str(project / "cache")},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()[-2:]
    assert all(re.fullmatch(r"(without a schedule|tuned): \d+ us", line) for line in lines), lines


def test_the_script_imports_of_tencost_what_is_its_own() -> None:
    imports = [line for line in script().splitlines() if "import" in line and "tencost" in line]
    assert imports == ["import tencost"]
    used = re.findall(r"tencost\.(\w+)", script())
    assert {"WarmBuilder", "WarmRunner", "load_cost_model", "search", "search_space"} <= set(used)
    assert set(used) <= set(dir(tencost))


def test_importing_tencost_loads_nothing_heavy() -> None:
    check = "import sys, tencost; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    heavy = {"tvm", "numpy", "xgboost", "mlflow", "torch", "polars", "scipy", "omegaconf"}
    assert not heavy & set(done.stdout.split())


def test_a_loaded_model_says_what_it_was_trained_for(shipped: Path, target: dict[str, Any]) -> None:
    from tvm.target import Target

    from tencost.workers.runner import target_mapping

    model = tencost.load_cost_model(shipped)
    assert isinstance(model.target, Target)
    assert target_mapping(model.target) == target


def test_starting_points_of_no_target_that_tvm_knows_are_refused(
    make_bundle: Callable[..., Path], candidates: Sequence[Any], tmp_path: Path
) -> None:
    from tencost.errors import BundleError

    programs = [("0" * 32, 1e-4, orjson.loads(orjson.dumps(trace_values(candidates[0].sch.trace))))]
    book = StartBook.of(HARDWARE, {"kind": "llvm", "no-such-field": 1}, programs)
    with pytest.raises(BundleError, match="no-such-field"):
        tencost.load_cost_model(ship(make_bundle("xgb"), book, tmp_path / "odd"))


def test_tuning_for_another_target_is_a_warning_that_says_what_to_write(
    shipped: Path, context: Any, candidates: Sequence[Any], matmul: Any
) -> None:
    import warnings

    from tvm.s_tir import meta_schedule as ms

    model = tencost.load_cost_model(shipped)
    plain = ms.TuneContext(
        mod=matmul, target={"kind": "llvm", "num-cores": 1}, task_name="matmul", num_threads=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(context, candidates)
    with pytest.warns(UserWarning, match=r"matmul .*target=model\.target.*search_space") as told:
        model.predict(plain, candidates)
    assert HARDWARE in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(plain, candidates)  # once is enough
        chosen = tencost.load_cost_model(shipped, device={})
        chosen.predict(plain, candidates)  # whoever describes the device has chosen the target
