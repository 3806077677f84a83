"""DVC run as a plan of its stages says, side by side where it can be, and what is printed meanwhile.

Printed are how much there is to do, which stage runs, and how long the rest may take.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import psutil

from tencost import signals
from tencost.cli.pipeline_plan import SECONDS_FILE, PipelinePlan, read_seconds
from tencost.writing import whole_file

_DVC_LOGGER = logging.getLogger("dvc.stage")
_RUNNING = "Running stage"
_UNCHANGED = ("didn't change, skipping", "is cached - skipping run")
_SHELLS = ("bash", "dash", "fish", "ksh", "sh", "zsh")


def repro_plan(planned: PipelinePlan, progress: PipelineProgress) -> int:
    """Run what is out of date, side by side where it can be; with one worker, or nothing to do, it is `dvc repro`."""
    if planned.workers == 1 or not planned.stages:
        code = repro(())
        if code == 0:
            progress.end_stage()
        return code
    finished: set[str] = set()
    while ready := planned.ready(finished):
        first = ready[0]
        if len(ready) > 1 and first not in planned.alone:
            code = _run_side_by_side(planned, finished, progress)
        else:  # in this process: its progress bars reach the terminal
            code = repro(("--single-item", "--", first))
            progress.end_stage()
            finished.add(first)
        if code:
            return code
    return 0


def _run_side_by_side(planned: PipelinePlan, finished: set[str], progress: PipelineProgress) -> int:
    """Run stages in processes of their own until none is left that may run beside others; print what they print.

    Args:
        planned: what there is to do.
        finished: stages that are done; those that end well are added.
        progress: told what the stages print, a line at a time.

    Returns:
        The exit code of the first stage that failed; after it no other begins, and those that run go to their ends,
        whose lines bury what was said of it: that is said again at the end.
    """
    processes: dict[str, subprocess.Popen[str]] = {}
    ended: SimpleQueue[str] = SimpleQueue()
    interrupted = threading.Event()

    def end_stages() -> None:
        """Have the stages end, without waiting: a second signal may arrive while the first is handled.

        Ctrl-C reaches them from the terminal; a SIGINT to this process alone does not, and the next one ends them.
        """
        if signals.terminated() or interrupted.is_set():
            terminate()
        interrupted.set()

    def terminate() -> None:
        for process in list(processes.values()):
            process.terminate()

    def relay(name: str, process: subprocess.Popen[str]) -> int:
        """Print a stage's lines until it ends, and return its exit code."""
        assert process.stdout is not None
        try:
            with process.stdout:
                for line in process.stdout:
                    progress.follow(line, name)
                    sys.stderr.write(f"{name} | {line}")
        except OSError:  # nobody reads on, as after `| head`
            interrupted.set()
            terminate()
            raise
        finally:
            code = process.wait()
            ended.put(name)
        return code

    failures: dict[str, int] = {}
    buried: list[str] = []
    with signals.handled(end_stages), ThreadPoolExecutor(planned.workers) as threads:
        relays: dict[str, Future[int]] = {}
        while True:
            ready = [name for name in planned.ready(finished) if name not in processes]
            for name in ready:
                if failures or interrupted.is_set() or name in planned.alone:
                    continue
                if len(relays) < planned.workers:
                    processes[name] = _start(name)
                    if interrupted.is_set():  # by a signal that came while it was started
                        processes[name].terminate()
                    relays[name] = threads.submit(relay, name, processes[name])
            if not relays:
                break
            name = ended.get()
            code = relays.pop(name).result()
            if code == 0:
                progress.end_stage(name)
                finished.add(name)
            elif not interrupted.is_set():
                _say_failed(name, code)
                failures[name] = code
                buried = list(failures) if relays else buried
    if interrupted.is_set():
        raise KeyboardInterrupt
    for name in buried:
        _say_failed(name, failures[name])
    return next((code if code > 0 else 128 - code for code in failures.values()), 0)


