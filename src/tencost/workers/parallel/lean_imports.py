"""Import libraries without what they import and tencost does not use, in processes of tencost's own.

TVM imports PyTorch wherever it is installed, only to take its tensors as arguments: two thirds of a process's start and
half of its memory. XGBoost imports scikit-learn for an interface that tencost does not use: 2 seconds of 2.5. Both can
still be imported afterwards, or beforehand by whoever needs that interface.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_UNUSED = {"tvm": "torch", "tvm_ffi": "torch", "xgboost": "sklearn"}
"""A package: the one that its first lines do not find."""


class _LeanFinder(MetaPathFinder):
    """Finds packages as usual, and lets their first lines not find what they are imported without."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - Python's interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        unused = _UNUSED.get(fullname)
        if unused is None or unused in sys.modules:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def without_unused(module: ModuleType) -> None:
            sys.modules[unused] = None  # type: ignore[assignment]  # to import it raises ModuleNotFoundError
            try:
                execute(module)
            finally:
                del sys.modules[unused]

        spec.loader.exec_module = without_unused  # type: ignore[method-assign]
        return spec


def leave_out_unused() -> None:
    """Let TVM be imported without PyTorch and XGBoost without scikit-learn from now on in this process.

    A package that is imported already is not left out.
    """
    if not any(isinstance(finder, _LeanFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LeanFinder())
