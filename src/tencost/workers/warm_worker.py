"""The parent's side of a measuring process: a request is a program, the answer is its times or its status.

A program that crashes or hangs costs its own process, which is replaced within milliseconds, and nothing else; the
child's side is :mod:`tencost.workers.worker`, what is spoken between them :mod:`tencost.workers.protocol`.

Blame needs a beginning: a process that ends before it has read a program, as the system's killer of large processes
may have it, is replaced, and the program goes to the next one. After that, its end is the program's status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tencost.errors import HardwareError, MeasureError, UntrustedError
from tencost.store.status import Status, Timing, timing_from_log
from tencost.workers import threads
from tencost.workers.evaluator import Best, MeasureOptions
from tencost.workers.expected import Reference
from tencost.workers.process import (
    ForeignAnswerError,
    NoAnswerError,
    ServerEndedError,
    WorkerProcess,
)

START_TIMEOUT_S = 300.0
"""Longest time that importing TVM in a new worker may take."""
EXPECT_TIMEOUT_S = 30.0
"""Longest time that an unscheduled workload, which is slow, gets to compute what its programs must."""
DEVICE_TIMEOUT_S = 900.0
"""Longest time that a worker may wait for a remote device: it gives up by itself before."""
MAX_ATTEMPTS = 4
"""Processes that a program is offered to, if they end before they have read it."""


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
        max_rss_mib: what a program on this host's CPUs may allocate, at least 1024, MiB; beyond it, it fails. A
            process larger than this after a program gives way to a fresh one.
        command: what starts the processes instead of this Python and :mod:`tencost.workers.worker`.

    Attributes:
        process: the processes.
        num_starts: children so far.
        num_checked: programs whose outputs were compared.
        checked_s: seconds that this took.
        expected_s: seconds that unscheduled workloads took.
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
        command: Sequence[str] = (),
    ) -> None:
        self.options = options
        self.num_starts = 0
        self.num_checked = 0
        self.checked_s = 0.0
        self.expected_s = 0.0
        self._log = log
        self._remote = remote
        self._num_closed = 0
        environment = {
            **os.environ,
            **threads.environment(cores),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        settings = {"target_kind": target_kind, "max_rss_mib": max_rss_mib}
        self.process = WorkerProcess(
            command or (sys.executable, "-m", "tencost.workers.worker"), settings, environment, log
        )

    def measure(
        self,
        program: Path | TracedProgram,
        target: dict[str, Any],
        args: Sequence[Any],
        run_slot: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        expected: Path | None = None,
        best: Callable[[], Best | None] = lambda: None,
        run_timeout_s: float | None = None,
    ) -> Timing:
        """Build and time one program, a module file (TVM JSON) or a trace, and return what came of it.

        Args:
            program: the program.
            target: what it is compiled for.
            args: its arguments, ["TENSOR", dtype, [shape]] each.
            run_slot: makes what is held while the program runs, so that several workers run one at a time.
            expected: what :meth:`expect` wrote. A program that would be a new best is compared with it, and is a
                wrong_answer if it computes something else. Not for remote devices.
            best: the best times known; asked when the program may run. None: there are none.
            run_timeout_s: longest time that all runs together get; None: that of the options.

        Raises:
            MeasureError: a worker cannot be started at all.
            HardwareError: no remote device is there, or it cannot load programs.
            UntrustedError: the workload of a traced program could run code of others.
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
        while True:
            failed = self._begin(request, self.options.build_timeout_s)
            if failed is not None:
                return failed
            is_first = self.process.num_served == 1
            try:
                return self._follow(run_slot, best, run_timeout_s or self.options.run_timeout_s)
            except ForeignAnswerError as error:
                self.process.kill()
                if (
                    is_first
                ):  # else it may be of a program before: again, in a process without a past
                    return Timing(Status.run_error, (), str(error))

    def expect(self, reference: Reference, target: dict[str, Any]) -> str:
        """Have the unscheduled workload run and its outputs written down; return why that failed, "" if it did not.

        Raises:
            MeasureError: a worker cannot be started at all.
        """
        paths = {"expect": str(reference.workload), "expected": str(reference.expected)}
        answer = self._ask({**paths, "target": target}, EXPECT_TIMEOUT_S)
        self.expected_s += answer.get("expected_s", 0.0)
        return str(answer.get("error", ""))

    def probe(self) -> float | None:
        """Time the reference kernel of :mod:`tencost.workers.noise` where programs run, seconds; None if it fails."""
        return self._ask({"probe": True}, START_TIMEOUT_S).get("probe_s")

    def close(self) -> None:
        """End the processes; the next measurement starts new ones."""
        self._num_closed += 1
        self.process.stop()

    def _ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the answer to a request without phases; its "error" where there is none."""
        failed = self._begin(request, timeout_s)
        if failed is not None:
            return {"error": failed.error}
        try:
            return self.process.read(timeout_s)
        except TimeoutError:
            return {"error": f"it takes more than {timeout_s:g} s"}
        except NoAnswerError as error:
            return {"error": str(error)}

    def _begin(self, request: dict[str, Any], timeout_s: float) -> Timing | None:
        """Have a process begin with a request, the first of some that does; return its status if none does."""
        reason, num_closed = "", self._num_closed
        for _ in range(MAX_ATTEMPTS):
            if self._num_closed != num_closed:
                break
            self._ready()
            try:
                self.process.request(request, timeout_s)
            except TimeoutError:
                reason = f"no process began with it within {timeout_s:g} s"
            except ServerEndedError as error:
                reason = str(error)
            except NoAnswerError:
                reason = f"{MAX_ATTEMPTS} processes ended before they began with it"
            else:
                return None
        return Timing(Status.build_error, (), reason)

    def _ready(self) -> None:
        """Have a process that waits for a request."""
        try:
            if self.process.ready(START_TIMEOUT_S):
                self.num_starts += 1
        except (TimeoutError, ServerEndedError) as error:
            self.process.stop()
            raise MeasureError(
                f"expected a measuring process (`{sys.executable} -m tencost.workers.worker`) to start, it did "
                "not. Run that command by hand to see why"
                f"{f', or read {self._log}' if self._log else ''}."
            ) from error

    def _follow(
        self,
        run_slot: Callable[[], AbstractContextManager[Any]],
        best: Callable[[], Best | None],
        run_timeout_s: float,
    ) -> Timing:
        """Go through the phases of a program that was begun with; raises ForeignAnswerError."""
        phase, limit, waits = "build", self.options.build_timeout_s, False
        try:
            answer = self.process.read(limit)
            while "phase" in answer:
                waits, phase = answer["phase"] == "wait", "run"
                limit = DEVICE_TIMEOUT_S if waits else run_timeout_s
                with nullcontext() if waits else run_slot():
                    if not waits:
                        self.process.send({"go": True, "best": best()}, limit)
                    answer = self.process.read(limit)
                    if answer.get("phase") == "check":
                        answer = self.process.read(limit)
        except TimeoutError:
            if waits:
                raise HardwareError(
                    f"expected a device to answer within {limit:g} s, it did not: {self._remote}. Ask the tracker what "
                    "is there: python -m tvm.exec.query_rpc_tracker"
                ) from None
            return Timing(Status(f"{phase}_timeout"), (), f"stopped after {limit:g} s")
        except ForeignAnswerError:
            raise
        except NoAnswerError as error:
            return Timing(Status(f"{phase}_error"), (), str(error))
        timing = _timing(answer)
        if "check_s" in answer:
            self.num_checked += 1
            self.checked_s += answer["check_s"]
        return timing


def _timing(answer: dict[str, Any]) -> Timing:
    """Turn the last answer to a program into its times or its status.

    Raises:
        HardwareError: the answer says that there is no device.
        UntrustedError: the workload could run code of others.
        ForeignAnswerError: it says neither times nor a status.
    """
    if "no_device" in answer:
        raise HardwareError(answer["no_device"])
    if "untrusted" in answer:
        raise UntrustedError(answer["untrusted"])
    times, word = answer.get("run_secs"), str(answer.get("status"))
    if (
        isinstance(times, list)
        and times
        and all(type(seconds) in (float, int) for seconds in times)
    ):
        return timing_from_log(times)
    if word in Status.__members__ and word != Status.ok:
        return Timing(Status(word), (), str(answer.get("error", "")))
    raise ForeignAnswerError
