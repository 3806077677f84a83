"""What bounds a program: its time against what the hardware could do at best (Williams, Waterman, Patterson, 2009).

    roof = max(FLOP / peak, bytes / bandwidth, floor)        seconds, lower is better
    share of the roof = roof / latency                       1: nothing is left to gain but from another algorithm

The largest of the three terms bounds the program: computing, memory, or a call's own overhead. Intensity is FLOP a
byte; a program right of the ridge, peak / bandwidth, is bound by computing.

FLOP are TVM's count of the unscheduled workload. Bytes are compulsory traffic: each argument read or written once, of
a table in which indices look up no more than they can touch; where counters of the program are there, what went
through the device's memory instead. Both are lower bounds for a schedule that keeps what it can in caches, so that a
program may be slower than its roof for want of cache and not of a better loop.

Peak and bandwidth are the hardware's own, of conf/hardware/<name>.yaml, all cores together: `bandwidth_gbs` is that of
the nearest cache, the highest a core can see, and `peak_gflops` follows the clock as the system reports it, so that a
core that runs faster than its nominal clock may stand above its roof. :mod:`tencost.tune.roofline.host_roofs` measures
both on the host, for each cache: a task's roof is then that of the smallest cache that holds its arguments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from tencost.config import HardwareConfig
from tencost.errors import ProfileError
from tencost.records.counters.table import Profiles

FLOOR_S = 50e-9
"""What a call takes on any device, as in records/gate.py, which needs packages that a tuner's host may not have."""
TRAFFIC = ("dram__bytes_read.sum", "dram__bytes_write.sum")
"""Counters of what went through a GPU's memory."""
ALL_TRAFFIC = "dram__bytes.sum"
"""The same in one."""


class Bound(StrEnum):
    """What keeps a program from being faster."""

    compute = "compute"
    memory = "memory"
    overhead = "overhead"
    unknown = "unknown"


@dataclass(frozen=True)
class Work:
    """What a workload has to do.

    Attributes:
        flop: floating-point operations of a call; None: not known. 0 for a mere copy.
        traffic: bytes that have to move in a call; None: not known.
        lanes: numbers of its narrowest type that stand in 32 bits: a peak for 32-bit numbers counts as many times.
        measured: whether the bytes are counters'.
    """

    flop: float | None
    traffic: float | None
    lanes: float = 1.0
    measured: bool = False

    @property
    def intensity(self) -> float | None:
        """FLOP a byte; None where one is not known."""
        return self.flop / self.traffic if self.flop is not None and self.traffic else None


@dataclass(frozen=True)
class MemoryLevel:
    """A memory: what it is called, bytes that it holds, bytes a second."""

    name: str
    size: float
    bandwidth: float


@dataclass(frozen=True)
class Roofs:
    """What a device can do at best.

    Attributes:
        flops: 32-bit operations a second; None: not known.
        levels: memories from the nearest, the last one holds everything; none: not known.
        floor_s: what a call takes at least.
        source: where the figures come from.
    """

    flops: float | None
    levels: tuple[MemoryLevel, ...]
    floor_s: float
    source: str

    def level(self, size: float) -> MemoryLevel | None:
        """Return the smallest memory that holds so many bytes."""
        return next((level for level in self.levels if size <= level.size), None)


@dataclass(frozen=True)
class RooflineTask:
    """A task of a network and its best program.

    Attributes:
        name: of the task.
        weight: how often the network calls it.
        work: what it has to do.
        latency_s: of its best program; None: none was measured.
        program: "tuned", or where else the program is from.
    """

    name: str
    weight: float
    work: Work
    latency_s: float | None
    program: str = "tuned"


@dataclass(frozen=True)
class Placed:
    """A measured task against the roofs.

    Attributes:
        task: the task.
        roof_s: seconds at the roof; None: not known.
        bound: the roof that is the lowest here.
        level: memory whose bandwidth counts; empty where that is not known.
    """

    task: RooflineTask
    roof_s: float | None
    bound: Bound
    level: str

    @property
    def latency_s(self) -> float:
        """Seconds of the best program."""
        assert self.task.latency_s is not None
        return self.task.latency_s

    @property
    def share(self) -> float | None:
        """Share of the roof that the program reaches; above 1 where the roof is of a slower clock than the run's."""
        return None if self.roof_s is None else self.roof_s / self.latency_s

    @property
    def above_s(self) -> float | None:
        """Seconds above the roof in one run of the network: what tuning could still gain, at most."""
        if self.roof_s is None:
            return None
        return self.task.weight * max(0.0, self.latency_s - self.roof_s)

    @property
    def gflops(self) -> float | None:
        """Billions of operations a second."""
        flop = self.task.work.flop
        return None if flop is None else flop / self.latency_s / 1e9

    @property
    def gbs(self) -> float | None:
        """Billions of bytes a second."""
        traffic = self.task.work.traffic
        return None if traffic is None else traffic / self.latency_s / 1e9


