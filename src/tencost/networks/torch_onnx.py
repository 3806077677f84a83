"""PyTorch to ONNX."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from tencost.errors import MeasureError
from tencost.networks.source import first_sentence, require


def module_to_onnx(name: str, module: Any, tensors: tuple[Any, ...]) -> Any:
    """Export a module in evaluation mode for these inputs: an onnx.ModelProto.

    Exporting folds a batch norm into the convolution before it. Tracing takes a second where torch.export takes ten to
    twenty, for the same graph but for masks that hide nothing; what cannot be traced is exported the longer way.

    Raises:
        MeasureError: PyTorch cannot export it.
        MissingDependencyError: a package that exporting needs is not installed.
    """
    require("torch", "onnx", "onnxscript")
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

    torch._C._jit_set_onnx_log_enabled(False)  # it prints the whole graph where it fails
    file = io.BytesIO()
    export: Any = torch.onnx.export  # its annotations know paths only
    export(module, tensors, file, dynamo=False, verbose=False)
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
