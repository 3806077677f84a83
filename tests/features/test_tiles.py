from __future__ import annotations

import math
from typing import Any

import numpy as np
import orjson
import pytest

from tencost.config import FeaturesConfig
from tencost.features.extractor import make_extractor, spec_for
from tencost.features.kinds.tiles import TILE_COLUMNS, tile_row

MATMUL = [
    [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
        ["SamplePerfectTile", ["l1"], [4, 64], ["v4", "v5", "v6", "v7"]],
        ["Split", ["l1", "v4", "v5", "v6", "v7"], [1, 0], ["l8", "l9", "l10", "l11"]],
        ["SamplePerfectTile", ["l2"], [4, 64], ["v12", "v13", "v14", "v15"]],
        ["Split", ["l2", "v12", "v13", "v14", "v15"], [1, 0], ["l16", "l17", "l18", "l19"]],
        ["SamplePerfectTile", ["l3"], [2, 64], ["v20", "v21"]],
        ["Split", ["l3", "v20", "v21"], [1, 0], ["l22", "l23"]],
        ["Reorder", ["l8", "l16", "l9", "l17", "l22", "l10", "l18", "l23", "l11", "l19"], [], []],
        ["SampleCategorical", [], [[0, 16, 64, 512], [0.25, 0.25, 0.25, 0.25]], ["v24"]],
        ["Annotate", ["b0", "v24"], ["meta_schedule.unroll_explicit"], []],
        ["EnterPostproc", [], [], []],
        ["Fuse", ["l8", "l16"], [1], ["l25"]],
    ],
    [[2, [8, 1, 4, 2]], [4, [2, 2, 1, 24]], [6, [32, 4]], [9, 2]],
]


def test_a_matmul_worked_by_hand() -> None:
    row = tile_row(MATMUL)
    assert row is not None
    found = dict(zip(TILE_COLUMNS, row[0].tolist(), strict=True))

    def amount(name: str) -> float:
        return round(2 ** found[name] - 1, 3)

    assert [amount(f"tile_spatial0_{level}") for level in ("s0", "s1", "s2", "s3")] == [2, 2, 1, 24]
    assert [amount(f"tile_spatial1_{level}") for level in ("s0", "s1", "s2", "s3")] == [8, 1, 4, 2]
    assert [amount(f"tile_reduction0_{level}") for level in ("r0", "r1")] == [32, 4]
    assert amount("tile_level_s3") == 48
    assert amount("tile_s2_s3_r1") == 4 * 48 * 4
    assert amount("tile_iterations") == pytest.approx(64 * 96 * 128, rel=1e-5)
    assert amount("tile_vector_axis") == 24
    assert found["tile_vector_fits_16"] == 0
    assert found["tile_vector_fits_8"] == 1
    assert found["tile_vector_padding_16"] == pytest.approx(32 / 24)
    assert amount("tile_register_vectors_16") == 2 * 2
    assert amount("tile_unroll_limit") == 64
    assert found["tile_unroll_covers_register_tile"] == 0
    assert found["tile_unroll_minus_register_tile"] == pytest.approx(math.log2(65) - math.log2(193))
    assert (found["tile_num_spatial"], found["tile_num_reduction"]) == (2, 1)
    assert found["tile_fused0"] == 2
    assert found["tile_location0"] == -9
    assert found["tile_num_instructions"] == 13


