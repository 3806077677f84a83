"""A tuning run whose fastest programs compute something wrong: they are found, and none of them is ever the best."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scratch_sessions import scratch_session

from tencost.config import HardwareConfig, TunerConfig
from tencost.errors import TuneError
from tencost.networks.network import NetworkTask
from tencost.store.status import Status
from tencost.tune.session import MeasuredBatch, TuningSession
from tencost.tune.workfolder import WorkFolder, open_folder

pytestmark = pytest.mark.tvm

SIZE = 64
RULE = "tencost_test_overwrites_rows"


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    from tencost.workers.evaluator import MeasureOptions
    from tencost.workers.pool import WorkerPool

    one = WorkerPool(MeasureOptions(number=1, repeat=1, min_repeat_ms=1), target_kind="llvm")
    yield one
    one.close()


@pytest.fixture
def task() -> Iterator[NetworkTask]:
    """A product whose own schedule rule offers it as it is, and vectorized with an intermediate result that loses rows.

    The latter says of a layout that maps two rows to one that it maps each to its own: the compiler believes it.
    """
    import tvm
    import tvm_ffi
    from tvm import te

    def rule(schedule: Any, _block: Any) -> list[Any]:
        both = [schedule, schedule.copy()]
        for one in both:
            block = one.get_sblock("product")
            i, j, k = one.get_loops(block)
            outer, inner = one.split(i, one.sample_perfect_tile(i, 2, 16))
            one.annotate(block, "meta_schedule.tiling_structure", "no other tiling")
        one.reorder(outer, inner, k, j)
        one.vectorize(j)
        one.transform_layout(
            "doubled", ("write", 0), lambda i, j: (i // 2, j), assume_injective_transform=True
        )
        return both

    name = f"s_tir.meta_schedule.cpu.{RULE}"
    tvm_ffi.register_global_func(name, rule)
    a, b = (te.placeholder((SIZE, SIZE), name=letter) for letter in "AB")
    alone = {"schedule_rule": "None"}
    doubled = te.compute((SIZE, SIZE), lambda i, j: a[i, j] * 2.0, name="doubled", attrs=alone)
    k = te.reduce_axis((0, SIZE), name="k")
    product = te.compute(
        (SIZE, SIZE),
        lambda i, j: te.sum(doubled[i, k] * b[k, j], axis=k),
        name="product",
        attrs={"schedule_rule": RULE},
    )
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, product])})
    yield NetworkTask("product", mod, 2, 2.0 * SIZE**3, None)
    tvm_ffi.remove_global_func(name)


def tune(
    folder: WorkFolder,
    task: NetworkTask,
    target: dict[str, Any],
    pool: Any,
    **changes: Any,
) -> tuple[TuningSession, list[MeasuredBatch], Any]:
    space = {"starts": 0, "register_tiles": False} | changes  # the rule's own programs are meant
    batches: list[MeasuredBatch] = []
    session = scratch_session(
        folder, [task], target, pool, batches.append, trials=16, seed=1, **space
    )
    session.measure_untuned()
    return session, batches, session.run()


def is_wrong(trace: Any) -> bool:
    return "transformlayout" in str(trace).lower().replace("_", "")


def test_the_fastest_program_is_wrong_and_never_the_best(
    tmp_path: Path, task: NetworkTask, target: dict[str, Any], pool: Any, cpu_intrinsics: None
) -> None:
    from tvm.ir import save_json
    from tvm.target import Target

    from tencost.tune.recording import Recorder
    from tencost.workers.pool import Job
    from tencost.workers.warm_worker import TracedProgram

    with open_folder(tmp_path / "tuned", "one", "local", target) as folder:
        session, batches, outcome = tune(folder, task, target, pool)
        programs = folder.new_programs()
    timings = [timing for batch in batches for timing in batch.timings]
    wrong = [n for n, timing in enumerate(timings) if timing.status is Status.wrong_answer]
    right = [n for n, timing in enumerate(timings) if timing.status is Status.ok]
    assert wrong
    assert right
    assert session.num_wrong == len(wrong) == batches[-1].num_wrong
    assert all(is_wrong(programs[n].trace) for n in wrong)

    # They are the fastest, and would have been the best. Load makes a time longer, never shorter: the least of some is
    # the program's own; both are timed in turn, so that load meets both.
    workload = tmp_path / "workload.json"
    workload.write_text(str(save_json(task.mod)))
    fastest = min(right, key=lambda n: min(timings[n].run_secs))
    jobs = [
        Job(TracedProgram(workload, programs[n].trace), target, programs[n].args_info)
        for n in (*wrong[:4], fastest)
    ]
    turns = [[min(pool.measure_one(job).run_secs) for job in jobs] for _ in range(10)]
    *unchecked, checked = (min(times) for times in zip(*turns, strict=True))
    assert min(unchecked) < checked

    best = outcome.database.query_tuning_record(task.mod, Target(target), "main")
    assert not is_wrong(best.trace)
    assert session.best_s[session.ids[0]] == min(timings[n].run_secs[0] for n in right)
    assert all(programs[n].run_secs == [1e10] for n in wrong)

    recorder = Recorder(
        "one", HardwareConfig(name="local"), TunerConfig(), "m", "f", {session.ids[0]: task}
    )
    first = batches[0]
    records = recorder.records(programs[: len(first.timings)], first.timings, first.round, 1)
    found = [record for record in records if record.status is Status.wrong_answer]
    assert len(found) == sum(n < len(records) for n in wrong) > 0
    assert all("of its largest value" in record.error for record in found)


def test_a_database_with_wrong_programs_is_cleaned(
    tmp_path: Path, task: NetworkTask, target: dict[str, Any], pool: Any, cpu_intrinsics: None
) -> None:
    from tvm.target import Target

    from tencost.tune.wrong_programs import mark_failed, wrong_programs
    from tencost.workers.evaluator import MeasureOptions
    from tencost.workers.pool import WorkerPool

    with open_folder(tmp_path, "one", "local", target) as folder:
        session, _, outcome = tune(folder, task, target, pool, check_outputs=False)
        assert session.num_wrong == 0
        best = outcome.database.query_tuning_record(task.mod, Target(target), "main")
        assert is_wrong(best.trace)
        wrong = wrong_programs(folder.path, {session.ids[0]: task}, pool)
        assert wrong
        assert "product (line" in str(wrong[0])
        lines = (tmp_path / "database_tuning_record.json").read_text().splitlines()
        mark_failed(folder.path, wrong)
        after = (tmp_path / "database_tuning_record.json").read_text().splitlines()
        changed = {n + 1 for n in range(len(lines)) if json.loads(lines[n]) != json.loads(after[n])}
        assert changed == {one.program.line for one in wrong}
        best = folder.database().query_tuning_record(task.mod, Target(target), "main")
        assert not is_wrong(best.trace)
        fresh = WorkerPool(MeasureOptions(repeat=1), cpus=pool.cpus, target_kind="llvm")
        try:
            assert wrong_programs(folder.path, {session.ids[0]: task}, fresh) == []
        finally:
            fresh.close()


@pytest.mark.parametrize(
    ("at_fault", "told"),
    [
        ("rules", "functions that are scheduled by rule do not"),
        ("source", "the import is at fault"),
        ("together", "where TVM puts them together"),
    ],
)
def test_where_no_program_is_wrong_it_is_said_what_is(
    at_fault: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tvm
    from tvm.s_tir.meta_schedule.database import MemoryDatabase

    from relax_networks import two_layers
    from tencost.tune import verify
    from tencost.tune.deploy import compile_network
    from tencost.tune.hosts import Host
    from tencost.workers.evaluator import MeasureOptions
    from tencost.workers.hardware import resolve_hardware

    network, hardware = two_layers(), resolve_hardware(HardwareConfig(name="local", detect=True))
    text = network.mod.script(show_meta=True)
    assert "T.max(" in text
    wrong_mod = replace(network, mod=tvm.script.from_source(text.replace("T.max(", "T.min(")))
    if at_fault == "source":
        network = replace(network, expected=[1 + one for one in network.expected])

    def compiled(
        given: Any, target: Any, database: Any, *, by_rule: bool | None = None, note: Any = None
    ) -> Any:
        tuned = database is not None
        wrong = {"rules": tuned or by_rule, "together": tuned}.get(at_fault, False)
        mod = wrong_mod if wrong else given
        return compile_network(mod, target, database, by_rule=by_rule, note=note)

    monkeypatch.setattr(verify, "compile_network", compiled)
    with open_folder(tmp_path, "one", "local", hardware.target) as folder:
        folder.database()
        given: Any = (MemoryDatabase(), [], folder, MeasureOptions(repeat=1), Host(hardware))
        tuned = compiled(network, hardware.target, MemoryDatabase())
        with pytest.raises(TuneError, match=told):
            verify.compile_and_compare(network, hardware, tuned, *given)
