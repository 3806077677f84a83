"""nn.Modules imported into Relax and compiled by TVM alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tencost.networks.torch_modules import module_to_relax


def compiled(module: nn.Module, *tensors: Tensor) -> list[Tensor]:
    """Return a module's outputs for these inputs, as TVM computes them with its default schedules."""
    import tvm
    from tvm import relax

    mod, params = module_to_relax("mine", module.eval(), tensors)
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    inputs = [tvm.runtime.tensor(tensor.numpy()) for tensor in tensors]
    return [torch.from_numpy(output.numpy()) for output in machine["main"](*inputs, *params)]
