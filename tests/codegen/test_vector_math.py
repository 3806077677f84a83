"""exp, erf, tanh, sigmoid and powers as vectors: the values of libm, infinities and NaN, lanes, other types."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from scipy import special
from tvm import te, tirx

from tencost.programs.codegen import vector_math

pytestmark = pytest.mark.tvm
PLACES = {
    "exp": (tirx.exp, np.exp),
    "erf": (tirx.erf, special.erf),
    "tanh": (tirx.tanh, np.tanh),
    "sigmoid": (tirx.sigmoid, special.expit),
    "cube": (lambda x: tirx.power(x, tirx.const(3.0, x.dtype)), lambda x: x**3),
    "root": (lambda x: tirx.power(x, tirx.const(0.5, x.dtype)), np.sqrt),
}


def executable(function: Any, size: int, kind: str, lanes: int, target: dict[str, Any]) -> Any:
    data = te.placeholder((size,), kind)
    mod = tvm.IRModule(
        {"main": te.create_prim_func([data, te.compute((size,), lambda i: function(data[i]))])}
    )
    schedule = tvm.s_tir.Schedule(mod)
    if lanes > 1:
        (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
        _, inner = schedule.split(schedule.get_loops(block)[0], [None, lanes])
        schedule.vectorize(inner)
    return tvm.compile(schedule.mod, target=tvm.target.Target(target))


def computed(
    function: Callable[[Any], Any], values: Any, target: dict[str, Any], lanes: int = 1
) -> Any:
    vector_math.register_vector_math()
    library = executable(function, values.size, values.dtype.name, lanes, target).jit()
    output = tvm.runtime.empty(values.shape, values.dtype.name)
    library["main"](tvm.runtime.tensor(values), output)
    return output.numpy()


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("name", PLACES)
def test_it_is_libms_within_a_few_units_in_the_last_place(
    name: str, lanes: int, target: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.uniform(-87, 88, 4000), rng.normal(0, 1, 4000), rng.normal(0, 1e-3, 4000)]
    values = np.concatenate([*parts, [0.0, -0.0, 1e-30, -1e-30] * 24]).astype(np.float32)
    values = np.abs(values) if name == "root" else values
    function, reference = PLACES[name]
    found = computed(function, values, target, lanes)
    expected = reference(values.astype(np.float64))
    told = np.abs(expected) > 1e-37
    assert np.max(np.abs(found[told] / expected[told] - 1)) < 4e-7
    assert np.all(np.abs(found[~told]) < 2e-37)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exp", [np.inf, 0.0, np.nan, np.inf, 0.0]),
        ("erf", [1.0, -1.0, np.nan, 1.0, -1.0]),
        ("tanh", [1.0, -1.0, np.nan, 1.0, -1.0]),
        ("sigmoid", [1.0, 0.0, np.nan, 1.0, 0.0]),
        ("cube", [np.inf, -np.inf, np.nan, np.inf, -np.inf]),
    ],
)
def test_what_is_no_number_stays_none(
    name: str, expected: list[float], target: dict[str, Any]
) -> None:
    values = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38], np.float32)
    found = computed(PLACES[name][0], values, target)
    assert np.allclose(found, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_exp_reaches_both_ends_of_single_precision(target: dict[str, Any]) -> None:
    values = np.array([88.72283, 88.7229, -87.3365, -87.4, 88.0, -87.0], np.float32)
    found = computed(tirx.exp, values, target)
    assert np.isinf(found[1])
    assert found[2] > 0
    assert found[3] == 0
    known = found[[0, 2, 4, 5]] / np.exp(values[[0, 2, 4, 5]].astype(np.float64))
    assert np.allclose(known, 1, atol=4e-7)


def below_one(x: Any) -> Any:
    return vector_math.exp_at_most_one(x.asobject())


@pytest.mark.parametrize("lanes", [1, 16])
def test_exp_of_what_is_at_most_nothing(lanes: int, target: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.uniform(-87.3, 0, 4000), -np.abs(rng.normal(0, 1e-3, 4000))]
    values = np.concatenate([*parts, [0.0, -87.3365] * 8]).astype(np.float32)
    found = computed(below_one, values, target, lanes)
    assert np.max(np.abs(found / np.exp(values.astype(np.float64)) - 1)) < 4e-7
    halved = computed(lambda x: vector_math.exp_at_most_one(x.asobject(), 6), values, target, lanes)
    within = values > -83.0
    assert np.array_equal(halved[within], found[within] / 64)
    assert np.all(halved[~within] <= 1e-37)
    ends = np.array([-87.4, -1e30, -np.inf, np.nan] * 4, np.float32)
    found = computed(below_one, ends, target, lanes)
    assert np.array_equal(found, [0.0, 0.0, 0.0, np.nan] * 4, equal_nan=True)


@pytest.mark.parametrize("name", ["exp", "tanh", "cube"])
def test_doubles_keep_their_precision(name: str, target: dict[str, Any]) -> None:
    values = np.linspace(-3, 3, 64)
    function, reference = PLACES[name]
    assert np.allclose(computed(function, values, target), reference(values), rtol=1e-13, atol=0)


POWER = {"cube": 3.0, "root": 0.5, "other power": 2.5}
STEP = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 4e-7, "float64": 1e-13}
"""Largest relative error: half of the distance of two numbers in half precision, rounded once."""


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("kind", STEP)
@pytest.mark.parametrize("name", [*PLACES, "other power"])
def test_every_type_is_compiled_and_right(
    name: str, kind: str, lanes: int, target: dict[str, Any]
) -> None:
    """A function registered for llvm hides TVM's own: half precision and vectors of doubles had none left."""
    if name in POWER and kind == "bfloat16":
        pytest.skip("TVM's power takes no bfloat16")
    rng = np.random.default_rng(0)
    values = rng.uniform(-4, 4, 512)
    values = np.abs(values) + 0.1 if name in POWER else values
    values = values.astype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    if name in POWER:
        function = lambda x: tirx.power(x, tirx.const(POWER[name], x.dtype))  # noqa: E731
        expected = values.astype(np.float64) ** POWER[name]
    else:
        function, reference = PLACES[name]
        expected = reference(values.astype(np.float64))
    found = computed(function, values, target, lanes)
    assert found.dtype == values.dtype
    relative = np.abs(found.astype(np.float64) / expected - 1)
    assert np.max(relative) < STEP[kind] * (1.001 if "16" in kind else 1)


