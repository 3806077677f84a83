"""What an import keeps out of look-ups: contradictory repeats, and a best that stands alone."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest

from tencost.config import HardwareConfig
from tencost.records.gate import (
    CROWD,
    FASTER,
    FLOOR_S,
    MARGIN,
    REPEATS,
    Known,
    Limits,
    devices,
    quarantine,
)


def records(*times: list[float], workload: str = "w", hardware: str = "a") -> pl.DataFrame:
    rows = [
        {
            "workload_id": workload,
            "target": "{}",
            "hardware": hardware,
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
    known = {("w", "{}", "a"): Known(1e-3, CROWD)}
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
    "args", [5, {"a": 1}, [1], [["TENSOR", "x", 3]], [["TENSOR", "int8", [-1]]], None]
)
def test_arguments_of_any_kind_are_taken(args: object) -> None:
    assert limited(1e-6, 0.0, args) is None


def test_described_hardware_has_limits() -> None:
    found = devices(["epyc-avx2-1c", "board", "local"])
    assert found["epyc-avx2-1c"].peak_gflops == pytest.approx(83.2)
    assert "board" not in found
