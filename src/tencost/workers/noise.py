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
from contextlib import suppress
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
    before, seconds_before = _cpu_ticks(), _own_seconds()
    if not before:
        return facts
    time.sleep(window_s)
    after = _cpu_ticks()
    own_ticks = max(0.0, _own_seconds() - seconds_before) * os.sysconf("SC_CLK_TCK")
    spent = {
        cpu: [max(0, now - then) for now, then in zip(after[cpu], before[cpu], strict=True)]
        for cpu in after.keys() & before.keys()
    }
    for key, chosen in (
        ("busy_share", spent.keys() & cpus),
        ("busy_share_elsewhere", spent.keys() - cpus),
    ):
        facts[key] = _share([spent[cpu] for cpu in chosen], _BUSY, own_ticks)
    facts["steal_share"] = _share([spent[cpu] for cpu in spent.keys() & cpus], _STOLEN, 0.0)
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
    cpus = ", ".join(map(str, pinned))
    if busy is not None and busy > MAX_BUSY:
        return f"other processes use {busy:.0%} of CPU {cpus} (more than {MAX_BUSY:.0%})"
    if steal is not None and steal > MAX_STEAL:
        return (
            f"the hypervisor takes {steal:.1%} of CPU {cpus} for others (more than {MAX_STEAL:.0%})"
        )
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


_BUSY, _STOLEN, _ALL = range(3)


def _cpu_ticks() -> dict[int, tuple[int, int, int]]:
    """Return ticks by CPU since the start: _BUSY, _STOLEN and _ALL; empty where /proc/stat does not tell."""
    try:
        lines = STAT.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    ticks = {}
    for line in lines:
        name, *words = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and len(words) >= 8:
            user, nice, system, idle, waiting, irq, softirq, steal = map(int, words[:8])
            busy = user + nice + system + irq + softirq  # a guest's time is part of user and nice
            ticks[int(name[3:])] = (busy, steal, busy + idle + waiting + steal)
    return ticks


def _share(spent: list[list[int]], column: int, own_ticks: float) -> float | None:
    total = sum(ticks[_ALL] for ticks in spent)
    if not total:
        return None
    others = sum(ticks[column] for ticks in spent) - own_ticks
    return round(min(1.0, max(0.0, others / total)), 4)


def _own_seconds() -> float:
    """Return CPU time of this process and of its living children."""
    process = psutil.Process()
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            times = member.cpu_times()
            total += times.user + times.system
    return total
