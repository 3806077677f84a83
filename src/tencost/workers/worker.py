"""The process that builds and times programs: kept warm, because starting one costs seconds and a program 0.1 s.

Started by :mod:`tencost.workers.warm_worker` as ``python -m tencost.workers.worker '<settings>'``. It imports TVM once
and then only forks: a child serves the requests; when it crashes, is killed or has grown too large, the next child is
there within milliseconds. One JSON object a line each way:

    settings            {"max_rss_mib": 2048,
                         "target_kind": "llvm" | null}      whose intrinsics traces may use
    parent -> child     {"module": path} | {"workload": path, "trace": [instructions, decisions]}
                        with "target": {...}, "args": [["TENSOR", dtype, [shape]], ...], "options": {MeasureOptions},
                        "remote": {fields of RemoteAddress} | absent
                        "expected": path | absent           outputs that a new best is compared with
                        {"expect": path, "expected": path}  run an unscheduled workload, keep its outputs; "target"
                        {"probe": true}                     time the reference kernel of the noise probe
                        {"go": true, "best": [s, s] | null} the answer to {"phase": "run"}: the run may begin; a
                                                            program with a shorter mean or median is a new best
    child -> parent     {"ready": pid}                      once a child
                        {"phase": "wait"}                   remote: a device is waited for
                        {"phase": "run"}                    the program is built and waits to run
                        {"phase": "check"}                  it is timed, and its outputs are to be compared
                        {"run_secs": [...], "build_s": s}   or {"status": ..., "error": ...} or {"probe_s": s} or
                                                            {"expected_s": s}; "check_s" where outputs were compared
                        {"no_device": why}                  remote: not the program's fault
    server -> parent    {"exit": code}                      the child ended otherwise than by growing too large

Which CPUs it builds and runs on is the parent's business. Nothing else may reach the pipe: file descriptor 1 is
pointed at stderr before TVM is imported.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tencost.errors import HardwareError
from tencost.workers.evaluator import MeasureOptions, adaptive_times, local_timer

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
        self._expected: tuple[str, Any] = ("", None)

    def serve(self) -> int:
        """Answer requests until the pipe ends (0) or this process has grown too large (GROWN)."""
        _answer(self._answers, {"ready": os.getpid()})
        while (line := _read_line()) is not None:
            request = json.loads(line)
            if "probe" in request:
                reply = self._time_probe()
            elif "expect" in request:
                reply = self._expect(request)
            else:
                reply = self._measure(request)
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
            module = self._scheduled(request)
            executable = build(module, request["target"])
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
        about: dict[str, Any] = {"build_s": round(built_s, 4)}
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
                best = self._wait_for_go()
                seconds = self._time(built, request, options)
                if "expected" in request and _is_new_best(seconds, best):
                    _answer(self._answers, {"phase": "check"})
                    started = time.perf_counter()
                    wrong = self._check(built, module, request)
                    about["check_s"] = round(time.perf_counter() - started, 4)
                    if wrong:
                        return {"status": "wrong_answer", "error": wrong, **about}
        except HardwareError as error:
            return {"no_device": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever the program raises is its status
            return {"status": "run_error", "error": _short(error)}
        return {"run_secs": seconds, **about}

    def _expect(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run an unscheduled workload and keep its outputs in a file; on the CPU, whatever the target."""
        from tencost.workers.expected import make_expected

        started = time.perf_counter()
        try:
            module = self._load(request["expect"])
            target = request["target"] if request["target"]["kind"] == "llvm" else {"kind": "llvm"}
            function = build(module, target).jit()
            made = make_expected(module, lambda inputs: _call(function, inputs, "cpu"))
            made.save(Path(request["expected"]))
        except Exception as error:  # noqa: BLE001 - whatever it is, this workload's programs cannot be checked
            return {"status": "unknown", "error": _short(error)}
        return {"expected_s": round(time.perf_counter() - started, 4)}

    def _check(self, built: Any, module: Any, request: dict[str, Any]) -> str:
        """Say how the program's outputs are wrong; nothing if they are not."""
        expected = self._expected_of(request)
        if _has_left_out(module):  # was timed without the blocks that bring weights into its layout
            built = build(module, request["target"], whole=True).jit()
        kind = request["target"]["kind"]
        difference = expected.difference(_call(built, expected.inputs, kind))
        return "" if difference.accepted else str(difference)

    def _expected_of(self, request: dict[str, Any]) -> Any:
        from tencost.workers.expected import Expected

        path = request["expected"]
        if self._expected[0] != path:
            self._expected = (path, Expected.load(Path(path)))
        return self._expected[1]

    def _devices(self, address: dict[str, Any]) -> Any:
        if self._remote is None:
            from tencost.workers.remote import RemoteAddress, RemoteDevices

            self._remote = RemoteDevices(RemoteAddress(**address))
        return self._remote

    def _scheduled(self, request: dict[str, Any]) -> Any:
        import tvm

        if "module" in request:
            return tvm.ir.load_json(Path(request["module"]).read_text(encoding="utf-8"))
        from tencost.features.replay import replay

        replayed = replay(self._load(request["workload"]), json.dumps(request["trace"]))
        if replayed.schedule is None:
            raise _BadTraceError(replayed.error)
        return replayed.schedule.mod

    def _load(self, path: str) -> Any:
        import tvm

        if path not in self._modules:
            while len(self._modules) >= _MAX_MODULES:
                self._modules.pop(next(iter(self._modules)))
            self._modules[path] = tvm.ir.load_json(Path(path).read_text(encoding="utf-8"))
        return self._modules[path]

    def _time(self, function: Any, request: dict[str, Any], options: MeasureOptions) -> list[float]:
        import tvm

        device = tvm.device(_device_name(request["target"]["kind"]))
        tensors = self._arguments(request["args"], device)
        if "expected" in request:  # random integers would be an index out of range
            expected = self._expected_of(request)
            for index in expected.facts.indices:
                tensors[index].copyfrom(expected.inputs[index])
        timer = local_timer(function, tensors, device, flush=options.cache_flush)
        return adaptive_times(timer, options)

    def _wait_for_go(self) -> list[float] | None:
        """Wait until the program may run; return the mean and median to beat, if there are any."""
        _answer(self._answers, {"phase": "run"})
        line = _read_line()
        if line is None:
            os._exit(0)
        best: list[float] | None = json.loads(line).get("best")
        return best

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
        from tencost.workers.noise import NoiseProbe

        if self._probe is None:
            self._probe = NoiseProbe()
        return {"probe_s": self._probe.measure()}


