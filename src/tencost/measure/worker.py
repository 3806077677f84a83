"""The process that builds and times programs: kept warm, because starting one costs seconds and a program 0.1 s.

Started by :mod:`tencost.measure.warm_worker` as ``python -m tencost.measure.worker '<settings>'``. It imports TVM once
and then only forks: a child serves the requests; when it crashes, is killed or has grown too large, the next child is
there within milliseconds. One JSON object a line each way:

    settings            {"max_rss_mib": 2048,
                         "target_kind": "llvm" | null}      whose intrinsics traces may use
    parent -> child     {"module": path} | {"workload": path, "trace": [instructions, decisions]}
                        with "target": {...}, "args": [["TENSOR", dtype, [shape]], ...], "options": {MeasureOptions},
                        "remote": {fields of RemoteAddress} | absent
                        {"probe": true}                     time the reference kernel of the noise probe
                        {"go": true}                        the answer to {"phase": "run"}: the run may begin
    child -> parent     {"ready": pid}                      once a child
                        {"phase": "wait"}                   remote: a device is waited for
                        {"phase": "run"}                    the program is built and waits to run
                        {"run_secs": [...], "build_s": s}   or {"status": ..., "error": ...} or {"probe_s": s}
                        {"no_device": why}                  remote: not the program's fault
    server -> parent    {"exit": code}                      the child ended otherwise than by growing too large

Which CPUs it builds and runs on is the parent's business. Nothing else may reach the pipe: file descriptor 1 is
pointed at stderr before TVM is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tencost.errors import HardwareError
from tencost.measure.evaluator import MeasureOptions, adaptive_times, local_timer

GROWN = 77
"""Exit code of a child that ends because it has grown too large."""
_MAX_MODULES = 8


class _BadTraceError(Exception):
    """The trace does not apply to its workload."""


def main() -> None:
    """Fork children that serve requests until the parent closes the pipe."""
    settings = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    answers = os.dup(1)
    os.dup2(2, 1)
    _warm_up(settings.get("target_kind"))
    while True:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = _Child(answers, settings).serve()
            finally:
                os._exit(code)
        _, ended = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(ended)
        if code == 0:
            return
        if code != GROWN:
            _answer(answers, {"exit": code})


def _warm_up(target_kind: str | None) -> None:
    """Import and initialize all that children need; nothing here may start a thread, which a fork would lose."""
    import tvm
    from tvm import te

    placeholder = te.placeholder((4,), name="A")
    result = te.compute((4,), lambda i: placeholder[i] + 1.0, name="B")
    module = tvm.IRModule({"main": te.create_prim_func([placeholder, result])})
    tvm.compile(module, target="llvm")
    if target_kind:
        from tencost.features.intrinsics import register_intrinsics

        register_intrinsics(target_kind)


class _Child:
    def __init__(self, answers: int, settings: dict[str, Any]) -> None:
        self._answers = answers
        self._max_rss = int(settings.get("max_rss_mib", 2048)) * 2**20
        self._modules: dict[str, Any] = {}
        self._tensors: tuple[str, list[Any]] = ("", [])
        self._probe: Any = None
        self._remote: Any = None

    def serve(self) -> int:
        """Answer requests until the pipe ends (0) or this process has grown too large (GROWN)."""
        _answer(self._answers, {"ready": os.getpid()})
        while (line := _read_line()) is not None:
            request = json.loads(line)
            reply = self._time_probe() if "probe" in request else self._measure(request)
            grown = _rss_bytes() > self._max_rss
            _answer(self._answers, {**reply, "grown": True} if grown else reply)
            if grown:
                self._end()
                return GROWN
        self._end()
        return 0

    def _end(self) -> None:
        if self._remote is not None:
            self._remote.close()

    def _measure(self, request: dict[str, Any]) -> dict[str, Any]:
        options = MeasureOptions(**request["options"])
        started = time.perf_counter()
        try:
            executable = build(self._scheduled(request), request["target"])
            if request.get("remote"):
                built = self._devices(request["remote"]).export(executable)
            else:
                built = executable.jit()
                built["main"]  # LLVM generates code on the first lookup
        except _BadTraceError as error:
            return {"status": "invalid_schedule", "error": str(error)}
        except HardwareError as error:
            return {"no_device": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever the compiler raises is this program's status
            return {"status": "build_error", "error": _short(error)}
        built_s = time.perf_counter() - started
        try:
            if request.get("remote"):
                seconds = self._devices(request["remote"]).time(
                    built,
                    request["target"],
                    request["args"],
                    options,
                    waiting=lambda: _answer(self._answers, {"phase": "wait"}),
                    running=self._wait_for_go,
                )
            else:
                self._wait_for_go()
                seconds = self._time(built, request, options)
        except HardwareError as error:
            return {"no_device": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever the program raises is its status
            return {"status": "run_error", "error": _short(error)}
        return {"run_secs": seconds, "build_s": round(built_s, 4)}

    def _devices(self, address: dict[str, Any]) -> Any:
        if self._remote is None:
            from tencost.measure.remote import RemoteAddress, RemoteDevices

            self._remote = RemoteDevices(RemoteAddress(**address))
        return self._remote

    def _scheduled(self, request: dict[str, Any]) -> Any:
        import tvm

        if "module" in request:
            return tvm.ir.load_json(Path(request["module"]).read_text(encoding="utf-8"))
        from tencost.features.replay import replay

        path = request["workload"]
        if path not in self._modules:
            while len(self._modules) >= _MAX_MODULES:
                self._modules.pop(next(iter(self._modules)))
            self._modules[path] = tvm.ir.load_json(Path(path).read_text(encoding="utf-8"))
        replayed = replay(self._modules[path], json.dumps(request["trace"]))
        if replayed.schedule is None:
            raise _BadTraceError(replayed.error)
        return replayed.schedule.mod

    def _time(self, function: Any, request: dict[str, Any], options: MeasureOptions) -> list[float]:
        import tvm

        device = tvm.device(
            request["target"]["kind"] if request["target"]["kind"] != "llvm" else "cpu"
        )
        tensors = self._arguments(request["args"], device)
        timer = local_timer(function, tensors, device, flush=options.cache_flush)
        return adaptive_times(timer, options)

    def _wait_for_go(self) -> None:
        _answer(self._answers, {"phase": "run"})
        if _read_line() is None:
            os._exit(0)

    def _arguments(self, args: list[Any], device: Any) -> list[Any]:
        """Return random arguments; those of the program before are used again if they fit."""
        import tvm

        key = json.dumps([str(device), args])
        if self._tensors[0] != key:
            self._tensors = ("", [])
            fill = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
            made = []
            for kind, dtype, shape in args:
                if kind != "TENSOR":
                    raise ValueError(f"expected tensor arguments only, found {kind}")
                tensor = tvm.runtime.empty(shape=tuple(shape), dtype=dtype, device=device)
                fill(tensor)
                made.append(tensor)
            self._tensors = (key, made)
        return self._tensors[1]

    def _time_probe(self) -> dict[str, Any]:
        from tencost.measure.noise import NoiseProbe

        if self._probe is None:
            self._probe = NoiseProbe()
        return {"probe_s": self._probe.measure()}


def build(module: Any, target: dict[str, Any]) -> Any:
    """Compile a scheduled module and return the tvm Executable, the code not yet generated for `jit()`."""
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    return tvm.compile(module, target=tvm.target.Target(target))


_pending = b""


def _read_line() -> bytes | None:
    """Return the next request; None at the end. Unbuffered, as the next child reads the same pipe."""
    global _pending
    while b"\n" not in _pending:
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return None
        _pending += chunk
    line, _, _pending = _pending.partition(b"\n")
    return line


def _answer(descriptor: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _rss_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _short(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".strip()
    return text if len(text) <= 2000 else f"{text[:1000]} ... {text[-900:]}"


if __name__ == "__main__":
    main()
