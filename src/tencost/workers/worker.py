"""The process that builds and times programs: kept warm, because starting one costs seconds and a program 0.1 s.

Started by :mod:`tencost.workers.warm_worker` as ``python -m tencost.workers.worker '<settings>'``. It imports TVM once
and then only forks: a child serves the requests; when it crashes, is killed or has grown too large, the next child is
there within milliseconds. How both are talked to is in :mod:`tencost.workers.protocol`; the requests and answers are:

    settings            {"max_rss_mib": 2048,              also what a program may allocate
                         "target_kind": "llvm" | null,      whose intrinsics traces may use
                         "control": descriptor}
    parent -> child     {"module": path} | {"workload": path, "trace": [instructions, decisions]}
                        with "target": {...}, "args": [["TENSOR", dtype, [shape]], ...], "options": {MeasureOptions},
                        "remote": {fields of RemoteAddress} | absent
                        "expected": path | absent           outputs that a new best is compared with
                        {"expect": path, "expected": path}  run an unscheduled workload, keep its outputs; "target"
                        {"probe": true}                     time the reference kernel of the noise probe
                        {"go": true, "best": [s, s] | null} the answer to {"phase": "run"}: the run may begin; a
                                                            program with a shorter mean or median is a new best
    child -> parent     {"phase": "begun"}                  the request is read
                        {"phase": "wait"}                   remote: a device is waited for
                        {"phase": "run"}                    the program is built and waits to run
                        {"phase": "check"}                  it is timed, and its outputs are to be compared
                        {"run_secs": [...], "build_s": s}   or {"status": ..., "error": ...} or {"probe_s": s} or
                                                            {"expected_s": s}; "check_s" where outputs were compared
                        {"no_device": why}                  remote: not the program's fault
                        {"untrusted": why}                  the workload could run code of others, see store/allowed.py

A "module" is a program that this run's own search made and wrote down. What a "workload" or "expect" names may come
from a file of others and is looked at before TVM reads it, as is a "trace".

Which CPUs it builds and runs on is the parent's business. What TVM and the programs write to standard output and error
goes into the parent's log.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

from tencost.errors import HardwareError, UntrustedError
from tencost.programs.codegen.build import build
from tencost.programs.codegen.overlap import without_layout_blocks
from tencost.workers.evaluator import (
    Best,
    MeasureOptions,
    adaptive_times,
    local_timer,
    random_arguments,
)
from tencost.workers.parallel.lean_imports import leave_out_unused
from tencost.workers.protocol import Channel, ForkServer
from tencost.workers.strays import end_strays
from tencost.workers.threads import NUM_THREADS, choose_threads

_MAX_MODULES = 8
_LEAST_ALLOWANCE = 1 << 30
"""What a program may allocate at least, bytes: a small max_rss_mib asks for fresh processes, not for failures."""
_THREAD_BYTES = 16 << 20
"""Stacks of a core's threads, TVM's and OpenMP's, which the first program of a process starts."""


class _BadTraceError(Exception):
    """The trace does not apply to its workload."""


def main() -> None:
    """Fork children that serve requests until the parent is gone; without settings, by hand, see that TVM works."""
    settings = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    leave_out_unused()
    _warm_up(settings.get("target_kind"))
    choose_threads(int(os.environ.get(NUM_THREADS, "1")))
    if "control" in settings:
        control = socket.socket(fileno=settings["control"])
        control.set_inheritable(False)
        max_rss = int(settings.get("max_rss_mib", 2048)) * 2**20
        ForkServer(control, lambda channel: Child(channel, max_rss).serve()).run()


def _warm_up(target_kind: str | None) -> None:
    """Import and initialize all that children need; nothing here may start a thread, which a fork would lose."""
    import tvm
    from tvm import te

    placeholder = te.placeholder((4,), name="A")
    increased = te.compute((4,), lambda i: placeholder[i] + 1.0, name="B")
    module = tvm.IRModule({"main": te.create_prim_func([placeholder, increased])})
    tvm.compile(module, target="llvm")
    if target_kind:
        from tencost.programs.trace.intrinsics import register_intrinsics

        register_intrinsics(target_kind)