def test_half_precision_reaches_its_ends(target: dict[str, Any]) -> None:
    values = np.array([np.inf, -np.inf, np.nan, 11.0, 12.0, -18.0, 0.0, -0.0], np.float16)
    found = computed(tirx.exp, values, target)
    with np.errstate(over="ignore"):
        expected = np.exp(values.astype(np.float64)).astype(np.float16)
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "tanh", "exp", "gelu"])
def test_operators_in_half_precision_are_compiled_by_rule(
    name: str, target: dict[str, Any]
) -> None:
    from tvm import relax

    from tencost.programs.codegen import rules

    operator = {
        "softmax": relax.op.nn.softmax,
        "sigmoid": relax.op.sigmoid,
        "tanh": relax.op.tanh,
        "exp": relax.op.exp,
        "gelu": relax.op.nn.gelu_tanh,
    }[name]
    vector_math.register_vector_math()
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((5, 37), "float16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(operator(x)))
        builder.emit_func_output(output)
    mod = rules.schedule_rest(relax.get_pipeline("zero")(builder.get()), target)
    built = tvm.compile(mod, target=tvm.target.Target(rules.leave(mod, target)))
    values = np.random.default_rng(0).uniform(-3, 3, (5, 37)).astype(np.float16)
    found = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(values)).numpy()
    wide = values.astype(np.float64)
    expected = {
        "softmax": special.softmax(wide, axis=-1),
        "sigmoid": special.expit(wide),
        "tanh": np.tanh(wide),
        "exp": np.exp(wide),
        "gelu": wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))),
    }[name]
    assert found.dtype == np.float16
    assert np.allclose(found.astype(np.float64), expected, rtol=4e-3, atol=2e-3)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("exponent", [2.5, -1.0, 9.0, 0.0])
def test_other_powers_stay_libms(exponent: float, lanes: int, target: dict[str, Any]) -> None:
    values = np.linspace(0.1, 3, 64).astype(np.float32)
    power = lambda x: tirx.power(x, tirx.const(exponent, "float32"))  # noqa: E731
    found = computed(power, values, target, lanes)
    assert np.allclose(found, values.astype(np.float64) ** exponent, rtol=1e-6, atol=0)


def test_no_call_of_libm_is_left(target: dict[str, Any]) -> None:
    """What the rules are for: LLVM cannot make vectors of a call."""
    vector_math.register_vector_math()
    for name in ("exp", "erf", "tanh", "sigmoid", "cube"):
        text = executable(PLACES[name][0], 64, "float32", 1, target).mod.inspect_source("asm")
        assert not any(f"{one}f" in text for one in ("exp", "erf", "tanh", "pow")), name


def test_a_vector_stays_one_where_its_loop_is_one_of_many(target: dict[str, Any]) -> None:
    """A GELU over pixels of eight numbers: LLVM would unroll a loop over the eight and make vectors of pixels."""
    vector_math.register_vector_math()
    data = te.placeholder((28, 8), "float32")
    gelu = te.compute((28, 8), lambda i, j: data[i, j] * (1.0 + tirx.erf(data[i, j])))
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([data, gelu])}))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.vectorize(schedule.get_loops(block)[-1])
    wide = {"kind": "llvm", "mcpu": "x86-64-v3"}  # is only looked at
    library = tvm.compile(schedule.mod, target=tvm.target.Target(wide))
    text = library.mod.inspect_source("ll")
    assert "fdiv" in text
    assert "strided.vec" not in text, "numbers of eight pixels, gathered"
    values = np.random.default_rng(0).normal(size=(28, 8)).astype(np.float32)
    output = tvm.runtime.empty(values.shape, "float32")
    tvm.compile(schedule.mod, target=tvm.target.Target(target)).jit()["main"](
        tvm.runtime.tensor(values), output
    )
    assert np.allclose(output.numpy(), values * (1.0 + special.erf(values)), rtol=1e-5, atol=1e-6)


def test_without_registering_tvm_is_as_it_was() -> None:
    """A process that imports tencost and compiles by itself gets TVM's own code."""
    code = (
        "import tvm, tencost.programs.codegen.vector_math\n"
        "from tvm import te, tirx\n"
        "a = te.placeholder((8,), 'float32')\n"
        "f = te.create_prim_func([a, te.compute((8,), lambda i: tirx.erf(a[i]))])\n"
        "lib = tvm.compile(tvm.IRModule({'main': f}), target='llvm')\n"
        "assert 'erff' in lib.mod.inspect_source('asm')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
