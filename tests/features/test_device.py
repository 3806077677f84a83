"""Columns that depend on the hardware: worked by hand, and the same where a model is trained and where it serves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tencost.config import FeaturesConfig, HardwareConfig
from tencost.errors import FeatureError
from tencost.features.device import attributes, device_names, device_of_each, with_device
from tencost.features.extractor import make_extractor, spec_for
from tencost.features.kinds import ansor_tiles, per_store, tiles
from tencost.features.rows.kind import kind_of
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.table import FeatureTable
from tencost.train.data.samples import join_samples, sample_spec

AVX2 = HardwareConfig(
    name="avx2", target={"kind": "llvm"}, simd_bits=256, l1d_kib=32, l2_kib=1024, cores=4
)
AVX512 = replace(AVX2, name="avx512", simd_bits=512, l2_kib=2048)
ARM = HardwareConfig(name="arm", target={"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
SETS = [
    FeaturesConfig(name=f"{kind}_device", kind=kind, relations=True, device_columns=constants)
    for kind in ("per_store", "tiles", "per_store_tiles")
    for constants in (False, True)
]


def spec_of(config: FeaturesConfig) -> FeatureSpec:
    return sample_spec(spec_for(config), device_names(config))


def related(rows: Ragged, kind: str, hardware: HardwareConfig) -> dict[str, float]:
    spec = spec_of(FeaturesConfig(name=kind, kind=kind, relations=True))
    found = with_device(rows, spec, attributes(hardware)).values[0]
    return dict(zip(spec.columns, found.tolist(), strict=True))


def row_of(columns: tuple[str, ...], **amounts: float) -> Ragged:
    row = np.zeros((1, len(columns)), np.float32)
    for name, amount in amounts.items():
        row[0, columns.index(name)] = np.log2(1.0 + amount)
    return Ragged(row, np.array([0, 1]))


def test_attributes_say_what_a_cpu_is() -> None:
    assert attributes(AVX2)["device_log2_registers"] == pytest.approx(np.log2(17))
    assert attributes(AVX512)["device_log2_registers"] == pytest.approx(np.log2(33))
    assert attributes(ARM)["device_log2_registers"] == pytest.approx(np.log2(33))
    assert attributes(AVX2).items() >= AVX2.device_columns().items()


def test_tiles_are_held_against_lanes_and_registers() -> None:
    rows = row_of(tiles.TILE_COLUMNS, tile_vector_axis=12, tile_register_rest=7, tile_s2_s3=168)
    wide, narrow = related(rows, "tiles", AVX512), related(rows, "tiles", AVX2)
    assert (narrow["rel_lanes"], wide["rel_lanes"]) == (3.0, 4.0)
    assert narrow["rel_vector_axis_of_lanes"] == pytest.approx(np.log2(12 / 8), abs=1e-5)
    assert wide["rel_vector_axis_of_lanes"] == pytest.approx(np.log2(12 / 16), abs=1e-5)
    assert narrow["rel_vector_padding"] == pytest.approx(16 / 12, abs=1e-5)
    assert (narrow["rel_vector_axis_fits"], wide["rel_vector_axis_fits"]) == (0.0, 0.0)
    # 7 rows of 2 vectors of 8 lanes, or of 1 vector of 16: 14 of 16 registers, 7 of 32, each and one
    assert narrow["rel_accumulators_of_registers"] == pytest.approx(np.log2(15 / 17), abs=1e-5)
    assert wide["rel_accumulators_of_registers"] == pytest.approx(np.log2(8 / 33), abs=1e-5)
    # 168 elements are 14 rows of 12
    assert narrow["rel_inner_tile_of_registers"] == pytest.approx(np.log2(29 / 17), abs=1e-5)


def test_tiles_are_held_against_what_a_core_does_a_cycle() -> None:
    """As codegen/tiles.py counts: 6 rows by 3 vectors keep both units of AVX-512 busy; AVX2 has too few registers."""
    tile = {
        "tile_vector_axis": 48,
        "tile_register_rest": 6,
        "tile_level_r0": 32,
        "tile_level_r1": 4,
    }
    rows = row_of(tiles.TILE_COLUMNS, **tile, tile_spatial0_s3=48, tile_spatial1_s3=6)
    wide, narrow = related(rows, "tiles", AVX512), related(rows, "tiles", AVX2)
    assert wide["rel_of_peak"] == pytest.approx(1.0, abs=1e-5)
    assert 2 ** wide["rel_cycles"] == pytest.approx(9.0, abs=1e-4)
    assert wide["rel_spilled"] == 0
    assert wide["rel_loads_of_products"] == pytest.approx(4.5 / 9, abs=1e-5)
    # 36 sums, 6 vectors and a number of a row in 16 registers: 27 too many
    assert 2 ** narrow["rel_spilled"] - 1 == pytest.approx(27.0, abs=1e-3)
    assert narrow["rel_of_peak"] == pytest.approx(18 / (18 + 27), abs=1e-5)
    panels = 4 * ((48 + 6) * 128 + 48 * 6) / 1024
    l1d = AVX512.device_columns()["device_log2_l1d_kib"]
    assert wide["rel_s3_panels_of_l1d"] == pytest.approx(np.log2(panels) - l1d, abs=1e-3)
    alone = row_of(tiles.TILE_COLUMNS, tile_vector_axis=16, tile_register_rest=1)
    assert related(alone, "tiles", AVX512)["rel_of_peak"] == pytest.approx(0.5 / 4, abs=1e-5)


@pytest.mark.parametrize(("axis", "fits"), [(8, (1.0, 0.0)), (16, (1.0, 1.0)), (0, (0.0, 0.0))])
def test_an_axis_fits_where_it_fills_its_vectors(axis: int, fits: tuple[float, float]) -> None:
    rows = row_of(tiles.TILE_COLUMNS, tile_vector_axis=axis)
    found = [related(rows, "tiles", one)["rel_vector_axis_fits"] for one in (AVX2, AVX512)]
    assert tuple(found) == fits


def test_the_heaviest_store_is_held_against_lanes_and_cores() -> None:
    heavy = row_of(per_store.COLUMNS, float_mad=100, vectorize_len=16, parallel_prod=6)
    light = row_of(per_store.COLUMNS, float_mad=1, vectorize_len=2, parallel_prod=1)
    rows = Ragged(np.concatenate([light.values, heavy.values]), np.array([0, 2]))
    found = related(rows, "per_store", AVX2)
    assert found["rel_vectorized_of_lanes"] == pytest.approx(1.0, abs=1e-5)
    assert found["rel_parallel_of_cores"] == pytest.approx(np.log2(6 / 4), abs=1e-5)
    assert found["rel_parallel_padding"] == pytest.approx(8 / 6, abs=1e-5)


def test_gpu_programs_are_held_against_warps_and_multiprocessors() -> None:
    launched = {"max_block_x": 100, "max_thread_x": 8, "max_thread_y": 12}
    rows = row_of(ansor_tiles.TILE_COLUMNS, **launched)
    gpu = HardwareConfig(name="gpu", target={"kind": "cuda"}, simd_bits=1024, cores=80)
    found = related(rows, "ansor_tiles", gpu)
    assert found["rel_threads_of_lanes"] == pytest.approx(np.log2(3), abs=1e-5)
    assert found["rel_threads_padding"] == 1.0
    assert found["rel_blocks_of_cores"] == pytest.approx(np.log2(100 / 80), abs=1e-5)
    assert found["rel_blocks_padding"] == pytest.approx(160 / 100)
    wide = related(rows, "ansor_tiles", replace(gpu, simd_bits=2048))
    assert wide["rel_threads_padding"] == pytest.approx(128 / 96, abs=1e-5)


def test_a_device_that_lacks_an_attribute_is_refused_before_a_search() -> None:
    spec = spec_of(SETS[-1])
    known = attributes(AVX2)
    del known["device_log2_registers"]
    with pytest.raises(FeatureError, match="needs the device's device_log2_registers, found none"):
        make_extractor(spec, known)


def test_a_kind_without_relations_is_refused() -> None:
    with pytest.raises(FeatureError, match="found trace, which does not"):
        device_names(FeaturesConfig(name="x", kind="trace", relations=True))


@pytest.mark.tvm
@pytest.mark.parametrize("config", SETS, ids=lambda config: str(len(device_names(config))))
def test_training_and_serving_rows_are_the_same_bytes(
    config: FeaturesConfig, context: Any, candidates: list[Any]
) -> None:
    stored = make_extractor(spec_for(config)).extract(context, candidates)
    names = [f"p{index:03d}" for index in range(len(stored))]
    table = FeatureTable(spec_for(config), pl.Series(names), stored)
    devices = {one.name: attributes(one) for one in (AVX2, AVX512)}
    rows = [(f"{name}-{device}", name, device) for device in devices for name in names]
    records = pl.DataFrame(
        rows, schema=["record_id", "program_id", "hardware"], orient="row"
    ).with_columns(
        workload_id=pl.lit("w"),
        generator=pl.lit("unknown"),
        status=pl.lit("ok"),
        latency_s=pl.lit(1e-3),
    )
    split = records.select("record_id", part=pl.lit("train"))
    trained = join_samples(
        records, split, table, sorted(devices), "train", devices, device_names(config)
    )
    spec = spec_of(config)
    for hardware in (AVX2, AVX512):
        served = make_extractor(spec, attributes(hardware)).extract(context, candidates)
        of_it = np.flatnonzero([name.endswith(f"-{hardware.name}") for name in trained.record_id])
        learnt = trained.features.take(of_it)
        assert served.num_columns == len(spec.columns)
        assert learnt.values.tobytes() == served.values.tobytes()
        alone = make_extractor(spec, attributes(hardware)).extract(context, candidates[3:4])
        assert alone.values.tobytes() == served[3].tobytes()
    relations = kind_of(spec).relations
    assert relations is not None
    assert np.isfinite(trained.features.values).all()


def test_each_program_gets_the_attributes_of_its_own_hardware() -> None:
    spec = spec_of(FeaturesConfig(name="tiles", kind="tiles", relations=True))
    rows = row_of(tiles.TILE_COLUMNS, tile_vector_axis=16).take(np.array([0, 0, 0]))
    devices = {one.name: attributes(one) for one in (AVX2, AVX512)}
    found = with_device(rows, spec, device_of_each(["avx2", "avx512", "avx2"], devices))
    axis = found.values[:, spec.columns.index("rel_vector_axis_of_lanes")]
    np.testing.assert_allclose(axis, [1.0, 0.0, 1.0], atol=1e-5)


def test_a_program_without_rows_stays_without() -> None:
    spec = spec_of(FeaturesConfig(name="tiles", kind="tiles", relations=True))
    none = Ragged(np.zeros((0, len(tiles.TILE_COLUMNS)), np.float32), np.array([0, 0]))
    found = with_device(none, spec, attributes(AVX2))
    assert found.values.shape == (0, len(spec.columns))
