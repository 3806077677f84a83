from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from known_programs import key_of, records_of
from scratch_sessions import scratch_session

from matmuls import make_matmul
from tencost.config import HardwareConfig
from tencost.networks.network import NetworkTask
from tencost.store.ids import program_id
from tencost.store.record_store import RecordStore
from tencost.store.status import Status, Timing
from tencost.tune.adopt import TIMED, adopt
from tencost.tune.workfolder import open_folder
from tencost.workers.evaluator import Best
from tencost.workers.pool import WorkerPool

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    from tencost.workers.evaluator import MeasureOptions

    one = WorkerPool(MeasureOptions(number=1, repeat=2, min_repeat_ms=0))
    yield one
    one.close()


def one_task(size: int = 32) -> list[NetworkTask]:
    return [NetworkTask("matmul", make_matmul(size), 1, 65536.0, None)]


def hardware_of(name: str, target: dict[str, Any]) -> HardwareConfig:
    return HardwareConfig(name=name, target=target, simd_bits=256)


def test_records_are_found_by_a_target_without_the_keys_that_tvm_adds(
    tmp_path: Path, cpu_intrinsics: None
) -> None:
    """As hardware=local describes it; what is recorded is what TVM makes of it."""
    import polars as pl

    from tencost.register.start_records import COLUMNS, fastest

    described = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 1}
    recorded = {**described, "keys": ["cpu"], "tag": ""}
    store = RecordStore(str(tmp_path / "store"))
    store.write(records_of(make_matmul(32), recorded, "local"))
    records = store.read("local", COLUMNS)
    found = fastest(records, described, 8)
    assert len(found) == len(records) > 0
    assert found.equals(fastest(records, recorded, 8))
    other = fastest(records, {**described, "mcpu": "skylake"}, 8)
    assert isinstance(other, pl.DataFrame)
    assert other.is_empty()


def test_what_the_store_knows_is_not_measured_again(
    tmp_path: Path, target: dict[str, Any], pool: Any, cpu_intrinsics: None
) -> None:
    tasks = one_task()
    ids = [key_of(tasks[0].mod)]
    mine, other = (hardware_of(name, target) for name in ("mine", "other"))
    store = RecordStore(str(tmp_path / "store"))

    def no_need(_place: int, _mod: Any) -> Timing:
        raise AssertionError

    with open_folder(tmp_path / "empty", "one", "mine", target) as folder:
        assert adopt(folder, tasks, ids, mine, store, no_need).programs == 0
    known = records_of(tasks[0].mod, target, "mine")
    store.write([*known, *records_of(tasks[0].mod, target, "other")[:1]])

    with open_folder(tmp_path / "folder", "one", "mine", target) as folder:
        session = scratch_session(folder, tasks, target, pool, trials=4)
        assert adopt(folder, tasks, ids, mine, store, session.time_here).programs == len(known)
        assert adopt(folder, tasks, ids, mine, store, no_need).programs == 0
        assert folder.new_programs() == []
    with open_folder(tmp_path / "folder", "one", "mine", target) as folder:
        assert len(folder.adopted) == len(known)
        session = scratch_session(folder, tasks, target, pool, trials=4)
        session.measure_untuned()
        outcome = session.run()
        assert session.trials == 4
        assert len(outcome.database) == len(known) + 4
        programs = {json.dumps(one.trace) for one in folder.new_programs()}
        assert not programs & {record.program for record in known}
        assert adopt(folder, tasks, ids, mine, store, no_need).programs == 0

    with open_folder(tmp_path / "other", "one", "other", target) as folder:
        session = scratch_session(folder, tasks, target, pool, trials=4)
        assert adopt(folder, tasks, ids, other, store, session.time_here).programs == 1


def test_a_remembered_time_is_not_believed(
    tmp_path: Path, target: dict[str, Any], pool: Any, cpu_intrinsics: None
) -> None:
    """Programs remembered with a nanosecond are timed before they can be the best."""
    from tvm.target import Target

    tasks = one_task()
    ids = [key_of(tasks[0].mod)]
    store = RecordStore(str(tmp_path / "store"))
    known = records_of(tasks[0].mod, target, "mine")
    store.write([dataclasses.replace(record, run_secs=(1e-9,) * 3) for record in known])
    with open_folder(tmp_path / "folder", "one", "mine", target) as folder:
        session = scratch_session(folder, tasks, target, pool, trials=4)
        mine = hardware_of("mine", target)
        adoption = adopt(folder, tasks, ids, mine, store, session.time_here)
        assert adoption.programs == adoption.timed == len(known) <= TIMED
        for record, note in zip(known, sorted(adoption.notes), strict=True):
            assert "is remembered with 1e-06 ms, and takes" in note
            assert any(one.record_id in note for one in known), record.record_id
        assert pool.num_checked > 0
        best = folder.database().query_tuning_record(tasks[0].mod, Target(target), "main")
        assert min(map(float, best.run_secs)) > 5e-8
        session.measure_untuned()
        session.run()
        assert session.trials == 4
        assert session.total_latency_s > 5e-8