class MemoryAllowance:
    """How much each program of this process may allocate; an allocation beyond it fails inside the program.

    It is counted from what the process has mapped when the program begins, so that what came before takes nothing
    away. Linux only. Programs of accelerators are not limited: their arguments lie elsewhere, and their drivers map
    what they like.

    Args:
        max_rss: what a program may allocate, bytes.
    """

    def __init__(self, max_rss: int) -> None:
        self.bytes = max(max_rss, _LEAST_ALLOWANCE)
        self._threads = _THREAD_BYTES * int(os.environ.get(NUM_THREADS, "1"))

    def begin(self, request: dict[str, Any], reusable: int = 0) -> None:
        """Set the limit for a request.

        Args:
            request: its target decides; one without a target is not limited.
            reusable: mapped bytes that the program may take over, which count as its own.
        """
        if sys.platform != "linux":
            return
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = most
        if request.get("target", {}).get("kind") == "llvm":
            limit = _data_bytes() - reusable + self.bytes + self._threads
            if most != resource.RLIM_INFINITY:
                limit = min(limit, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))

    def explain(self, error: Exception) -> str:
        """Return what to say of an error of the program or of its compilation."""
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            size = self.bytes >> 20
            return f"out of memory: it needs more than the {size} MiB that a program may allocate ({_short(error)})"
        return _short(error)


