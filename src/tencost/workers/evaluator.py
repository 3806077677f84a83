"""How long a program is timed: repeated until the times agree, in number by its length.

TenSet's evaluator measures again until the coefficient of variation is at most 10 %, and keeps all times; so does
this one. What it does beyond: a first single run decides how many runs make one time, and whether a slow program
deserves more than that one; where one run makes a time, the first is one of them. What a program of one core waited for
its CPU while others had it is not its time: Linux tells how long that was.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Timer = Callable[[int, int, float], list[float]]
"""(number, repeat, min_repeat_ms) -> `repeat` means of at least `number` runs each, seconds."""

FLUSH = "cache_flush_cpu_non_first_arg"
"""TVM's function that evicts every argument but the first from the caches before a time is taken."""
_MAX_NUMBER = 100_000
MAX_FLUSHED = 50
"""Runs averaged into one time at most where the caches are flushed before each."""
_MOST_WAITED = 0.95
"""Largest share of a time that is taken off for waiting for the CPU, so that a latency stays positive."""
_SCHEDULED = Path("/proc/thread-self/schedstat")
"""Nanoseconds that the thread ran, nanoseconds that it was ready and did not run, how often it did."""


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """How long to measure, and when to give up."""

    number: int = 1
    """Runs averaged into one time, at least."""
    repeat: int = 3
    """Times a program at first."""
    max_repeat: int = 3
    """Times a program at most, when they scatter; not below `repeat`."""
    max_cv: float = 0.1
    """Coefficient of variation (standard deviation over mean) that asks for more times."""
    min_repeat_ms: float = 10.0
    """Least duration of one time, milliseconds."""
    slow_ms: float = 150.0
    """A program slower than this is timed once: repeating it would cost more than it tells."""
    cache_flush: bool = False
    """Before each run, evict all arguments but the first from the CPU's caches: weights are as cold as in a network."""
    build_timeout_s: float = 30.0
    """Longest time that the compiler gets."""
    run_timeout_s: float = 10.0
    """Longest time that all runs together get."""

    def settings(self) -> dict[str, Any]:
        """Return the fields that decide about times, as plain JSON, for provenance."""
        return asdict(self)


class Best(NamedTuple):
    """The shortest mean and the shortest median that are known, seconds; databases sort by the one or the other."""

    mean: float = math.inf
    median: float = math.inf

    def after(self, times: Sequence[float]) -> Best:
        """Return the best once a program has these times."""
        mean, median = statistics.fmean(times), statistics.median(times)
        return Best(min(self.mean, mean), min(self.median, median))

    def is_beaten_by(self, times: Sequence[float]) -> bool:
        """Say whether a program with these times may be offered as the best: its mean or its median is as short."""
        return statistics.fmean(times) <= self.mean or statistics.median(times) <= self.median


def random_arguments(
    args: Sequence[Any], device: Any, fill: Callable[[Any, str, Sequence[int]], None]
) -> list[Any]:
    """Return tensors for a program's arguments.

    Args:
        args: ["TENSOR", dtype, [shape]] each.
        device: where they are put.
        fill: takes a tensor, its type and its shape, and puts random numbers into it.

    Raises:
        ValueError: an argument that is no tensor.
    """
    import tvm

    tensors = []
    for kind, dtype, shape in args:
        if kind != "TENSOR":
            raise ValueError(f"expected tensor arguments only, found {kind}")
        tensor = tvm.runtime.empty(shape=tuple(shape), dtype=dtype, device=device)
        fill(tensor, dtype, shape)
        tensors.append(tensor)
    return tensors


def adaptive_times(timer: Timer, options: MeasureOptions) -> list[float]:
    """Time one program: all times in the order taken, seconds.

    Args:
        timer: runs the program; on this host or on a remote device.
        options: how long.
    """
    first = timer(1, 1, 0.0)
    if first[0] * 1e3 > options.slow_ms:
        return first
    least_ms = options.min_repeat_ms
    enough = math.ceil(least_ms / 1e3 / max(first[0], 1e-9))
    most = MAX_FLUSHED if options.cache_flush else _MAX_NUMBER
    number = min(max(options.number, enough), most)
    times = first if number == 1 else []
    if len(times) < options.repeat:
        times = times + timer(number, options.repeat - len(times), least_ms)
    while coefficient_of_variation(times) > options.max_cv and len(times) < options.max_repeat:
        times += timer(number, min(options.repeat, options.max_repeat - len(times)), least_ms)
    return times


def coefficient_of_variation(times: Sequence[float]) -> float:
    """Return the sample standard deviation over the mean; 0 for fewer than two times."""
    if len(times) < 2:
        return 0.0
    return statistics.stdev(times) / statistics.fmean(times)


def local_timer(
    function: Any, tensors: Sequence[Any], device: Any, *, flush: bool, alone: bool = False
) -> Timer:
    """Return a timer of a loaded module's entry function ``main`` on this process's device.

    Args:
        function: the module.
        tensors: its arguments.
        device: where they are.
        flush: evict all but the first of them from the caches before each run.
        alone: the program runs in this thread and no other, so that what the thread waits for its CPU, it waits. The
            times are then without the share of the call in which it waited; the same where it never does.
    """

    def timer(number: int, repeat: int, min_repeat_ms: float) -> list[float]:
        # TVM flushes before a time, not before a run.
        runs, times_of_runs = (1, number * repeat) if flush else (number, repeat)
        evaluator = function.time_evaluator(
            "main",
            device,
            number=runs,
            repeat=times_of_runs,
            min_repeat_ms=0 if flush else round(min_repeat_ms),
            f_preproc=FLUSH if flush else "",
        )
        waited, started = waited_s(), time.perf_counter()
        times = np.reshape(evaluator(*tensors).results, (repeat, -1)).mean(axis=1).tolist()
        share = (waited_s() - waited) / (time.perf_counter() - started) if alone else 0.0
        return [seconds * (1.0 - min(share, _MOST_WAITED)) for seconds in times]

    return timer


def waited_s() -> float:
    """Return the seconds that this thread was ready and did not run, since it began; 0 where the system keeps it."""
    try:
        return int(_SCHEDULED.read_text(encoding="ascii").split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
