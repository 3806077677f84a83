from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from matmuls import make_matmul
from tencost.config import FeaturesConfig
from tencost.features.extractor import make_extractor, spec_for
from tencost.features.kinds.tiles import tile_row
from tencost.features.kinds.trace import TraceEncoder
from tencost.programs.codegen.seeds import task_seeds
from tencost.programs.codegen.spaces import search_space
from tencost.programs.trace.instructions import trace_values

ENCODER = TraceEncoder(max_steps=8, vocabulary_buckets=4, max_numbers=4)
TILE = [
    [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["SamplePerfectTile", ["l1"], [2, 64], ["v3", "v4"]],
        ["Split", ["l1", "v3", "v4"], [1, 0], ["l5", "l6"]],
        ["SampleCategorical", [], [[0, 16, 64], [0.3, 0.3, 0.4]], ["v7"]],
        ["Annotate", ["b0", "v7"], ["meta_schedule.unroll_explicit"], []],
        ["EnterPostproc", [], [], []],
        ["Parallel", ["l5"], [], []],
    ],
    [[2, [16, 4]], [4, 2]],
]


def column(rows: Any, name: str) -> list[float]:
    return [float(value) for value in rows[:, ENCODER.columns.index(name)]]


def test_rows_worked_by_hand() -> None:
    rows = ENCODER.encode(TILE)
    assert rows is not None
    assert rows.shape == (4, len(ENCODER.columns))
    assert column(rows, "is_SamplePerfectTile") == [1, 0, 0, 0]
    assert column(rows, "is_Split") == [0, 1, 0, 0]
    assert column(rows, "is_Parallel") == [0, 0, 0, 0]
    assert column(rows, "position") == [0, 1 / 8, 2 / 8, 3 / 8]
    log = [math.log2(1 + x) for x in range(65)]
    # Tile: the decision 16, 4, then the attributes 2, 64. Split: the sampled 16 and 4, then 1, 0.
    assert column(rows, "number_0") == pytest.approx([log[16], log[16], log[64], log[64]])
    assert column(rows, "number_1") == pytest.approx([log[4], log[4], 0, 0])
    assert column(rows, "number_3") == pytest.approx([log[64], 0, 0, 0])


def test_names_are_those_of_the_block_worked_on() -> None:
    other = orjson.loads(orjson.dumps(TILE).replace(b'"matmul"', b'"pool"'))
    first, second = ENCODER.encode(TILE), ENCODER.encode(other)
    assert first is not None
    assert second is not None
    start = ENCODER.columns.index("name_bucket_0")
    assert (first[:, :start] == second[:, :start]).all()
    assert (first[:2, start:].sum(axis=1) == 1).all()


def test_a_decision_changes_the_rows() -> None:
    other = [TILE[0], [[2, [8, 8]], [4, 2]]]
    first, second = ENCODER.encode(TILE), ENCODER.encode(other)
    assert first is not None
    assert second is not None
    assert (first != second).any()


def test_limits_and_unknown_primitives() -> None:
    many = [[["SomethingNew", [], [float("1e30")], []]] * 20, []]
    rows = ENCODER.encode(many)
    assert rows is not None
    assert len(rows) == 8
    assert column(rows, "is_Other") == [1] * 8
    assert np.isfinite(rows).all()


def test_a_trace_without_primitives_is_no_program() -> None:
    assert ENCODER.encode([[["GetSBlock", [], ["matmul", "main"], ["b0"]]], []]) is None


@pytest.mark.tvm
def test_live_traces_and_texts_give_the_same_rows(
    schedules: list[Any], programs: list[str]
) -> None:
    encoder = TraceEncoder(48, 16, 8)
    for schedule, text in zip(schedules[:3], programs, strict=False):
        live = encoder.encode(trace_values(schedule.trace))
        assert live is not None
        np.testing.assert_array_equal(live, encoder.encode(orjson.loads(text)))


@pytest.mark.tvm
def test_programs_that_reorder_weights_are_read_live_as_from_a_database(
    cpu_intrinsics: None, tmp_path: Path
) -> None:
    """Such a trace holds the map of a layout; where it was not read, a tuner's model saw no program of these tasks."""
    from tvm import IRModule
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord
    from tvm.target import Target

    target = Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})
    marked = IRModule({"main": make_matmul(64)["main"].with_attr("layout_free_buffers", [1])})
    context = ms.TuneContext(
        mod=marked,
        target=target,
        space_generator=search_space(target),
        num_threads=1,
        rand_state=1,
    )
    found = task_seeds(context, context.generate_design_space(), 3, 0)
    database = JSONDatabase(work_dir=str(tmp_path))
    workload = database.commit_workload(marked)
    for one in found:
        database.commit_tuning_record(TuningRecord(one.sch.trace, workload, [1.0], target))
    lines = (tmp_path / "database_tuning_record.json").read_text().splitlines()
    written = [json.loads(line)[1][0] for line in lines]
    live = [json.loads(json.dumps(trace_values(one.sch.trace))) for one in found]
    assert len(live) == len(written) == 3
    assert all(values in written for values in live)
    assert any("TransformLayout" in line for line in lines)
    spec = spec_for(FeaturesConfig(name="tiles", kind="tiles"))
    rows = make_extractor(spec).extract(context, found)
    for place, values in enumerate(live):
        np.testing.assert_array_equal(rows[place], tile_row(values))
