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


def make_masked_matmul(size: int) -> Any:
    """Attention's first product with its mask as transformers have it: TVM's rules cannot schedule it."""
    import tvm
    from tvm import te

    q = te.placeholder((2, size, size), name="Q", dtype="float32")
    w = te.placeholder((2, size, size), name="K", dtype="float32")
    rows = te.placeholder((size, 1), name="rows", dtype="int64")
    columns = te.placeholder((1, size), name="columns", dtype="int64")
    low, high = (te.placeholder((), name=name, dtype="float32") for name in ("low", "high"))
    k = te.reduce_axis((0, size), name="k")
    seen = te.compute((size, size), lambda i, j: columns[0, j] <= rows[i, 0], name="seen")
    mask = te.compute(
        (size, size),
        lambda i, j: tvm.tirx.Select(seen[i, j].astype("int64") > 0, low[()], high[()]),
        name="mask",
    )
    product = te.compute(
        (2, size, size), lambda h, i, j: te.sum(q[h, i, k] * w[h, k, j], axis=k), name="matmul"
    )
    masked = te.compute(
        (2, size, size), lambda h, i, j: product[h, i, j] * 0.125 + mask[i, j], name="masked"
    )
    return tvm.IRModule({"main": te.create_prim_func([rows, columns, low, high, q, w, masked])})
