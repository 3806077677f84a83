"""TVM without PyTorch and XGBoost without scikit-learn: what is left out can be imported after it, or before."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from tencost.workers.parallel.lean_imports import leave_out_unused
leave_out_unused()
import tvm_ffi
import tvm.relax
assert "torch" not in sys.modules
import torch
from tvm.relax.frontend.torch import from_exported_program
layer = torch.nn.Linear(4, 2)
mod = from_exported_program(torch.export.export(layer, (torch.ones(1, 4),)))
assert "matmul" in mod.script()
assert tvm_ffi.from_dlpack(layer.weight.detach()).shape == (2, 4)
"""


@pytest.mark.slow
def test_torch_is_left_out_and_can_be_imported_afterwards() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


XGBOOST = """
import sys
from tencost.workers.parallel.lean_imports import leave_out_unused
leave_out_unused()
{first}
import xgboost
print("sklearn" in sys.modules)
from sklearn.base import BaseEstimator
print(issubclass(xgboost.XGBRegressor, BaseEstimator))
rows = xgboost.DMatrix([[0.0], [1.0]], [0.0, 1.0])
xgboost.train({{"nthread": 1}}, rows, num_boost_round=1).predict(rows)
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "import sklearn"])
def test_scikit_learn_is_left_out_unless_it_is_imported_before(first: str) -> None:
    command = [sys.executable, "-c", XGBOOST.format(first=first)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(bool(first))] * 2
