"""A network made of Relax operators, where a test needs one and no framework that it would come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tencost.networks.network import Network


def two_layers(output: int = 1) -> Network:
    """Return a fused network with two matmuls, two outputs (first, second), an integer input and a bfloat16 weight."""
    import tvm
    from tvm import relax

    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((8, 16), np.float32), "index": np.array(3)}
    wide = rng.standard_normal((16, 32), np.float32)
    narrow = rng.standard_normal((32, 16), np.float32)
    half = np.arange(16).astype(ml_dtypes.bfloat16)
    hidden = np.maximum(inputs["x"] @ wide, 0)
    expected = [inputs["x"] + half.astype(np.float32), hidden @ narrow]

    arrays = {**inputs, "wide": wide, "narrow": narrow, "half": half}
    variables = {
        name: relax.Var(name, relax.TensorType(array.shape, array.dtype.name))
        for name, array in arrays.items()
    }
    builder = relax.BlockBuilder()
    with builder.function("main", list(variables.values())):
        with builder.dataflow():
            x = variables["x"]
            first = builder.emit(relax.op.add(x, relax.op.astype(variables["half"], "float32")))
            second = builder.emit(relax.op.nn.relu(relax.op.matmul(x, variables["wide"])))
            second = builder.emit(relax.op.matmul(second, variables["narrow"]))
            outputs = builder.emit_output(relax.Tuple([first, second]))
        builder.emit_func_output(outputs)
    mod = relax.get_pipeline("zero")(builder.get())
    params = [tvm.runtime.tensor(array) for array in (wide, narrow, half)]
    return Network("small", mod, params, inputs, expected, output, ["first", "second"])


def lowered(shapes: list[tuple[int, ...]], body: Callable[..., Any], kind: str = "float32") -> Any:
    """Return a fused Relax module of one function: `body` of inputs with these shapes."""
    from tvm import relax

    return relax.get_pipeline("zero")(written(shapes, body, kind))


def written(shapes: list[tuple[int, ...]], body: Callable[..., Any], kind: str = "float32") -> Any:
    """Return the same, its operators not lowered yet."""
    from tvm import relax

    builder = relax.BlockBuilder()
    variables = [
        relax.Var(f"x{i}", relax.TensorType(shape, kind)) for i, shape in enumerate(shapes)
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(body(*variables)))
        builder.emit_func_output(output)
    return builder.get()


def run(mod: Any, arrays: list[Any], target: dict[str, Any]) -> Any:
    """Return what a module computes of arrays, compiled for a target."""
    import tvm
    from tvm import relax

    built = tvm.compile(mod, target=tvm.target.Target(target))
    machine = relax.VirtualMachine(built, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()
