"""What MetaSchedule asks of a search, a cost model, a builder and a runner, asked of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from matmuls import make_matmul
from tencost.programs.codegen.spaces import search_space
from tencost.tune.cost_model import load_cost_model
from tencost.tune.guard import Arm
from tencost.tune.search import search
from tencost.workers.evaluator import MeasureOptions
from tencost.workers.pool import CpuPlan, WorkerPool
from tencost.workers.runner import WarmBuilder, WarmRunner

pytestmark = [pytest.mark.tvm, pytest.mark.usefixtures("cpu_intrinsics")]
SIZE = 32
LLVM = {"kind": "llvm", "num-cores": 1}
Make = Callable[[str], Path]


def tiled(schedule: Any) -> None:
    """A design space of three decisions."""
    block = schedule.get_sblock("matmul")
    i, j, k = schedule.get_loops(block)
    i0, i1 = schedule.split(i, schedule.sample_perfect_tile(i, n=2))
    j0, j1 = schedule.split(j, schedule.sample_perfect_tile(j, n=2))
    k0, k1 = schedule.split(k, schedule.sample_perfect_tile(k, n=2))
    schedule.reorder(i0, j0, k0, i1, j1, k1)


def task(space: Any, strategy: Any, target: Any = LLVM) -> Any:
    return ms.TuneContext(
        mod=make_matmul(SIZE),
        target=target and Target(target),
        space_generator=space,
        search_strategy=strategy,
        task_name="matmul",
        rand_state=1,
        num_threads=1,
    )


def space_of(function: Callable[[Any], Any], postprocs: Any = ()) -> Any:
    return ms.space_generator.ScheduleFn(
        function, sch_rules=[], postprocs=list(postprocs), mutator_probs={}
    )


@pytest.fixture
def model(make_bundle: Make) -> Any:
    return load_cost_model(make_bundle("xgb"))


def batches(context: Any, most: int = 50) -> list[int]:
    """Return the sizes of the batches that a search gives, every program measured with the same times."""
    sizes: list[int] = []
    while (found := context.generate_measure_candidates()) is not None and len(sizes) < most:
        sizes.append(len(found))
        measured = [ms.runner.RunnerResult([0.11, 0.41, 0.54], None) for _ in found]
        context.notify_runner_results(found, measured)
    return sizes


def record_of(trace: Any, mod: Any, database: Any, seconds: float = 0.1, target: Any = LLVM) -> Any:
    return ms.database.TuningRecord(
        trace=trace,
        workload=database.commit_workload(mod),
        run_secs=[seconds],
        target=Target(target),
        args_info=ms.arg_info.ArgInfo.from_prim_func(func=mod["main"]),
    )


def database_with_a_foreign_record() -> Any:
    """A database whose fastest record of the matmul names a block that it does not have; another one applies."""
    mod, database = make_matmul(SIZE), ms.database.MemoryDatabase()
    renamed = tvm.ir.load_json(tvm.ir.save_json(mod).replace('"matmul"', '"other"'))
    foreign = Schedule(renamed)
    foreign.get_sblock("other")
    applies = Schedule(mod)
    tiled(applies)
    database.commit_tuning_record(record_of(foreign.trace, mod, database))
    database.commit_tuning_record(record_of(applies.trace, mod, database, 0.2))
    return database


def test_batches_are_of_the_size_asked_for_and_end_with_the_trials(model: Any) -> None:
    context = task(space_of(tiled), search(model, population=16, generations=1))
    context.pre_tuning(20, 7, database=ms.database.MemoryDatabase(), cost_model=model)
    sizes = batches(context)
    context.post_tuning()
    assert sum(sizes) == 20
    assert max(sizes) <= 7


def test_a_search_without_database_and_model_searches_as_tvms_does(model: Any) -> None:
    context = task(space_of(tiled), search(model, population=16, generations=1))
    context.pre_tuning(8, 4)
    assert sum(batches(context)) == 8


def test_a_search_without_target_searches_as_tvms_does(model: Any) -> None:
    assert isinstance(search_space(None), ms.space_generator.PostOrderApply)
    context = task(space_of(tiled), search(model, population=16, generations=1), target=None)
    context.pre_tuning(8, 4, database=ms.database.MemoryDatabase(), cost_model=model)
    assert sum(batches(context)) == 8


@pytest.mark.parametrize(("asked", "batch"), [(64, 16), (12, 12)])
def test_the_model_learns_after_16_programs_whatever_is_asked(
    model: Any, asked: int, batch: int
) -> None:
    """MetaSchedule asks for 64 at a time where nobody says another number."""
    context = task(space_of(tiled), search(model, starts=0, population=16, generations=1))
    context.pre_tuning(64, asked, database=ms.database.MemoryDatabase(), cost_model=model)
    sizes = batches(context)
    assert sum(sizes) == 64
    assert max(sizes) == batch


def test_a_space_of_one_program_ends_after_it(model: Any) -> None:
    context = task(space_of(lambda schedule: schedule), search(model, population=5, generations=1))
    context.pre_tuning(100, 10, database=ms.database.MemoryDatabase(), cost_model=model)
    assert [size for size in batches(context) if size] == [1]


def test_where_no_program_passes_the_post_processing_there_are_no_candidates(model: Any) -> None:
    @derived_object
    class Refuse(ms.postproc.PyPostproc):
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Any) -> bool:
            return False

        def clone(self) -> Any:
            return Refuse()

    context = task(space_of(tiled, [Refuse()]), search(model, population=5, generations=1))
    context.pre_tuning(100, 10, database=ms.database.MemoryDatabase(), cost_model=model)
    assert context.generate_measure_candidates() is None


def test_a_record_that_does_not_apply_is_skipped_and_counted(model: Any) -> None:
    strategy = search(model, population=16, generations=1)
    context = task(space_of(tiled), strategy)
    context.pre_tuning(4, 2, database=database_with_a_foreign_record(), cost_model=model)
    with pytest.warns(UserWarning, match="1 of 2 records of matmul .* do not apply.*other"):
        found = context.generate_measure_candidates()
    assert found is not None
    assert len(found) == 2
    near = strategy._inst._evolution
    assert [one.latency_s for one in near.measured.values()] == [0.2]


def test_times_of_another_target_teach_a_search_nothing(model: Any) -> None:
    mod, database = make_matmul(SIZE), ms.database.MemoryDatabase()
    schedule = Schedule(mod)
    tiled(schedule)
    gpu = {"kind": "cuda", "arch": "sm_80"}
    database.commit_tuning_record(record_of(schedule.trace, mod, database, 1e-9, gpu))
    strategy = search(model, starts=0, population=16, generations=1)
    context = task(space_of(tiled), strategy)
    context.pre_tuning(4, 2, database=database, cost_model=model)
    assert context.generate_measure_candidates()
    assert strategy._inst._evolution.measured == {}


def test_stock_tuning_goes_on_beside_a_record_that_does_not_apply(
    model: Any, tmp_path: Path
) -> None:
    @derived_object
    class Built(ms.builder.PyBuilder):
        def build(self, build_inputs: Any) -> Any:
            return [ms.builder.BuilderResult(str(tmp_path / "none"), None) for _ in build_inputs]

    @derived_object
    class Ran(ms.runner.PyRunner):
        def run(self, runner_inputs: Any) -> Any:
            return [
                ms.runner.RunnerFuture(lambda: True, lambda: ms.runner.RunnerResult([1e-3], None))
                for _ in runner_inputs
            ]

    database = database_with_a_foreign_record()
    with pytest.warns(UserWarning, match="1 of 2 records"):
        ms.tune_tasks(  # tune_tir sets up TVM's loggers, which it can do once in a process
            tasks=[task(space_of(tiled), search(model, population=16, generations=1))],
            task_weights=[1.0],
            work_dir=str(tmp_path / "work"),
            max_trials_global=6,
            num_trials_per_iter=3,
            builder=Built(),
            runner=Ran(),
            database=database,
            cost_model=model,
            measure_callbacks=[
                ms.measure_callback.AddToDatabase(),
                ms.measure_callback.UpdateCostModel(),
            ],
        )
    assert len(database) == 2 + 6


def test_a_batch_of_none_is_accepted(model: Any) -> None:
    context = task(space_of(tiled), search(model, population=16, generations=1))
    context.pre_tuning(4, 2, database=ms.database.MemoryDatabase(), cost_model=model)
    context.notify_runner_results([], [])
    model.update(context, [], [])
    assert sum(batches(context)) == 4


def results(count: int, round_: int) -> list[Any]:
    seconds = np.random.default_rng(round_).permutation(count) + 1.0
    return [ms.runner.RunnerResult([1e-4 * one], None) for one in seconds.tolist()]


def fresh_candidates(context: Any, count: int) -> list[Any]:
    """Return so many random programs of the context's task."""
    context.pre_tuning(count, count, context.generate_design_space())
    made = list(context.generate_measure_candidates())
    context.post_tuning()
    return made


