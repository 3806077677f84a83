"""Zero-edit adoption: unchanged pipelines use a registered model, its starting points, and register tiles.

The Relax passes MetaScheduleTuneTIR and MetaScheduleTuneIRMod have no cost-model argument, but look up two global
functions by name (src/relax/transform/meta_schedule.cc). Those are replaced here by functions that add the argument.
TVM keeps what it looked up at the first tuning call of the process, so what is registered here asks for the installed
model at each call, and uninstalling restores the stock behaviour even then; install before the first tuning call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm.s_tir.meta_schedule import relax_integration, tir_integration
from tvm_ffi import get_global_func, register_global_func

from tencost.programs.codegen.spaces import search_space
from tencost.tune.cost_model import load_cost_model
from tencost.tune.search import search

TUNE_TIR = "tvm.s_tir.meta_schedule.tune_tir"
TUNE_RELAX = "tvm.s_tir.meta_schedule.tune_relax"

_active: Any = None
_strategy: Any = None


def install(uri: str | Path | None = None, **options: Any) -> Any:
    """Use a registered model in every tuning pass of this process; returns the cost model.

    Args:
        uri: see :func:`tencost.load_cost_model`.
        options: its keyword arguments.

    Raises:
        RegistryError: the model cannot be found.
        BundleError: it does not fit.
    """
    global _active, _strategy
    _active = load_cost_model(uri, **options)
    _strategy = search(_active)
    _register(TUNE_TIR, _tune_tir)
    _register(TUNE_RELAX, _tune_relax)
    return _active


def uninstall() -> None:
    """Return to stock MetaSchedule; the vector mathematics that a loaded model registered stays, see tencost.build."""
    global _active, _strategy
    _active = _strategy = None
    _register(TUNE_TIR, tir_integration._tune_tir)
    _register(TUNE_RELAX, relax_integration._tune_relax)


def _register(name: str, function: Callable[..., Any]) -> None:
    """Register a global function for the life of the process.

    The Relax passes keep it in a C++ static, which is destroyed after the interpreter: without one reference that is
    never given back, freeing a Python function there crashes the process at its very end.
    """
    register_global_func(name, function, override=True)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(get_global_func(name)))


def _tune_tir(mod: Any, target: Any, work_dir: str, max_trials_global: Any) -> Any:
    """Do what TVM's function of this name does, with the arguments that the Relax pass gives it."""
    tir_integration.tune_tir(
        mod,
        target,
        str(work_dir),
        int(max_trials_global),
        **_choices(target),
        task_scheduler="round-robin",
    )
    return mod


def _tune_relax(
    mod: Any,
    params: Any,
    target: Any,
    work_dir: str,
    max_trials_global: Any,
    max_trials_per_task: Any = None,
    op_names: Any = None,
) -> Any:
    """Do what TVM's function of this name does, with the arguments that the Relax pass gives it."""
    relax_integration.tune_relax(
        mod,
        params,
        target,
        str(work_dir),
        int(max_trials_global),
        max_trials_per_task=None if max_trials_per_task is None else int(max_trials_per_task),
        op_names=None if op_names is None else [str(name) for name in op_names],
        **_choices(target),
    )
    return mod


def _choices(target: Any) -> dict[str, Any]:
    """Return the installed model, its search and its design space; stock's where none is installed."""
    if _active is None:
        return {"cost_model": "xgb", "strategy": "evolutionary", "space": "post-order-apply"}
    return {"cost_model": _active, "strategy": _strategy, "space": search_space(target)}
