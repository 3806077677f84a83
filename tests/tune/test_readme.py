"""The snippet in the README runs as it stands, but for the model's address and the number of trials."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.tvm
def test_the_snippet_runs(tmp_path: Path, make_bundle: Callable[[str], Path]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    snippet = next(block for block in blocks if "load_cost_model" in block)
    for written, used in (
        ("models:/tencost-epyc-avx512-1c@champion", str(make_bundle("xgb"))),
        ("max_trials_global=64", "max_trials_global=4"),
    ):
        assert snippet.count(written) == 1
        snippet = snippet.replace(written, used)
    # Registering the intrinsics of CPUs only saves the test 16 s.
    quick = "from tencost.features.intrinsics import register_cpu_intrinsics\nregister_cpu_intrinsics()\n"
    check = "\nassert len(database) == 4 and model.history, len(database)\n"
    done = subprocess.run(
        [sys.executable, "-c", quick + snippet + check],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
