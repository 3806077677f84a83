"""The parent's side of a measuring process: a request is a program, the answer is its times or its status.

A program that crashes or hangs costs its own process, which is replaced within milliseconds, and nothing else; the
child's side, with the protocol between both, is :mod:`tencost.workers.worker`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tencost.errors import HardwareError, MeasureError
from tencost.store.status import Status, Timing, timing_from_log
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.expected import Reference

START_TIMEOUT_S = 300.0
"""Longest time that importing TVM in a new worker may take."""
EXPECT_TIMEOUT_S = 180.0
"""Longest time that an unscheduled workload, which is slow, gets to compute what its programs must."""
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
        remote: dict[str, Any] | None = None,
        target_kind: str | None = None,
        max_rss_mib: int = 2048,
    ) -> None:
        self.options = options
        self.num_starts = 0
        self.num_checked = 0
        self.checked_s = 0.0
        self.expected_s = 0.0
        self._cores = cores
        self._log = log
        self._remote = remote
        self._settings = {"target_kind": target_kind, "max_rss_mib": max_rss_mib}
        self._cpus: tuple[int, ...] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._child: int | None = None
        self._buffer = b""

    def measure(
        self,
        program: Path | TracedProgram,
        target: dict[str, Any],
        args: Sequence[Any],
        run_slot: AbstractContextManager[Any] | None = None,
        *,
        expected: Path | None = None,
        best: Callable[[], tuple[float, float] | None] = lambda: None,
    ) -> Timing:
        """Build and time one program, a module file (TVM JSON) or a trace, and return what came of it.

        Args:
            program: the program.
            target: what it is compiled for.
            args: its arguments, ["TENSOR", dtype, [shape]] each.
            run_slot: held while the program runs, so that several workers run one at a time.
            expected: what :meth:`expect` wrote. A program that would be a new best is compared with it, and is a
                wrong_answer if it computes something else. Not for remote devices.
            best: least mean and least median known, seconds; asked when the program may run. None: there are none.

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
        elif expected is not None:
            request["expected"] = str(expected)
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
                        self._send({"go": True, "best": best()})
                    answer = self._read(limit)
                    if answer.get("phase") == "check":
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
        if "check_s" in answer:
            self.num_checked += 1
            self.checked_s += answer["check_s"]
        if "run_secs" in answer:
            return timing_from_log(answer["run_secs"])
        return Timing(Status(answer["status"]), (), answer["error"])

    def expect(self, reference: Reference, target: dict[str, Any]) -> str:
        """Have the unscheduled workload run and its outputs written down; return why that failed, "" if it did not.

        Raises:
            MeasureError: a worker cannot be started at all.
        """
        paths = {"expect": str(reference.workload), "expected": str(reference.expected)}
        self._ready()
        try:
            self._send({**paths, "target": target})
            answer = self._read(EXPECT_TIMEOUT_S)
        except TimeoutError:
            self._kill_child()
            return f"the unscheduled workload takes more than {EXPECT_TIMEOUT_S:g} s"
        except (EOFError, BrokenPipeError):
            self.close()
            return "its process ended"
        if "exit" in answer or answer.get("grown"):
            self._child = None
        if "exit" in answer:
            return f"its process ended with exit code {answer['exit']}"
        self.expected_s += answer.get("expected_s", 0.0)
        return str(answer.get("error", ""))

    def move(self, cpus: Sequence[int] | None) -> None:
        """Have the worker's processes, and those that replace them, run on these CPUs; None changes nothing."""
        if not cpus or not hasattr(os, "sched_setaffinity"):
            return
        self._cpus = tuple(cpus)
        for process in (self._server.pid if self._server else None, self._child):
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(process, self._cpus)

    def probe(self) -> float | None:
        """Time the reference kernel of :mod:`tencost.workers.noise` where programs run, seconds; None if it fails."""
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
                    f"expected a measuring process (`{sys.executable} -m tencost.workers.worker`) to start, it did "
                    "not. Run that command by hand to see why"
                    f"{f', or read {self._log}' if self._log else ''}."
                ) from error
            if "ready" in answer:
                self._child = int(answer["ready"])
                self.num_starts += 1
                self.move(self._cpus)

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
                [sys.executable, "-m", "tencost.workers.worker", json.dumps(self._settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is the caller's business: it finishes the program
            )
        finally:
            if not isinstance(log, int):
                log.close()
        self.move(self._cpus)

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