def _start(name: str) -> subprocess.Popen[str]:
    """Run `dvc repro` of one stage in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", _STAGE, str(os.getpid()), name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _say_failed(name: str, code: int) -> None:
    cause = "failed: its lines above say why"
    if code < 0:
        cause = f"ended by signal {-code} ({signal.strsignal(-code)}): memory may have run out"
    sys.stderr.write(f"{name} | {cause}. Then run the command again\n")


_STAGE = (
    "import sys; from tencost.cli.pipeline_run import run_beside; "
    "sys.exit(run_beside(int(sys.argv[1]), sys.argv[2]))"
)


def run_beside(parent: int, name: str) -> int:
    """Run a stage beside others; return the exit code.

    DVC looks at this stage alone: to look at one that several need it would lock what the others read.

    Args:
        parent: number of the process of `tencost pipeline`: where it is killed, the stage gets SIGTERM.
        name: of the stage.
    """
    signals.end_with_parent(parent)
    with signals.listening():
        try:
            return repro(("--single-item", "--", name), ("--wait-for-lock",))
        except KeyboardInterrupt:
            return 130


def repro(words: Sequence[str], options: Sequence[str] = ()) -> int:
    """Run `dvc repro` in this process; SIGTERM goes to the stage that DVC waits for, whose end is waited for."""
    from dvc.cli import main as dvc

    def end_stages() -> None:
        if signals.terminated():
            stages = list(_stages(psutil.Process()))
            for stage in stages:
                with suppress(psutil.NoSuchProcess):
                    stage.terminate()
            while any(_runs(stage) for stage in stages):
                time.sleep(0.05)
        raise KeyboardInterrupt

    with signals.handled(end_stages):
        return int(dvc([*options, "repro", *words]))


def _stages(process: psutil.Process) -> Iterator[psutil.Process]:
    """Yield the commands that a process waits for: a shell first, which so starts no other, then its own."""
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            is_shell = child.name() in _SHELLS
            commands = list(_stages(child)) if is_shell else []
            yield child
            yield from commands


def _runs(process: psutil.Process) -> bool:
    """Say whether a child runs; one that has ended is left to whoever waits for it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class PipelineProgress(logging.Handler):
    """Listens to what DVC logs, prints a line before each stage that runs, and keeps the stages' times."""

    def __init__(self, folder: Path, plan: PipelinePlan) -> None:
        super().__init__(logging.INFO)
        self._folder, self._plan = folder, plan
        self._began = time.monotonic()
        self._done: set[str] = set()
        self._running: dict[str, tuple[str, float]] = {}
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> PipelineProgress:
        self._say(
            f"{len(self._plan.stages)} of {self._plan.total} stages are out of date", "in all"
        )
        _DVC_LOGGER.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        _DVC_LOGGER.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.follow(record.getMessage())

    def follow(self, text: str, process: str = "") -> None:
        """Take a line of DVC: a stage that begins ends the one before it, of its process."""
        name = text.partition("'")[2].partition("'")[0]
        if text.startswith(_RUNNING) and name in self._plan.stages:
            self.end_stage(process)
            with self._one_at_a_time:
                self._running[process] = name, time.monotonic()
                spent = minutes(time.monotonic() - self._began)
                begun = len(self._done & set(self._plan.stages)) + len(self._running)
                self._say(f"[{begun}/{len(self._plan.stages)}] {name}: {spent} so far", "left")
        elif any(part in text for part in _UNCHANGED):
            self.end_stage(process)
            self._done.add(name)

    def end_stage(self, process: str = "") -> None:
        """Note that the stage that a process runs has ended, and its time."""
        with self._one_at_a_time:
            if process not in self._running:
                return
            name, began = self._running.pop(process)
            self._done.add(name)
            timed = read_seconds(self._folder) | {name: round(time.monotonic() - began, 1)}
            with suppress(OSError), whole_file(self._folder / SECONDS_FILE) as partial:
                partial.write_text(json.dumps(timed, indent=1, sort_keys=True))

    def _say(self, text: str, what: str) -> None:
        seconds = self._plan.seconds(frozenset(self._done))
        rest = "" if not seconds else f", about {minutes(seconds)} {what}"
        sys.stderr.write(f"{text}{rest}\n")
        sys.stderr.flush()


def minutes(seconds: float) -> str:
    """Return a duration for people: `40 s`, `6 min`."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
