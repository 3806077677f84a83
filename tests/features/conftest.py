"""A small matmul, scheduled the way MetaSchedule's CPU rules do it, as live objects and as a database's texts."""

from __future__ import annotations

from typing import Any

import orjson
import pytest


@pytest.fixture(scope="session")
def matmul() -> Any:
    import tvm
    from tvm import te

    a = te.placeholder((64, 64), name="A", dtype="float32")
    b = te.placeholder((64, 64), name="B", dtype="float32")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


@pytest.fixture(scope="session")
def schedules(matmul: Any) -> list[Any]:
    """Four programs of the matmul with different tiles; the last one is the untouched workload."""
    from tvm.s_tir import Schedule

    made = []
    for tile in (4, 8, 16, 0):
        schedule = Schedule(matmul, debug_mask=0)
        if tile:
            block = schedule.get_sblock("matmul")
            i, j, k = schedule.get_loops(block)
            i_tiles = schedule.sample_perfect_tile(i, 2, decision=[64 // tile, tile])
            i0, i1 = schedule.split(i, i_tiles)
            j0, j1 = schedule.split(j, [64 // tile, tile])
            schedule.reorder(i0, j0, k, i1, j1)
            schedule.parallel(i0)
            schedule.vectorize(j1)
            step = schedule.sample_categorical([0, 16, 64], [0.25, 0.5, 0.25], decision=1)
            schedule.annotate(schedule.get_sblock("root"), "meta_schedule.unroll_explicit", step)
        made.append(schedule)
    return made


@pytest.fixture(scope="session")
def context(matmul: Any) -> Any:
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.target import Target

    from tencost.programs.trace.intrinsics import register_cpu_intrinsics

    register_cpu_intrinsics()
    return TuneContext(matmul, target=Target({"kind": "llvm", "num-cores": 1}), num_threads=1)


@pytest.fixture(scope="session")
def candidates(schedules: list[Any]) -> list[Any]:
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    return [MeasureCandidate(schedule, []) for schedule in schedules]


@pytest.fixture(scope="session")
def programs(schedules: list[Any]) -> list[str]:
    """The traces as JSON text, as a MetaSchedule database writes them."""
    from tencost.programs.trace.instructions import trace_values

    return [orjson.dumps(trace_values(schedule.trace)).decode() for schedule in schedules]
