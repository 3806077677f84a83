"""What WarmBuilder writes WarmRunner measures; a failure costs its own program, another pairing is refused."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from farm import KEY, farm_of
from tencost.errors import MeasureError
from tencost.store.status import Status
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import CpuPlan, Job, WorkerPool
from tencost.workers.runner import WarmBuilder, WarmRunner, target_mapping, timing_from_result
from tencost.workers.warm_worker import WarmWorker
from worker_programs import calling, run_by

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("built_here", "cpu_intrinsics")]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    options = MeasureOptions(number=1, repeat=2, max_repeat=2, min_repeat_ms=0, run_timeout_s=1.5)
    with closing(WorkerPool(options, cpus=CpuPlan(None, None))) as pool:
        yield pool


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
    timing = run_by(WarmRunner(pool), matmul, target)
    assert timing.status is Status.ok
    assert len(timing.run_secs) == 2
    assert 1e-7 < min(timing.run_secs) < 0.1


def test_a_crash_costs_only_its_program(
    pool: WorkerPool, matmul: Any, target: dict[str, Any]
) -> None:
    run_by(WarmRunner(pool), matmul, target)
    starts = pool.workers[0].num_starts
    crashed = run_by(WarmRunner(pool), calling("abort"), target)
    assert crashed.status is Status.run_error
    assert "exit code -6" in crashed.error
    assert run_by(WarmRunner(pool), matmul, target).status is Status.ok
    assert pool.workers[0].num_starts == starts + 1


def test_a_hang_costs_only_its_program(
    pool: WorkerPool, matmul: Any, target: dict[str, Any]
) -> None:
    hung = run_by(WarmRunner(pool), calling("pause"), target)
    assert hung.status is Status.run_timeout
    assert "1.5 s" in hung.error
    assert run_by(WarmRunner(pool), matmul, target).status is Status.ok


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


def tune(mod: Any, target: dict[str, Any], folder: Path, runner: Any, **arguments: Any) -> Any:
    """Tune with stock MetaSchedule: one batch of four programs."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    return ms.tune_tir(
        mod, Target(target), str(folder), max_trials_global=4, num_trials_per_iter=4,
        builder=WarmBuilder(), runner=runner, cost_model="random", strategy="replay-trace",
        num_tuning_cores=1, seed=1, **arguments,
    )  # fmt: skip


@pytest.mark.parametrize("scheduler", ["gradient", "by-seconds"])
def test_a_local_runner_is_refused_before_anything_is_recorded(
    matmul: Any, target: dict[str, Any], pool: WorkerPool, tmp_path: Path, scheduler: str
) -> None:
    from tvm.s_tir import meta_schedule as ms

    from tencost.tune.task_scheduler import SecondsScheduler

    elsewhere = WarmRunner(pool)
    is_stock = scheduler == "gradient"
    with pytest.raises(RuntimeError, match="together with WarmRunner, found LocalRunner"):
        tune(
            matmul, target, tmp_path / "work", "local" if is_stock else ms.runner.LocalRunner(),
            task_scheduler=scheduler if is_stock else SecondsScheduler([1.0], lambda _: 1.0, lambda _: 0),
        )  # fmt: skip
    assert (tmp_path / "work" / "database_tuning_record.json").read_text() == ""
    assert elsewhere.failure is None


def test_an_rpc_runner_is_refused_before_anything_is_recorded(
    matmul: Any, target: dict[str, Any], pool: WorkerPool, tmp_path: Path
) -> None:
    pytest.importorskip("tornado", reason="TVM's tracker needs tornado")
    from tvm.s_tir import meta_schedule as ms

    elsewhere = WarmRunner(pool)
    with farm_of(tmp_path, servers=1) as farm:
        rpc = ms.runner.RPCConfig("127.0.0.1", farm.port, KEY, session_timeout_sec=30)
        runner = ms.runner.RPCRunner(rpc)
        with pytest.raises(RuntimeError, match="together with WarmRunner, found RPCRunner"):
            tune(matmul, target, tmp_path / "work", runner)
    assert (tmp_path / "work" / "database_tuning_record.json").read_text() == ""
    assert elsewhere.failure is None


@pytest.mark.parametrize("reads", [False, True])
def test_a_runner_around_a_warm_runner_says_that_it_reads_the_programs(
    matmul: Any, target: dict[str, Any], pool: WorkerPool, tmp_path: Path, reads: bool
) -> None:
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    warm = WarmRunner(pool)

    @derived_object
    class Logged(ms.runner.PyRunner):
        reads_warm_builder = reads

        def run(self, runner_inputs: list[Any]) -> list[Any]:
            return list(warm.run(runner_inputs))

    if reads:
        database = tune(matmul, target, tmp_path / "work", Logged())
        times = [list(record.run_secs) for record in database.get_all_tuning_records()]
        assert len(times) == 4
        assert all(float(seconds) < 1 for runs in times for seconds in runs)
    else:
        with pytest.raises(RuntimeError, match=r"found Logged.*reads_warm_builder = True"):
            tune(matmul, target, tmp_path / "work", Logged())
        assert (tmp_path / "work" / "database_tuning_record.json").read_text() == ""


def test_two_tunings_of_one_warm_runner(
    matmul: Any, target: dict[str, Any], pool: WorkerPool, tmp_path: Path
) -> None:
    runner = WarmRunner(pool)
    for name in ("first", "second"):
        assert len(tune(matmul, target, tmp_path / name, runner)) == 4
