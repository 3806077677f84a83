"""Bounds from families held out: they hold another family's networks, which those of known families do not."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from tencost.errors import BundleError
from tencost.evaluate.networks.left_out import (
    FamilyErrorBounds,
    left_out_errors,
    left_out_from_json,
)
from tencost.models.networks.bundle.training_range import log_error_bounds


def test_the_bounds_hold_as_many_networks_of_a_new_family_as_they_say() -> None:
    rng = np.random.default_rng(0)
    by_family, by_graph = [], []
    for _ in range(400):
        center = rng.normal(0.02, 0.1, (4, 1))
        error = center + rng.normal(0, 0.03, (4, 60))
        family = np.repeat(["a", "b", "c"], 60)
        bounds = left_out_errors(family, np.exp(error[:3]).ravel(), np.ones(180))
        assert bounds is not None
        by_family.append(((error[3] >= bounds.low) & (error[3] <= bounds.high)).mean())
        ((low, high),) = log_error_bounds(np.exp(error[:1]).T, np.ones((60, 1)))
        by_graph.append(((error[3] >= low) & (error[3] <= high)).mean())
    assert 0.9 <= np.mean(by_family) < 0.99
    assert np.mean(by_graph) < 0.5


def test_the_spread_of_one_family_is_not_known() -> None:
    family = np.array(["a", "a", "b"])
    measured = np.array([1.0, 2.0, np.nan])
    assert left_out_errors(family, measured, np.ones(3)) is None
    assert left_out_errors(family[:0], measured[:0], np.ones(0)) is None


def test_the_bounds_are_the_same_behind_a_file_and_a_damaged_one_is_refused() -> None:
    bounds = FamilyErrorBounds(-0.2, 0.3, {"a": 4, "b": 5})
    assert left_out_from_json(orjson.loads(orjson.dumps(bounds))) == bounds
    for values in ({}, {"low": 1, "high": 0, "families": {}}, {"low": 0, "high": 1, "families": 3}):
        with pytest.raises(BundleError, match="expected"):
            left_out_from_json(values)
