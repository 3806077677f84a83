"""Workloads that register tiles fit: products of all kinds, and what is needed to run their programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

op = relax.op
Body = Callable[..., Any]
Shapes = Sequence[tuple[int, ...]]


def nhwc(x: Any, w: Any, groups: int = 1, strides: int = 1, padding: int = 1) -> Any:
    return op.nn.conv2d(
        x, w, strides, padding, groups=groups, data_layout="NHWC", kernel_layout="HWIO"
    )


PRODUCTS: dict[str, tuple[Shapes, Body]] = {
    "dense": ([(12, 24), (24, 32)], op.matmul),
    "a prime number of rows": (
        [(37, 24), (24, 32), (32,)],
        lambda x, w, b: op.add(op.matmul(x, w), b),
    ),
    "a prime number of rows, alone": ([(37, 24), (24, 32)], op.matmul),
    "a prime number of rows, one of them cut off": (
        [(37, 24), (24, 32)],
        lambda x, w: op.nn.silu(op.strided_slice(op.matmul(x, w), [0], [0], [36])),
    ),
    "a prime number of rows, dear": (
        [(37, 24), (24, 128)],
        lambda x, w: op.nn.silu(op.matmul(x, w)),
    ),
    "a prime number of rows and columns": ([(2, 73, 24), (2, 24, 47)], op.matmul),
    "a prime number of columns, dear": (
        [(72, 24), (24, 37)],
        lambda x, w: op.nn.silu(op.matmul(x, w)),
    ),
    "padded columns, not a prime": (
        [(72, 24), (24, 36), (36,)],
        lambda x, w, b: op.add(op.matmul(x, w), b),
    ),
    "one row": ([(1, 24), (24, 40)], op.matmul),
    "batched": ([(3, 12, 10), (3, 10, 16)], op.matmul),
    "dense, bias, residual": (
        [(12, 24), (24, 32), (32,), (12, 32)],
        lambda x, w, b, r: op.add(op.add(op.matmul(x, w), b), r),
    ),
    "dense, its values dear": (
        [(12, 24), (24, 32), (32,)],
        lambda x, w, b: op.nn.silu(op.add(op.matmul(x, w), b)),
    ),
    "convolution": (
        [(1, 14, 12, 8), (3, 3, 8, 24)],
        lambda x, w: op.nn.relu(nhwc(x, w)),
    ),
    "vectors that are not full": (
        [(1, 14, 12, 8), (3, 3, 8, 28), (28,)],
        lambda x, w, b: op.nn.relu(op.add(nhwc(x, w), b)),
    ),
    "vectors that are not full, dear": (
        [(12, 24), (24, 42), (42,)],
        lambda x, w, b: op.nn.silu(op.add(op.matmul(x, w), b)),
    ),
    "strided": ([(2, 15, 13, 3), (3, 3, 3, 16)], lambda x, w: nhwc(x, w, strides=2)),
    "depthwise": (
        [(1, 14, 14, 16), (3, 3, 1, 16)],
        lambda x, w: op.nn.relu(nhwc(x, w, groups=16)),
    ),
    "in groups": ([(1, 7, 7, 16), (3, 3, 8, 16)], lambda x, w: nhwc(x, w, groups=2)),
    "without padding": ([(1, 7, 7, 24), (1, 1, 24, 16)], lambda x, w: nhwc(x, w, padding=0)),
}


def fused(shapes: Shapes, body: Body) -> Any:
    """Return a fused Relax module of one function; every input but the first is a weight."""
    builder = relax.BlockBuilder()
    types = [relax.TensorType(shape, "float32") for shape in shapes]
    variables = [relax.Var(f"x{at}", one) for at, one in enumerate(types)]
    with builder.function("main", variables, attrs={"num_input": 1}):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(body(*variables)))
        builder.emit_func_output(output)
    return relax.get_pipeline("zero")(builder.get())


def task_of(mod: Any) -> Any:
    """Return the module of the one function that multiplies."""
    (function,) = [one for one in mod.functions.values() if isinstance(one, tirx.PrimFunc)]
    named = function.with_attr("global_symbol", "main")
    return tvm.IRModule({"main": named})


def call(mod: Any, arrays: list[Any], shape: tuple[int, ...], target: dict[str, Any]) -> Any:
    mod = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    out = tvm.runtime.empty(shape, "float32")
    tvm.compile(mod, target=tvm.target.Target(target))["main"](
        *map(tvm.runtime.tensor, arrays), out
    )
    return out.numpy()


def drawn(shapes: Shapes) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
