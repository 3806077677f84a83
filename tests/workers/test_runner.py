from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tencost.errors import MeasureError
from tencost.store.status import Status
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import CpuPlan, Job, WorkerPool
from tencost.workers.runner import WarmBuilder, WarmRunner, target_mapping, timing_from_result
from tencost.workers.warm_worker import WarmWorker

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("built_here")]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    one = WorkerPool(
        MeasureOptions(number=1, repeat=2, max_repeat=2, min_repeat_ms=0, run_timeout_s=1.5),
        cpus=CpuPlan(None, None),
    )
    yield one
    one.close()


def calling(function: str) -> Any:
    """A program that calls a function of the C library: abort crashes it, pause hangs it."""
    from tvm.script import ir as I
    from tvm.script import tirx as T

    @I.ir_module
    class Module:
        @T.prim_func
        def main(A: T.Buffer((4,), "float32")) -> None:  # type: ignore[valid-type]
            T.func_attr({"global_symbol": "main"})
            T.evaluate(T.call_extern("int32", function))
            A[0] = T.float32(1)

    return Module


def measure(pool: WorkerPool, mod: Any, target: dict[str, Any]) -> Any:
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    runner = WarmRunner(pool)
    built = WarmBuilder().build([ms.builder.BuilderInput(mod, Target(target))])
    assert built[0].error_msg is None
    args = ms.arg_info.ArgInfo.from_entry_func(mod, False)
    inputs = [ms.runner.RunnerInput(built[0].artifact_path, "cpu", args)]
    return timing_from_result(runner.run(inputs)[0].result())


def test_a_builder_without_its_runner_is_refused(
    matmul: Any, target: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM's runners would record 1e10 s for each of its programs, without an exception."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    monkeypatch.setattr("tencost.workers.runner._RUNNERS", weakref.WeakSet())
    with pytest.raises(RuntimeError, match=r"runner=WarmRunner\(\), or TVM's LocalBuilder"):
        WarmBuilder().build([ms.builder.BuilderInput(matmul, Target(target))])


def test_a_batch_that_another_runner_took_ends_the_tuning(
    matmul: Any, target: dict[str, Any], pool: WorkerPool, tmp_path: Path
) -> None:
    """A WarmRunner is in use elsewhere in the process; TVM's callback removes what the other runner has had."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    other = WarmRunner(pool)
    builder, inputs = WarmBuilder(tmp_path), [ms.builder.BuilderInput(matmul, Target(target))]
    args = ms.arg_info.ArgInfo.from_entry_func(matmul, False)
    (first,) = builder.build(inputs)
    other.run([ms.runner.RunnerInput(first.artifact_path, "cpu", args)])
    shutil.rmtree(Path(str(first.artifact_path)).parent)
    (second,) = builder.build(inputs)  # what the WarmRunner has read may go
    (third,) = builder.build(inputs)  # as may a batch that is there and was not measured
    shutil.rmtree(Path(str(second.artifact_path)).parent)
    shutil.rmtree(Path(str(third.artifact_path)).parent)
    with pytest.raises(RuntimeError, match="found another runner"):
        builder.build(inputs)


def test_a_library_of_another_builder_is_refused(pool: WorkerPool, tmp_path: Path) -> None:
    from tvm.s_tir import meta_schedule as ms

    runner = WarmRunner(pool)
    with pytest.raises(RuntimeError, match=r"found tvm_tmp_mod\.tar of another builder"):
        runner.run([ms.runner.RunnerInput(str(tmp_path / "tvm_tmp_mod.tar"), "cpu", [])])
    assert runner.failure is not None


def test_a_program_is_built_and_timed(
    pool: WorkerPool, matmul: Any, target: dict[str, Any]
) -> None:
    timing = measure(pool, matmul, target)
    assert timing.status is Status.ok
    assert len(timing.run_secs) == 2
    assert 1e-7 < min(timing.run_secs) < 0.1


def test_a_crash_costs_only_its_program(
    pool: WorkerPool, matmul: Any, target: dict[str, Any]
) -> None:
    measure(pool, matmul, target)
    starts = pool.workers[0].num_starts
    crashed = measure(pool, calling("abort"), target)
    assert crashed.status is Status.run_error
    assert "exit code -6" in crashed.error
    assert measure(pool, matmul, target).status is Status.ok
    assert pool.workers[0].num_starts == starts + 1


def test_a_hang_costs_only_its_program(
    pool: WorkerPool, matmul: Any, target: dict[str, Any]
) -> None:
    hung = measure(pool, calling("pause"), target)
    assert hung.status is Status.run_timeout
    assert "1.5 s" in hung.error
    assert measure(pool, matmul, target).status is Status.ok


def test_what_does_not_compile_is_a_build_error(
    pool: WorkerPool, tmp_path: Path, target: dict[str, Any]
) -> None:
    (tmp_path / "module.json").write_text("{}")
    timing = pool.measure_one(Job(tmp_path / "module.json", target, []))
    assert timing.status is Status.build_error
    assert timing.error


def test_a_worker_that_cannot_start_is_said_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: dict[str, Any]
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(MeasureError, match=r"tencost\.workers\.worker"):
        WarmWorker(MeasureOptions(), 1).measure(tmp_path / "x", target, [])


def test_targets_are_written_as_mappings() -> None:
    from tvm.target import Target

    plain = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 1}
    assert target_mapping(Target(plain)) == plain
    assert Target(target_mapping(Target(plain))) is not None


def test_foreign_runner_results_keep_their_meaning() -> None:
    from tvm.s_tir.meta_schedule.runner import RunnerResult

    assert timing_from_result(RunnerResult([0.5], None)).run_secs == (0.5,)
    assert timing_from_result(RunnerResult([1e10], None)).status is Status.unknown
    foreign = timing_from_result(RunnerResult(None, "LocalRunner: Timeout"))
    assert foreign.status is Status.run_error
    assert foreign.error == "LocalRunner: Timeout"
    ours = timing_from_result(RunnerResult(None, "build_timeout: stopped after 30 s"))
    assert (ours.status, ours.error) == (Status.build_timeout, "stopped after 30 s")
