"""Whole networks timed on this host with ONNX Runtime: `tencost graphs measure`.

A folder holds what was measured on one hardware:

    hardware.json    what all lines share:
                     {"hardware", "cpus", "threads", "clock", "engine", "engine_version", "host": {...}}
    measured.ndjson   a line a network and round, appended as they come:
                     {"name", "family", "definition", "status", "timestamp", "noise"?, "error"?,
                      "latency_ms", "spread", "runs_ms", "cpu_ms",
                      "operators", "columns", "edges", "foreign", "other"}

`status` is ok, failed, crashed or timed_out; only ok has what the third line lists, and its first round what the last
one does. `latency_ms` is the median of `runs_ms` (clock wall) or of `cpu_ms` (clock cpu), `spread` the distance of
their quartiles over it, `noise` how much longer than at its best in this run a fixed kernel took just before,
`definition` what the network is built from, `operators`, `columns` and `edges` its graph (module operators). Each
network is built and timed in another process: one that crashes, hangs or needs too much memory costs itself alone. A
command that is killed loses the network in flight; run again, it goes on with what is missing.

What disturbs a host comes and goes within minutes, and only ever makes a network slower. So all networks are timed in
turn, `rounds` times over, and a network's latency is that of its quietest round.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tencost.config.checking import one_of
from tencost.errors import ConfigError, MeasureError
from tencost.measure.collection import hold, write_line, write_whole
from tencost.measure.host_state import host_facts
from tencost.networks.source import require_module
from tencost.networks.variants.variants import Variant
from tencost.records.network_graphs.formats.measured import HARDWARE_FILE, MEASURED_FILE
from tencost.workers.noise import NoiseProbe

_PER_PROCESS = 40
"""Networks that a process builds until it is replaced: what PyTorch keeps of each adds up."""
_GRAPH = ("operators", "columns", "edges", "foreign", "other")
"""What only the first round of a network says."""
_SAME = ("hardware", "threads", "clock", "engine", "engine_version")
"""What must not change between two runs into a folder."""


@dataclass(frozen=True)
class TimingSettings:
    """How a network is timed.

    Attributes:
        hardware: name of the hardware that the times are of.
        cpus: CPUs that networks run on; empty: wherever the system puts them.
        threads: threads of ONNX Runtime's operators.
        warm_up: runs that do not count.
        min_runs: runs that count, at least.
        max_runs: runs that count, at most.
        seconds: time for the runs that count, once there are min_runs.
        spread: standard error of the median (quartiles' distance over the median and over the root of the number of
            runs) that is good enough.
        timeout_s: time for a network, building and all.
        rounds: how often each network is timed, all others between.
        clock: wall, or cpu: the CPU's time that a run took, for a host that others use as well. With one thread that is
            what the run would take alone, but for the caches that the others share.
    """

    hardware: str
    cpus: tuple[int, ...] = ()
    threads: int = 1
    warm_up: int = 3
    min_runs: int = 10
    max_runs: int = 200
    seconds: float = 1.0
    spread: float = 0.005
    timeout_s: float = 300.0
    rounds: int = 1
    clock: str = "wall"

    def __post_init__(self) -> None:
        one_of("clock", self.clock, ("wall", "cpu"))
        if self.clock == "cpu" and self.threads != 1:
            raise ConfigError(
                f"clock cpu: expected one thread, found {self.threads}, whose times add up. Choose clock wall"
            )


@dataclass(frozen=True)
class Measured:
    """What a run did.

    Attributes:
        before: networks and rounds that had been measured already.
        ok: networks and rounds measured now.
        failed: networks that did not come through now: name -> status and message. They have no further rounds.
    """

    before: int
    ok: int
    failed: dict[str, str]


Progress = Callable[[str, dict[str, Any], int, int], None]
"""Takes a network's name, its line, how many networks and rounds are done and how many there are."""


