from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from matmuls import make_masked_matmul, make_matmul
from tencost.config import Config, MeasureConfig
from tencost.errors import MeasureError
from tencost.measure import stage
from tencost.measure.collection import Collection
from tencost.measure.drawing import population
from tencost.measure.programs import FAST, MUTATED, TILE, ProgramSpace, Sample, task_seed
from tencost.programs.codegen.refit import Refitter, sketch
from tencost.programs.codegen.spaces import is_register_tile
from tencost.programs.starting_points import StartBook
from tencost.programs.trace.instructions import trace_values
from tencost.store.ids import workload_id
from tencost.workers.hardware import detect_host
from tencost.workers.keys import program_key

pytestmark = pytest.mark.tvm


def space(target: dict[str, Any], size: int = 64, seed: int = 1) -> ProgramSpace:
    from tvm.ir import save_json

    text = str(save_json(make_matmul(size)))
    return ProgramSpace(text, target, seed, population=32, generations=1)


def test_random_programs_are_distinct_and_seeded(target: dict[str, Any]) -> None:
    known: set[int] = set()
    sample = space(target).random(40, known)
    assert len(sample.schedules) == len(known) == 40
    assert not sample.exhausted
    again = space(target).random(40, set())
    assert [program_key(one.mod) for one in again.schedules] == [
        program_key(one.mod) for one in sample.schedules
    ]
    other = space(target, seed=2).random(40, set())
    assert {program_key(one.mod) for one in other.schedules} != known


def test_known_programs_are_not_made_again(target: dict[str, Any]) -> None:
    known: set[int] = set()
    here = space(target)
    first = {program_key(one.mod) for one in here.random(20, known).schedules}
    second = {program_key(one.mod) for one in here.random(20, known).schedules}
    third = {program_key(one.mod) for one in here.evolved(8, known).schedules}
    assert len(third) == 8
    assert not first & second
    assert not (first | second) & third


def test_programs_that_reorder_weights_are_known_again_from_their_file(
    target: dict[str, Any], cpu_intrinsics: None, tmp_path: Path
) -> None:
    """A trace written as JSON makes 1 of the mark's True: it is the same program."""
    from tvm import IRModule
    from tvm.ir import save_json
    from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord
    from tvm.target import Target

    marked = IRModule({"main": make_matmul(64)["main"].with_attr("layout_free_buffers", [1])})
    here = ProgramSpace(str(save_json(marked)), target, 1, population=32, generations=1)
    made = here.random(5, set()).schedules
    assert any("layout_rewrite_preproc" in one.mod.script() for one in made)
    database = JSONDatabase(work_dir=str(tmp_path))
    workload = database.commit_workload(marked)
    for one in made:
        database.commit_tuning_record(TuningRecord(one.trace, workload, [1.0], Target(target)))
    found = JSONDatabase(work_dir=str(tmp_path)).get_all_tuning_records()
    again = {program_key(one.as_measure_candidate().sch.mod) for one in found}
    assert again == {program_key(one.mod) for one in made}
    assert len(again) == 5


def test_a_small_space_is_exhausted(target: dict[str, Any]) -> None:
    known: set[int] = set()
    sample = space(target, size=1).random(500, known)
    assert sample.exhausted
    assert 0 < len(sample.schedules) < 500


def test_lines_are_a_database_that_tvm_loads(target: dict[str, Any], tmp_path: Path) -> None:
    from tvm.ir import save_json
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    from tencost.records.formats.metaschedule import RECORD_FILE, WORKLOAD_FILE, encode_module

    here = space(target)
    schedules = here.random(5, set()).schedules
    shash, lines = here.lines(schedules)
    module = encode_module(str(save_json(here.mod)))
    (tmp_path / WORKLOAD_FILE).write_text(json.dumps([shash, module]) + "\n")
    (tmp_path / RECORD_FILE).write_text("".join(f"{line}\n" for line in lines))
    database = JSONDatabase(work_dir=str(tmp_path))
    assert len(database) == 5
    assert all(json.loads(line)[1][1] is None for line in lines), "none of them is measured"


