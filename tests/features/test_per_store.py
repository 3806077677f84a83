from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tencost.config import FeaturesConfig
from tencost.errors import FeatureError
from tencost.features.extractor import make_extractor, spec_for
from tencost.features.kinds import per_store
from tencost.features.kinds.per_store import PER_STORE_COLUMNS, WORKLOAD_COLUMNS
from tencost.features.rows.spec import FEATURE_ABI, FeatureSpec

pytestmark = pytest.mark.tvm
GOLDEN = Path(__file__).parent / "golden" / "matmul_per_store.json"


def named(row: Any) -> dict[str, float]:
    return dict(zip(per_store.COLUMNS, (float(value) for value in row), strict=True))


def test_the_table_of_columns() -> None:
    assert len(PER_STORE_COLUMNS) == 164
    assert len(WORKLOAD_COLUMNS) == 8
    assert len(set(per_store.COLUMNS)) == 172


def test_columns_mean_what_they_are_called(context: Any, candidates: list[Any]) -> None:
    """A 64 x 64 x 64 matmul with 8 x 8 tiles: counts worked out by hand, stored as log2(x + 1)."""
    rows = per_store.extract(context, candidates)[1]
    assert rows is not None
    row = named(rows[-1])
    iterations = 64**3
    assert 2 ** row["outer_prod"] - 1 == pytest.approx(iterations, rel=1e-4)
    assert 2 ** row["float_addsub"] - 1 == pytest.approx(iterations, rel=1e-4)
    assert 2 ** row["vectorize_len"] - 1 == pytest.approx(8, rel=1e-4)
    assert 2 ** row["vectorize_num"] - 1 == pytest.approx(1, rel=1e-4)
    assert 2 ** row["parallel_prod"] - 1 == pytest.approx(8, rel=1e-4)
    assert 2 ** row["num_loops"] - 1 == pytest.approx(5, rel=1e-4)
    assert row["is_gpu"] == 0
    assert 2 ** row["b0_unique_bytes"] - 1 == pytest.approx(64 * 64 * 4, rel=1e-4)
    assert row["is_matmul"] == 1
    assert row["is_conv2d"] == 0


def test_golden_features(context: Any, candidates: list[Any], tmp_path: Path) -> None:
    """A change here is a change of the feature ABI: raise FEATURE_ABI and write the file anew.

    The test writes what it found beside its temporary files: copy that over the golden file.
    """
    rows = per_store.extract(context, candidates)[0]
    assert rows is not None
    found = [{name: value for name, value in named(row).items() if value} for row in rows]
    (tmp_path / GOLDEN.name).write_text(json.dumps(found, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert len(found) == len(golden)
    for row, expected in zip(found, golden, strict=True):
        assert row == pytest.approx(expected, rel=1e-5)


def test_a_candidate_that_does_not_lower_stops_nothing(context: Any, candidates: list[Any]) -> None:
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    broken = Schedule(context.mod, debug_mask=0)
    block = broken.get_sblock("matmul")
    # A reduction over a loop bound to a thread does not lower for a CPU.
    broken.bind(broken.get_loops(block)[0], "threadIdx.x")
    mixed = [candidates[0], MeasureCandidate(broken, []), candidates[1]]
    found = per_store.extract(context, mixed)
    alone = per_store.extract(context, [candidates[0], candidates[1]])
    for one, other in zip((found[0], found[2]), alone, strict=True):
        np.testing.assert_array_equal(one, other)


def test_extractor_makes_rows_for_the_tuner(context: Any, candidates: list[Any]) -> None:
    spec = spec_for(FeaturesConfig(name="per_store", kind="per_store"))
    rows = make_extractor(spec).extract(context, candidates)
    assert len(rows) == len(candidates)
    assert rows.num_columns == 172
    assert (rows.lengths > 0).all()


def test_device_columns_are_appended(context: Any, candidates: list[Any]) -> None:
    plain = spec_for(FeaturesConfig(name="per_store", kind="per_store"))
    device = {"device_log2_cores": 1.0, "device_log2_simd_bits": 9.0}
    spec = FeatureSpec(
        name="x", kind="per_store", columns=(*plain.columns, *device), device_columns=tuple(device)
    )
    rows = make_extractor(spec, device).extract(context, candidates)
    np.testing.assert_array_equal(rows.values[:, -2:], np.tile([1.0, 9.0], (len(rows.values), 1)))
    with pytest.raises(FeatureError, match="device_log2_simd_bits"):
        make_extractor(spec, {"device_log2_cores": 1.0})


def test_other_columns_are_refused() -> None:
    spec = FeatureSpec(name="old", kind="per_store", columns=("a", "b"))
    with pytest.raises(FeatureError, match="this tencost makes 172 others"):
        make_extractor(spec)
    with pytest.raises(
        FeatureError,
        match="per_store, per_store_tiles, tiles, trace, found 'graph'",
    ):
        make_extractor(FeatureSpec(name="old", kind="graph", columns=("a",)))


def test_another_abi_is_refused(tmp_path: Path) -> None:
    spec = spec_for(FeaturesConfig(name="per_store", kind="per_store"))
    path = tmp_path / "spec.json"
    spec.save(path)
    assert FeatureSpec.load(path) == spec
    path.write_text(path.read_text().replace(f'"abi": {FEATURE_ABI}', '"abi": 99'))
    with pytest.raises(FeatureError, match="feature ABI 99"):
        FeatureSpec.load(path)
