"""What an import keeps out of look-ups: contradictory repeats, and a best that stands alone."""

from __future__ import annotations

import polars as pl

from tencost.records.gate import CROWD, MARGIN, REPEATS, Known, quarantine


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
