"""What TVM gets wrong is written otherwise on import, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm_ffi

from relax_networks import run, written
from tencost.networks import lowering
from tencost.networks.lowering import compilable, fuse
from tencost.networks.torch_modules import module_to_relax

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


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
@pytest.mark.parametrize("operator", ["equal", "not_equal"])
def test_a_comparison_with_itself_asks_what_is_no_number(
    operator: str, dtype: str, target: dict[str, Any]
) -> None:
    """Exporters write isnan so; TVM makes a constant of it."""
    import tvm
    from tvm import relax

    a = relax.Var("a", relax.TensorType((4,), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [a]):
        with builder.dataflow():
            output = builder.emit_output(getattr(relax.op, operator)(a, a))
        builder.emit_func_output(output)
    values = np.array([1, 0, 3, 4] if dtype == "int32" else [1, np.nan, 3, np.inf]).astype(dtype)
    built = tvm.compile(compilable(fuse(builder.get())), tvm.target.Target(target))
    found = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(values))
    np.testing.assert_array_equal(found.numpy(), getattr(np, operator)(values, values))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
@pytest.mark.parametrize("operator", ["divide", "floor_divide", "floor_mod", "mod"])
def test_integers_are_divided_by_zero_as_in_numpy(
    operator: str, dtype: str, target: dict[str, Any]
) -> None:
    """A CPU ends the process, as it does where the least number is divided by -1."""
    import tvm
    from tvm import relax

    least, opposite = np.iinfo(dtype).min, np.array(-1).astype(dtype)
    a = np.array([7, least, 0, 9], dtype)
    b = np.array([0, opposite, 0, 2], dtype)
    built = tvm.compile(compilable(module(operator, dtype)), tvm.target.Target(target))
    found = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, (a, b)))
    whole = {"divide": np.floor_divide, "floor_mod": np.mod, "mod": np.fmod}
    with np.errstate(divide="ignore", over="ignore"):
        expected = whole.get(operator, np.floor_divide)(a, b)
    assert found.numpy().dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("operator", ["divide", "floor_divide", "floor_mod", "mod"])
@pytest.mark.parametrize("divisors", [[2, -1, 0], -1])
def test_constants_that_end_the_process_are_no_divisors(
    operator: str, divisors: Any, target: dict[str, Any]
) -> None:
    from tvm import relax

    values, b = np.array([7, -(2**63), 9]), np.array(divisors)
    mod = written(
        [(3,)], lambda x: getattr(relax.op, operator)(x, relax.const(b, "int64")), "int64"
    )
    whole = {"floor_mod": np.mod, "mod": np.fmod}
    with np.errstate(divide="ignore", over="ignore"):
        expected = whole.get(operator, np.floor_divide)(values, b)
    np.testing.assert_array_equal(run(compilable(fuse(mod)), [values], target), expected)


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

    def counted(x: Any) -> Any:
        return function(x > 0, 1)

    found = computed(imported(counted, x), x, target)
    assert found.dtype == counted(x).numpy().dtype
    np.testing.assert_array_equal(found, counted(x).numpy())


POOLS: list[tuple[Any, int, int]] = [
    (torch.nn.AvgPool2d(40, ceil_mode=True), 6, 7),
    (torch.nn.AvgPool2d(40, ceil_mode=True, count_include_pad=False), 6, 7),
    (torch.nn.AvgPool2d(40, ceil_mode=True, padding=2), 10, 11),
    (torch.nn.AvgPool2d(40, ceil_mode=True, padding=2, count_include_pad=False), 10, 11),
    (torch.nn.AvgPool2d((40, 3), (40, 2), ceil_mode=True), 6, 9),
    (torch.nn.MaxPool2d(40, ceil_mode=True, padding=3), 12, 13),
]


@pytest.mark.parametrize(
    ("pool", "height", "width"), POOLS, ids=[str(pool) for pool, _, _ in POOLS]
)
def test_a_window_ends_with_its_input(
    pool: Any, height: int, width: int, target: dict[str, Any]
) -> None:
    from tvm import IRModule, tirx
    from tvm.s_tir.analysis import estimate_tir_flops

    padding = 2 * int(pool.padding) if isinstance(pool.padding, int) else 0
    x = torch.from_numpy(
        np.random.default_rng(0).standard_normal(
            (1, 3, height - padding, width - padding), np.float32
        )
    )
    mod = imported(pool, x)
    expected = pool(x).numpy()
    np.testing.assert_allclose(computed(mod, x, target), expected, rtol=1e-5, atol=1e-6)
    functions = [one for one in mod.functions.values() if isinstance(one, tirx.PrimFunc)]
    flop = sum(estimate_tir_flops(IRModule({"main": one})) for one in functions)
    assert flop < 12 * height * width * 3, "40 x 40 values were read"


def test_other_windows_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [
        torch.nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        torch.nn.AvgPool2d(7),
        torch.nn.MaxPool2d(3, 2, 1),
    ]
    x = torch.ones(1, 3, 7, 7)
    mods = [module_to_relax("mine", Module(pool).eval(), (x,))[0] for pool in pools]
    found = list(map(fuse, mods))
    monkeypatch.setattr(lowering, "_repaired", lambda mod: mod)
    for mod, one in zip(mods, found, strict=True):
        assert tvm_ffi.structural_equal(one, fuse(mod))


@pytest.mark.parametrize("squashed", [torch.tanh, torch.sigmoid, torch.relu])
def test_values_that_are_read_twice_again_and_again_are_stored_in_between(
    squashed: Any, target: dict[str, Any]
) -> None:
    """Twelve doublings in one function took LLVM minutes, twenty more than a day."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = 0.3 * (x + squashed(x))
        return x

    from tvm import relax

    x = torch.linspace(-1, 1, 48).reshape(3, 16)
    mod = imported(chain, x)
    functions = [name for name, one in mod.functions.items() if not isinstance(one, relax.Function)]
    assert len(functions) > 1
    np.testing.assert_allclose(computed(mod, x, target), chain(x).numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("activation", ["gelu", "mish", "silu", "hardswish", "softplus"])
def test_an_activation_and_what_follows_it_are_one_function(activation: str) -> None:
    from tvm import relax

    def activated(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch.nn.functional, activation)(x + 1) * 2 + x

    mod = imported(activated, torch.ones(3, 16))
    assert len([one for one in mod.functions.values() if not isinstance(one, relax.Function)]) == 1
