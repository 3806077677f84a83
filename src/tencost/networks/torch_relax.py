"""PyTorch to Relax, for both sources that have a module."""

from __future__ import annotations

import re
import warnings
from typing import Any

from tencost.errors import MeasureError
from tencost.networks.source import first_sentence


def module_to_relax(name: str, module: Any, tensors: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """Export a module for these inputs and import it: (Relax IRModule with its weights as inputs, the weights).

    Raises:
        MeasureError: torch.export or TVM cannot take it; an operator that TVM lacks is named.
    """
    import torch
    from tvm.relax.frontend import detach_params
    from tvm.relax.frontend.torch import from_exported_program

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # PyTorch's and TVM's own deprecations; nothing of ours
        try:
            exported = torch.export.export(module, tensors)
        except Exception as error:
            raise MeasureError(
                f"network {name!r}: torch.export cannot export it: {first_sentence(error)}"
            ) from error
        try:
            mod = from_exported_program(exported, keep_params_as_input=True)
        except Exception as error:
            raise MeasureError(f"network {name!r}: {_refusal(error)}") from error
    mod, params = detach_params(mod)
    return mod, list(params["main"])


def _refusal(error: Exception) -> str:
    missing = re.match(r"Unsupported function types \[(.*)\]", str(error))
    if missing:
        operators = ", ".join(sorted(re.findall(r"'([^']+)'", missing.group(1))))
        return (
            f"TVM's PyTorch frontend has no operator {operators}. "
            "Write the layer with other operators, or export the network to ONNX and use network=onnx"
        )
    return (
        f"TVM's PyTorch frontend cannot import it: {type(error).__name__}: {first_sentence(error)}"
    )
