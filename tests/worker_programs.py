"""Programs for workers, written down and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tencost.store.status import Timing
from tencost.workers.runner import WarmBuilder, WarmRunner, timing_from_result


def calling(function: str = "", *args: Any, floats: int = 4) -> Any:
    """A program of one argument that calls a function of the C library: abort crashes it, pause hangs it."""
    from tvm.script import ir as I
    from tvm.script import tirx as T

    call = T.call_extern("int32", function, *args) if function else T.int32(0)

    @I.ir_module
    class Module:
        @T.prim_func
        def main(A: T.Buffer((floats,), "float32")) -> None:  # type: ignore[valid-type]
            T.func_attr({"global_symbol": "main"})
            T.evaluate(call)
            A[0] = T.float32(1)

    return Module


def written(module: Any, path: Path) -> Path:
    from tvm.ir import save_json

    path.write_text(str(save_json(module)), encoding="utf-8")
    return path


def run_by(runner: WarmRunner, module: Any, target: dict[str, Any]) -> Timing:
    """Build a program by WarmBuilder and have a runner measure it."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    (built,) = WarmBuilder().build([ms.builder.BuilderInput(module, Target(target))])
    assert built.error_msg is None
    args = ms.arg_info.ArgInfo.from_entry_func(module, False)
    (future,) = runner.run([ms.runner.RunnerInput(built.artifact_path, "cpu", args)])
    outcome = future.result()
    assert (outcome.run_secs is None) == (outcome.error_msg is not None)
    return timing_from_result(outcome)
