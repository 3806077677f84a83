from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tencost.errors import TrainError
from tencost.features.rows.ragged import Ragged
from tencost.models.programs.ranker import Samples
from tencost.models.programs.ranker.labels import dense_groups, featurized, speed_labels


def test_worked_by_hand() -> None:
    latency = np.array([2.0, 1.0, np.nan, 4.0, 8.0])
    label, keep = speed_labels(latency, np.array([0, 0, 0, 1, 1]))
    assert label.tolist() == [0.5, 1.0, 0.0, 1.0, 0.5]
    assert keep.all()


def test_a_group_that_failed_altogether_has_no_label() -> None:
    label, keep = speed_labels(np.array([np.nan, np.nan, 3.0]), np.array([0, 0, 1]))
    assert keep.tolist() == [False, False, True]
    assert label.tolist() == [0.0, 0.0, 1.0], "TVM calls every one of them perfect"


def test_no_records() -> None:
    label, keep = speed_labels(np.zeros(0), np.zeros(0, np.int64))
    assert len(label) == len(keep) == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.floats(1e-9, 1e3) | st.just(float("nan"))),
        min_size=1,
        max_size=40,
    )
)
def test_labels_are_in_range_and_fastest_is_one(records: list[tuple[int, float]]) -> None:
    group = dense_groups(np.array([str(group) for group, _ in records]))
    latency = np.array([latency for _, latency in records])
    label, keep = speed_labels(latency, group)
    assert ((label >= 0) & (label <= 1)).all()
    for index in np.unique(group):
        inside = group == index
        failed = np.isnan(latency[inside])
        assert keep[inside].all() != failed.all()
        if not failed.all():
            assert label[inside][np.nanargmin(latency[inside])] == 1.0
            assert (label[inside][failed] == 0).all()


def test_groups_are_numbered_in_order_of_appearance() -> None:
    workload = np.array(["b", "a", "b", "b"])
    hardware = np.array(["x", "x", "y", "x"])
    assert dense_groups(workload, hardware).tolist() == [0, 1, 2, 0]


def _samples(lengths: list[int]) -> Samples:
    blocks = [np.ones((length, 2), np.float32) for length in lengths]
    size = len(lengths)
    return Samples(
        Ragged.from_blocks(blocks, 2),
        np.ones(size, np.float32),
        np.zeros(size, np.int64),
        np.ones(size),
        np.array([f"r{index}" for index in range(size)]),
    )


def test_programs_without_rows_are_left_out_of_training() -> None:
    assert featurized(_samples([1, 0, 2])).record_id.tolist() == ["r0", "r2"]
    complete = _samples([1, 1])
    assert featurized(complete) is complete


def test_no_program_with_rows() -> None:
    with pytest.raises(TrainError, match="found 2 programs and none with rows"):
        featurized(_samples([0, 0]))
