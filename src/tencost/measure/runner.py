"""Building and timing programs quickly on this host, for `builder=` and `runner=` of MetaSchedule.

The stock LocalBuilder starts a process a program and pays for TVM's imports each time, about a second; here a warm
worker process (:mod:`tencost.measure.worker`) builds and times one program after another in about 0.1 s. The builder
only writes the module down; what fails while building is reported by the runner, with its status. A program that
crashes or hangs costs its own worker, which is replaced, and nothing else.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm.ir import save_json
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tencost.errors import TuneError
from tencost.records.status import Status, Timing, timing_from_log

START_TIMEOUT_S = 300.0
"""Longest time that importing TVM in a new worker may take."""


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """How long to measure, and when to give up."""

    number: int = 3
    """Runs averaged into one time."""
    repeat: int = 3
    """Times a program."""
    min_repeat_ms: int = 10
    """Least duration of one time, milliseconds."""
    build_timeout_s: float = 30.0
    """Longest time that the compiler gets."""
    run_timeout_s: float = 10.0
    """Longest time that all runs together get."""


class WarmWorker:
    """One worker process, started when first needed and again after each crash or timeout."""

    def __init__(self, options: MeasureOptions, cores: int, log: Path | None = None) -> None:
        self.options = options
        self._cores = cores
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self.num_starts = 0

    def measure(self, module: Path, target: dict[str, Any], args: Sequence[Any]) -> Timing:
        """Build and time one module file (TVM JSON) and return what came of it.

        Raises:
            TuneError: a worker cannot be started at all.
        """
        process = self._running()
        options = self.options
        request = {
            "module": str(module),
            "target": target,
            "args": list(args),
            "number": options.number,
            "repeat": options.repeat,
            "min_repeat_ms": options.min_repeat_ms,
        }
        assert process.stdin is not None
        phase, limit = "build", options.build_timeout_s
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = self._read(limit)
            if answer.get("phase") == "run":
                phase, limit = "run", options.run_timeout_s
                answer = self._read(limit)
        except TimeoutError:
            self.close()
            return Timing(Status(f"{phase}_timeout"), (), f"stopped after {limit:g} s")
        except (EOFError, BrokenPipeError):
            code = process.wait()
            self.close()
            return Timing(Status(f"{phase}_error"), (), f"its process ended with exit code {code}")
        if "run_secs" in answer:
            return Timing(Status.ok, tuple(answer["run_secs"]))
        return Timing(Status(answer["status"]), (), answer["error"])

    def close(self) -> None:
        """End the process; the next measurement starts a new one."""
        process, self._process, self._buffer = self._process, None, b""
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        environment = {
            **os.environ,
            "TVM_NUM_THREADS": str(self._cores),
            "OMP_NUM_THREADS": str(self._cores),
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        }
        log = self._log.open("ab") if self._log else subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tencost.measure.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is the tuner's business: it finishes the batch
            )
        finally:
            if not isinstance(log, int):
                log.close()
        self.num_starts += 1
        try:
            self._read(START_TIMEOUT_S)
        except (TimeoutError, EOFError) as error:
            self.close()
            raise TuneError(
                f"expected a measuring process (`{sys.executable} -m tencost.measure.worker`) to start, it did not. "
                f"Run that command by hand to see why{f', or read {self._log}' if self._log else ''}."
            ) from error
        return self._process

    def _read(self, timeout_s: float) -> dict[str, Any]:
        """Return the next answer; raises TimeoutError, or EOFError when the process has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
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
