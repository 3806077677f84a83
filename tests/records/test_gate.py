"""What an import keeps out of look-ups: contradictory repeats, and a best that stands alone."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest

from tencost.config import HardwareConfig
from tencost.records.gate import (
    CROWD,
    FASTER,
    FLOOR_S,
    MARGIN,
    REPEATS,
    Limits,
    StoredTimes,
    devices,
    judged,
    quarantine,
)


def records(
    *times: list[float], workload: str = "w", hardware: str = "a", generator: str = "unknown"
) -> pl.DataFrame:
    rows = [
        {
            "workload_id": workload,
            "target": "{}",
            "hardware": hardware,
            "generator": generator,
            "run_secs": list(item) or None,
            "status": "ok" if item else "run_error",
        }
        for item in times
    ]
    return pl.DataFrame(rows, schema_overrides={"run_secs": pl.List(pl.Float64)})


CROWDED = [[1e-3 + 1e-6 * number] for number in range(CROWD)]


def test_a_best_that_stands_alone_is_quarantined_with_its_factor() -> None:
    reasons = quarantine(records([1e-3 / (2 * MARGIN)], *CROWDED))
    assert "by a factor of 20.0" in reasons[0]
    assert reasons[1:].null_count() == CROWD


def test_a_best_within_the_margin_is_not() -> None:
    assert quarantine(records([1.1e-3 / MARGIN], *CROWDED)).null_count() == CROWD + 1


def test_two_that_agree_vouch_for_each_other_only_within_the_margin() -> None:
    lone = quarantine(records([1e-5], [1.01e-5], *CROWDED))
    assert lone.null_count() == len(lone), (
        "the fastest is no faster than the next best by the margin"
    )


def test_few_records_say_nothing_about_what_is_usual() -> None:
    assert quarantine(records([1e-6], *CROWDED[: CROWD - 1])).null_count() == CROWD


def test_the_store_counts_as_a_crowd_of_its_own_group_only() -> None:
    known = {("w", "{}", "a", "unknown"): StoredTimes(1e-3, CROWD)}
    assert quarantine(records([1e-5]), known).null_count() == 0
    assert quarantine(records([1e-5], hardware="b"), known).null_count() == 1
    assert quarantine(records([1e-5], workload="v"), known).null_count() == 1


def test_repeats_that_contradict_each_other_are_quarantined() -> None:
    reasons = quarantine(records([1e-3, 1.1 * REPEATS * 1e-3], [1e-3, 2e-3]))
    assert "contradict" in reasons[0]
    assert reasons[1] is None


def test_a_contradiction_is_nobody_s_crowd_and_failures_are_left_alone() -> None:
    reasons = quarantine(records([], [1e-9, 1.0], *CROWDED))
    assert reasons[0] is None
    assert "contradict" in reasons[1]
    assert reasons[2:].null_count() == CROWD


CONV = [
    ["TENSOR", "float32", [64, 64]],
    ["TENSOR", "float32", [64, 64]],
    ["TENSOR", "float32", [64, 64]],
]
DEVICE = HardwareConfig(name="a", peak_gflops=100.0, bandwidth_gbs=100.0)


def limited(
    seconds: float, flop: float, args: object = CONV, device: HardwareConfig = DEVICE
) -> str | None:
    rows = records([seconds]).with_columns(workload_args=pl.lit(json.dumps(args)))
    return quarantine(rows, limits=Limits({"w": flop}, {"a": device}))[0]


def test_a_time_below_a_call_s_is_suspicious_on_its_own() -> None:
    """Where nothing is known of device or workload; however many agree."""
    assert quarantine(records(*[[1e-9]] * 5)).null_count() == 0
    assert quarantine(records([1.01 * FLOOR_S])).null_count() == 1


@pytest.mark.parametrize(
    ("impossible", "possible", "is_whole"),
    [(3, 2, True), (2, 2, False), (2, 1, True), (1, 1, False)],
)
def test_a_group_is_quarantined_whole_where_more_than_half_of_it_and_two_are_impossible(
    impossible: int, possible: int, is_whole: bool
) -> None:
    reasons = quarantine(records(*[[1e-9]] * impossible, *[[FLOOR_S]] * possible))
    assert reasons.null_count() == (0 if is_whole else possible)


def test_a_time_below_what_flop_allow_is_suspicious() -> None:
    flop = 2.0 * 64**3
    least = flop / 100e9 / FASTER
    assert limited(1.01 * least, flop) is None
    assert "a needs for it at least" in str(limited(0.99 * least, flop))
    assert limited(0.99 * least, flop, device=replace(DEVICE, cores=2)) is None
    assert limited(0.99 * least, flop, device=replace(DEVICE, peak_gflops=None)) is None
    half = [["TENSOR", "float16", [64, 64]]] * 3
    assert limited(0.51 * least, flop, half) is None
    assert limited(0.99 * least, 0.0) is None


def test_a_time_below_what_written_bytes_allow_is_suspicious() -> None:
    """Inputs may be read in part: a table of which some rows are taken limits nothing."""
    args = [["TENSOR", "float32", [1 << 22]], ["TENSOR", "float32", [1 << 18]]]
    least = 4 * (1 << 18) / 100e9 / FASTER
    assert limited(1.01 * least, 0.0, args) is None
    assert "needs" in str(limited(0.99 * least, 0.0, args))


def test_a_count_of_flop_that_takes_in_padding_limits_nothing() -> None:
    """A pooling window of 1280 x 1280 on 7 x 7 pixels, as transformers' efficientnet has it."""
    args = [["TENSOR", "float32", [1, 1280, 7, 7]], ["TENSOR", "float32", [1, 1280, 1, 1]]]
    assert limited(4e-4, 1280.0**3, args) is None


