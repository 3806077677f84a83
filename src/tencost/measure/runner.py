"""Building and timing programs quickly, for `tencost measure run` and for `builder=` and `runner=` of MetaSchedule.

The stock LocalBuilder starts a process a program and pays for TVM's imports each time, about a second; here a warm
worker (:mod:`tencost.measure.worker`) builds and times one program after another in about 0.1 s. The builder
only writes the module down; what fails while building is reported by the runner, with its status. A program that
crashes or hangs costs its own process, which is replaced within milliseconds, and nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm.ir import save_json
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tencost.errors import HardwareError, MeasureError
from tencost.measure.evaluator import MeasureOptions as MeasureOptions
from tencost.records.status import Status, Timing, timing_from_log

START_TIMEOUT_S = 300.0
"""Longest time that importing TVM in a new worker may take."""
DEVICE_TIMEOUT_S = 900.0
"""Longest time that a worker may wait for a remote device: it gives up by itself before."""


@dataclass(frozen=True)
class TracedProgram:
    """A program as a database holds it: a file with its workload's module (TVM JSON), and a trace."""

    workload: Path
    trace: list[Any]


class WarmWorker:
    """One worker, started when first needed; its process is replaced after each crash or timeout.

    Args:
        options: how programs are timed.
        cores: cores that a program may use.
        log: file for what TVM and the programs write to stderr.
        build_cpus: CPUs that the compiler runs on; None leaves it to the system.
        run_cpus: CPUs that programs run on.
        remote: fields of the RemoteAddress whose devices run the programs; None runs them here.
        target_kind: kind of the targets of traced programs, whose tensor intrinsics they may use.
        max_rss_mib: a process larger than this after a program gives way to a fresh one, MiB.
    """

    def __init__(
        self,
        options: MeasureOptions,
        cores: int,
        log: Path | None = None,
        *,
        build_cpus: Sequence[int] | None = None,
        run_cpus: Sequence[int] | None = None,
        remote: dict[str, Any] | None = None,
        target_kind: str | None = None,
        max_rss_mib: int = 2048,
    ) -> None:
        self.options = options
        self.num_starts = 0
        self._cores = cores
        self._log = log
        self._remote = remote
        self._settings = {
            "build_cpus": list(build_cpus) if build_cpus else None,
            "run_cpus": list(run_cpus) if run_cpus else None,
            "target_kind": target_kind,
            "max_rss_mib": max_rss_mib,
        }
        self._server: subprocess.Popen[bytes] | None = None
        self._child: int | None = None
        self._buffer = b""

    def measure(
        self,
        program: Path | TracedProgram,
        target: dict[str, Any],
        args: Sequence[Any],
        run_slot: AbstractContextManager[Any] | None = None,
    ) -> Timing:
        """Build and time one program, a module file (TVM JSON) or a trace, and return what came of it.

        Args:
            program: the program.
            target: what it is compiled for.
            args: its arguments, ["TENSOR", dtype, [shape]] each.
            run_slot: held while the program runs, so that several workers run one at a time.

        Raises:
            MeasureError: a worker cannot be started at all.
            HardwareError: no remote device is there, or it cannot load programs.
        """
        request: dict[str, Any] = {
            "target": target,
            "args": list(args),
            "options": self.options.settings(),
        }
        if isinstance(program, TracedProgram):
            request |= {"workload": str(program.workload), "trace": program.trace}
        else:
            request["module"] = str(program)
        if self._remote is not None:
            request["remote"] = self._remote
        self._ready()
        phase, limit, waits = "build", self.options.build_timeout_s, False
        try:
            self._send(request)
            answer = self._read(limit)
            while "phase" in answer:
                waits, phase = answer["phase"] == "wait", "run"
                limit = DEVICE_TIMEOUT_S if waits else self.options.run_timeout_s
                with nullcontext() if waits else run_slot or nullcontext():
                    if not waits:
                        self._send({"go": True})
                    answer = self._read(limit)
        except TimeoutError:
            self._kill_child()
            if waits:
                raise HardwareError(
                    f"expected a device to answer within {limit:g} s, it did not: {self._remote}. Ask the tracker what "
                    "is there: python -m tvm.exec.query_rpc_tracker"
                ) from None
            return Timing(Status(f"{phase}_timeout"), (), f"stopped after {limit:g} s")
        except (EOFError, BrokenPipeError):
            self.close()
            return Timing(Status(f"{phase}_error"), (), "its process ended")
        if "exit" in answer:
            self._child = None
            told = f"its process ended with exit code {answer['exit']}"
            return Timing(Status(f"{phase}_error"), (), told)
        if answer.get("grown"):
            self._child = None
        if "no_device" in answer:
            raise HardwareError(answer["no_device"])
        if "run_secs" in answer:
            return timing_from_log(answer["run_secs"])
        return Timing(Status(answer["status"]), (), answer["error"])

    def probe(self) -> float | None:
        """Time the reference kernel of :mod:`tencost.measure.noise` where programs run, seconds; None if it fails."""
        self._ready()
        try:
            self._send({"probe": True})
            answer = self._read(START_TIMEOUT_S)
        except (TimeoutError, EOFError, BrokenPipeError):
            self.close()
            return None
        if "exit" in answer or answer.get("grown"):
            self._child = None
        return answer.get("probe_s")

    def close(self) -> None:
        """End the processes; the next measurement starts new ones."""
        server, self._server, self._child, self._buffer = self._server, None, None, b""
        if server is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # the session that it leads: server and child
        server.wait()
        for stream in (server.stdin, server.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _ready(self) -> None:
        """Have a server with a child that waits for a request."""
        if self._server is None or self._server.poll() is not None:
            self.close()
            self._start()
        while self._child is None:
            try:
                answer = self._read(START_TIMEOUT_S)
            except (TimeoutError, EOFError) as error:
                self.close()
                raise MeasureError(
                    f"expected a measuring process (`{sys.executable} -m tencost.measure.worker`) to start, it did "
                    "not. Run that command by hand to see why"
                    f"{f', or read {self._log}' if self._log else ''}."
                ) from error
            if "ready" in answer:
                self._child = int(answer["ready"])
                self.num_starts += 1

    def _start(self) -> None:
        environment = {
            **os.environ,
            "TVM_NUM_THREADS": str(self._cores),
            "OMP_NUM_THREADS": str(self._cores),
            "TVM_BIND_THREADS": "0",  # our affinity decides
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        }
        log = self._log.open("ab") if self._log else subprocess.DEVNULL
        try:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tencost.measure.worker", json.dumps(self._settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is the caller's business: it finishes the program
            )
        finally:
            if not isinstance(log, int):
                log.close()

    def _kill_child(self) -> None:
        """Kill the child; the server says so and forks another, see _ready."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
        self._child = None

    def _send(self, message: dict[str, Any]) -> None:
        assert self._server is not None
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(message).encode() + b"\n")
        self._server.stdin.flush()

    def _read(self, timeout_s: float) -> dict[str, Any]:
        """Return the next answer; raises TimeoutError, or EOFError when the server has ended."""
        assert self._server is not None
        assert self._server.stdout is not None
        descriptor = self._server.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    raise TimeoutError
                chunk = os.read(descriptor, 65536)
                if not chunk:
                    raise EOFError
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


@derived_object
class WarmBuilder(ms.builder.PyBuilder):
    """Writes modules down for :class:`WarmRunner`, which builds them where it runs them."""

    def build(self, build_inputs: list[Any]) -> list[Any]:
        results = []
        for item in build_inputs:
            folder = Path(tempfile.mkdtemp(prefix="tencost-program-"))
            (folder / "target.json").write_text(json.dumps(target_mapping(item.target)))
            module = folder / "module.json"
            module.write_text(str(save_json(item.mod)), encoding="utf-8")
            results.append(ms.builder.BuilderResult(str(module), None))
        return results


@derived_object
class _Finished(ms.runner.PyRunnerFuture):
    """A measurement that is already there."""

    def __init__(self, timing: Timing) -> None:
        super().__init__()
        self._timing = timing

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        timing = self._timing
        if timing.status is Status.ok:
            return ms.runner.RunnerResult(list(timing.run_secs), None)
        return ms.runner.RunnerResult(None, f"{timing.status}: {timing.error}")


@derived_object
class WarmRunner(ms.runner.PyRunner):
    """Builds and times what :class:`WarmBuilder` wrote, one program at a time, in a warm worker.

    ``ms.tune_tir(..., builder=WarmBuilder(), runner=WarmRunner())`` is all that it takes.
    """

    def __init__(self, worker: WarmWorker | None = None) -> None:
        super().__init__()
        self.worker = worker if worker is not None else WarmWorker(MeasureOptions(), cores=1)
        if worker is None:
            atexit.register(self.worker.close)

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        futures = []
        for item in runner_inputs:
            module = Path(str(item.artifact_path))
            target = json.loads((module.parent / "target.json").read_text())
            args = [arg_json(arg) for arg in item.args_info]
            futures.append(_Finished(self.worker.measure(module, target, args)))
        return futures


def arg_json(arg: Any) -> list[Any]:
    """Return an ArgInfo as plain JSON: ["TENSOR", dtype, [shape]]."""
    kind, *rest = arg.as_json()
    if kind != "TENSOR":
        return [str(kind), *map(str, rest)]
    dtype, shape = rest
    return ["TENSOR", str(dtype), [int(extent) for extent in shape]]


def target_mapping(target: Any) -> dict[str, Any]:
    """Return a TVM Target as the mapping that makes it again: kind, mcpu, mattr, num-cores, ..."""
    plain: dict[str, Any] = json.loads(str(target))
    return {key: value for key, value in plain.items() if value != "" and key != "keys"}


def timing_from_result(result: Any) -> Timing:
    """Return what a MetaSchedule RunnerResult says, with the status that WarmRunner put in its message."""
    if result.run_secs:
        return timing_from_log([float(seconds) for seconds in result.run_secs])
    word, _, rest = str(result.error_msg or "").partition(": ")
    if word in Status.__members__ and word != Status.ok:
        return Timing(Status(word), (), rest)
    return Timing(Status.run_error, (), str(result.error_msg or ""))
