from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scratch_sessions import scratch_session
from tvm.ir import save_json

from matmuls import make_matmul
from tencost.config import HardwareConfig, TunerConfig
from tencost.store.ids import workload_id
from tencost.store.status import Status
from tencost.tune.session import MeasuredBatch, TuningSession, round_size
from tencost.tune.workfolder import WorkFolder, open_folder

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    from tencost.workers.evaluator import MeasureOptions
    from tencost.workers.pool import WorkerPool

    one = WorkerPool(MeasureOptions(number=1, repeat=1, min_repeat_ms=0))
    yield one
    one.close()


@pytest.fixture(scope="module")
def tasks() -> list[Any]:
    from tencost.networks.network import NetworkTask

    return [
        NetworkTask(f"matmul_{size}", make_matmul(size), weight, 2.0 * size**3, None)
        for size, weight in ((48, 1), (32, 3))
    ]


@pytest.fixture
def tune(
    tasks: list[Any], target: dict[str, Any], pool: Any, cpu_intrinsics: None
) -> Callable[..., tuple[TuningSession, Any, list[MeasuredBatch], Any]]:
    def run(
        folder: WorkFolder,
        trials: int,
        on_batch: Callable[[MeasuredBatch], None] = lambda batch: None,
        to_gain: Callable[[], dict[str, float]] = dict,
        **changes: Any,
    ) -> tuple[TuningSession, Any, list[MeasuredBatch], Any]:
        batches: list[MeasuredBatch] = []

        def note(batch: MeasuredBatch) -> None:
            batches.append(batch)
            on_batch(batch)

        session = scratch_session(
            folder, tasks, target, pool, note, trials=trials, seed=3, **changes
        )
        session.measure_untuned()
        return session, session.run(to_gain=to_gain), batches, session._model

    return run


def opened(path: Path, target: dict[str, Any]) -> Any:
    return open_folder(path, "two", "local", target)


def test_round_sizes() -> None:
    assert round_size(128, 5, 32) == 12
    assert round_size(512, 5, 32) == 32
    assert round_size(20, 10, 32) == 8
    assert round_size(5, 10, 32) == 5
    assert round_size(1000, 1, 64) == 64


def test_a_run_and_one_that_goes_on(
    tmp_path: Path, target: dict[str, Any], tune: Any, tasks: list[Any], matmul: Any
) -> None:
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    from tencost.tune.recording import Recorder

    recorder = None
    with opened(tmp_path, target) as folder:
        session, outcome, batches, model = tune(folder, 16, starts=0)
        assert not outcome.interrupted
        assert session.trials == 16 == len(outcome.database)
        assert [batch.trials for batch in batches] == [8, 16]
        assert {batch.task.name for batch in batches} == {"matmul_48", "matmul_32"}
        totals = [batch.total_latency_s for batch in batches]
        assert totals == sorted(totals, reverse=True)
        assert session.total_latency_s == totals[-1]
        assert len(model.history) == 2

    with opened(tmp_path, target) as folder:
        by_id = dict(zip(session.ids, tasks, strict=True))
        recorder = Recorder(
            "two", HardwareConfig(name="local"), TunerConfig(), "models:/m/1", "two-local", by_id
        )
        records: list[Any] = []
        again, outcome, batches, model = tune(
            folder,
            40,
            lambda batch: records.extend(recorder.records(folder.new_programs(), batch.timings)),
        )
        assert (
            again.trials
            == len(outcome.database)
            == 16 + sum(len(batch.timings) for batch in batches)
        )
        assert again.total_latency_s <= session.total_latency_s
        assert again.trials == 40
        # Learnt from the first run's programs before anything was measured.
        assert batches[0].round.residual_weight > 0
        # Nothing is measured twice.
        traces = {
            str(record.trace) + str(record.workload.mod)
            for record in outcome.database.get_all_tuning_records()
        }
        assert len(traces) == len(outcome.database)
        # Records with provenance, as many as were measured.
        assert len(records) == again.trials - 16
        assert {record.workload_id for record in records} <= set(session.ids)
        assert all(record.status is Status.ok for record in records)
        assert records[0].provenance.additional_info["chosen_by"] == "models:/m/1"
        assert records[0].networks[0].network == "two"
        assert len({record.record_id for record in records}) == len(records)

    with opened(tmp_path, target) as folder:
        third, outcome, batches, _ = tune(folder, 16)
        assert batches == []
        assert third.trials == again.trials

    stock = ms.database.JSONDatabase(work_dir=str(tmp_path))
    assert len(stock) == again.trials
    assert stock.query_schedule(tasks[0].mod, Target(target), "main") is not None


