"""How quiet the host is: a fixed kernel timed again and again, and what the system says about its load.

The kernel says how much slower the host is now than at its best, whatever the reason (other processes, a neighbour on
the same machine, heat, clock). The load says, before a run, whether others use the CPUs that programs are to run on.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tencost.workers.evaluator import local_timer

STAT = Path("/proc/stat")

SIZE = 128
"""Rows and columns of the reference kernel's matrices: 64 KiB each, 192 KiB in all, so that it feels L1 and L2."""
REPEATS = 7
RUNS = 15
"""Runs in a repeat: some 1.5 ms, much longer than the timer's resolution, much shorter than a time slice of others."""

NOISY = 1.1
"""The reference kernel's time over its best from which on a run is said to be noisy: its own may scatter by 10 %."""

MAX_BUSY = 0.1
"""Share of the CPUs' time that others may use: one of ten programs disturbed moves no median of its repeats."""
MAX_STEAL = 0.02
"""Share of the CPUs' time that the hypervisor may give to other machines; a quiet one takes well below 1 %."""
MAX_WAITING = 1.0
"""Processes that may want a CPU beyond those that programs leave free: this command itself is one."""


class NoiseProbe:
    """A 128x128x128 matrix product, compiled for the architecture's baseline so that it is the same on all hardware.

    Args:
        alone: what it waits for its CPU is left out, as of the programs that it stands beside, see `local_timer`.
    """

    def __init__(self, *, alone: bool = False) -> None:
        import numpy as np
        import tvm
        from tvm.target import Target

        executable = tvm.compile(_kernel(), target=Target(_baseline()))
        values = np.linspace(0.0, 1.0, SIZE * SIZE, dtype="float32").reshape(SIZE, SIZE)
        self._tensors = [tvm.runtime.tensor(values) for _ in range(3)]
        self._time = local_timer(
            executable.jit(), self._tensors, tvm.cpu(), flush=False, alone=alone
        )
        self._time(RUNS, REPEATS, 0.0)  # the first call generates code and warms the caches

    def measure(self) -> float:
        """Return the seconds that the kernel takes now: the median of some 10 ms of repeats."""
        return statistics.median(self._time(RUNS, REPEATS, 0.0))


def relative(value: float, reference: float) -> float:
    """Return how many times as long as its best, `reference`, the kernel takes: 1 on a quiet host.

    Raises:
        ValueError: a time is not above 0.
    """
    if not (value > 0 and reference > 0):
        raise ValueError(f"expected times above 0, found {value} and {reference}")
    return value / reference


def host_load(cpus: set[int], window_s: float = 0.5) -> dict[str, Any]:
    """Return what the system says about its load, this process and its children left out where that can be told.

    Keys: `cpus` (given), `cpus_online`, `load_1m` (load average), `window_s`; over the window `busy_share` (others'
    share of the given CPUs' time), `busy_share_elsewhere` (the same for the remaining CPUs: they share memory and
    clock), `steal_share` (taken by the hypervisor). What a system does not tell is None.

    Args:
        cpus: CPUs that programs are to run on.
        window_s: how long to look.
    """
    facts: dict[str, Any] = {
        "cpus": sorted(cpus),
        "cpus_online": psutil.cpu_count(),
        "load_1m": _load_average(),
        "window_s": window_s,
        "busy_share": None,
        "busy_share_elsewhere": None,
        "steal_share": None,
    }
    before, own_before = _cpu_times(), _own_seconds()
    if not before:
        return facts
    time.sleep(window_s)
    spent = {
        cpu: _minus(times, before[cpu]) for cpu, times in _cpu_times().items() if cpu in before
    }
    own = max(0.0, _own_seconds() - own_before)
    here = [times for cpu, times in spent.items() if cpu in cpus]
    elsewhere = [times for cpu, times in spent.items() if cpu not in cpus]
    facts["busy_share"] = _share(here, "busy", own)
    facts["busy_share_elsewhere"] = _share(elsewhere, "busy", own)
    facts["steal_share"] = _share(here, "steal", 0.0)
    return facts


def is_busy(load: Mapping[str, Any]) -> str | None:
    """Return why times measured now would not be trusted; None if the host is quiet or does not tell.

    Busy is a host where others take more than MAX_BUSY of the pinned CPUs' time, the hypervisor more than MAX_STEAL,
    or where the load average exceeds the CPUs that programs leave free by more than MAX_WAITING.

    Args:
        load: what `host_load` returned.
    """
    busy, steal, waiting = (load.get(key) for key in ("busy_share", "steal_share", "load_1m"))
    pinned, online = load.get("cpus") or [], load.get("cpus_online")
    named = ", ".join(str(cpu) for cpu in pinned)
    if busy is not None and busy > MAX_BUSY:
        return f"other processes use {busy:.0%} of CPU {named} (more than {MAX_BUSY:.0%})"
    if steal is not None and steal > MAX_STEAL:
        return f"the hypervisor takes {steal:.1%} of CPU {named} for others (more than {MAX_STEAL:.0%})"
    if waiting is not None and online:
        limit = max(0, online - len(pinned)) + MAX_WAITING
        if waiting > limit:
            return (
                f"the load average of the last minute is {waiting:.1f} (more than {limit:g}, with {len(pinned)} of "
                f"{online} CPUs for programs)"
            )
    return None


def _kernel() -> Any:
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    a = te.placeholder((SIZE, SIZE), name="A", dtype="float32")
    b = te.placeholder((SIZE, SIZE), name="B", dtype="float32")
    k = te.reduce_axis((0, SIZE), name="k")
    c = te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, c])}))
    block = schedule.get_sblock("C")
    row, column, inner = schedule.get_loops(block)
    outer, lanes = schedule.split(column, [None, 4])
    schedule.reorder(row, inner, outer, lanes)
    schedule.vectorize(lanes)
    schedule.decompose_reduction(block, inner)
    return schedule.mod


def _baseline() -> dict[str, Any]:
    """Return a target that every CPU of this architecture runs, and that does not change with the host's model."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return {"kind": "llvm", "mcpu": "x86-64"}
    if machine in ("aarch64", "arm64"):
        return {"kind": "llvm", "mcpu": "generic"}
    return {"kind": "llvm"}


def _load_average() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def _cpu_times() -> dict[int, dict[str, int]]:
    """Return ticks by CPU since the start: busy, stolen and all; empty where /proc/stat does not tell."""
    try:
        lines = STAT.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, *words = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and len(words) >= 8:
            user, nice, system, idle, waiting, irq, softirq, steal = map(int, words[:8])
            busy = user + nice + system + irq + softirq  # a guest's time is part of user and nice
            found[int(name[3:])] = {
                "busy": busy,
                "steal": steal,
                "all": busy + idle + waiting + steal,
            }
    return found


def _minus(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {key: max(0, value - before[key]) for key, value in after.items()}


def _share(spent: list[dict[str, int]], key: str, own_seconds: float) -> float | None:
    every = sum(times["all"] for times in spent)
    if not every:
        return None
    ticks = sum(times[key] for times in spent) - own_seconds * os.sysconf("SC_CLK_TCK")
    return round(min(1.0, max(0.0, ticks / every)), 4)


def _own_seconds() -> float:
    """Return CPU time of this process and of its living children."""
    here = psutil.Process()
    total = 0.0
    for process in (here, *here.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total
