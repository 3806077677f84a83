"""Factors that operators take beside their operands, some of which TVM's PyTorch frontend reads: as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax

from tencost.networks.lowering import compilable, fuse
from tencost.networks.torch_modules import module_to_relax

pytestmark = pytest.mark.tvm
aten = torch.ops.aten
RNG = np.random.default_rng(0)


def factor() -> float:
    return float(RNG.uniform(0.2, 2.5))


def functions() -> dict[str, Callable[[Any, Any], Any]]:
    first, second, third = (factor() for _ in range(3))
    return {
        "selu": lambda x, _y: F.selu(x),
        "elu": lambda x, _y: F.elu(x, first),
        "elu, scaled": lambda x, _y: aten.elu(x, first, second),
        "elu, its input scaled": lambda x, _y: aten.elu(x, first, second, third),
        "celu": lambda x, _y: F.celu(x, first),
        "add": lambda x, y: torch.add(x, y, alpha=first),
        "add a number": lambda x, _y: torch.add(x, second, alpha=first),
        "add integers": lambda x, y: torch.add((3 * x).int(), (3 * y).int(), alpha=3),
        "add integers to floats": lambda x, y: torch.add(x, (3 * y).int(), alpha=first),
        "sub": lambda x, y: torch.sub(x, y, alpha=first),
        "sub a number": lambda x, _y: torch.sub(x, second, alpha=first),
        "rsub": lambda x, y: torch.rsub(x, y, alpha=first),
        "rsub from a number": lambda x, _y: torch.rsub(x, second, alpha=first),
    }


class All(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.functions = functions()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(function(x, y) for function in self.functions.values())


def test_factors_are_pytorchs(unoptimized: dict[str, Any]) -> None:
    module = All().eval()
    inputs = tuple(torch.from_numpy(3 * RNG.standard_normal((4, 33), np.float32)) for _ in "xy")
    mod, params = module_to_relax("factors", module, inputs)
    built = tvm.compile(compilable(fuse(mod)), target=tvm.target.Target(unoptimized))
    arguments = [tvm.runtime.tensor(each.numpy()) for each in inputs]
    outputs = relax.VirtualMachine(built, tvm.cpu())["main"](*arguments, *params)
    for name, output, expected in zip(module.functions, outputs, module(*inputs), strict=True):
        assert str(output.dtype) == expected.numpy().dtype.name, name
        np.testing.assert_allclose(
            output.numpy(), expected.numpy(), rtol=1e-5, atol=2e-6, err_msg=name
        )
