"""Features of other tuners' programs: Ansor's steps followed through splits, fusions and caches, AutoTVM's knobs."""

from __future__ import annotations

import json
import math
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tencost.config import FeaturesConfig
from tencost.config.parts import FEATURE_KINDS
from tencost.features.extractor import spec_for
from tencost.features.kinds.ansor_steps import ANNOTATIONS, STEPS, AnsorStepEncoder
from tencost.features.kinds.ansor_tiles import TILE_COLUMNS, ansor_tile_row
from tencost.features.kinds.configuration import COLUMNS, KNOBS, configuration_row
from tencost.features.parallel import featurize_chunk
from tencost.features.rows.kind import Chunk
from tencost.features.rows.texts import bucket

THREAD_X, BLOCK_X, VTHREAD, VECTORIZE = 6, 5, 4, 2


def tiles(steps: list[list[Any]]) -> dict[str, float]:
    row = ansor_tile_row(steps)
    assert row is not None
    assert row.shape == (1, len(TILE_COLUMNS))
    return dict(zip(TILE_COLUMNS, row[0].tolist(), strict=True))


def logs(*amounts: float) -> list[Any]:
    return [pytest.approx(math.log2(1 + amount)) for amount in amounts]


def test_a_split_knows_what_is_left_outside() -> None:
    found = tiles([["SP", 2, 0, 128, [2, 16, 1, 2], 1]])
    assert [found[f"split_0_{level}"] for level in range(5)] == logs(2, 2, 16, 1, 2)
    assert [found[f"spatial_{level}"] for level in range(5)] == logs(2, 2, 16, 1, 2)


def test_an_annotated_fusion_covers_the_product() -> None:
    steps: list[list[Any]] = [
        ["SP", 1, 0, 64, [8], 1],
        ["SP", 1, 2, 32, [4], 1],
        ["RE", 1, [0, 2, 1, 3]],
        ["FU", 1, [0, 1]],
        ["AN", 1, 0, BLOCK_X],
        ["FU", 1, [1, 2]],
        ["AN", 1, 1, THREAD_X],
    ]
    found = tiles(steps)
    assert [found["blocks"], found["threads"]] == logs(64, 32)
    assert found["num_FU"] == 2


def test_a_followed_split_takes_the_outer_lengths_and_one_of_the_rest() -> None:
    steps: list[list[Any]] = [
        ["SP", 1, 0, 120, [2, 3, 4], 1],
        ["FSP", 2, 0, 0, 2],
        ["AN", 2, 1, VTHREAD],
        ["AN", 2, 2, THREAD_X],
        ["AN", 2, 0, BLOCK_X],
    ]
    found = tiles(steps)
    assert [found["vthreads"], found["threads"], found["blocks"]] == logs(2, 12, 5)


def test_a_followed_fused_split_multiplies_a_level() -> None:
    steps: list[list[Any]] = [
        ["SP", 1, 0, 64, [2, 8], 1],
        ["SP", 1, 3, 64, [4, 4], 1],
        ["SP", 3, 0, 1024, [1], 1],
        ["FFSP", 3, 0, [0, 1], 1, 1],
        ["AN", 3, 1, THREAD_X],
    ]
    assert [tiles(steps)["threads"]] == logs(32)


def test_a_cache_stage_moves_the_stages_behind_it() -> None:
    steps: list[list[Any]] = [
        ["SP", 2, 0, 64, [8], 1],
        ["CHR", 1, "shared", [2]],
        ["AN", 3, 1, VECTORIZE],
        ["PR", 3, 0, "auto_unroll_max_step$512"],
    ]
    found = tiles(steps)
    assert [found["max_vectorize"], found["auto_unroll_max_step"]] == logs(8, 512)


def test_unknown_extents_are_absent_and_stop_nothing() -> None:
    found = tiles([["FU", 4, [0, 1, 2]], ["AN", 4, 0, THREAD_X], ["SP", 4, 0, 0, [0, 4], 1]])
    assert found["threads"] == 0.0
    assert found["num_thread_x"] == 1.0


def test_a_step_is_a_row_with_its_kind_numbers_and_names() -> None:
    encoder = AnsorStepEncoder(max_steps=4, vocabulary_buckets=2, max_numbers=4)
    rows = encoder.encode(
        [["CHW", 3, "local"], ["AN", 6, 0, 5], ["PR", 5, 0, "auto_unroll_max_step$16"]]
    )
    assert rows is not None
    columns = {name: index for index, name in enumerate(encoder.columns)}
    assert rows.shape == (3, len(columns))
    assert rows[:, columns["position"]].tolist() == [0.0, 0.25, 0.5]
    assert (
        rows[0, columns["is_CHW"]] == rows[1, columns["is_AN"]] == rows[2, columns["is_PR"]] == 1.0
    )
    assert rows[0, columns["number_0"]] == pytest.approx(2.0)
    assert rows[1, columns["annotation_block_x"]] == 1.0
    assert rows[2, columns["number_2"]] == pytest.approx(math.log2(17))
    assert rows[:, columns["name_0"] :].sum() == 2.0
    assert encoder.encode([]) is None
    kept = encoder.encode([["CI", 1]] * 9)
    assert kept is not None
    assert len(kept) == 4


