from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from matmuls import make_matmul
from tencost.config import FeaturesConfig, HardwareConfig, TunerConfig
from tencost.features.extractor import spec_for
from tencost.features.traces import trace_values
from tencost.networks.network import NetworkTask
from tencost.store.ids import program_id, workload_id
from tencost.store.record_store import RecordStore
from tencost.store.schema import Record, Source
from tencost.store.status import Status
from tencost.tune.adopt import adopt
from tencost.tune.refit import apply, decisions, sketch
from tencost.tune.session import Batch, Session
from tencost.tune.workfolder import open_folder

pytestmark = pytest.mark.tvm


def key_of(mod: Any) -> str:
    from tvm.ir import save_json

    return workload_id(str(save_json(mod)))


def records_of(mod: Any, target: dict[str, Any], hardware: str) -> list[Record]:
    """One program of each design space, the first the fastest."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    context = ms.TuneContext(
        mod=mod,
        target=Target(target),
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        task_name="matmul",
        rand_state=1,
        num_threads=1,
    )
    found = []
    for number, space in enumerate(context.generate_design_space(), start=1):
        trace = space.trace.simplified(True)
        made = sketch(trace_values(trace))
        schedule = apply(context, trace, made.places, decisions(trace_values(trace), made), 0)
        assert schedule is not None
        program = trace_values(schedule.trace)
        identity = program_id(key_of(mod), "llvm", program)
        found.append(
            Record(
                record_id=f"{hardware}-{identity}",
                program_id=identity,
                workload_id=key_of(mod),
                task_name="matmul",
                networks=(),
                hardware=hardware,
                target=target,
                program_format="metaschedule_trace",
                program=json.dumps(program),
                run_secs=(number * 1e-9, number * 1e-9),
                status=Status.ok,
                error="",
                source=Source("tune", "elsewhere.json", number),
            )
        )
    return found


def test_what_the_store_knows_is_not_measured_again(
    tmp_path: Path, target: dict[str, Any], cpu_intrinsics: None
) -> None:
    from tencost.tune.cost_model import scratch_cost_model
    from tencost.workers.evaluator import MeasureOptions
    from tencost.workers.pool import WorkerPool

    mod = make_matmul(32)
    tasks = [NetworkTask("matmul", mod, 1, 65536.0, None)]
    mine, other = (
        HardwareConfig(name=name, target=target, simd_bits=256) for name in ("mine", "other")
    )
    store = RecordStore(str(tmp_path / "store"))
    with open_folder(tmp_path / "empty", "one", "mine", target) as folder:
        assert adopt(folder, tasks, [key_of(mod)], mine, store) == 0
    known = records_of(mod, target, "mine")
    store.write([*known, *records_of(mod, target, "other")[:1]])

    with open_folder(tmp_path / "folder", "one", "mine", target) as folder:
        assert adopt(folder, tasks, [key_of(mod)], mine, store) == len(known)
        assert adopt(folder, tasks, [key_of(mod)], mine, store) == 0
        assert folder.new_programs() == []
    with open_folder(tmp_path / "folder", "one", "mine", target) as folder:
        assert folder.adopted == len(known)
        model = scratch_cost_model(spec_for(FeaturesConfig(name="per_store", kind="per_store")))
        tuner = TunerConfig(trials=4, population=16, generations=1)
        pool = WorkerPool(MeasureOptions(number=1, repeat=1, min_repeat_ms=0))
        batches: list[Batch] = []
        try:
            session = Session(
                tasks, target, tuner, model, folder, pool, threads=1, on_batch=batches.append
            )
            session.measure_baseline()
            outcome = session.run()
        finally:
            pool.close()
        assert session.trials == 4
        assert len(outcome.database) == len(known) + 4
        assert session.total_latency_s == pytest.approx(1e-9)  # the store's best program counts
        programs = {json.dumps(one.trace) for one in folder.new_programs()}
        assert not programs & {record.program for record in known}

    with open_folder(tmp_path / "other", "one", "other", target) as folder:
        assert adopt(folder, tasks, [key_of(mod)], other, store) == 1
