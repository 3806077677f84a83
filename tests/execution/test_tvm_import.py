"""TVM without PyTorch: half of a process's start; PyTorch can be imported after it, and its tensors be given to TVM."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from tencost.workers.parallel.tvm_import import leave_out_torch
leave_out_torch()
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