def measure_networks(
    variants: Sequence[Variant],
    folder: Path,
    settings: TimingSettings,
    progress: Progress | None = None,
) -> Measured:
    """Time networks one after the other and write each down as it is done.

    Args:
        variants: the networks; what the folder has a line of is skipped.
        folder: made where it is not there.
        settings: how.
        progress: told of every network.

    Raises:
        MeasureError: the folder is of another hardware, runtime or number of threads, another process writes in it,
            the disk is full, or two networks have one name.
        MissingDependencyError: ONNX Runtime or PyTorch is not installed.
    """
    require_module("onnxruntime", "torch", "onnxscript")
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise MeasureError(f"expected networks of different names, found {twice!r} twice")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MeasureError(
            f"expected a folder to measure into at {folder}: {error}. Choose another one: --to"
        ) from error
    refusal = MeasureError(
        f"{folder}: another process measures into this folder. Wait for it, or choose another one"
    )
    with hold(folder / ".lock", refusal):
        _check_hardware(folder, settings)
        ended, rounds = _whole_lines(folder / MEASURED_FILE)
        todo = [
            variant
            for turn in range(settings.rounds)
            for variant in variants
            if variant.name not in ended and rounds[variant.name] <= turn
        ]
        before = len(variants) * settings.rounds - len(todo)
        num_ok, failed = 0, {}
        with _Timer(settings) as timer, (folder / MEASURED_FILE).open("ab", buffering=0) as file:
            for place, variant in enumerate(todo, start=1):
                if variant.name in failed:
                    continue
                line = timer.measure(variant)
                if rounds[variant.name]:
                    line = {key: field for key, field in line.items() if key not in _GRAPH}
                try:
                    write_line(file, line)
                except OSError as error:
                    raise MeasureError(
                        f"cannot write {file.name}: {error.strerror or error}. Make room, then run again: what is "
                        "there is kept"
                    ) from error
                if line["status"] == "ok":
                    num_ok += 1
                    rounds[variant.name] += 1
                else:
                    failed[variant.name] = f"{line['status']}: {line['error']}"
                if progress is not None:
                    progress(variant.name, line, place, len(todo))
    return Measured(before, num_ok, failed)


def median_and_spread(runs_ms: Sequence[float]) -> tuple[float, float]:
    """Return (median, distance of the quartiles over the median)."""
    low, middle, high = (float(quartile) for quartile in np.quantile(runs_ms, (0.25, 0.5, 0.75)))
    return round(middle, 6), round((high - low) / middle, 4)


def round_ratios(folder: Path) -> NDArray[np.float64]:
    """Return how well the rounds of a folder agree: the slowest over the quickest of each network that has several.

    Returns:
        float64 [networks with two rounds or more], at least 1; 1 is agreement.
    """
    rounds: defaultdict[str, list[float]] = defaultdict(list)
    for text in (folder / MEASURED_FILE).read_bytes().splitlines():
        line = json.loads(text)
        if line["status"] == "ok":
            rounds[line["name"]].append(line["latency_ms"])
    return np.array([max(times) / min(times) for times in rounds.values() if len(times) > 1])


