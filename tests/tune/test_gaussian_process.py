from __future__ import annotations

import numpy as np

from tencost.tune.gaussian_process import LEAST_SPREAD, GaussianProcess

PLACES = np.array([[0, 0], [0, 1], [4, 4], [4, 5]], np.float32)


def test_without_measurements_nothing_is_corrected() -> None:
    none = GaussianProcess(np.zeros((0, 2), np.float32), np.zeros(0))
    assert none.correction(PLACES).tolist() == [0, 0, 0, 0]


def test_what_is_near_a_disappointment_is_worth_less() -> None:
    known = GaussianProcess(PLACES, np.array([-0.3, -0.3, 0.1, 0.1]))
    near, other = known.correction(np.array([[0, 0.5], [4, 4.5]], np.float32))
    assert near < -0.2
    assert other > 0.0
    far = float(known.correction(np.array([[-90, 90]], np.float32))[0])
    assert abs(far - -0.1) < 0.02  # the mean of all errors


def test_a_batch_does_not_hold_twins() -> None:
    twins = np.array([[0, 0], [0, 0], [9, 9]], np.float32)
    known = GaussianProcess(PLACES, np.array([0.2, -0.2, 0.2, -0.2]))
    values = np.array([0.80, 0.80, 0.79])
    assert set(known.pick(twins, values, 2)) == {2, 0}
    assert sorted(known.pick(twins, values, 9)) == [0, 1, 2]


def test_what_is_much_better_is_picked_however_well_it_is_known() -> None:
    known = GaussianProcess(PLACES, np.full(4, 0.01))
    values = np.array([0.9, 0.9 - 10 * LEAST_SPREAD])
    assert known.pick(np.array([[0, 0], [30, 30]], np.float32), values, 1) == [0]
