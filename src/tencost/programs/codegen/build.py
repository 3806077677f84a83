"""Compiling a scheduled module: the same code in the tuner's workers and in the process that uses the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tencost.programs.codegen.vector_math import register_vector_math


def prepare_compilation(target_kind: str) -> None:
    """Register in this process what the workers compile with, so that a plain ``tvm.compile`` makes the same code.

    Args:
        target_kind: kind of the TVM target. For llvm it is vector mathematics, see
            :mod:`tencost.programs.codegen.vector_math`; for others nothing.
    """
    if target_kind == "llvm":
        register_vector_math()


def build(mod: Any, target: Any) -> Any:
    """Compile a module as the tuner's workers do: the result takes the time that was measured.

    It is ``tvm.compile``, after exp, erf, tanh and their like were registered as vector code where the target is a CPU.
    Loading a cost model, making a search space and :class:`tencost.WarmBuilder` register that, too, so only a process
    that does none of these needs this function, as one that compiles a database that was tuned before.

    Args:
        mod: IRModule of scheduled functions, or of a Relax network.
        target: TVM target, or its dictionary.

    Returns:
        The tvm Executable; its ``jit()`` is what can be called.
    """
    import tvm

    granted = tvm.target.Target(dict(target) if isinstance(target, Mapping) else target)
    prepare_compilation(str(granted.kind.name))
    return tvm.compile(mod, target=granted)