class _Timer:
    """The process that builds and times, replaced when it dies; a context manager."""

    def __init__(self, settings: TimingSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._served = 0
        self._probe: NoiseProbe | None = None
        self._best = float("inf")

    def __enter__(self) -> _Timer:
        if find_spec("tvm") is not None:
            self._probe = NoiseProbe()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def measure(self, variant: Variant) -> dict[str, Any]:
        """Return the line of a network."""
        line: dict[str, Any] = {
            "name": variant.name,
            "family": variant.family,
            "definition": variant.definition,
            "status": "ok",
            "timestamp": round(time.time(), 3),
        }
        if self._probe is not None:
            with _on_cpus(self._settings.cpus):
                seconds = self._probe.measure()
            self._best = min(self._best, seconds)
            line["noise"] = round(seconds / self._best, 3)
        line |= self._ask({**asdict(self._settings), **asdict(variant)})
        if line["status"] == "ok":
            runs = line["cpu_ms" if self._settings.clock == "cpu" else "runs_ms"]
            line["latency_ms"], line["spread"] = median_and_spread(runs)
        return line

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._served >= _PER_PROCESS:
            self._end()
        process = self._process or self._start()
        self._served += 1
        try:
            return self._answer(process, json.dumps(request).encode() + b"\n")
        except TimeoutError:
            self._end()
            error = f"took longer than {self._settings.timeout_s:g} s"
            return {"status": "timed_out", "error": error}
        except (BrokenPipeError, ValueError):
            self._end()
            return {"status": "crashed", "error": f"its process {_how_ended(process.returncode)}"}

    def _answer(self, process: subprocess.Popen[bytes], request: bytes) -> dict[str, Any]:
        """Return the answer to a request; raises TimeoutError, and ValueError where the process ended before it."""
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + self._settings.timeout_s
        process.stdin.write(request)
        process.stdin.flush()
        text = b""
        while not text.endswith(b"\n"):
            remaining = max(0.0, deadline - time.monotonic())
            if not select.select([process.stdout], [], [], remaining)[0]:
                raise TimeoutError
            chunk = os.read(process.stdout.fileno(), 1 << 20)
            if not chunk:
                break
            text += chunk
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = json.dumps({"cpus": self._settings.cpus, "threads": self._settings.threads})
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tencost.measure.networks.timing", arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **threads},
            start_new_session=True,  # Ctrl-C is this process' business
        )
        self._served = 0
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):  # of a request that it did not read
                        stream.close()


def _how_ended(code: int | None) -> str:
    if code is not None and code < 0 and -code != 9:
        return f"ended with signal {-code}"
    return "was killed (out of memory?)" if code == -9 else f"ended with exit code {code}"


@contextmanager
def _on_cpus(cpus: Sequence[int]) -> Iterator[None]:
    if not cpus or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
        yield
    finally:
        os.sched_setaffinity(0, before)


def _check_hardware(folder: Path, settings: TimingSettings) -> None:
    """Write what all lines share, or refuse a folder whose lines are of something else."""
    path = folder / HARDWARE_FILE
    now = {
        "hardware": settings.hardware,
        "cpus": list(settings.cpus),
        "threads": settings.threads,
        "clock": settings.clock,
        "engine": "onnxruntime",
        "engine_version": version("onnxruntime"),
        "host": host_facts(settings.cpus or None),
    }
    if not path.exists():
        write_whole(path, json.dumps(now, indent=1) + "\n")
        return
    try:
        before = json.loads(path.read_bytes())
        differing = [
            f"{key} {before[key]} (now {now[key]})" for key in _SAME if before[key] != now[key]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise MeasureError(
            f"expected what was measured on in {path}, found something else ({error}). Measure into a new folder"
        ) from error
    if differing:
        raise MeasureError(
            f"{folder}: expected a folder of the same hardware and runtime, found one measured with "
            f"{', '.join(differing)}. Measure into another folder"
        )


def _whole_lines(path: Path) -> tuple[set[str], Counter[str]]:
    """Cut off what a killed process left half written; return (networks that failed, rounds of the others)."""
    ended: set[str] = set()
    rounds: Counter[str] = Counter()
    content = path.read_bytes() if path.exists() else b""
    size = 0
    for number, text in enumerate(content.splitlines(keepends=True), start=1):
        try:
            line = json.loads(text)
            name, is_ok = str(line["name"]), line["status"] == "ok"
        except (ValueError, KeyError, TypeError) as error:
            if size + len(text) < len(content):
                raise MeasureError(
                    f"{path}: expected a JSON object with name and status in line {number}, found something else. "
                    "Remove that line, or measure into another folder"
                ) from error
            break
        if not text.endswith(b"\n"):
            break
        size += len(text)
        rounds[name] += 1
        if not is_ok:
            ended.add(name)
    if size < len(content):
        os.truncate(path, size)
    return ended, rounds