@pytest.mark.parametrize(
    "args",
    [
        5,
        {"a": 1},
        [1],
        [["TENSOR", "x", 3]],
        [["TENSOR", "int8", [-1]]],
        [["TENSOR", "handle", [4]]],
        [["TENSOR", "float32", [4, "n"]]],
        None,
    ],
)
def test_arguments_of_any_kind_are_taken(args: object) -> None:
    assert limited(1e-6, 0.0, args) is None


def test_described_hardware_has_limits() -> None:
    found = devices(["epyc-avx2-1c", "board", "local"])
    assert found["epyc-avx2-1c"].peak_gflops == pytest.approx(83.2)
    assert "board" not in found


def test_the_limits_in_figures() -> None:
    """20 times between repeats; 10 times to the next of 8 others; 50 ns a call; twice what a device can do."""
    assert quarantine(records([1.0, 20.0])).null_count() == 1
    assert quarantine(records([1.0, 21.0])).null_count() == 0
    assert quarantine(records([1.0], *[[10.0]] * 8)).null_count() == 9
    assert quarantine(records([0.99], *[[10.0]] * 8))[0] is not None
    assert quarantine(records([0.99], *[[10.0]] * 7)).null_count() == 8
    assert quarantine(records([50e-9])).null_count() == 1
    assert quarantine(records([49e-9])).null_count() == 0
    flop = 2.0 * 64**3
    assert limited(0.51 * flop / 100e9, flop) is None
    assert limited(0.49 * flop / 100e9, flop) is not None


def test_one_contradictory_measurement_of_several_is_enough() -> None:
    """Days apart a program may take a hundred times as long; within one measurement it may not."""
    each = pl.List(pl.Struct({"run_secs": pl.List(pl.Float64)}))

    def measured(*times: list[float]) -> str | None:
        found = pl.Series("measurements", [[{"run_secs": item} for item in times]], dtype=each)
        return quarantine(records([1e-3, 1e-1]).with_columns(found))[0]

    assert measured([1e-3, 2e-3], [1e-1, 2e-1]) is None
    assert "contradict" in str(measured([1e-3, 2e-3], [1e-3, 2.1e-2]))
    assert measured([1.0, 20.0]) is None
    nothing = pl.Series("measurements", [None], dtype=each)
    assert "contradict" in str(quarantine(records([1e-3, 1e-1]).with_columns(nothing))[0])


def tensors(*arguments: tuple[str, int]) -> list[object]:
    return [["TENSOR", dtype, [size]] for dtype, size in arguments]


def test_flop_count_up_to_one_multiply_add_for_each_pair() -> None:
    args = tensors(("float32", 500), ("float32", 500), ("float32", 1000))
    flop = 2.0 * 1000 * 1000
    least = flop / 100e9 / 2
    assert limited(0.99 * least, flop, args) is not None
    assert limited(1.01 * least, flop, args) is None
    assert limited(0.99 * least, 1.01 * flop, args) is None


def test_the_narrowest_type_decides_how_many_lanes_and_the_last_argument_s_what_is_written() -> (
    None
):
    flop = 2.0 * 1000 * 1000
    least = flop / 100e9 / 2
    double = tensors(("float64", 1000), ("float64", 1000))
    assert limited(0.99 * least, flop, double) is not None
    assert limited(1.01 * least, flop, double) is None, "a wide type is not faster than float32"
    assert limited(0.26 * least, flop, None) is None, "it may be int8"
    assert limited(0.24 * least, flop, None) is not None
    half = tensors(("float32", 1 << 20), ("float16", 1 << 20))
    written = 2 * (1 << 20) / 100e9 / 2
    assert limited(0.99 * written, 0.0, half) is not None
    assert limited(1.01 * written, 0.0, half) is None


def test_a_table_gets_its_reasons_and_keeps_those_it_has() -> None:
    from tencost.store.schema import SCHEMA

    times = [[1e-3], [1e-9], [1e-3]]
    rows = [
        {
            "record_id": str(number),
            "workload_id": "w",
            "target": "{}",
            "hardware": "a",
            "run_secs": item,
            "status": "ok",
            "quarantine": "released" if number == 2 else None,
        }
        for number, item in enumerate(times)
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    found = judged(table, {})
    assert found.schema == SCHEMA
    reasons = found["quarantine"].to_pylist()
    assert (reasons[0], reasons[2]) == (None, "released")
    assert "less than a call takes" in reasons[1]
    assert found.drop_columns("quarantine").equals(table.drop_columns("quarantine"))
    assert judged(table.slice(0, 1), {}).equals(table.slice(0, 1))


def test_programs_of_another_code_generator_are_no_crowd() -> None:
    slow = records(*[[4e-3]] * 9, generator="math-0 tvm-1 llvm-1 flags-none")
    fast = records([5e-5], generator="math-1 tvm-1 llvm-1 flags-none")
    assert quarantine(pl.concat([slow, fast])).null_count() == 10
    same = records(*[[4e-3]] * 9, [5e-5])
    assert quarantine(same).null_count() == 9
