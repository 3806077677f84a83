"""Which records of a MetaSchedule database are for a target."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from matmuls import make_matmul
from tencost.tune.target_records import records_for_target

pytestmark = pytest.mark.tvm
AVX2, AVX512 = ({"kind": "llvm", "mcpu": f"x86-64-v{level}", "num-cores": 1} for level in (3, 4))
GPU = {"kind": "cuda", "arch": "sm_80"}


def records(*rows: tuple[int, Any]) -> list[Any]:
    """Return a record for each size of a matmul and target, one workload a size."""
    workloads = {size: ms.database.Workload(make_matmul(size)) for size, _ in rows}
    return [
        ms.database.TuningRecord(
            Schedule(workloads[size].mod).trace, workloads[size], [1e-3], target and Target(target)
        )
        for size, target in rows
    ]


def test_a_workload_that_was_tuned_for_the_target_keeps_those_records_only() -> None:
    rows = records(
        (16, AVX2), (16, AVX512), (16, GPU), (32, AVX2), (32, GPU), (64, GPU), (64, None)
    )
    chosen = [rows.index(record) for record in records_for_target(rows, AVX512)]
    assert chosen == [1, 3, 6]
    assert [rows.index(record) for record in records_for_target(rows, Target(GPU))] == [2, 4, 5]


def test_the_order_of_a_targets_fields_makes_no_other_target() -> None:
    rows = records((16, AVX2), (16, dict(reversed(AVX512.items()))))
    assert [rows.index(record) for record in records_for_target(rows, AVX512)] == [1]
