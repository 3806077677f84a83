"""What bounds a program: FLOP and bytes that are known by hand, against roofs that are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from matmuls import make_matmul
from tencost.config import HardwareConfig
from tencost.errors import ProfileError
from tencost.records.counters.table import Profiles
from tencost.tune.roofline.roofline import (
    Bound,
    MemoryLevel,
    RooflineTask,
    Roofs,
    Work,
    by_gain,
    counted_bytes,
    place,
    roofs_of,
    work_of,
)

ROOFS = Roofs(100e9, (MemoryLevel("near", math.inf, 10e9),), 50e-9, "by hand")
"""100 GFLOP/s and 10 GB/s: the ridge is at 10 FLOP a byte."""


def module(*tensors: Any) -> Any:
    import tvm
    from tvm import te

    return tvm.IRModule({"main": te.create_prim_func(list(tensors))})


@pytest.mark.tvm
def test_a_matmul() -> None:
    work = work_of(make_matmul(64))
    assert (work.flop, work.traffic, work.lanes) == (2 * 64**3, 3 * 64 * 64 * 4, 1.0)
    assert work.intensity == pytest.approx(64 / 6)
    placed = place(RooflineTask("matmul", 2, work, 10.48576e-6), ROOFS)
    assert placed.bound is Bound.compute
    assert placed.roof_s == pytest.approx(5.24288e-6)
    assert placed.share == pytest.approx(0.5)
    assert placed.gflops == pytest.approx(50.0)
    assert placed.above_s == pytest.approx(2 * 5.24288e-6)


@pytest.mark.tvm
def test_a_sum_of_two_is_bound_by_memory() -> None:
    from tvm import te

    a, b = (te.placeholder((1000,), name=name) for name in "ab")
    work = work_of(module(a, b, te.compute((1000,), lambda i: a[i] + b[i], name="c")))
    assert (work.flop, work.traffic) == (1000, 12000)
    placed = place(RooflineTask("add", 1, work, 2.4e-6), ROOFS)
    assert (placed.bound, placed.level) == (Bound.memory, "near")
    assert placed.roof_s == pytest.approx(1.2e-6)
    assert placed.share == pytest.approx(0.5)
    assert placed.gbs == pytest.approx(5.0)


@pytest.mark.tvm
def test_a_transpose_has_no_flop_and_a_roof() -> None:
    from tvm import te

    a = te.placeholder((30, 40), name="a")
    work = work_of(module(a, te.compute((40, 30), lambda i, j: a[j, i], name="t")))
    assert (work.flop, work.traffic, work.intensity) == (0, 9600, 0)
    placed = place(RooflineTask("transpose", 1, work, 1.92e-6), ROOFS)
    assert placed.bound is Bound.memory
    assert placed.share == pytest.approx(0.5)
    assert placed.gflops == 0


@pytest.mark.tvm
def test_a_look_up_reads_the_rows_that_it_needs() -> None:
    from tvm import te

    table = te.placeholder((30522, 128), name="table")
    index = te.placeholder((16,), name="index", dtype="int64")
    rows = te.compute((16, 128), lambda i, j: table[index[i], j], name="rows")
    assert work_of(module(table, index, rows)).traffic == 16 * 128 * 4 * 2 + 16 * 8


@pytest.mark.tvm
def test_narrow_numbers_have_a_higher_peak() -> None:
    from tvm import te

    a = te.placeholder((64, 64), name="a", dtype="int8")
    k = te.reduce_axis((0, 64))
    c = te.compute(
        (64, 64), lambda i, j: te.sum(a[i, k].astype("int32") * a[k, j].astype("int32"), axis=k)
    )
    work = work_of(module(a, c))
    assert (work.lanes, work.traffic) == (4.0, 64 * 64 * (1 + 4))
    placed = place(RooflineTask("int8", 1, Work(work.flop, None, work.lanes), 1e-3), ROOFS)
    assert work.flop is not None
    assert placed.roof_s == pytest.approx(work.flop / 400e9)


def test_a_call_takes_something() -> None:
    placed = place(RooflineTask("tiny", 1, Work(1.0, 8.0), 1e-7), ROOFS)
    assert (placed.bound, placed.roof_s) == (Bound.overhead, 50e-9)
    assert placed.share == pytest.approx(0.5)


def test_what_is_not_known_is_not_made_up() -> None:
    placed = place(RooflineTask("foreign", 3, Work(None, None), 1e-3), ROOFS)
    assert placed.bound is Bound.unknown
    assert (placed.roof_s, placed.share, placed.above_s, placed.gflops, placed.gbs) == (None,) * 5
    half = place(RooflineTask("no bytes", 1, Work(1e6, None), 1e-4), ROOFS)
    assert half.bound is Bound.compute
    assert half.share == pytest.approx(0.1)


def test_the_smallest_memory_that_holds_a_task_is_its_roof() -> None:
    levels = (
        MemoryLevel("L1", 1e3, 100e9),
        MemoryLevel("L2", 1e6, 10e9),
        MemoryLevel("memory", math.inf, 1e9),
    )
    roofs = Roofs(None, levels, 0.0, "by hand")
    found = [place(RooflineTask("t", 1, Work(0.0, size), 1.0), roofs) for size in (1e3, 1e4, 1e7)]
    assert [one.level for one in found] == ["L1", "L2", "memory"]
    assert [one.roof_s for one in found] == pytest.approx([1e-8, 1e-6, 1e-2])


def test_the_order_is_by_what_tuning_could_gain() -> None:
    tasks = [
        RooflineTask("once", 1, Work(1e6, 1.0), 1.1e-4),  # 0.1 ms above its roof of 0.01 ms
        RooflineTask("often", 9, Work(1e6, 1.0), 3e-5),  # 9 times 0.02 ms
        RooflineTask("unknown", 1, Work(None, None), 1.0),
        RooflineTask("not measured", 1, Work(1e6, 1.0), None),
        RooflineTask("faster than its roof", 1, Work(1e6, 1.0), 5e-6),
    ]
    found = by_gain(tasks, ROOFS)
    assert [one.task.name for one in found] == ["often", "once", "faster than its roof", "unknown"]
    assert found[2].share == pytest.approx(2.0)
    assert found[2].above_s == 0.0


def test_roofs_are_the_hardwares_all_cores_together() -> None:
    roofs = roofs_of(HardwareConfig(name="a", cores=4, peak_gflops=100.0, bandwidth_gbs=50.0))
    assert roofs.flops == 400e9
    assert [level.bandwidth for level in roofs.levels] == [200e9]
    only = roofs_of(HardwareConfig(name="a", peak_gflops=100.0))
    assert place(RooflineTask("t", 1, Work(1e6, 1e9), 1e-3), only).bound is Bound.compute
    with pytest.raises(ProfileError, match=r"expected peak_gflops or bandwidth_gbs, found neither"):
        roofs_of(HardwareConfig(name="a"))


def profiles(**columns: list[float]) -> Profiles:
    count = len(next(iter(columns.values())))
    return Profiles(
        np.array([f"p{n}" for n in range(count)]),
        np.array(["w"] * count),
        np.array(["gpu"] * count),
        tuple(name.replace("_sum", ".sum") for name in columns),
        np.array(list(columns.values())).T,
        np.full(count, 1e3),
    )


def test_counted_bytes_go_through_the_memory() -> None:
    hardware = HardwareConfig(name="a", l2_kib=1024, peak_gflops=100.0, bandwidth_gbs=100.0)
    roofs = roofs_of(hardware, memory_gbs=10.0)
    works = Work(0.0, 1e5), Work(0.0, 2e6), Work(0.0, 1e5, measured=True)
    found = [place(RooflineTask("t", 1, work, 1.0), roofs) for work in works]
    assert [one.level for one in found] == ["nearest cache", "memory", "memory"]
    assert [one.roof_s for one in found] == pytest.approx([1e-6, 2e-4, 1e-5])


def test_bytes_of_counters() -> None:
    found = profiles(dram__bytes_read_sum=[100.0, math.nan], dram__bytes_write_sum=[28.0, 1.0])
    assert counted_bytes(found) == {"p0": 128.0}
    assert counted_bytes(profiles(dram__bytes_sum=[5.0])) == {"p0": 5.0}
    with pytest.raises(ProfileError, match=r"expected the metric dram__bytes_read.sum"):
        counted_bytes(profiles(other=[1.0]))