class Child:
    """What serves the requests of one channel.

    Args:
        channel: where they come from.
        max_rss: a process larger than this asks to be replaced, and a program may allocate as much, bytes.
    """

    def __init__(self, channel: Channel, max_rss: int) -> None:
        self._channel = channel
        self._max_rss = max_rss
        self._memory = MemoryAllowance(max_rss)
        self._tensors: tuple[str, list[Any]] = ("", [])
        self._tensor_bytes = 0
        self._probe: Any = None
        self._remote: Any = None

    def serve(self) -> None:
        """Answer requests until the channel ends."""
        while (request := self._channel.requests()) is not None:
            self._memory.begin(request, self._tensor_bytes)
            if "probe" in request:
                reply = self._time_probe()
            elif "expect" in request:
                reply = self._expect(request)
            else:
                reply = self.measure(request)
            end_strays()
            if (
                _rss_bytes() > self._max_rss
                or _spoils_device(request, reply)
                or not self._channel.is_intact()
            ):
                reply["last"] = True
            self._channel.answer(reply)
        if self._remote is not None:
            self._remote.close()

    def measure(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build and time a program; return the answer."""
        options = MeasureOptions(**request["options"])
        started = time.perf_counter()
        try:
            module = self._scheduled(request)
            # Blocks that bring constant weights into the layout that the program reads run once, not at each call.
            executable = build(without_layout_blocks(module), request["target"])
            if request.get("remote"):
                built = self._devices(request["remote"]).export(executable)
            else:
                built = executable.jit()
                built["main"]  # LLVM generates code on the first lookup
        except _BadTraceError as error:
            return {"status": "invalid_schedule", "error": str(error)}
        except HardwareError as error:
            return {"no_device": str(error)}
        except UntrustedError as error:
            return {"untrusted": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever the compiler raises is this program's status
            return {"status": "build_error", "error": self._memory.explain(error)}
        built_s = time.perf_counter() - started
        about: dict[str, Any] = {"build_s": round(built_s, 4)}
        try:
            if request.get("remote"):
                seconds = self._devices(request["remote"]).time(
                    built,
                    request["target"],
                    request["args"],
                    options,
                    waiting=lambda: self._channel.answer({"phase": "wait"}),
                    running=self.wait_for_go,
                )
            else:
                best = self.wait_for_go()
                seconds = self._time(built, request, options)
                if "expected" in request and best.is_beaten_by(seconds):
                    self._channel.answer({"phase": "check"})
                    started = time.perf_counter()
                    wrong = self._check(built, module, request)
                    about["check_s"] = round(time.perf_counter() - started, 4)
                    if wrong:
                        return {"status": "wrong_answer", "error": wrong, **about}
        except HardwareError as error:
            return {"no_device": str(error)}
        except Exception as error:  # noqa: BLE001 - whatever the program raises is its status
            return {"status": "run_error", "error": self._memory.explain(error)}
        return {"run_secs": seconds, **about}

    def _expect(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run an unscheduled workload and keep its outputs in a file; on the CPU, whatever the target."""
        from tencost.workers.expected import make_expected

        started = time.perf_counter()
        try:
            module = _workload(request["expect"])
            target = request["target"] if request["target"]["kind"] == "llvm" else {"kind": "llvm"}
            # LLVM unrolls what nobody scheduled: fully optimized that takes twice as long to build, and runs no faster.
            function = build(module, {**target, "opt-level": 1}).jit()
            expected = make_expected(module, lambda inputs: _call(function, inputs, "cpu"))
            expected.save(Path(request["expected"]))
        except Exception as error:  # noqa: BLE001 - whatever it is, this workload's programs cannot be checked
            return {"status": "unknown", "error": self._memory.explain(error)}
        return {"expected_s": round(time.perf_counter() - started, 4)}

    def _check(self, built: Any, module: Any, request: dict[str, Any]) -> str:
        """Say how the program's outputs are wrong; nothing if they are not."""
        expected = _expected(request["expected"])
        if _has_left_out(module):  # was timed without the blocks that bring weights into its layout
            built = build(module, request["target"]).jit()
        kind = request["target"]["kind"]
        difference = expected.difference(_call(built, expected.inputs, kind))
        return "" if difference.accepted else str(difference)

    def _devices(self, address: dict[str, Any]) -> Any:
        if self._remote is None:
            from tencost.workers.remote import RemoteAddress, RemoteDevices

            self._remote = RemoteDevices(RemoteAddress(**address))
        return self._remote

    def _scheduled(self, request: dict[str, Any]) -> Any:
        import tvm

        if "module" in request:
            return tvm.ir.load_json(Path(request["module"]).read_text(encoding="utf-8"))
        from tencost.programs.trace.replay import replay

        replayed = replay(_workload(request["workload"]), json.dumps(request["trace"]))
        if replayed.schedule is None:
            raise _BadTraceError(replayed.error)
        return replayed.schedule.mod

    def _time(self, function: Any, request: dict[str, Any], options: MeasureOptions) -> list[float]:
        import tvm

        device = tvm.device(_device_name(request["target"]["kind"]))
        tensors = self._arguments(request["args"], device)
        if "expected" in request:  # random integers would be an index out of range
            expected = _expected(request["expected"])
            for index in expected.facts.indices:
                tensors[index].copyfrom(expected.inputs[index])
        alone = _runs_alone(request["target"]["kind"])
        timer = local_timer(function, tensors, device, flush=options.cache_flush, alone=alone)
        return adaptive_times(timer, options)

    def wait_for_go(self) -> Best:
        """Wait until the program may run; return the times to beat, infinite where there are none."""
        self._channel.answer({"phase": "run"})
        permission = self._channel.receive()
        if permission is None:
            os._exit(0)
        return Best(*(permission["best"] or ()))

    def _arguments(self, args: list[Any], device: Any) -> list[Any]:
        """Return random arguments; those of the program before are used again if they fit."""
        import tvm

        key = json.dumps([str(device), args])
        if self._tensors[0] != key:
            self._tensors, self._tensor_bytes = ("", []), 0
            before = _data_bytes()
            fill = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
            tensors = random_arguments(args, device, lambda tensor, *_: fill(tensor))
            self._tensors, self._tensor_bytes = (key, tensors), max(_data_bytes() - before, 0)
        return self._tensors[1]

    def _time_probe(self) -> dict[str, Any]:
        from tencost.workers.noise import NoiseProbe

        if self._probe is None:
            self._probe = NoiseProbe(alone=_runs_alone("llvm"))
        return {"probe_s": self._probe.measure()}


@lru_cache(_MAX_MODULES)
def _workload(path: str) -> Any:
    """Return the module in a file, looked at before TVM reads it."""
    from tencost.programs.trace.allowed import load_checked

    return load_checked(Path(path).read_text(encoding="utf-8"), f"the workload {path}")


@lru_cache(1)
def _expected(path: str) -> Any:
    """Return what programs have to compute, as a file has it."""
    from tencost.workers.expected import Expected

    return Expected.load(Path(path))


def _spoils_device(request: dict[str, Any], reply: dict[str, Any]) -> bool:
    """Say whether later programs of this process would fail, too: CUDA refuses all calls after an illegal access."""
    return reply.get("status") == "run_error" and request["target"]["kind"] != "llvm"


def _has_left_out(module: Any) -> bool:
    from tvm_ffi import structural_equal

    return not structural_equal(module, without_layout_blocks(module))


def _call(function: Any, inputs: Sequence[Any], target_kind: str) -> list[Any]:
    """Call a loaded module's ``main``; return what its arguments hold afterwards, NumPy arrays."""
    import tvm

    device = tvm.device(_device_name(target_kind))
    tensors = [tvm.runtime.tensor(array, device=device) for array in inputs]
    function["main"](*tensors)
    return [tensor.numpy() for tensor in tensors]


def _runs_alone(target_kind: str) -> bool:
    """Say whether programs run in the thread that calls them: on one core of the CPU."""
    return target_kind == "llvm" and os.environ.get("TVM_NUM_THREADS") == "1"


def _device_name(target_kind: str) -> str:
    return "cpu" if target_kind == "llvm" else target_kind


def _rss_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def _data_bytes() -> int:
    """Return what RLIMIT_DATA counts: private writable memory, and the stack with it."""
    return int(getattr(psutil.Process().memory_info(), "data", 0))


def _short(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".strip()
    return text if len(text) <= 2000 else f"{text[:1000]} ... {text[-900:]}"


if __name__ == "__main__":
    main()