@pytest.mark.parametrize("size", [32, 100], ids=["in full", "with a draft"])
def test_saved_and_loaded_a_model_gives_the_same_scores(
    model: Any,
    make_bundle: Make,
    context: Any,
    candidates: list[Any],
    tmp_path: Path,
    size: int,
) -> None:
    base = model.predict(context, candidates)
    slow_first = np.argsort(
        np.argsort(base)
    )  # what the model likes is slow: another arm takes over
    for _ in range(5):
        measured = [ms.runner.RunnerResult([1e-4 * (1.0 + one)], None) for one in slow_first]
        model.update(context, candidates, measured)
    assert model.history[-1].next_arm is Arm.scratch
    others = candidates if size == 32 else fresh_candidates(context, size)
    path = str(tmp_path / "state.npz")
    model.predict(context, others)
    model.save(path)
    expected = model.predict(context, others)
    other = load_cost_model(make_bundle("xgb"))
    other.load(path)
    np.testing.assert_array_equal(other.predict(context, others), expected)
    model.load(path)
    np.testing.assert_array_equal(model.predict(context, others), expected)
    for one in (model, other):
        one.update(context, candidates, results(len(candidates), 9))
    assert other.history[-1].next_arm is model.history[-1].next_arm
    np.testing.assert_array_equal(
        other.predict(context, candidates), model.predict(context, candidates)
    )