REGISTER_TILE = [
    [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
        ["Split", ["l2", "None", 1024], [1, 0], ["l4", "l5"]],
        ["Split", ["l5", "None", 16], [1, 0], ["l6", "l7"]],
        ["SamplePerfectTile", ["l6"], [3, 8], ["v8", "v9", "v10"]],
        ["Split", ["l6", "v8", "v9", "v10"], [1, 0], ["l11", "l12", "l13"]],
        ["SamplePerfectTile", ["l1"], [3, 16], ["v14", "v15", "v16"]],
        ["Split", ["l1", "v14", "v15", "v16"], [1, 0], ["l17", "l18", "l19"]],
        ["SamplePerfectTile", ["l3"], [2, 8], ["v20", "v21"]],
        ["Split", ["l3", "v20", "v21"], [1, 0], ["l22", "l23"]],
        ["Reorder", ["l4", "l11", "l17", "l18", "l12", "l22", "l23", "l19", "l13", "l7"], [], []],
        ["CacheWrite", ["b0", []], [0, "local"], ["b24"]],
        ["ReverseComputeAt", ["b24", "l12"], [1, -1], []],
        ["Unroll", ["l23"], [], []],
        ["Unroll", ["l19"], [], []],
        ["Unroll", ["l13"], [], []],
        ["Vectorize", ["l7"], [], []],
        ["GetLoops", ["b24"], [], ["l25", "l26"]],
        ["Split", ["l26", "None", 16], [1, 0], ["l27", "l28"]],
        ["EnterPostproc", [], [], []],
        ["TransformLayout", ["b0", "{}"], [1, 0, False], []],
    ],
    [[4, [8, 2, 3]], [6, [4, 2, 6]], [8, [64, 2]]],
]


def test_a_register_tile_worked_by_hand() -> None:
    row = tile_row(REGISTER_TILE)
    assert row is not None
    found = dict(zip(TILE_COLUMNS, row[0].tolist(), strict=True))

    def amount(name: str) -> float:
        return round(2 ** found[name] - 1, 3)

    columns, rows = "tile_spatial0_", "tile_spatial1_"
    assert [amount(columns + level) for level in ("s0", "s1", "s2", "s3")] == [8, 2, 1, 3 * 16]
    assert [amount(rows + level) for level in ("s0", "s1", "s2", "s3")] == [4, 2, 1, 6]
    assert [amount(f"tile_reduction0_{level}") for level in ("r0", "r1")] == [64, 2]
    assert (found["tile_num_spatial"], found["tile_num_reduction"]) == (2, 1)
    assert amount("tile_iterations") == pytest.approx(48 * 768 * 128, rel=1e-5)
    assert amount("tile_vector_axis") == 48
    assert amount("tile_register_rest") == 6
    assert amount("tile_register_vectors_16") == 6 * 3
    assert found["tile_unroll_covers_register_tile"] == 1
    assert found["tile_unroll_minus_register_tile"] == 0
    assert (amount("tile_inner_extent"), found["tile_inner_position"]) == (16, 1)
    assert found["tile_epilogue_level"] == 1
    assert amount("tile_lanes") == 16
    assert (found["tile_num_Unroll"], found["tile_num_TransformLayout"]) == (3, 1)


def test_other_programs_have_no_lanes() -> None:
    row = tile_row(MATMUL)
    assert row is not None
    assert row[0][TILE_COLUMNS.index("tile_lanes")] == 0


def test_the_table_of_columns() -> None:
    assert len(TILE_COLUMNS) == len(set(TILE_COLUMNS)) == 84


def test_an_empty_trace_has_no_row() -> None:
    assert tile_row([[], []]) is None


@pytest.mark.tvm
def test_live_candidates_and_texts_give_the_same_rows(
    context: Any, candidates: list[Any], programs: list[str]
) -> None:
    plain = make_extractor(spec_for(FeaturesConfig(name="tiles", kind="tiles")))
    rows = plain.extract(context, candidates)
    texts = [tile_row(orjson.loads(program)) for program in programs[:3]]
    np.testing.assert_array_equal(
        rows.values[:3], np.concatenate([one for one in texts if one is not None])
    )
    wide = make_extractor(spec_for(FeaturesConfig(name="both", kind="per_store_tiles")))
    both = wide.extract(context, candidates)
    assert both.num_columns == 172 + 84
    for index in range(3):
        np.testing.assert_array_equal(
            both[index][:, 172:], np.tile(rows[index], (len(both[index]), 1))
        )
