from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tencost.config import Config
from tencost.errors import ConfigError, TrainError
from tencost.features.rows.ragged import Ragged
from tencost.features.rows.spec import FeatureSpec
from tencost.features.table import FeatureTable
from tencost.train.data import Data, describe
from tencost.train.data.samples import join_samples, sample_spec

SPEC = FeatureSpec(name="toy", kind="trace", columns=("a",))
TABLE = FeatureTable(
    SPEC,
    pl.Series(["p0", "p1", "p2", "p3"]),
    Ragged.from_blocks([np.full((index + 1, 1), index, np.float32) for index in range(4)], 1),
)


def record(index: int, workload: str, hardware: str, latency: float | None, **more: Any) -> Any:
    values = {
        "record_id": f"r{index}-{hardware}",
        "program_id": f"p{index}",
        "workload_id": workload,
        "hardware": hardware,
        "generator": "unknown",
        "status": "run_error" if latency is None else "ok",
        "latency_s": latency,
    }
    return {**values, **more}


RECORDS = pl.DataFrame(
    [
        record(0, "w0", "x", 2.0),
        record(1, "w0", "x", 1.0),
        record(4, "w0", "x", None),  # p4 has no features
        record(0, "w0", "y", 3.0),
        record(1, "w0", "y", 6.0),
        record(2, "w1", "x", None),  # all of w1 failed on x
        record(3, "w2", "x", 5.0),
    ]
)
SPLIT = pl.DataFrame(
    {
        "record_id": RECORDS["record_id"],
        "part": ["train", "train", "train", "train", "train", "train", "valid"],
    }
)


def test_join_worked_by_hand() -> None:
    samples = join_samples(RECORDS, SPLIT, TABLE, ["x", "y"], "train")
    assert samples.record_id.tolist() == ["r0-x", "r1-x", "r4-x", "r0-y", "r1-y"]
    assert samples.label.tolist() == [0.5, 1.0, 0.0, 1.0, 0.5]
    assert samples.group.tolist() == [0, 0, 0, 1, 1], "hardware never share a group"
    assert np.isnan(samples.latency_s[2])
    assert samples.features.lengths.tolist() == [1, 2, 0, 1, 2]


def test_a_status_decides_not_a_number() -> None:
    odd = RECORDS.with_columns(
        pl.when(pl.col("status") == "ok").then("latency_s").otherwise(1e-9).alias("latency_s")
    )
    expected = join_samples(RECORDS, SPLIT, TABLE, ["x"], "train")
    found = join_samples(odd, SPLIT, TABLE, ["x"], "train")
    assert found.label.tolist() == expected.label.tolist()


def test_device_columns_follow_their_hardware() -> None:
    devices = {"x": {"d": 7.0}, "y": {"d": 9.0}}
    samples = join_samples(RECORDS, SPLIT, TABLE, ["x", "y"], "train", devices)
    assert samples.features.num_columns == 2
    assert samples.features[0].tolist() == [[0.0, 7.0]]
    assert samples.features[4].tolist() == [[1.0, 9.0], [1.0, 9.0]]


def test_nothing_to_learn_from() -> None:
    with pytest.raises(TrainError, match="expected records of y in the valid part"):
        join_samples(RECORDS, SPLIT, TABLE, ["y"], "valid")


def test_from_the_projects_files(toy_project: Path, toy_config: Config) -> None:
    test = Data(toy_config, toy_project).samples(["toy-1c"], "test")
    assert len(test) == 24
    assert np.isnan(test.latency_s).sum() == 1
    assert test.label.max() == 1.0
    columns = sorted(
        zip(test.features.values[:, 0].tolist(), test.label.tolist(), test.group, strict=True)
    )
    for group in (0, 1):
        labels = [label for _, label, member in columns if member == group and label > 0]
        assert labels == sorted(labels), "the first column of the toy is the speed"


def test_device_of_another_hardware(tmp_path: Path, toy_config: Config) -> None:
    folder = tmp_path / "conf" / "hardware"
    folder.mkdir(parents=True)
    (folder / "big.yaml").write_text("name: big\ncores: 3\nsimd_bits: 511\n")
    assert describe(tmp_path, toy_config, "big").device_columns()["device_log2_cores"] == 2.0
    own = describe(tmp_path, toy_config, "toy-1c").device_columns()
    assert own == toy_config.hardware.device_columns()
    with pytest.raises(ConfigError, match=r"unknown\.yaml, found none"):
        describe(tmp_path, toy_config, "unknown")


def test_spec_with_device_columns() -> None:
    assert sample_spec(SPEC, None) is SPEC
    assert sample_spec(SPEC, {}) is SPEC
    wide = sample_spec(SPEC, {"d": 1.0})
    assert wide == dataclasses.replace(SPEC, columns=("a", "d"), device_columns=("d",))


def test_code_generators_share_no_label_s_scale() -> None:
    old, new = "math-0 tvm-1 llvm-1 flags-none", "math-1 tvm-1 llvm-1 flags-none"
    mixed = pl.DataFrame(
        [
            record(0, "w0", "x", 80.0, generator=old),
            record(1, "w0", "x", 40.0, generator=old),
            record(2, "w0", "x", 2.0, generator=new),
            record(3, "w0", "x", 1.0, generator=new),
        ]
    )
    split = pl.DataFrame({"record_id": mixed["record_id"], "part": ["train"] * 4})
    samples = join_samples(mixed, split, TABLE, ["x"], "train")
    assert samples.label.tolist() == [0.5, 1.0, 0.5, 1.0]
    assert samples.group.tolist() == [0, 0, 1, 1]
