from __future__ import annotations

import numpy as np
import pytest

from tencost.features.kinds.per_store import DERIVED_NAMES, PER_STORE_COLUMNS, WORKLOAD_COLUMNS
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.rows.summary import (
    constants,
    num_constant_columns,
    summarize_programs,
    summary_names,
    with_derived,
)

STORES = FeatureSpec(
    name="per_store", kind="per_store", columns=(*PER_STORE_COLUMNS, *WORKLOAD_COLUMNS)
)
STEPS = FeatureSpec(name="trace", kind="trace", columns=("a", "b"))
INDEX = {name: position for position, name in enumerate(STORES.columns)}


def store(**amounts: float) -> np.ndarray:
    row = np.zeros(len(STORES.columns), np.float32)
    for name, amount in amounts.items():
        row[INDEX[name]] = np.log2(1 + amount)
    return row


def test_the_layout_is_that_of_the_columns() -> None:
    assert len(PER_STORE_COLUMNS) == 164
    assert INDEX["vectorize_prod"] == 17
    assert INDEX["vectorize_len"] == 18
    assert INDEX["unroll_prod"] == 28
    assert INDEX["b0_acc_read"] == 57
    assert INDEX["b1_stride"] == 57 + 18 + 17
    assert INDEX["arith_intensity_0"] == 147
    assert INDEX["outer_prod"] == 161
    assert len(set(summary_names(STORES))) == len(summary_names(STORES))


def test_two_stores_worked_by_hand() -> None:
    init = store(outer_prod=1023)
    update = store(
        outer_prod=4095, float_mad=8191, b0_acc_read=1, b0_bytes=16383, b0_lines=1023,
        b0_unique_lines=255, vectorize_prod=15, vectorize_len=15,
    )  # fmt: skip
    features = Ragged.from_blocks([np.stack([init, update])], len(STORES.columns))
    found = dict(
        zip(summary_names(STORES), summarize_programs(features, STORES)[0].tolist(), strict=True)
    )
    assert found["outer_prod"] == 12, "the store with the most floating-point operations"
    assert found["work"] == pytest.approx(np.log2(1 + 1023 + 4095))
    assert found["flops_per_iteration"] == pytest.approx(1.0)
    assert found["iterations_per_vector_loop"] == pytest.approx(12 - 4)
    assert found["b0_bytes_per_iteration"] == pytest.approx(14 - 12)
    assert found["b0_lines_per_unique_line"] == pytest.approx(10 - 8)
    assert found["b1_bytes_per_iteration"] == -5, "no such buffer"
    assert found["scalar_share"] == pytest.approx(1023 / (1023 + 4095))
    assert found["num_stores"] == 2
    assert found["iterations_of_busiest_store"] == 0


def random_features(seed: int, lengths: list[int], columns: int) -> Ragged:
    rng = np.random.default_rng(seed)
    blocks = [rng.uniform(0, 20, (length, columns)).astype(np.float32) for length in lengths]
    return Ragged.from_blocks(blocks, columns)


@pytest.mark.parametrize("spec", [STORES, STEPS])
def test_a_summary_is_the_same_alone_and_in_a_batch(spec: FeatureSpec) -> None:
    features = random_features(0, [3, 1, 0, 5, 1, 2], len(spec.columns))
    together = summarize_programs(features, spec)
    assert together.shape == (6, len(summary_names(spec)))
    assert np.isnan(together[2]).all()
    for index in range(6):
        alone = summarize_programs(features.take(np.array([index])), spec)
        assert np.array_equal(alone[0], together[index], equal_nan=True)


def test_steps_worked_by_hand() -> None:
    features = Ragged.from_blocks([np.array([[1, 5], [2, -3]], np.float32)], 2)
    assert summary_names(STEPS)[0] == "first_a"
    assert summarize_programs(features, STEPS).tolist() == [[1, 5, 3, 2, 2, 5, 2]]


@pytest.mark.parametrize("kind", ["tiles", "ansor_tiles", "configuration"])
def test_one_row_a_program_is_its_own_summary(kind: str) -> None:
    spec = FeatureSpec(name=kind, kind=kind, columns=("a", "b"))
    features = Ragged(np.array([[1, 2], [3, 4]], np.float32), np.array([0, 1, 1, 2]))
    found = summarize_programs(features, spec)
    assert found[[0, 2]].tolist() == [[1, 2], [3, 4]]
    assert summary_names(spec) == ["a", "b"]


def test_derived_columns_join_each_store() -> None:
    features = random_features(1, [2, 0, 3], len(STORES.columns))
    wide = with_derived(features, STORES)
    assert wide.num_columns == len(STORES.columns) + len(DERIVED_NAMES)
    assert np.array_equal(wide.values[:, : len(STORES.columns)], features.values)
    alone = with_derived(features.take(np.array([2])), STORES)
    assert np.array_equal(alone.values, wide[2])
    assert with_derived(random_features(1, [2], 2), STEPS).num_columns == 2


def test_constant_columns() -> None:
    features = random_features(2, [2, 3], len(STORES.columns))
    assert num_constant_columns(STORES) == 8
    assert np.array_equal(constants(features, STORES), features.values[[0, 2], -8:])
    assert num_constant_columns(STEPS) == 0
    device = FeatureSpec(name="t", kind="trace", columns=("a", "b"), device_columns=("b",))
    assert constants(random_features(2, [2], 2), device).shape == (1, 1)
