"""The process that builds and times programs: kept warm, because starting one costs seconds and a program 0.1 s.

Started by :mod:`tencost.measure.runner` as ``python -m tencost.measure.worker``. One JSON object a line each way:

    parent -> worker   {"module": path, "target": {...}, "args": [["TENSOR", dtype, [shape]], ...],
                        "number": 3, "repeat": 3, "min_repeat_ms": 10}
    worker -> parent   {"ready": true}                                      once, when TVM is imported
                       {"phase": "run"}                                     the program is built and is about to run
                       {"run_secs": [...]}  or  {"status": "build_error" | "run_error", "error": "..."}

Nothing else may reach the pipe: file descriptor 1 is pointed at stderr before TVM is imported.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO, Any

SLOW_PROGRAM_S = 0.15
"""A program slower than this is timed once: repeating it would cost more than it tells."""


def main() -> None:
    """Serve requests until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import tvm  # noqa: F401 - warm before the first request

    _answer(answers, {"ready": True})
    for line in sys.stdin:
        _answer(answers, _serve(json.loads(line), answers))


def _serve(request: dict[str, Any], answers: IO[str]) -> dict[str, Any]:
    try:
        function = build(Path(request["module"]), request["target"])
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is this program's status
        return {"status": "build_error", "error": _short(error)}
    _answer(answers, {"phase": "run"})
    try:
        seconds = measure(
            function,
            request["args"],
            request["number"],
            request["repeat"],
            request["min_repeat_ms"],
        )
    except Exception as error:  # noqa: BLE001 - whatever the program raises is its status
        return {"status": "run_error", "error": _short(error)}
    return {"run_secs": seconds}


def build(module: Path, target: dict[str, Any]) -> Any:
    """Compile a scheduled module (TVM JSON) inside this process and return the loaded module."""
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    loaded = tvm.ir.load_json(module.read_text(encoding="utf-8"))
    loaded = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(loaded)
    return tvm.compile(loaded, target=tvm.target.Target(target)).jit()


def measure(
    function: Any, args: list[Any], number: int, repeat: int, min_repeat_ms: int
) -> list[float]:
    """Time the entry function on random inputs: `repeat` means of `number` runs each, seconds."""
    import tvm

    device = tvm.cpu()
    fill = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
    tensors = []
    for kind, dtype, shape in args:
        if kind != "TENSOR":
            raise ValueError(f"expected tensor arguments only, found {kind}")
        tensor = tvm.runtime.empty(shape=tuple(shape), dtype=dtype, device=device)
        fill(tensor)
        tensors.append(tensor)
    first = _times(function, device, tensors, 1, 1, 0)
    if first[0] > SLOW_PROGRAM_S:
        return first
    return _times(function, device, tensors, number, repeat, min_repeat_ms)


def _times(
    function: Any, device: Any, tensors: list[Any], number: int, repeat: int, min_repeat_ms: int
) -> list[float]:
    evaluator = function.time_evaluator(
        "main", device, number=number, repeat=repeat, min_repeat_ms=min_repeat_ms
    )
    return [float(seconds) for seconds in evaluator(*tensors).results]


def _answer(answers: IO[str], message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _short(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".strip()
    return text if len(text) <= 2000 else f"{text[:1000]} ... {text[-900:]}"


if __name__ == "__main__":
    main()
