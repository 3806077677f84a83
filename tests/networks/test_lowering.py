"""What TVM gets wrong is written otherwise on import, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tencost.networks.lowering import compilable, fuse

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
