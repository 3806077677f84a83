"""A matmul of any size, the smallest workload that has a design space worth the name."""

from __future__ import annotations

from typing import Any


def make_matmul(size: int) -> Any:
    import tvm
    from tvm import te

    a = te.placeholder((size, size), name="A", dtype="float32")
    b = te.placeholder((size, size), name="B", dtype="float32")
    k = te.reduce_axis((0, size), name="k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})