def roofs_of(hardware: HardwareConfig, memory_gbs: float | None = None) -> Roofs:
    """Return the roofs of a hardware's description, all its cores together.

    Args:
        hardware: the description.
        memory_gbs: billions of bytes a second of the device's memory, which counts for what no cache holds; None: the
            nearest cache's bandwidth counts for everything.

    Raises:
        ProfileError: it tells neither peak nor bandwidth.
    """
    peak, bandwidth = hardware.peak_gflops, hardware.bandwidth_gbs
    if peak is None and bandwidth is None:
        raise ProfileError(
            f"hardware {hardware.name}: expected peak_gflops or bandwidth_gbs, found neither, so there is no roof. "
            f"Write them into conf/hardware/{hardware.name}.yaml (one core's), or measure this host: --measured"
        )
    scale = hardware.cores * 1e9
    levels = []
    if bandwidth is not None:
        caches = (hardware.l1d_kib, hardware.l2_kib, hardware.l3_kib)
        size = math.inf if memory_gbs is None else max(caches) * 1024
        levels.append(MemoryLevel("nearest cache", size, bandwidth * scale))
    if memory_gbs is not None:
        levels.append(MemoryLevel("memory", math.inf, memory_gbs * 1e9))
    figures = [
        "peak not known" if peak is None else f"{peak * hardware.cores:.4g} GFLOP/s",
        *(f"{level.bandwidth / 1e9:.4g} GB/s to the {level.name}" for level in levels),
    ]
    flops = None if peak is None else peak * scale
    return Roofs(flops, tuple(levels), FLOOR_S, f"{', '.join(figures)} (conf/hardware)")


def place(task: RooflineTask, roofs: Roofs) -> Placed:
    """Hold a measured task against the roofs; where neither FLOP nor bytes count, its bound is not known."""
    assert task.latency_s is not None
    work = task.work
    terms: dict[Bound, float] = {}
    if work.flop and roofs.flops:
        terms[Bound.compute] = work.flop / (roofs.flops * work.lanes)
    level = roofs.level(math.inf if work.measured else work.traffic or 0.0)
    if work.traffic and level is not None:
        terms[Bound.memory] = work.traffic / level.bandwidth
    if not terms:
        return Placed(task, None, Bound.unknown, "")
    terms[Bound.overhead] = roofs.floor_s
    bound = max(terms, key=lambda term: terms[term])
    name = level.name if Bound.memory in terms and level is not None else ""
    return Placed(task, terms[bound], bound, name)


def by_gain(tasks: Sequence[RooflineTask], roofs: Roofs) -> list[Placed]:
    """Place the measured tasks, those with the most time above their roof first, those without a roof last."""
    placed = [place(task, roofs) for task in tasks if task.latency_s is not None]
    return sorted(
        placed, key=lambda task: -math.inf if task.above_s is None else task.above_s, reverse=True
    )


def work_of(mod: Any, flop: float | None = None) -> Work:
    """Return what an unscheduled workload, an IRModule with one function `main`, has to do.

    Args:
        mod: the module.
        flop: of it, where that is known.
    """
    from tvm.s_tir.analysis import estimate_tir_flops

    function = mod["main"]
    dtypes = [str(parameter.dtype) for parameter in function.params]
    bits = [32, *(_bits(dtype) for dtype in dtypes if dtype != "bool" and "64" not in dtype)]
    counted = float(estimate_tir_flops(mod)) if flop is None else flop
    return Work(counted, compulsory_bytes(function), 32 / min(bits))


def compulsory_bytes(function: Any) -> float | None:
    """Return the bytes that any schedule has to read and write: each argument once.

    An argument of which the blocks together touch less than all, as a table that indices look up in, counts with what
    they touch at most.

    Args:
        function: an unscheduled PrimFunc; None comes back for arguments other than tensors of fixed shapes.
    """
    import tvm_ffi
    from tvm import tirx
    from tvm.s_tir import SBlock

    if any(not isinstance(argument.ty, tirx.BufferType) for argument in function.params):
        return None
    touched = [[0.0, 0.0] for _ in function.params]

    def note(block: Any) -> None:
        times = math.prod(_size(axis.dom.extent) for axis in block.iter_vars)
        for way, regions in enumerate((block.reads, block.writes)):
            for region in regions:
                amount = times * math.prod(_size(axis.extent) for axis in region.region)
                for place, argument in enumerate(function.params):
                    if region.source.same_as(argument):
                        touched[place][way] += amount

    tvm_ffi.structural_walk(function, (SBlock, note))
    total = 0.0
    for argument, ways in zip(function.params, touched, strict=True):
        elements = math.prod(_size(extent) for extent in argument.shape)
        if not math.isfinite(elements):
            return None
        moved = sum(min(elements, amount) for amount in ways)
        total += moved * _bits(str(argument.dtype)) / 8
    return total


def counted_bytes(profiles: Profiles) -> Mapping[str, float]:
    """Return what went through the device's memory, bytes, by program id; programs without a figure are left out.

    Raises:
        ProfileError: no counter of it is there.
    """
    if ALL_TRAFFIC in profiles.metrics:
        values = profiles.column(ALL_TRAFFIC)
    else:
        values = np.sum([profiles.column(name) for name in TRAFFIC], axis=0)
    return {
        str(program): float(value)
        for program, value in zip(profiles.program_id, values, strict=True)
        if np.isfinite(value)
    }


def _size(extent: Any) -> float:
    """Return an extent as a number; infinity where it is none, so that the argument's own size counts."""
    try:
        return float(int(extent))
    except (TypeError, ValueError):
        return math.inf


def _bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else 8