def test_a_frozen_model_stays_alone_with_a_state_of_others(
    model: Any, make_bundle: Make, context: Any, candidates: list[Any], tmp_path: Path
) -> None:
    base = model.predict(context, candidates)
    order = np.argsort(np.argsort(base))
    model.update(
        context, candidates, [ms.runner.RunnerResult([1e-4 * (1.0 + one)], None) for one in order]
    )
    model.save(str(tmp_path / "state.npz"))
    frozen = load_cost_model(make_bundle("xgb"), frozen=True)
    frozen.load(str(tmp_path / "state.npz"))
    np.testing.assert_array_equal(frozen.predict(context, candidates), base)


def test_a_program_without_features_is_scored(model: Any) -> None:
    @tvm.script.ir_module
    class Constant:
        @tvm.script.tirx.prim_func(s_tir=True)
        def main(filled: tvm.script.tirx.Buffer((2, 3), "float32")) -> None:  # type: ignore[valid-type]
            for i, j in tvm.script.tirx.grid(2, 3):
                with tvm.script.tirx.sblock("full"):
                    vi, vj = tvm.script.tirx.axis.remap("SS", [i, j])
                    filled[vi, vj] = tvm.script.tirx.float32(1)

    context = ms.TuneContext(mod=Constant, target=Target(LLVM), task_name="full", num_threads=1)
    candidate = ms.MeasureCandidate(Schedule(Constant), [])
    model.update(context, [candidate], [ms.runner.RunnerResult([1e-3], None)])
    (score,) = model.predict(context, [candidate])
    assert 0 < score <= 1


def named(mod: Any, name: str) -> Any:
    return tvm.IRModule({name: mod["main"].with_attr("global_symbol", name)})


def test_what_cannot_be_built_is_an_error_of_its_own_result(tmp_path: Path) -> None:
    good, target = make_matmul(SIZE), Target(LLVM)
    inputs = [ms.builder.BuilderInput(one, target) for one in (good, named(good, "matmul"), good)]
    runner = WarmRunner(WorkerPool(MeasureOptions(), cpus=CpuPlan(None, None)))
    built = WarmBuilder(tmp_path).build(inputs)
    runner.pool.close()
    assert [one.error_msg is None for one in built] == [True, False, True]
    assert [one.artifact_path is None for one in built] == [False, True, False]
    assert "main" in built[1].error_msg
    assert "matmul" in built[1].error_msg
    assert len(list(tmp_path.iterdir())) == 2


def test_no_programs_no_results() -> None:
    assert WarmBuilder()._inst.build([]) == []


def test_a_context_without_target_is_of_the_models(
    model: Any, context: Any, candidates: list[Any]
) -> None:
    expected = model.predict(context, candidates)
    bare = ms.TuneContext(mod=context.mod)
    np.testing.assert_array_equal(model.predict(bare, candidates), expected)
    model.update(bare, candidates, results(len(candidates), 0))
    assert model.history[-1].num_measured == len(candidates)


def test_a_context_of_nothing_gets_a_score_for_each_program(model: Any) -> None:
    """TVM's random model is asked so; without a workload there are no features, which scores lowest."""
    programs = [ms.MeasureCandidate(Schedule(make_matmul(SIZE)), []) for _ in range(10)]
    model.update(ms.TuneContext(), [], [])
    model.update(ms.TuneContext(), programs, results(10, 0))
    scores = model.predict(ms.TuneContext(), programs)
    assert scores.shape == (10,)
    assert np.all((scores >= 0) & (scores <= 1))
