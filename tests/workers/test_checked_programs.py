"""A program that computes something else than its workload is a wrong answer, however fast it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from matmuls import make_matmul
from tencost.errors import UntrustedError
from tencost.store.status import Status
from tencost.workers.evaluator import Best, MeasureOptions
from tencost.workers.expected import Reference
from tencost.workers.pool import CpuPlan, Job, WorkerPool
from tencost.workers.runner import References, WarmRunner
from worker_programs import run_by, written

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("built_here")]

SIZE = 64


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    options = MeasureOptions(number=1, repeat=1, min_repeat_ms=1, run_timeout_s=5)
    with closing(WorkerPool(options, cpus=CpuPlan(None, None))) as pool:
        yield pool


def product(terms: int = SIZE, *, fast: bool = False, name: str = "matmul") -> Any:
    """A matmul of SIZE that sums the first terms only; the fast schedule vectorizes it."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    a, b = (te.placeholder((SIZE, SIZE), name=letter) for letter in "AB")
    k = te.reduce_axis((0, terms), name="k")
    c = te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=name)
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, c])}))
    if fast:
        i, j, inner = schedule.get_loops(schedule.get_sblock(name))
        schedule.reorder(i, inner, j)
        schedule.vectorize(j)
    return schedule.mod


def test_only_what_would_be_a_new_best_is_compared(
    pool: WorkerPool, target: dict[str, Any]
) -> None:
    runner, before = WarmRunner(pool, [make_matmul(SIZE)]), pool.num_checked
    assert run_by(runner, product(), target).status is Status.ok
    assert pool.num_checked == before + 1

    wrong = run_by(runner, product(SIZE - 1, fast=True), target)
    assert wrong.status is Status.wrong_answer
    assert "argument 2 differs" in wrong.error
    assert pool.num_checked == before + 2

    # Still to be compared: the wrong one is no best.
    right = run_by(runner, product(fast=True), target)
    assert right.status is Status.ok
    assert pool.num_checked == before + 3

    assert run_by(runner, product(SIZE - 1), target).status is Status.ok  # slower: never offered
    assert pool.num_checked == before + 3
    assert pool.checked_s > 0


def test_without_check_nothing_is_compared(pool: WorkerPool, target: dict[str, Any]) -> None:
    before = pool.num_checked
    assert run_by(WarmRunner(pool), product(SIZE - 1), target).status is Status.ok
    assert pool.num_checked == before


def test_workloads_with_the_same_arguments_are_told_apart_by_who_proposed_the_program(
    pool: WorkerPool, target: dict[str, Any]
) -> None:
    import tvm
    from tvm import te
    from tvm_ffi import structural_hash

    a, b = (te.placeholder((SIZE, SIZE), name=letter) for letter in "AB")
    total = te.compute((SIZE, SIZE), lambda i, j: a[i, j] + b[i, j], name="sum")
    adding = tvm.IRModule({"main": te.create_prim_func([a, b, total])})
    both, before = [make_matmul(SIZE), adding], pool.num_checked
    assert run_by(WarmRunner(pool, both), product(), target).status is Status.ok
    assert pool.num_checked == before  # it could be of either: nothing is claimed

    places = {int(structural_hash(product())): 1}
    runner = WarmRunner(pool, References(both, places.get))
    assert run_by(runner, product(), target).status is Status.wrong_answer


def test_an_index_never_reads_out_of_range(pool: WorkerPool, target: dict[str, Any]) -> None:
    import tvm
    from tvm import te, topi

    table = te.placeholder((3, 4), name="table")
    rows = te.placeholder((500,), dtype="int64", name="rows")
    taken = topi.take(table, rows, axis=0, mode="fast")
    mod = tvm.IRModule({"main": te.create_prim_func([table, rows, taken])})
    runner, before = WarmRunner(pool, [mod]), pool.num_checked
    assert run_by(runner, mod, target).status is Status.ok
    assert pool.num_checked == before + 1


def test_a_program_timed_without_its_layout_change_is_compared_with_it(
    pool: WorkerPool, target: dict[str, Any]
) -> None:
    """The block that transposes the weights is left out of what is timed: it runs once, not at each call."""
    from tvm.s_tir import Schedule

    from tencost.workers.worker import _has_left_out

    schedule = Schedule(make_matmul(SIZE))
    copied = schedule.cache_read(schedule.get_sblock("matmul"), 1, "global")
    schedule.transform_layout(copied, ("write", 0), lambda i, j: (j, i))
    schedule.annotate(copied, "meta_schedule.layout_rewrite_preproc", True)
    mod = schedule.mod
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("layout_free_buffers", [1]))
    assert _has_left_out(mod)
    runner, before = WarmRunner(pool, [make_matmul(SIZE)]), pool.num_checked
    assert run_by(runner, mod, target).status is Status.ok
    assert pool.num_checked == before + 1


def test_a_workload_that_cannot_run_leaves_its_programs_unchecked(
    pool: WorkerPool, target: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "broken.json").write_text("{}")
    program = written(product(), tmp_path / "program.json")
    reference = Reference(tmp_path / "broken.json", tmp_path / "broken.npz")
    args = [["TENSOR", "float32", [SIZE, SIZE]]] * 3
    timing = pool.measure_one(Job(program, target, args, reference))
    assert timing.status is Status.ok
    assert reference.workload in pool.unchecked


def test_a_workload_that_could_run_code_of_others_is_refused(
    pool: WorkerPool, target: dict[str, Any], tmp_path: Path
) -> None:
    """Both where a trace is applied to it and where it is run unscheduled; a trace of that kind is no program."""
    from tvm.s_tir import Schedule

    from tencost.workers.warm_worker import TracedProgram

    schedule = Schedule(product())
    schedule.annotate(schedule.get_loops("matmul")[0], "pragma_import_llvm", "; ModuleID")
    workload = written(schedule.mod, tmp_path / "foreign.json")
    local = written(product(), tmp_path / "local.json")
    args = [["TENSOR", "float32", [SIZE, SIZE]]] * 3
    with pytest.raises(UntrustedError, match=r"foreign\.json: .*'pragma_import_llvm'"):
        pool.measure_one(Job(TracedProgram(workload, [[], []]), target, args))
    reference = Reference(workload, tmp_path / "foreign.npz")
    assert pool.measure_one(Job(local, target, args, reference)).status is Status.ok
    assert "which could run code of others" in pool.unchecked[workload]

    linking = ["Annotate", ["l1", '"; ModuleID"'], ["pragma_import_llvm"], []]
    steps = [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
    ]
    timing = pool.measure_one(Job(TracedProgram(local, [[*steps, linking], []]), target, args))
    assert timing.status is Status.invalid_schedule
    assert "pragma_import_llvm" in timing.error
    assert (
        pool.measure_one(Job(TracedProgram(local, [steps, []]), target, args)).status is Status.ok
    )


@pytest.mark.parametrize(
    ("mean", "median", "is_best"),
    [
        (2.5, 2.0, True),  # a shorter mean alone
        (2.0, 3.5, True),  # a shorter median alone
        (2.5, 3.5, True),
        (2.0, 2.9, False),
        (7 / 3, 2.9, True),  # as good as the best: a database may take it
    ],
)
def test_a_shorter_mean_or_a_shorter_median_makes_a_new_best(
    mean: float, median: float, is_best: bool
) -> None:
    """A database sorts by the one or the other; what it may take for the best has to be compared."""
    assert Best(mean, median).is_beaten_by([1.0, 3.0, 3.0]) is is_best
    assert Best().is_beaten_by([1.0, 3.0, 3.0])