steps = st.lists(
    st.one_of(
        st.tuples(st.just("AN"), st.integers(0, 5), st.integers(0, 6), st.integers(0, 11)),
        st.tuples(st.just("FU"), st.integers(0, 5), st.lists(st.integers(0, 6), max_size=4)),
        st.tuples(st.just("RE"), st.integers(0, 5), st.permutations(range(5))),
        st.tuples(
            st.just("SP"), st.integers(0, 5), st.integers(0, 6), st.integers(0, 512),
            st.lists(st.integers(0, 64), max_size=4), st.integers(0, 1),
        ),
        st.tuples(st.just("FSP"), st.integers(0, 5), st.integers(0, 6), st.integers(0, 9), st.integers(1, 4)),
        st.tuples(
            st.just("FFSP"), st.integers(0, 5), st.integers(0, 6),
            st.lists(st.integers(0, 9), max_size=3), st.integers(0, 4), st.integers(0, 1),
        ),
        st.tuples(st.sampled_from(["CHW", "CHR", "RF", "CI"]), st.integers(0, 5)),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@given(steps)
def test_no_list_of_steps_stops_the_features(found: list[tuple[Any, ...]]) -> None:
    plain = json.loads(json.dumps(found))
    row = ansor_tile_row(plain)
    assert row is not None
    assert np.isfinite(row).all()
    rows = AnsorStepEncoder(56, 8, 8).encode(plain)
    assert rows is not None
    assert np.isfinite(rows).all()


def test_knobs_have_columns_by_name() -> None:
    workload = {
        "workload": "autotvm.dense.gpu",
        "args": [["TENSOR", [1, 512], "float32"], ["TENSOR", [64, 512], "float32"], None, [1, 1]],
    }
    one = configuration_row(workload, {"entity": [["tile_x", "sp", [-1, 4]], ["unroll", "ot", 0]]})[
        0
    ]
    other = configuration_row(
        workload, {"entity": [["unroll", "ot", 1], ["tile_x", "sp", [-1, 4]]]}
    )[0]
    columns = {name: index for index, name in enumerate(COLUMNS)}
    assert [one[columns[f"in_{index}"]] for index in range(4)] == logs(1, 512, 64, 512)
    assert [one[columns[f"attr_{index}"]] for index in range(2)] == logs(1, 1)
    changed = [name for name, index in columns.items() if one[index] != other[index]]
    assert len(changed) == 1, "the order of knobs does not matter, their values do"
    assert changed[0].startswith("knob_")


def test_named_values_have_columns_of_their_own() -> None:
    """Names by bucket, or the next free one; a number as an amount, true as 1, a text as the bytes of its CRC-32."""
    workload = {"workload": "t4.blur", "args": [4096, 1]}
    columns = {name: index for index, name in enumerate(COLUMNS)}
    row = configuration_row(workload, {"tile": 15, "layout": "NHWC", "pad": True})[0]
    assert [row[columns[f"attr_{index}"]] for index in range(2)] == logs(4096, 1)
    values = {name: row[index] for name, index in columns.items() if name.startswith("knob_")}
    code = [byte / 256 for byte in zlib.crc32(b"NHWC").to_bytes(4, "big")]
    assert sorted(number for number in values.values() if number) == sorted([4.0, 1.0, *code])
    other = configuration_row(workload, {"pad": True, "layout": "NCHW", "tile": 15})[0]
    changed = {name for name, index in columns.items() if row[index] != other[index]}
    assert {name.rpartition("_")[0] for name in changed} == {
        f"knob_{zlib.crc32(b'layout') % KNOBS}"
    }


def test_names_of_one_bucket_have_columns_apart() -> None:
    """As many as there are buckets, whatever their hashes; the old name of the kind makes the same rows."""
    names = [f"parameter_{index}" for index in range(KNOBS)]
    assert len({bucket(name, KNOBS) for name in names}) < KNOBS
    row = configuration_row({"workload": "t4.blur", "args": []}, dict.fromkeys(names, 1))[0]
    columns = {name: index for index, name in enumerate(COLUMNS)}
    assert [row[columns[f"knob_{knob}_0"]] for knob in range(KNOBS)] == [1.0] * KNOBS
    assert FEATURE_KINDS.load("autotvm_knobs") is FEATURE_KINDS.load("configuration")


@pytest.mark.parametrize("kind", ["ansor_steps", "ansor_tiles", "configuration"])
def test_a_program_of_another_tuner_is_a_failure_with_its_reason(kind: str) -> None:
    spec = spec_for(FeaturesConfig(name=kind, kind=kind))
    about = json.dumps({"workload": "autotvm.dense", "args": []})
    programs = ('[["XX", 1]]' if kind != "configuration" else "{}", "[]")
    results = featurize_chunk(spec, Chunk("w", about, "{}", ("a", "b"), programs))
    assert [one.rows for one in results] == [None, None]
    assert all(one.reason for one in results)


def test_names_follow_the_log() -> None:
    assert len(STEPS) == 14
    assert len(ANNOTATIONS) == 12
