"""Samples: records, split and features joined into what rankers learn from and are tested on. Reads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tencost.errors import TrainError
from tencost.features.spec import FeatureSpec
from tencost.train.labels import dense_groups, speed_labels
from tencost.train.ranker import Samples

if TYPE_CHECKING:
    import polars as pl

    from tencost.features.table import FeatureTable

PARTS = ("train", "valid", "test")


def join_samples(
    records: pl.DataFrame,
    split: pl.DataFrame,
    features: FeatureTable,
    hardware: Sequence[str],
    part: str,
    devices: Mapping[str, Mapping[str, float]] | None = None,
) -> Samples:
    """Join the three tables; rows are sorted by workload, hardware and record id.

    Args:
        records: record_id, program_id, workload_id, hardware, status, latency_s (median, seconds).
        split: record_id, part.
        features: rows by program_id; a program that could not be featurized has none.
        hardware: names to keep.
        part: train, valid or test.
        devices: hardware -> device columns to append to each row, or None.

    Raises:
        TrainError: nothing is left.
    """
    import polars as pl

    assert part in PARTS, f"part must be one of {PARTS}, found {part!r}"
    chosen = (
        records.filter(pl.col("hardware").is_in(list(hardware)))
        .join(split.filter(pl.col("part") == part).select("record_id"), on="record_id", how="semi")
        .sort("workload_id", "hardware", "record_id")
    )
    measured = pl.when(pl.col("status") == "ok").then(pl.col("latency_s"))
    latency = chosen.select(measured.fill_null(float("nan"))).to_series().to_numpy()
    group = dense_groups(chosen["workload_id"].to_numpy(), chosen["hardware"].to_numpy())
    label, keep = speed_labels(latency, group)
    kept = np.flatnonzero(keep)
    if not len(kept):
        raise TrainError(
            f"expected records of {', '.join(hardware)} in the {part} part of the split, found "
            "none with a time. "
            "See report.json beside the split and rejects.jsonl beside the records."
        )
    chosen, label, latency = chosen[kept], label[kept], latency[kept]
    rows = features.select(chosen["program_id"].to_list())
    names = chosen["hardware"].to_list()
    if devices is not None:
        rows = rows.with_columns(
            np.asarray([list(devices[name].values()) for name in names], np.float32)
        )
    group = dense_groups(chosen["workload_id"].to_numpy(), chosen["hardware"].to_numpy())
    return Samples(
        rows, label, group, latency, np.asarray(chosen["record_id"].to_list(), dtype=np.str_)
    )


def sample_spec(spec: FeatureSpec, device: Mapping[str, float] | None) -> FeatureSpec:
    """Return the spec of the samples: the table's, with the device columns appended."""
    if not device:
        return spec
    names = tuple(device)
    return FeatureSpec(
        name=spec.name,
        kind=spec.kind,
        columns=(*spec.columns, *names),
        options=spec.options,
        device_columns=names,
        abi=spec.abi,
    )
