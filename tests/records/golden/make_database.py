"""Write the golden MetaSchedule database with stock TVM 0.27 (run once; `python make_database.py`).

A 16x16 matmul: one program measured, one failed, one not measured.
"""

import tempfile
from pathlib import Path
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms

HERE = Path(__file__).resolve().parent
TARGET = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 1}


def matmul() -> Any:
    a = te.placeholder((16, 16), name="A")
    b = te.placeholder((16, 16), name="B")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_prim_func([a, b, c])


def main() -> None:
    target = tvm.target.Target(TARGET)
    context = ms.TuneContext(
        mod=matmul(),
        target=target,
        space_generator="post-order-apply",
        search_strategy="replay-trace",
        num_threads=1,
        rand_state=1,
    )
    spaces = context.generate_design_space()
    context.pre_tuning(8, 8, spaces)
    candidates = context.generate_measure_candidates()
    with tempfile.TemporaryDirectory() as scratch:
        paths = [
            Path(scratch) / name
            for name in ("database_workload.json", "database_tuning_record.json")
        ]
        database = ms.database.JSONDatabase(*map(str, paths))
        workload = database.commit_workload(context.mod)
        for candidate, run_secs in zip(
            candidates, ([2e-6, 3e-6, 2.5e-6], [1e10], None), strict=False
        ):
            database.commit_tuning_record(
                ms.database.TuningRecord(
                    candidate.sch.trace,
                    workload,
                    run_secs,
                    target,
                    candidate.args_info,
                )
            )
        for path in paths:
            (HERE / path.name).write_text(path.read_text())


if __name__ == "__main__":
    main()
