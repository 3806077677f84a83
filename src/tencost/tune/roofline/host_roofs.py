"""The roofs of this host, measured: what one core reaches with programs that do nothing else.

- Computing: the inner loop of a matmul, ROWS x 2 vectors of sums in registers, its operands in the nearest cache.
- Each memory: y += s x over arrays that fill half of a cache, and of four times the largest one for what is behind
  it; 12 bytes an element: x and y are read, y is written.
- A call: a program that copies one number.

They are compiled by the TVM that compiles the tasks, for the same target, and the best of several times counts: what
others do on the host only takes away from it.
"""

from __future__ import annotations

import math
import time
from typing import Any

from tencost.config import HardwareConfig
from tencost.errors import ProfileError
from tencost.tune.roofline.roofline import MemoryLevel, Roofs

ROWS, VECTORS, DEPTH, TILES = 6, 2, 128, 64
"""The inner loop: 12 sums and 3 operands fit the 16 registers of AVX2; 128 steps of AVX-512 fit 24 KiB."""
MOVED = 64 * 2**20
"""Bytes that a call moves at least, so that the call itself does not count."""
ROUNDS, REPEAT, PAUSE_S = 10, 4, 0.05
"""So often a program is timed, so many times each; in between it waits, for what disturbs the host to pass."""


def measure_roofs(hardware: HardwareConfig) -> Roofs:
    """Measure the roofs of one core of this host; takes seconds.

    Args:
        hardware: whose target and cache sizes count; it must be this host.

    Raises:
        ProfileError: hardware of several cores, whose shared memories one core does not tell.
    """
    if hardware.cores != 1:
        raise ProfileError(
            f"hardware {hardware.name}: expected one core, found {hardware.cores}. What they share is not measured: "
            "leave out --measured"
        )
    sizes = (("L1", hardware.l1d_kib), ("L2", hardware.l2_kib), ("L3", hardware.l3_kib))
    caches = [(name, kib * 1024) for name, kib in sizes if kib > 0]
    levels = [MemoryLevel(name, size, _bandwidth(hardware, size / 2)) for name, size in caches]
    behind = 4 * max((size for _, size in caches), default=32 * 2**20)
    levels.append(MemoryLevel("memory", math.inf, _bandwidth(hardware, behind)))
    flops = _flops(hardware)
    source = f"{flops / 1e9:.4g} GFLOP/s, " + ", ".join(
        f"{level.name} {level.bandwidth / 1e9:.4g} GB/s" for level in levels
    )
    return Roofs(flops, tuple(levels), _call_s(hardware), f"{source} (measured)")


def _flops(hardware: HardwareConfig) -> float:
    """Return operations on 32-bit numbers a second."""
    width = VECTORS * _lanes(hardware)
    shapes = [(DEPTH, ROWS), (DEPTH, width), (TILES, ROWS, width)]
    seconds = _best_s(inner_loop(_lanes(hardware)), hardware.target, shapes)
    return 2.0 * TILES * ROWS * width * DEPTH / seconds


def inner_loop(lanes: int) -> Any:
    """Return a program a [DEPTH, ROWS], b [DEPTH, VECTORS * lanes] -> a transposed times b, TILES times the same."""
    from tvm import te
    from tvm.s_tir import Schedule

    width = VECTORS * lanes
    a = te.placeholder((DEPTH, ROWS), name="a")
    b = te.placeholder((DEPTH, width), name="b")
    k = te.reduce_axis((0, DEPTH), name="k")
    c = te.compute(
        (TILES, ROWS, width), lambda _, i, j: te.sum(a[k, i] * b[k, j], axis=k), name="tile"
    )
    schedule = Schedule(te.create_prim_func([a, b, c]))
    block = schedule.get_sblock("tile")
    registers = schedule.cache_write(block, 0, "local")
    tile, row, column, depth = schedule.get_loops(block)
    schedule.reorder(tile, depth, row, column)
    schedule.reverse_compute_at(registers, tile)
    for stage in (block, registers):
        row, column = schedule.get_loops(stage)[-2:]
        vectors, inner = schedule.split(column, [None, lanes])
        schedule.vectorize(inner)
        schedule.unroll(vectors)
        schedule.unroll(row)
    row, vectors, inner = schedule.get_loops(schedule.decompose_reduction(block, depth))[-3:]
    schedule.vectorize(inner)
    schedule.unroll(vectors)
    schedule.unroll(row)
    return schedule.mod


def _bandwidth(hardware: HardwareConfig, size: float) -> float:
    """Return bytes a second with two arrays that fill `size` bytes together."""
    unrolled = 4 * _lanes(hardware)
    count = max(1, int(size / 8) // unrolled) * unrolled
    times = max(1, int(MOVED / (12 * count)))
    mod = sums(count, times, _lanes(hardware))
    seconds = _best_s(mod, hardware.target, [(count,), (times,), (count,)])
    return 12.0 * count * times / seconds


def sums(count: int, times: int, lanes: int) -> Any:
    """Return a program x [count], s [times] -> y = x times the sum of s, by going over x and y for each of s."""
    from tvm import te
    from tvm.s_tir import Schedule

    x = te.placeholder((count,), name="x")
    s = te.placeholder((times,), name="s")
    r = te.reduce_axis((0, times), name="r")
    y = te.compute((count,), lambda i: te.sum(x[i] * s[r], axis=r), name="y")
    schedule = Schedule(te.create_prim_func([x, s, y]))
    block = schedule.get_sblock("y")
    i, turn = schedule.get_loops(block)
    outer, part, inner = schedule.split(i, [None, 4, lanes])
    schedule.reorder(turn, outer, part, inner)
    schedule.vectorize(inner)
    schedule.unroll(part)
    schedule.decompose_reduction(block, turn)
    return schedule.mod


def _call_s(hardware: HardwareConfig) -> float:
    import tvm
    from tvm import te

    x = te.placeholder((1,), name="x")
    y = te.compute((1,), lambda i: x[i], name="y")
    mod = tvm.IRModule({"main": te.create_prim_func([x, y])})
    return _best_s(mod, hardware.target, [(1,), (1,)], number=1000)


def _best_s(
    mod: Any, target: dict[str, Any], shapes: list[tuple[int, ...]], number: int = 1
) -> float:
    import numpy as np
    import tvm

    from tencost.programs.codegen.build import build

    function = build(mod, target).jit()
    tensors = [tvm.runtime.tensor(np.zeros(shape, np.float32)) for shape in shapes]
    timer = function.time_evaluator("main", tvm.cpu(), number=number, repeat=REPEAT)
    times: list[float] = []
    for _ in range(ROUNDS):
        times += timer(*tensors).results
        time.sleep(PAUSE_S)
    return float(min(times))


def _lanes(hardware: HardwareConfig) -> int:
    return max(1, hardware.simd_bits // 32)