def build(module: Any, target: dict[str, Any], *, whole: bool = False) -> Any:
    """Compile a scheduled module and return the tvm Executable, the code not yet generated for `jit()`.

    Blocks that bring constant weights into the layout that the program reads are left out, as they run once and not
    at each call; such a program computes nonsense, unless it is built `whole`.
    """
    import tvm

    if not whole:
        module = _without_layout_blocks(module)
    return tvm.compile(module, target=tvm.target.Target(target))


def _without_layout_blocks(module: Any) -> Any:
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)


def _has_left_out(module: Any) -> bool:
    from tvm_ffi import structural_equal

    return not structural_equal(module, _without_layout_blocks(module))


def _call(function: Any, inputs: Sequence[Any], target_kind: str) -> list[Any]:
    """Call a loaded module's ``main``; return what its arguments hold afterwards, NumPy arrays."""
    import tvm

    device = tvm.device(_device_name(target_kind))
    tensors = [tvm.runtime.tensor(array, device=device) for array in inputs]
    function["main"](*tensors)
    return [tensor.numpy() for tensor in tensors]


def _device_name(target_kind: str) -> str:
    return "cpu" if target_kind == "llvm" else target_kind


def _is_new_best(seconds: Sequence[float], best: Sequence[float] | None) -> bool:
    """Say whether the mean or the median is shorter than the best one: databases sort by the one or the other."""
    if best is None:
        return True
    return statistics.fmean(seconds) <= best[0] or statistics.median(seconds) <= best[1]


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
