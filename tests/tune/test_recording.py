"""Records of a tuning run carry what drift is computed from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tencost.config import HardwareConfig, TunerConfig
from tencost.store.modules import stored_modules
from tencost.store.record_store import RecordStore
from tencost.store.status import Status, Timing
from tencost.tune.curve import CurvePoint
from tencost.tune.recording import tuning_seconds

pytestmark = pytest.mark.tvm


@pytest.fixture
def recorder(matmul: Any) -> Any:
    from tvm.ir import save_json

    from tencost.networks.network import NetworkTask
    from tencost.store.ids import workload_id
    from tencost.tune.recording import Recorder

    task = NetworkTask("matmul", matmul, 2, 2.0 * 64**3, None)
    hardware = HardwareConfig(name="toy-1c")
    tasks = {workload_id(str(save_json(matmul))): task}
    return Recorder(
        "net", hardware, TunerConfig(), "models:/m/1", "net-toy-1c", tasks, model_tvm="0.27.0"
    )


def lines(
    recorder: Any, candidates: list[Any], target: dict[str, Any], first: int = 1
) -> list[Any]:
    """Return database lines of programs; only the number tells their traces apart."""
    from tencost.records.formats.metaschedule import LoggedProgram, LoggedWorkload

    (workload,) = recorder.tasks
    return [
        LoggedProgram(
            workload=LoggedWorkload("0", "", workload),
            trace=[[["GetBlock", [], [f"block{number}", "main"], ["b0"]]], []],
            run_secs=None,
            target=target,
            args_info=[],
            line=number,
        )
        for number, _ in enumerate(candidates, start=first)
    ]


def measured(candidates: list[Any]) -> tuple[list[Timing], list[Any]]:
    """Return timings and the same as MetaSchedule's results; every fifth failed."""
    from tvm.s_tir.meta_schedule.runner import RunnerResult

    seconds = np.random.default_rng(1).uniform(1e-4, 1e-2, len(candidates)).tolist()
    timings = [
        Timing(Status.run_error, (), "no") if index % 5 == 4 else Timing(Status.ok, (value,), "")
        for index, value in enumerate(seconds)
    ]
    results = [
        RunnerResult(list(item.run_secs), None) if item.run_secs else RunnerResult(None, "no")
        for item in timings
    ]
    return timings, results


def test_drift_finds_in_the_store_what_the_cost_model_noted(
    recorder: Any,
    make_bundle: Callable[[str], Path],
    context: Any,
    candidates: list[Any],
    target: dict[str, Any],
    tmp_path: Path,
) -> None:
    from tencost.register.drift import histories
    from tencost.tune.cost_model import load_cost_model

    model = load_cost_model(make_bundle("xgb"))
    store = RecordStore(str(tmp_path / "store"))
    for number, batch in enumerate((candidates[:16], candidates[16:]), start=1):
        timings, results = measured(batch)
        alone = model.predict(context, batch) if number == 1 else None
        model.update(context, batch, results)
        ranked = model.history[-1]
        assert len(ranked.base_scores) == len(batch)
        if alone is not None:  # nothing was learnt yet
            assert ranked.base_scores == tuple(alone)
        programs = lines(recorder, batch, target, first=16 * number)
        store.write(recorder.records(programs, timings, ranked, number))
    (history,) = histories(store)
    assert (history.version, history.hardware, history.trained_on) == (
        "models:/m/1", "toy-1c", "0.27.0"
    )  # fmt: skip
    (run,) = history.runs
    assert (run.run, run.network, run.programs) == (recorder.run, "net", 32)
    expected = [item.base_spearman for item in model.history]
    assert [item.spearman for item in run.rankings] == pytest.approx(expected)
    about = json.loads(store.read()["additional_info"][0])
    assert about["arm"] == "residual"
    assert {"run", "round", "batch", "score", "chosen_by"} <= set(about)


def test_scores_that_do_not_fit_the_batch_are_left_out(
    recorder: Any,
    make_bundle: Callable[[str], Path],
    context: Any,
    candidates: list[Any],
    target: dict[str, Any],
) -> None:
    from tencost.tune.cost_model import load_cost_model

    model = load_cost_model(make_bundle("xgb"))
    batch = candidates[:8]
    timings, results = measured(batch)
    model.update(context, batch[:7], results[:7])  # the eighth did not build
    made = recorder.records(lines(recorder, batch, target), timings, model.history[-1], 1)
    assert [record.extra for record in made] == [None] * 8
    assert made[0].provenance.additional_info["round"] == 1
    unknown = recorder.records(lines(recorder, batch, target), timings)
    assert "round" not in unknown[0].provenance.additional_info


def test_without_a_registered_model_there_are_no_scores(
    recorder: Any, context: Any, candidates: list[Any], target: dict[str, Any]
) -> None:
    from tencost.config import FeaturesConfig
    from tencost.features.extractor import spec_for
    from tencost.tune.cost_model import scratch_cost_model

    model = scratch_cost_model(spec_for(FeaturesConfig(name="per_store", kind="per_store")))
    timings, results = measured(candidates[:8])
    model.update(context, candidates[:8], results)
    assert model.history[-1].base_scores == ()
    programs = lines(recorder, candidates[:8], target)
    made = recorder.records(programs, timings, model.history[-1], 1)
    assert all(record.extra is None for record in made)


def test_each_run_has_an_id_and_modules_go_beside_the_store(recorder: Any, tmp_path: Path) -> None:
    from tvm.ir import load_json
    from tvm_ffi import structural_equal

    again = dataclasses.replace(recorder, run=type(recorder)("n", None, None, "m", "f", {}).run)
    assert again.run != recorder.run
    uri = str(tmp_path / "store")
    recorder.keep_modules(uri)
    again.keep_modules(uri)
    (row,) = stored_modules(uri).to_dicts()
    (task,) = recorder.tasks.values()
    assert (row["workload_id"], row["task_name"]) == (next(iter(recorder.tasks)), "matmul")
    assert structural_equal(load_json(row["mod_json"]), task.mod)


def test_the_seconds_of_all_runs_of_a_work_folder_count() -> None:
    elapsed = [0.0, 4.0, 9.5, 3.0, 5.0, 5.0]  # two runs: 9.5 s, and 5 s
    points = [
        CurvePoint(trials=at, total_latency_s=1e-3, elapsed_s=one) for at, one in enumerate(elapsed)
    ]
    assert tuning_seconds(points) == 14.5
    assert tuning_seconds([]) == 0.0
