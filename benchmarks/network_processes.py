"""Processes of networks.py: commands of tencost, and those of network_arms.py that prepare or hold an arm."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from network_arms import Case

from tencost.errors import TuneError
from tencost.tune.deploy import output_agreement
from tencost.tune.hosts import times_in_turn
from tencost.workers.noise import host_load
from tencost.writing import whole_file

ROOT = Path(__file__).resolve().parents[1]
ARMS_PY = Path(__file__).with_name("network_arms.py")
PAUSE_S = 0.1
"""Between two turns: ONNX Runtime's threads spin for some 50 ms after a call, the others' for less."""
_PR_SET_PDEATHSIG = 1


class Failed(Exception):
    """An arm that cannot be prepared or run; its text is one line that says why."""


def write(file: Path, values: Mapping[str, Any]) -> None:
    with whole_file(file) as new:
        new.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


class Clock:
    """Counts the seconds that an arm has been prepared for, over all sittings.

    Args:
        file: where they are kept.
        work: what grows by that work: seconds after it last did are not counted if this process is killed, as what they
            brought is lost, too. Stock MetaSchedule keeps nothing before its first turn through all tasks is over.
    """

    def __init__(self, file: Path, work: Path | None = None) -> None:
        found = json.loads(file.read_text()) if file.exists() else {"seconds": 0.0, "sittings": 0}
        self._file, self._before, self._kept = file, found["seconds"], found["seconds"]
        self.sittings = found["sittings"] + 1
        self._started = time.monotonic()
        self._work, self._size = work, _size(work)
        self.note()

    @property
    def spent(self) -> float:
        return float(self._before + time.monotonic() - self._started)

    def note(self) -> None:
        size = _size(self._work)
        if self._work is None or size != self._size:
            self._kept, self._size = self.spent, size
        write(self._file, {"seconds": self._kept, "sittings": self.sittings})

    def wait(self, process: subprocess.Popen[str], interrupt_at: float | None = None) -> int:
        """Wait for a process; at so many seconds it gets Ctrl-C, once."""
        while True:
            try:
                code = process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                self.note()
                if interrupt_at is not None and self.spent >= interrupt_at:
                    process.send_signal(signal.SIGINT)
                    interrupt_at = None
                continue
            self.note()
            return code


def _size(file: Path | None) -> int:
    return file.stat().st_size if file is not None and file.exists() else 0


def command(
    words: Sequence[str], log: Path, clock: Clock, *, interrupt_at: float | None = None
) -> None:
    """Run a command of tencost; what it says goes into the log."""
    with log.open("a", encoding="utf-8") as file:
        print("\n$ tencost", *words, file=file, flush=True)
        began = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "tencost.cli", *words],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, text=True,
            start_new_session=True, preexec_fn=end_with_parent,
        )  # fmt: skip
        with ended(process):
            code = clock.wait(process, interrupt_at)
    if code != 0:
        said = [line for line in log.read_text(encoding="utf-8")[began:].splitlines() if line]
        raise Failed(f"`tencost {words[0]}` ended with {code}: {said[-1][:300] if said else ''}")


def end_with_parent() -> None:
    """Have the system kill this process when the one that started it ends, however that is; and listen to Ctrl-C.

    What a shell's script runs in the background does not, nor what that starts.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kill a process, and what it started in its session, at the end."""
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start(
    case: Case,
    do: str,
    arm: str,
    cpus: Sequence[int],
    settings: Mapping[str, Any] | None = None,
    threads: int | None = None,
) -> subprocess.Popen[str]:
    """Start a process of network_arms.py."""
    folder = case.path / arm
    folder.mkdir(exist_ok=True)
    count = str(case.cores if threads is None else threads)
    environment = os.environ | {
        "OMP_NUM_THREADS": count,
        "TVM_NUM_THREADS": str(case.cores),
        "TVM_BIND_THREADS": "0",  # to CPUs that it counts from 0, whichever this process may use
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
    }
    asked = {"do": do, "arm": arm, "case": asdict(case), "cpus": list(cpus), **(settings or {})}
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, str(ARMS_PY), json.dumps(asked)],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            text=True, start_new_session=True, preexec_fn=end_with_parent,
        )  # fmt: skip


def child(
    case: Case,
    do: str,
    arm: str,
    cpus: Sequence[int],
    settings: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    *,
    threads: int,
) -> dict[str, Any]:
    """Have a process do one thing, and return its answer.

    Raises:
        Failed: it says why not, or ends without an answer.
    """
    with ended(start(case, do, arm, cpus, settings, threads)) as process:
        if clock is not None:
            clock.wait(process)
        return answer_of(process, case, arm)


def answer_of(process: subprocess.Popen[str], case: Case, arm: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        log = case.path / arm / "log.txt"
        raise Failed(f"its process ended with {process.wait()} and said nothing, see {log}")
    found: dict[str, Any] = json.loads(line)
    if "error" in found:
        raise Failed(found["error"])
    return found


def time_arms(
    case: Case, rows: dict[str, dict[str, Any]], cpus: Sequence[int], turn_s: float
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Time the arms that have no error in turn, and compare their outputs; rows get `times_s` or `error`.

    Args:
        case: what they are arms of.
        rows: what is known of each arm.
        cpus: that they run on.
        turn_s: seconds that an arm is timed for, about.

    Returns:
        The host's load before and after.
    """
    with ExitStack() as stack:
        residents = {}
        for arm in [arm for arm, row in rows.items() if "error" not in row]:
            process = stack.enter_context(ended(start(case, "serve", arm, cpus)))
            residents[arm] = Resident(case, arm, process)
            try:
                residents[arm].ready()
                rows[arm] |= residents[arm].errors()
            except (Failed, TuneError) as failed:
                rows[arm]["error"] = str(failed)
                del residents[arm]
        before = host_load(set(cpus))
        times: dict[str, list[float]] = {}
        while residents and not times:
            try:
                times = times_in_turn(residents, turn_s * len(residents))
            except Failed as failed:
                message, arm = failed.args
                rows[arm]["error"] = message
                del residents[arm]
        after = host_load(set(cpus))
    for arm, seconds in times.items():
        rows[arm]["times_s"] = seconds
    return before, after


class Resident:
    """An arm in a process of its own, which sleeps until it is asked."""

    def __init__(self, case: Case, arm: str, process: subprocess.Popen[str]) -> None:
        self._case, self.arm, self._process = case, arm, process

    def ready(self) -> None:
        """Wait until it is loaded; raises Failed."""
        answer_of(self._process, self._case, self.arm)

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what it says, or does not, is read below
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return answer_of(self._process, self._case, self.arm)

    def errors(self) -> dict[str, Any]:
        """Return the largest difference of its outputs from PyTorch's, relative to PyTorch's largest value."""
        file = self._case.path / self.arm / "outputs.npz"
        self._ask(ask="outputs", to=str(file))
        with np.load(file) as found, np.load(self._case.path / "expected.npz") as expected:
            pairs = [(found[name], expected[name]) for name in expected.files]
            agreements = [output_agreement(one, other) for one, other in pairs]
        empty = [one.degenerate for one in agreements if one.degenerate]
        said = {"outputs_that_say_nothing": empty} if empty else {}
        return {"max_rel_error": max(one.max_rel for one in agreements), **said}

    def seconds(self, number: int = 1) -> float:
        """Return the mean seconds of so many calls."""
        time.sleep(PAUSE_S)
        try:
            return float(self._ask(ask="seconds", number=number)["seconds"])
        except Failed as failed:
            raise Failed(f"while it was timed: {failed}", self.arm) from failed
