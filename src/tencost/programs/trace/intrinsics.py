"""Only the tensor intrinsics that a target's programs can use: for a CPU 1 s instead of 17 s at the first TuneContext.

TuneContext imports ``tvm.s_tir.tensor_intrin``, whose ``__init__`` registers the intrinsics of every architecture,
thousands of CUDA and ROCm ones among them; a script that has imported MLflow waits minutes on a busy host. In our own
processes (featurizing workers, ``tencost tune``), and where a cost model is loaded for a tuner, a package of the same
name and place stands in for it: its submodules load as usual, when asked for. A process that tunes for other kinds of
targets, too, calls :func:`register_intrinsics` for each; where TVM's package is there already, it stays.
"""

from __future__ import annotations

import inspect
import sys
import types
from importlib import import_module
from pathlib import Path

PACKAGE = "tvm.s_tir.tensor_intrin"
MODULES = {
    "llvm": ("x86", "arm_cpu", "riscv_cpu"),
    "cuda": ("cuda",),
    "rocm": ("rocm",),
    "metal": ("metal",),
    "hexagon": ("hexagon",),
}
"""Modules of that package by target kind; other kinds have no intrinsics."""


def register_intrinsics(target_kind: str) -> None:
    """Register the intrinsics of a target kind, unless that has been done; those of other kinds stay."""
    if PACKAGE not in sys.modules:
        import tvm.s_tir

        package = types.ModuleType(PACKAGE)
        package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
        sys.modules[PACKAGE] = package
        tvm.s_tir.tensor_intrin = package
    _map_frames_to_modules()
    for name in MODULES.get(target_kind, ()):
        import_module(f"{PACKAGE}.{name}")


def _map_frames_to_modules() -> None:
    """Tell `inspect` the modules of frames that have no file.

    At each of its intrinsics TVM looks at the whole stack. For a frame without a file (of the import system, `-c`,
    TVM's `eval`) `inspect` searches all modules that are loaded, again and again, unless it knows the frame's.
    """
    modules = inspect.modulesbyfile
    modules.setdefault("<ast>", "tvm.script.parser.core.evaluator")
    for name in ("importlib._bootstrap", "importlib._bootstrap_external"):
        modules.setdefault(f"<frozen {name}>", name)
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<"):
            modules.setdefault(frame.f_code.co_filename, frame.f_globals.get("__name__", ""))
        frame = frame.f_back


def register_cpu_intrinsics() -> None:
    """Register the intrinsics of CPUs."""
    register_intrinsics("llvm")
