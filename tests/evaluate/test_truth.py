"""Which tasks are evaluated, and what they stand for."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from tencost.errors import SplitError
from tencost.evaluate.truth import Truth, TruthTask, build_truth, why_left_out

# record, program, workload, hardware, seconds, part
ROWS = [
    ("r1", "p1", "wa", "cpu", 2.0, "test"),
    ("r0", "p0", "wa", "cpu", 1.0, "test"),
    ("r2", "p2", "wb", "cpu", None, "test"),  # the only program of wb failed
    ("r3", "p3", "wc", "cpu", 3.0, "train"),
    ("r4", "p0", "wa", "gpu", 9.0, "test"),
    ("r5", "p5", "wd", "cpu", None, "test"),
    ("r6", "p6", "wd", "cpu", 4.0, "test"),
]
COLUMNS = ["record_id", "program_id", "workload_id", "hardware", "latency_s", "part"]
FRAME = pl.DataFrame(ROWS, schema=COLUMNS, orient="row")
RECORDS, SPLIT = FRAME.drop("part"), FRAME.select("record_id", "part")
TASKS = pl.DataFrame(
    [
        ("net2", "wa", 1, 10.0),
        ("net1", "wa", 2, 10.0),
        ("net1", "wa", 1, 10.0),  # the same workload under a second name
        ("net1", "wb", 1, 30.0),
        ("net1", "wd", 2, 20.0),
        ("net3", "wc", 1, 1.0),
    ],
    schema=["network", "workload_id", "weight", "flop"],
    orient="row",
)


def test_tasks_of_the_part_and_hardware() -> None:
    truth = build_truth(RECORDS, SPLIT, TASKS, "cpu", "test")
    assert truth.record_id.tolist() == ["r0", "r1", "r2", "r5", "r6"]
    assert truth.program_id.tolist() == ["p0", "p1", "p2", "p5", "p6"]
    assert [(task.network, task.workload_id, task.weight) for task in truth.tasks] == [
        ("net1", "wa", 3.0),
        ("net1", "wd", 2.0),
        ("net2", "wa", 1.0),
    ]
    assert truth.latencies[0].tolist() == [1.0, 2.0]
    assert truth.stratum.tolist() == [0, 0, 1]
    assert truth.optimum_s.tolist() == [1.0, 4.0, 1.0]


def test_coverage_by_count_and_by_work() -> None:
    coverage = build_truth(RECORDS, SPLIT, TASKS, "cpu", "test").coverage
    assert sorted(coverage) == ["net1", "net2"]
    net1 = coverage["net1"]
    assert (net1.tasks_scored, net1.tasks, net1.programs, net1.failed) == (2, 3, 5, 2)
    assert net1.flop_share == pytest.approx((3 * 10 + 2 * 20) / (3 * 10 + 30 + 2 * 20))


def test_networks_named_and_without_measurements() -> None:
    truth = build_truth(RECORDS, SPLIT, TASKS, "cpu", "test", ["net2", "net3"])
    assert truth.networks == ("net2",)
    assert truth.coverage["net3"].tasks_scored == 0
    with pytest.raises(SplitError, match=r"measured on cpu in the test part .* for net3"):
        build_truth(RECORDS, SPLIT, TASKS, "cpu", "test", ["net3"])
    with pytest.raises(SplitError, match="measured on tpu"):
        build_truth(RECORDS, SPLIT, TASKS, "tpu", "test")


def test_no_flop_is_no_share() -> None:
    tasks = TASKS.with_columns(flop=pl.lit(0.0))
    assert math.isnan(build_truth(RECORDS, SPLIT, tasks, "cpu", "test").coverage["net1"].flop_share)


def test_truth_keeps_tasks_by_network() -> None:
    one = np.array(["r"])
    tasks = (TruthTask("b", "w", 1.0, np.array([0])), TruthTask("a", "w", 1.0, np.array([0])))
    with pytest.raises(AssertionError, match="ordered by network"):
        Truth(one, one, np.ones(1), tasks, {})


def test_programs_that_are_alike_or_time_out_are_listed_and_not_summed() -> None:
    known = np.array([0.02, 0.02, 0.02, 0.02])
    near, far = np.array([1.0, 1.01, 1.0, 0.99]), np.array([1.0, 2.0, 1.0, 1.5])
    assert why_left_out(near, known, 0).startswith("4 programs alike: they differ by 0.8%")
    assert why_left_out(near, known / 10, 0) == ""  # they repeat better than they differ
    assert why_left_out(near, known * math.nan, 0) == ""  # how well they repeat is not known
    assert why_left_out(far, known, 0) == ""
    assert why_left_out(np.array([1.0, math.nan, 2.0, 1.5]), known, 1) == (
        "1 of 4 programs ran into the time limit"
    )
    assert why_left_out(np.array([1.0]), np.array([math.nan]), 0) == "one program"
    assert why_left_out(np.array([1.0, math.nan]), np.array([0.1, math.nan]), 0) == ""


def test_what_is_left_out_counts_nowhere_but_is_told() -> None:
    alike = [("r7", "p7", "we", "cpu", 1.0, "test"), ("r8", "p8", "we", "cpu", 1.001, "test")]
    frame = pl.DataFrame([*ROWS, *alike], schema=COLUMNS, orient="row")
    records = frame.drop("part").with_columns(spread=pl.lit(0.01))
    split = frame.select("record_id", "part")
    tasks = pl.concat(
        [TASKS, pl.DataFrame([("net1", "we", 5, 10.0)], schema=TASKS.schema, orient="row")]
    ).with_columns(task_name=pl.col("workload_id") + "-task")
    truth = build_truth(records, split, tasks, "cpu", "test")
    assert [task.workload_id for task in truth.tasks] == ["wa", "wd", "wa"]
    (one,) = truth.left_out
    assert (one.network, one.task, one.weight) == ("net1", "we-task", 5.0)
    assert one.best_ms == pytest.approx(1000.0)
    assert truth.coverage["net1"].tasks_scored == 2
    alone = tasks.filter(pl.col("workload_id") == "we")  # where nothing else is there, it is scored
    assert [
        task.workload_id for task in build_truth(records, split, alone, "cpu", "test").tasks
    ] == ["we"]
