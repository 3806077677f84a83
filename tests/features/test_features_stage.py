"""Parallel featurizing, the table, and the stage's grouping."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tencost.config import FeaturesConfig
from tencost.errors import FeatureError
from tencost.features.extractor import spec_for
from tencost.features.parallel import Featurized, featurize, featurize_chunk
from tencost.features.rows.kind import Chunk
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.stage import make_chunks
from tencost.features.table import load_features, save_features

SPEC = FeatureSpec(name="tiny", kind="per_store", columns=("a", "b"))
PER_STORE = spec_for(FeaturesConfig(name="per_store", kind="per_store"))


def dying_work(spec: FeatureSpec, chunk: Chunk) -> list[Featurized]:
    """Stand in for a program that kills its worker."""
    if "poison" in chunk.programs:
        os._exit(1)
    rows = np.ones((1, 2), np.float32)
    return [Featurized(one, chunk.workload_id, rows) for one in chunk.program_ids]


@pytest.mark.slow
def test_a_dying_worker_costs_its_program_only() -> None:
    chunks = [
        Chunk("w0", "", "", ("p0", "p1", "p2"), ("fine", "poison", "fine")),
        Chunk("w1", "", "", ("p3",), ("fine",)),
    ]
    found = {
        one.program_id: one for results in featurize(SPEC, chunks, 2, dying_work) for one in results
    }
    assert sorted(found) == ["p0", "p1", "p2", "p3"]
    assert found["p1"].rows is None
    assert "died" in found["p1"].reason
    assert all(found[name].rows is not None for name in ("p0", "p2", "p3"))


@pytest.mark.tvm
def test_programs_of_a_database_equal_live_candidates(
    matmul: Any, context: Any, candidates: list[Any], programs: list[str]
) -> None:
    import tvm

    from tencost.features.kinds import per_store

    chunk = Chunk(
        "w", tvm.ir.save_json(matmul), '{"kind": "llvm"}', tuple("abc"), (*programs[:2], "[[], 1]")
    )
    found = featurize_chunk(PER_STORE, chunk)
    live = per_store.extract(context, candidates[:2])
    for one, other in zip(found, live, strict=False):
        assert one.rows is not None
        np.testing.assert_array_equal(one.rows, other)
    assert found[2].rows is None
    assert found[2].reason


def test_table_round_trip_and_selection(tmp_path: Path) -> None:
    rows = Ragged(np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 1, 4]))
    folder = tmp_path / "features"
    for _ in range(2):  # writing over what is there works, too
        save_features(folder, SPEC, ["p", "q", "r"], ["w", "w", "w"], rows, [{"program_id": "z"}])
    table = load_features(folder)
    assert table.spec == SPEC
    np.testing.assert_array_equal(table.features.values, rows.values)
    chosen = table.select(["r", "unknown", "p", "r"])
    assert chosen.lengths.tolist() == [3, 0, 1, 3]
    np.testing.assert_array_equal(chosen[0], rows[2])
    np.testing.assert_array_equal(chosen[2], rows[0])
    assert [path.name for path in tmp_path.iterdir()] == ["features"]


def test_a_missing_table_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(FeatureError, match="tencost features"):
        load_features(tmp_path)


def test_each_program_once_whatever_the_hardware() -> None:
    records = pl.DataFrame(
        {
            "program_id": ["p", "p", "q"],
            "workload_id": ["w", "w", "v"],
            "program": ["[]", "[]", "[1]"],
            "target": ["b", "a", "a"],
        }
    )
    workloads = pl.DataFrame({"workload_id": ["v", "w"], "mod_json": ["V", "W"]})
    chunks = make_chunks(records, workloads)
    assert [(chunk.workload_id, chunk.program_ids, chunk.target) for chunk in chunks] == [
        ("v", ("q",), "a"),
        ("w", ("p",), "a"),
    ]