@pytest.mark.parametrize("first", ["matmul_48", "matmul_32"])
def test_a_run_begins_with_the_task_that_has_most_to_gain(
    tmp_path: Path, target: dict[str, Any], tune: Any, tasks: list[Any], first: str
) -> None:
    """By the roofs where they are known, else by what its calls take untuned."""
    for case, gains in (
        ("roofs", {task.name: float(task.name == first) for task in tasks}),
        ("times", {}),
    ):
        with opened(tmp_path / case, target) as folder:
            ids = [workload_id(str(save_json(task.mod))) for task in tasks]
            pairs = list(zip(ids, tasks, strict=True))
            folder.untuned_s |= {identity: 0.1 + (task.name == first) for identity, task in pairs}
            if gains:  # the roofs know better
                folder.untuned_s |= {
                    identity: 0.1 + (task.name != first) for identity, task in pairs
                }
            _, _, batches, _ = tune(folder, 8, to_gain=lambda gains=gains: gains)
            assert batches[0].task.name == first, case


def test_ctrl_c_ends_in_order_and_the_next_run_goes_on(
    tmp_path: Path, target: dict[str, Any], tune: Any
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with opened(tmp_path, target) as folder:
        session, outcome, batches, _ = tune(
            folder, 64, lambda batch: signal.raise_signal(signal.SIGINT)
        )
        assert outcome.interrupted
        assert len(batches) == 1
        assert session.trials == len(outcome.database) == len(batches[0].timings)
    assert signal.getsignal(signal.SIGINT) is before
    with opened(tmp_path, target) as folder:
        session, outcome, _, _ = tune(folder, 16)
        assert not outcome.interrupted
        assert session.trials == 16


def test_a_run_ends_where_no_task_promises_enough(
    tmp_path: Path, target: dict[str, Any], tune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tencost.tune.task_scheduler.CAP", 0.0)
    monkeypatch.setattr("tencost.tune.task_scheduler.FAITH", 0.0)
    with opened(tmp_path, target) as folder:
        session, outcome, batches, _ = tune(folder, 64, min_gain=0.001)
        assert outcome.settled
        assert not outcome.interrupted
        assert {batch.task.name for batch in batches} == {"matmul_48", "matmul_32"}
        assert len(batches) == 2
    with opened(tmp_path, target) as folder:
        session, outcome, _, _ = tune(folder, 64, min_gain=0.0)
        assert not outcome.settled
        assert session.trials == 64


def test_metaschedule_stays_off_the_terminal(
    tmp_path: Path, target: dict[str, Any], tune: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with opened(tmp_path, target) as folder:
        tune(folder, 8)
    assert capfd.readouterr().out == ""
    assert any((tmp_path / "logs").iterdir())


def test_a_batch_of_which_nothing_is_built_has_a_round_of_its_own(
    tmp_path: Path, target: dict[str, Any], tune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is not told of it, be it the first batch or a later one."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    from tencost.workers.runner import WarmBuilder

    built = [False, True, False]
    warm = WarmBuilder()

    @derived_object
    class Builder(ms.builder.PyBuilder):
        def build(self, build_inputs: list[Any]) -> list[Any]:
            if built.pop(0):
                return list(warm.build(build_inputs))
            return [ms.builder.BuilderResult(None, "nothing is built here") for _ in build_inputs]

    monkeypatch.setattr("tencost.tune.session.WarmBuilder", lambda _folder: Builder())
    with opened(tmp_path, target) as folder:
        session, _, batches, model = tune(folder, 24, starts=0)
    assert session.trials == 24
    assert [batch.round.num_measured for batch in batches] == [0, 8, 0]
    assert [batch.task.name for batch in batches] == [batch.round.task for batch in batches]
    assert len(model.history) == 1
    assert batches[1].round is model.history[0]
