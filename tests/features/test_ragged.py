from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tencost.features.rows.ragged import Ragged


@st.composite
def ragged(draw: st.DrawFn) -> Ragged:
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    blocks = [
        np.arange(3 * n, dtype=np.float32).reshape(n, 3) + 10 * i for i, n in enumerate(lengths)
    ]
    return Ragged.from_blocks(blocks, 3)


@given(ragged(), st.data())
def test_take_gives_the_blocks_asked_for(rows: Ragged, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    taken = rows.take(np.asarray(indices, np.int64))
    assert len(taken) == len(indices)
    for position, index in enumerate(indices):
        np.testing.assert_array_equal(taken[position], rows[index])


@given(ragged())
def test_segment_sum_equals_a_plain_sum(rows: Ragged) -> None:
    expected = np.stack([rows[index].sum(axis=0) for index in range(len(rows))])
    np.testing.assert_array_equal(rows.segment_sum(), expected)
    assert rows.segment_ids.tolist() == [i for i, n in enumerate(rows.lengths) for _ in range(n)]


def test_with_columns_repeats_them_on_every_row() -> None:
    rows = Ragged(np.ones((3, 1), np.float32), np.array([0, 2, 2, 3]))
    wide = rows.with_columns(np.array([[1, 2], [3, 4], [5, 6]], np.float32))
    np.testing.assert_array_equal(wide.values, [[1, 1, 2], [1, 1, 2], [1, 5, 6]])


@pytest.mark.parametrize("offsets", [[1, 3], [0, 2], [0, 4]])
def test_offsets_that_do_not_fit_are_refused(offsets: list[int]) -> None:
    with pytest.raises(AssertionError, match="offsets"):
        Ragged(np.zeros((3, 2), np.float32), np.asarray(offsets))
