"""WarmBuilder in TVM's tuning with runners that cannot read its programs, while a WarmRunner is alive elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm import KEY, farm_of
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import CpuPlan, WorkerPool
from tencost.workers.runner import WarmBuilder, WarmRunner

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("built_here", "cpu_intrinsics")]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    warm = WorkerPool(
        MeasureOptions(number=1, repeat=1, max_repeat=1, min_repeat_ms=0),
        cpus=CpuPlan(None, None),
    )
    yield warm
    warm.close()


def tune(mod: Any, target: dict[str, Any], folder: Path, runner: Any, **arguments: Any) -> Any:
    """Tune with stock MetaSchedule: one batch of four programs."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    logger = logging.getLogger("tvm.s_tir.meta_schedule")
    for handler in [item for item in logger.handlers if item.get_name() is None]:
        logger.removeHandler(handler)  # pytest's: TVM asks every handler for its name
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
        assert all(float(seconds) < 1 for (seconds,) in times)
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
