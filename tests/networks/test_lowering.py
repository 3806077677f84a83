"""What TVM gets wrong is written otherwise on import, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tencost.networks.lowering import compilable, fuse
from tencost.networks.torch_relax import module_to_relax

pytestmark = pytest.mark.tvm


def module(operator: str, dtype: str) -> Any:
    """Return ``main(a, b)`` of two vectors of four."""
    from tvm import relax

    taken = [relax.Var(name, relax.TensorType((4,), dtype)) for name in "ab"]
    builder = relax.BlockBuilder()
    with builder.function("main", taken):
        with builder.dataflow():
            found = builder.emit_output(getattr(relax.op, operator)(*taken))
        builder.emit_func_output(found)
    return fuse(builder.get())


COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
ARITHMETIC = ["add", "multiply", "maximum", "minimum"]


@pytest.mark.parametrize("operator", COMPARISONS + ARITHMETIC)
def test_truth_values_are_compared_and_combined(operator: str, target: dict[str, Any]) -> None:
    import tvm
    from tvm import relax

    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    built = tvm.compile(compilable(module(operator, "bool")), tvm.target.Target(target))
    found = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, (a, b)))
    np.testing.assert_array_equal(found.numpy(), getattr(np, operator)(a, b))


@pytest.mark.parametrize("operator", COMPARISONS + ARITHMETIC)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_other_functions_stay_what_they_are(operator: str, dtype: str) -> None:
    mod = module(operator, dtype)
    assert compilable(mod).same_as(mod)


class Module(torch.nn.Module):
    """Calls a function of one tensor."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.function(x),)


def imported(function: Any, x: torch.Tensor) -> Any:
    return compilable(fuse(module_to_relax("mine", Module(function).eval(), (x,))[0]))


def computed(mod: Any, x: torch.Tensor, target: dict[str, Any]) -> Any:
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target(target)), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x.numpy()))[0].numpy()


@pytest.mark.parametrize("function", [torch.cumsum, torch.sum, torch.all, torch.any])
def test_truth_values_are_counted(function: Any, target: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    counted = lambda x: function(x > 0, 1)  # noqa: E731
    found = computed(imported(counted, x), x, target)
    assert found.dtype == counted(x).numpy().dtype
    np.testing.assert_array_equal(found, counted(x).numpy())
