"""Import TVM without PyTorch, in processes of tencost's own.

TVM imports PyTorch wherever it is installed, only to take its tensors as arguments. That is two thirds of the start of
a process and half of its memory. PyTorch can still be imported afterwards.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _TvmFinder(MetaPathFinder):
    """Finds TVM's packages as usual, and lets their first lines not find PyTorch."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - Python's interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname not in ("tvm", "tvm_ffi") or "torch" in sys.modules:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def without_torch(module: ModuleType) -> None:
            sys.modules["torch"] = None  # type: ignore[assignment]  # `import torch` raises ModuleNotFoundError
            try:
                execute(module)
            finally:
                del sys.modules["torch"]

        spec.loader.exec_module = without_torch  # type: ignore[method-assign]
        return spec


def leave_out_torch() -> None:
    """Let TVM be imported without PyTorch from now on in this process, unless PyTorch is imported before it."""
    if not any(isinstance(finder, _TvmFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TvmFinder())
