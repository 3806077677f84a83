"""PyTorch modules to ONNX and to Relax, for the sources that have one."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tencost.errors import ConfigError, MeasureError
from tencost.networks import torch_operators, torch_recurrent, torch_resize, torch_types
from tencost.networks.inputs import Array
from tencost.networks.source import first_sentence, require_module


def tensors_of(inputs: dict[str, Array]) -> tuple[Any, ...]:
    """Return arrays as torch tensors; raises ConfigError for a type that NumPy has not."""
    import torch

    for name, array in inputs.items():
        if array.dtype.name == "bfloat16":
            raise ConfigError(
                f"input {name}: expected numbers that NumPy has, found bfloat16. Export the module with inputs of "
                "float32: module.float()"
            )
    return tuple(torch.from_numpy(array) for array in inputs.values())


def positional_module(
    network: Any, call: Callable[[Any, tuple[Any, ...]], dict[str, Any]]
) -> tuple[Any, list[str]]:
    """Return (a module that takes tensors and returns a tuple of tensors, the names of these once it has run).

    Args:
        network: torch module.
        call: network, tensors -> the tensors that it returns, by name.
    """
    import torch

    names: list[str] = []

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *tensors: Any) -> tuple[Any, ...]:
            outputs = call(self.network, tensors)
            names[:] = outputs
            return tuple(outputs.values())

    return Positional(), names


def module_to_onnx(name: str, module: Any, tensors: tuple[Any, ...]) -> Any:
    """Export a module in evaluation mode for these inputs: an onnx.ModelProto.

    Exporting folds a batch norm into the convolution before it. Tracing takes a second where torch.export takes ten to
    twenty, for the same graph but for masks that hide nothing; what cannot be traced is exported the longer way.

    Raises:
        MeasureError: PyTorch cannot export it.
        MissingDependencyError: a package that exporting needs is not installed.
    """
    require_module("torch", "onnx", "onnxscript")
    import torch

    with _quiet(), torch.no_grad():
        with contextlib.suppress(Exception):
            return _traced(module, tensors)
        try:
            program = torch.onnx.export(module, tensors, dynamo=True, verbose=False)
        except Exception as error:
            raise MeasureError(
                f"network {name!r}: PyTorch cannot export it to ONNX: {first_sentence(error)}"
            ) from error
    assert program is not None
    return program.model_proto


def _traced(module: Any, tensors: tuple[Any, ...]) -> Any:
    import onnx
    import torch

    file, prints = io.BytesIO(), torch._C._jit_onnx_log
    export: Any = torch.onnx.export  # its annotations know paths only
    # Where it fails it would print the whole graph, though verbose is False.
    torch._C._jit_onnx_log = lambda *_: None
    try:
        export(module, tensors, file, dynamo=False, verbose=False)
    finally:
        torch._C._jit_onnx_log = prints
    return onnx.load_from_string(file.getvalue())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold what PyTorch says of its own deprecations, and of packages that it looks for in vain; errors are raised."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def module_to_relax(name: str, module: Any, tensors: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """Export a module for these inputs and import it: (Relax IRModule with its weights as inputs, the weights).

    Raises:
        MeasureError: torch.export or TVM cannot take it; an operator that TVM lacks is named.
    """
    import torch
    from tvm.relax.frontend import detach_params
    from tvm.relax.frontend.torch import from_exported_program

    with warnings.catch_warnings(), torch.no_grad(), _without_stack_traces():
        warnings.simplefilter("ignore")  # PyTorch's and TVM's own deprecations; nothing of ours
        try:
            exported = torch.export.export(module, tensors)
        except Exception as error:
            raise MeasureError(
                f"network {name!r}: torch.export cannot export it: {first_sentence(error)}"
            ) from error
        try:
            mod = from_exported_program(
                torch_types.with_types_written(exported.run_decompositions(_decompositions())),
                keep_params_as_input=True,
                run_ep_decomposition=False,
                custom_convert_map=_converters(),
            )
        except Exception as error:
            raise MeasureError(f"network {name!r}: {_refusal(error, module, tensors)}") from error
    mod, params = detach_params(mod)
    return mod, list(params["main"])


def _converters() -> dict[str, Callable[[Any, Any], Any]]:
    return (
        torch_operators.converters()
        | torch_recurrent.converters()
        | torch_resize.converters()
        | torch_types.quotient_converters()
    )


def _decompositions() -> dict[Any, Any]:
    """Return PyTorch's decompositions and ours, but those of operators that are converted whole."""
    import torch

    table: Any = torch.export.default_decompositions()
    table.update(torch_operators.decompositions())
    for operator in (*torch_recurrent.operators(), *torch_resize.operators()):
        table.pop(operator, None)
    return table


@contextlib.contextmanager
def _without_stack_traces() -> Iterator[None]:
    """Let torch.export not write down for each operator where in Python it was called: a seventh of its time."""
    from torch.fx import config

    before = config.do_not_emit_stack_traces
    config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = before


def _refusal(error: Exception, module: Any, tensors: tuple[Any, ...]) -> str:
    lacking = re.match(r"Unsupported function types \[(.*)\]", str(error))
    numbers = {
        str(tensor.dtype) for tensor in (*module.parameters(), *module.buffers(), *tensors)
    } & {"torch.float64", "torch.bfloat16"}
    if lacking is None and numbers:
        return (
            f"expected numbers of float32, found {' and '.join(sorted(numbers))}, which TVM's PyTorch frontend mixes "
            "with float32. Export the module as float32: module.float()"
        )
    if lacking is None:
        reason = f"{type(error).__name__}: {first_sentence(error)}"
        return f"TVM's PyTorch frontend cannot import it: {reason}"
    operators = ", ".join(sorted(re.findall(r"'([^']+)'", lacking.group(1))))
    return (
        f"TVM's PyTorch frontend has no operator {operators}. "
        "Write the layer with other operators, or export the network to ONNX and use network=onnx"
    )
