"""Overlapping tiles: the numbers of the unscheduled function for odd rows and columns, and who refuses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx, topi

from tencost.networks.rewriting import with_free_weights
from tencost.programs.codegen import candidates, tiles, vector_math
from tencost.programs.codegen.build import build
from tencost.programs.codegen.overlap import Axis, widened, without_layout_blocks

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("cpu_intrinsics")]
op = relax.op
TARGET = {"kind": "llvm", "mcpu": "x86-64-v3"}


def rows_of_sound(x: Any, w: Any, b: Any) -> Any:
    convolved = op.nn.conv1d(x, w, strides=2, data_layout="NWC", kernel_layout="WIO")
    return op.nn.relu(op.add(convolved, b))


def image(strides: int = 1, groups: int = 1) -> Callable[..., Any]:
    def body(x: Any, w: Any, b: Any) -> Any:
        settings = {"groups": groups, "data_layout": "NHWC", "kernel_layout": "HWIO"}
        return op.nn.relu(op.add(op.nn.conv2d(x, w, strides, 1, **settings), b))

    return body


def residual(x: Any, w: Any) -> Any:
    """Read the input twice: at its own columns, and summed over them."""
    return op.add(op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"), x)


CASES: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any]]] = {
    "rows": ([(1, 39, 8), (3, 8, 32), (32,)], rows_of_sound),
    "columns": ([(1, 33, 8), (3, 8, 20), (20,)], rows_of_sound),
    "rows and columns": ([(2, 39, 8), (3, 8, 52), (52,)], rows_of_sound),
    "rows of both axes": ([(1, 37, 37, 4), (3, 3, 4, 16), (16,)], image(strides=2)),
    "a dear epilogue": ([(37, 24), (24, 47)], lambda x, w: op.nn.silu(op.matmul(x, w))),
    "depthwise": ([(1, 8, 8, 20), (3, 3, 1, 20), (20,)], image(groups=20)),
    "a residual": ([(1, 8, 19, 20), (1, 1, 20, 20)], residual),
    "channels first": (
        [(1, 4, 11, 11), (8, 4, 3, 3)],
        lambda x, w: op.nn.conv2d(x, w, padding=1),
    ),
    "channels first, in groups": (
        [(1, 12, 41), (12, 3, 1)],
        lambda x, w: op.nn.conv1d(x, w, groups=4),
    ),
    "dense": ([(37, 24), (24, 47)], op.matmul),
}


def task(name: str) -> tuple[Any, list[tuple[int, ...]]]:
    """Return the module of a case's one function, its weights free to be laid out anew, and the shapes."""
    shapes, body = CASES[name]
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"x{place}", relax.TensorType(shape, "float32"))
        for place, shape in enumerate(shapes)
    ]
    with builder.function("main", variables, attrs={"num_input": 1}):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(body(*variables)))
        builder.emit_func_output(output)
    mod = with_free_weights(relax.get_pipeline("zero")(builder.get()))
    (function,) = [each for each in mod.functions.values() if isinstance(each, tirx.PrimFunc)]
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), shapes


def computed(mod: Any, arrays: list[Any], shape: tuple[int, ...]) -> Any:
    out = tvm.runtime.tensor(np.full(shape, np.nan, np.float32))
    function = tvm.compile(mod, target=tvm.target.Target(TARGET))["main"]
    function(*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_same(name: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vector_math.register_vector_math()
    monkeypatch.setattr(tiles, "PARALLEL_WORK", 1)
    mod, shapes = task(name)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    shape = tuple(int(size) for size in mod["main"].params[-1].ty.shape)
    scheduled = candidates.by_rule(mod, TARGET | {"num-cores": cores})
    assert "T.min(" in scheduled.script()
    assert ("T.parallel(" in scheduled.script()) == (cores > 1)
    np.testing.assert_allclose(
        computed(scheduled, arrays, shape), computed(mod, arrays, shape), rtol=1e-4, atol=1e-4
    )
    build(
        without_layout_blocks(scheduled), TARGET
    )  # as a worker times it, without the blocks that lay weights out


def test_even_rows_and_columns_have_tiles_that_divide() -> None:
    x, w = te.placeholder((24, 32), name="x"), te.placeholder((32, 64), name="w")
    mod = tvm.IRModule({"main": te.create_prim_func([x, w, topi.matmul(x, w)])})
    assert "T.min(" not in candidates.by_rule(mod, TARGET).script()


def test_values_at_other_places_than_their_own_are_refused() -> None:
    x, w = te.placeholder((19, 24), name="x"), te.placeholder((24, 32), name="w")
    product = topi.matmul(x, w)
    shifted = te.compute((18, 32), lambda i, j: product[i + 1, j] - product[i, j], name="shifted")
    function = te.create_prim_func([x, w, shifted])
    with pytest.raises(ValueError, match="at other places than its own"):
        widened(function, "T_matmul", {0: Axis(19, 20, 5)})
    numbered = te.compute((19, 32), lambda i, j: product[i, j] * i.astype("float32"), name="n")
    with pytest.raises(ValueError, match="depends on its row or column"):
        widened(te.create_prim_func([x, w, numbered]), "T_matmul", {0: Axis(19, 20, 5)})
    function = te.create_prim_func([x, w, product])
    with pytest.raises(ValueError, match="same as a widened one"):
        widened(function, "T_matmul", {0: Axis(19, 24, 8)})