def test_what_cannot_all_be_timed_is_left_out(
    tmp_path: Path, target: dict[str, Any], cpu_intrinsics: None
) -> None:
    """Of more claims than are timed, those that claim to be faster than what was timed stay out; the others come."""
    tasks = one_task()
    ids = [key_of(tasks[0].mod)]
    store = RecordStore(str(tmp_path / "store"))
    (record, *_) = records_of(tasks[0].mod, target, "mine")
    instructions, decisions_ = json.loads(record.program)
    at = next(n for n, one in enumerate(instructions) if one[0] == "SampleCategorical")
    claims = [1e-9] * (TIMED + 1) + [2e-3]
    made = []
    for number, claim in enumerate(claims):  # the unroll limit's decision tells programs apart
        pairs = [[n, number % 4 if n == at else value] for n, value in decisions_]
        tile = next(pair for pair in pairs if instructions[pair[0]][0] == "SamplePerfectTile")
        extent = 32
        tile[1] = [extent >> (number // 4 + 1), 2 ** (number // 4 + 1), 1, 1]
        program = [instructions, pairs]
        identity = program_id(ids[0], "llvm", program)
        made.append(
            dataclasses.replace(
                record,
                record_id=f"mine-{number}",
                program_id=identity,
                program=json.dumps(program),
                run_secs=(claim,),
            )
        )
    store.write(made)
    calls = []

    def time_here(place: int, _mod: Any) -> Timing:
        calls.append(place)
        if len(calls) == 1:
            return Timing(Status.wrong_answer, (), "argument 2 differs")
        return Timing(Status.ok, (1e-3,))

    with open_folder(tmp_path / "folder", "one", "mine", target) as folder:
        adoption = adopt(folder, tasks, ids, hardware_of("mine", target), store, time_here)
        assert (adoption.timed, adoption.programs) == (TIMED, TIMED + 1) == (len(calls), TIMED + 1)
        assert "never offered (wrong_answer: argument 2 differs)" in adoption.notes[0]
        assert "1 programs of the live store are left out" in adoption.notes[-1]
        times = [program.run_secs for program in folder.programs()]
        assert times == [[1e10], *[[1e-3]] * (TIMED - 1), [2e-3]]


def test_a_folder_with_a_count_opens(
    tmp_path: Path, target: dict[str, Any], cpu_intrinsics: None
) -> None:
    """Folders of before told only how many records at the beginning came from a store."""
    tasks = one_task()
    store = RecordStore(str(tmp_path / "store"))
    store.write(records_of(tasks[0].mod, target, "mine"))
    with open_folder(tmp_path / "folder", "one", "mine", target) as folder:
        mine, ids = hardware_of("mine", target), [key_of(tasks[0].mod)]
        adopt(folder, tasks, ids, mine, store, lambda *_: Timing(Status.ok, (1e-9,)))
        count = len(folder.adopted)
        assert count == len(folder.programs()) > 1
    (folder.path / "adopted.jsonl").unlink()
    session = json.loads((folder.path / "session.json").read_text())
    (folder.path / "session.json").write_text(json.dumps({**session, "adopted": count - 1}))
    for _ in range(2):
        with open_folder(tmp_path / "folder", "one", "mine", target) as folder:
            assert len(folder.adopted) == count - 1


def test_a_shorter_mean_or_a_shorter_median_has_to_be_timed_here_first() -> None:
    """A database sorts by the one or the other."""
    assert Best().is_beaten_by([9.0])
    best = Best().after([2.0, 2.0, 5.0])  # mean 3, median 2
    best = best.after([1.0, 2.5, 2.5])  # mean 2, median 2.5
    assert best.is_beaten_by([0.5, 2.2, 2.3]), "a shorter mean alone"
    assert best.is_beaten_by([1.9, 1.9, 9.0]), "a shorter median alone"
    assert not best.is_beaten_by([2.1, 2.1, 2.1])