def test_more_programs_are_added_to_those_that_are_there(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    collection = Collection(small_root / "measured" / "small")
    tasks = collection.tasks(0.0)
    assert [task.networks for task in tasks] == [("one",), ("one", "two")] or [
        task.networks for task in tasks
    ] == [("one", "two"), ("one",)]
    before = {task.folder: collection.programs(task) for task in tasks}
    assert {len(programs) for programs in before.values()} == {6}
    stage.programs(configured("measure.programs=16", "measure.evolved_share=0.5"), small_root)
    for task in tasks:
        after = collection.programs(task)
        assert [program.trace for program in after[:6]] == [
            program.trace for program in before[task.folder]
        ]
        origin = collection.origin(task)
        assert origin is not None
        assert len(after) == len(origin.origins) == 16
        assert sum(text.startswith("evolved") for text in origin.origins) == 8
        assert len({json.dumps(program.trace) for program in after}) == 16


def test_seeds_differ_by_task_and_by_what_is_there() -> None:
    seeds = {task_seed(0, "a", 0), task_seed(0, "b", 0), task_seed(0, "a", 6), task_seed(1, "a", 0)}
    assert len(seeds) == 4


def values_of(schedule: Any) -> list[Any]:
    return trace_values(schedule.trace, remove_postproc=True)


def test_every_design_space_is_drawn_from(target: dict[str, Any]) -> None:
    here = space(target)
    wanted = {sketch(values_of(one)).choices for one in here._designs}
    drawn = here.random(64, set()).schedules
    assert {sketch(values_of(one)).choices for one in drawn} == wanted
    tiled = [is_register_tile(values_of(one)[0]) for one in drawn]
    assert 0 < sum(tiled) < len(tiled)
    evolved = here.evolved(32, set()).schedules
    assert any(is_register_tile(values_of(one)[0]) for one in evolved)


def test_what_is_near_good_programs_begins_with_known_tiles(target: dict[str, Any]) -> None:
    known: set[int] = set()
    sample = space(target).near(12, known)
    assert len(sample.schedules) == len(sample.origins) == len(known) == 12
    assert sample.origins[0] == TILE
    assert set(sample.origins) == {TILE, MUTATED}
    assert all(is_register_tile(values_of(one)[0]) for one in sample.schedules)
    again = space(target).near(12, set())
    assert [program_key(one.mod) for one in again.schedules] == [
        program_key(one.mod) for one in sample.schedules
    ]
    assert again.origins == sample.origins
    more = space(target).near(12, known)
    assert len(known) == 12 + len(more.schedules)


def test_fast_programs_of_other_workloads_are_fitted_and_mutated(target: dict[str, Any]) -> None:
    other = space(target, size=128)
    fast = [(other._workload, 1e-3, values_of(one)) for one in other.random(8, set()).schedules]
    book = StartBook.of("here", target, fast)
    sample = space(target).near(16, set(), Refitter(book))
    assert set(sample.origins) == {TILE, FAST, MUTATED}
    assert len(sample.schedules) == 16


def test_a_task_without_good_programs_has_random_ones(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    from tvm.ir import save_json

    softmax = str(save_json(make_softmax()))
    assert ProgramSpace(softmax, detect_host().target, 1, population=16).near(4, set()) == Sample(
        (), False, ()
    )
    collection = Collection(small_root / "measured" / "small")
    entry = {"task_name": "softmax", "weight": 1, "flop": 1e4, "mod": softmax}
    collection.add_network("three", "{}", [{**entry, "workload_id": workload_id(softmax)}])
    stage.programs(configured("measure.programs=8", "measure.near_share=0.5"), small_root)
    for task in collection.tasks(0.0):
        origin = collection.origin(task)
        assert origin is not None
        kinds = Counter(text.partition(":")[0] for text in origin.origins)
        # the matmuls have 6 random ones already
        expected = {"random": 8} if task.task_name == "softmax" else {"random": 6, "near": 2}
        assert kinds == expected, task.task_name


def test_the_default_is_a_third_of_each(
    small_root: Path, configured: Callable[..., Config]
) -> None:
    thirds = ["measure.evolved_share=0.333", "measure.near_share=0.333"]
    stage.programs(configured("measure.programs=18", *thirds), small_root)
    collection = Collection(small_root / "measured" / "small")
    for task in collection.tasks(0.0):
        origin = collection.origin(task)
        assert origin is not None
        kinds = Counter(text.partition(":")[0] for text in origin.origins)
        assert kinds == {"random": 6, "evolved": 6, "near": 6}


def test_a_program_that_tvm_cannot_make_does_not_end_the_sampling(target: dict[str, Any]) -> None:
    """RewriteLayout fails a check of its own on some programs of a normalization whose scales may be reordered."""
    import tvm
    from tvm import te, topi
    from tvm.ir import save_json

    data = te.placeholder((1, 8, 8, 16), name="data")
    scale, shift = (te.placeholder((16,), name=name) for name in ("scale", "shift"))
    normed = topi.nn.group_norm(data, scale, shift, 1, 3, [1, 2])
    function = te.create_prim_func([data, scale, shift, normed])
    mod = tvm.IRModule({"main": function.with_attr("layout_free_buffers", [1, 2])})
    here = ProgramSpace(str(save_json(mod)), target, 1, population=16, generations=1)
    known: set[int] = set()
    sample = here.random(12, known)
    assert len(sample.schedules) == len(known) == 12
    here.evolved(4, known)
    assert len(here.lines(sample.schedules)[1]) == 12


def make_softmax() -> Any:
    import tvm
    from tvm import te, topi

    a = te.placeholder((16, 64), name="a")
    return tvm.IRModule({"main": te.create_prim_func([a, topi.nn.softmax(a)])})


def test_a_search_that_nothing_ranks_for_is_no_larger_than_it_has_to_be() -> None:
    settings = MeasureConfig(population=256)
    assert population(settings, 21, steered=True) == 256
    assert population(settings, 21, steered=False) == 42
    assert population(settings, 0, steered=False) == 1
    assert population(settings, 300, steered=False) == 256


def test_a_task_that_tvm_refuses_is_named_and_the_others_have_programs(
    tmp_path: Path, configured: Callable[..., Config], capfd: pytest.CaptureFixture[str]
) -> None:
    from tvm.ir import save_json

    collection = Collection(tmp_path / "measured" / "small")
    entries: list[dict[str, Any]] = []
    for name, module in (("masked", make_masked_matmul(16)), ("plain", make_matmul(16))):
        text = str(save_json(module))
        entry = {"task_name": name, "weight": 1, "flop": 1e6}
        entries.append({**entry, "workload_id": workload_id(text), "mod": text})
    collection.add_network("net", "{}", entries)
    stage.programs(configured("measure.programs=4"), tmp_path)
    told = " ".join(capfd.readouterr().err.split())
    assert "1 tasks have no program, TVM's rules refuse them for local: masked of net (" in told
    made = {task.task_name: len(collection.programs(task)) for task in collection.tasks(0.0)}
    assert made == {"masked": 0, "plain": 4}


def test_a_collection_that_tvm_refuses_altogether_is_an_error(
    tmp_path: Path, configured: Callable[..., Config]
) -> None:
    from tvm.ir import save_json

    text = str(save_json(make_masked_matmul(16)))
    entry = {"task_name": "masked", "weight": 1, "flop": 1e6, "mod": text}
    collection = Collection(tmp_path / "measured" / "small")
    collection.add_network("net", "{}", [{**entry, "workload_id": workload_id(text)}])
    with pytest.raises(MeasureError, match=r"1 tasks have no program.*masked of net"):
        stage.programs(configured("measure.programs=4"), tmp_path)
