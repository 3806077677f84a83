"""Samples: records, split and features joined into what rankers learn from and are tested on. Reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tencost.errors import TrainError
from tencost.features.device import Attributes, device_of_each, with_device
from tencost.features.rows.spec import FeatureSpec
from tencost.models.programs.ranker import Samples
from tencost.models.programs.ranker.labels import dense_groups, speed_labels

if TYPE_CHECKING:
    import polars as pl

    from tencost.features.table import FeatureTable

PARTS = ("train", "valid", "test")
GROUP = ("workload_id", "hardware", "generator")
"""What a label's scale is of."""


def join_samples(
    records: pl.DataFrame,
    split: pl.DataFrame,
    features: FeatureTable,
    hardware: Sequence[str],
    part: str,
    devices: Mapping[str, Attributes] | None = None,
    names: Sequence[str] | None = None,
) -> Samples:
    """Join the three tables; rows are sorted by workload, hardware, code generator and record id.

    Args:
        records: record_id, program_id, workload_id, hardware, generator, status, latency_s (median, seconds).
        split: record_id, part.
        features: rows by program_id; a program that could not be featurized has none.
        hardware: names to keep.
        part: train, valid or test.
        devices: hardware -> the attributes that its columns are made of, or None.
        names: the columns that are appended; None for the devices' attributes.

    Raises:
        TrainError: nothing is left.
    """
    import polars as pl

    assert part in PARTS, f"part must be one of {PARTS}, found {part!r}"
    chosen = (
        records.filter(pl.col("hardware").is_in(list(hardware)))
        .join(split.filter(pl.col("part") == part).select("record_id"), on="record_id", how="semi")
        .sort(*GROUP, "record_id")
    )
    measured = pl.when(pl.col("status") == "ok").then(pl.col("latency_s"))
    latency = chosen.select(measured.fill_null(float("nan"))).to_series().to_numpy()
    group = dense_groups(*(chosen[name].to_numpy() for name in GROUP))
    label, keep = speed_labels(latency, group)
    usable = np.flatnonzero(keep)
    if not len(usable):
        raise TrainError(
            f"expected records of {', '.join(hardware)} in the {part} part of the split, found "
            "none with a time. "
            "See report.json beside the split and rejects.jsonl beside the records."
        )
    chosen, label, latency = chosen[usable], label[usable], latency[usable]
    rows = features.select(chosen["program_id"].to_list())
    if devices is not None:
        of_each = device_of_each(chosen["hardware"].to_list(), devices)
        wide = sample_spec(features.spec, list(of_each) if names is None else names)
        rows = with_device(rows, wide, of_each)
    group = dense_groups(*(chosen[name].to_numpy() for name in GROUP))
    return Samples(
        rows, label, group, latency, np.asarray(chosen["record_id"].to_list(), dtype=np.str_)
    )


def sample_spec(spec: FeatureSpec, device: Iterable[str] | None) -> FeatureSpec:
    """Return the spec of the samples: the table's, with the columns of these names appended."""
    names = tuple(device or ())
    if not names:
        return spec
    return FeatureSpec(
        name=spec.name,
        kind=spec.kind,
        columns=(*spec.columns, *names),
        options=spec.options,
        device_columns=names,
        abi=spec.abi,
    )
