from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tencost.store.status import FAILURE_SECONDS, Status, Timing, timing_from_log


@pytest.mark.parametrize(
    ("run_secs", "why"),
    [
        (None, "null"),
        ([], "empty"),
        ([1e10], "marks a failure"),
        ([1e9], "marks a failure"),
        ([10**10], "marks a failure"),
        ([0.0], "not positive"),
        ([-1.0], "not positive"),
        ([math.nan], "not finite"),
        ([math.inf], "not finite"),
        ([1e-3, 1e10, 1e-3], "marks a failure"),
        ([1e-3, 0], "not positive"),
    ],
)
def test_sentinels_become_a_status(run_secs: list[float] | None, why: str) -> None:
    timing = timing_from_log(run_secs)
    assert timing.status is Status.unknown
    assert timing.run_secs == ()
    assert why in timing.error


@given(st.lists(st.floats(1e-9, FAILURE_SECONDS / 2), min_size=1, max_size=5))
def test_times_are_kept(run_secs: list[float]) -> None:
    assert timing_from_log(run_secs) == Timing(Status.ok, tuple(run_secs))


def test_the_set_is_closed() -> None:
    assert [status.value for status in Status] == [
        "ok",
        "build_error",
        "build_timeout",
        "run_error",
        "run_timeout",
        "wrong_answer",
        "invalid_schedule",
        "unknown",
    ]
    with pytest.raises(AssertionError):
        Timing(Status.ok, ())
