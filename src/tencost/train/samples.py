"""Samples: records, split and features joined into what rankers learn from and are tested on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tencost.config import Config, HardwareConfig
from tencost.errors import ConfigError, TrainError
from tencost.features.spec import FeatureSpec
from tencost.train.labels import dense_groups, speed_labels
from tencost.train.ranker import Samples

if TYPE_CHECKING:
    import polars as pl

    from tencost.features.table import FeatureTable

PARTS = ("train", "valid", "test")


def load_samples(
    root: Path,
    cfg: Config,
    hardware: Sequence[str],
    part: str,
    features: FeatureTable | None = None,
    *,
    records: pl.DataFrame | None = None,
    split: pl.DataFrame | None = None,
) -> Samples:
    """Load one part of the split for some hardware.

    Args:
        root: the project's root.
        cfg: names the dataset, the features and the split.
        hardware: names; groups are (workload, hardware), so several hardware never share a label's
            scale.
        part: train, valid or test.
        features: the feature table where it is at hand; read from data/features otherwise.
        records: the record table where it is at hand; read from data/records otherwise.
        split: the split's table where it is at hand; read from data/splits otherwise.

    Raises:
        TrainError: the part has no record of these hardware that can be labelled.
    """
    from tencost.features.table import load_features
    from tencost.splits.table import load_split
    from tencost.store.tables import load_records

    if features is None:
        features = load_features(root / cfg.paths.features / cfg.dataset.name / cfg.features.name)
    if records is None:
        columns = ["record_id", "program_id", "workload_id", "hardware", "status"]
        folder = root / cfg.paths.records / cfg.dataset.name
        records = load_records(folder, hardware=list(hardware), columns=columns)
    if split is None:
        split = load_split(root / cfg.paths.splits / cfg.dataset.name / cfg.split_name)
    devices = None
    if cfg.features.device_columns:
        devices = {name: device_columns(root, cfg, name) for name in hardware}
    return join_samples(records, split, features, hardware, part, devices)


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


def device_columns(root: Path, cfg: Config, hardware: str) -> dict[str, float]:
    """Return the device columns of the chosen hardware, or of any other from conf/hardware/.

    Raises:
        ConfigError: conf/hardware/ does not describe it.
    """
    if hardware == cfg.hardware.name:
        return cfg.hardware.device_columns()
    from omegaconf import OmegaConf

    path = root / "conf" / "hardware" / f"{hardware}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"features.device_columns needs a description of hardware {hardware!r}: expected "
            f"{path}, found none. "
            "See docs/how-to/adding-hardware.md."
        )
    described = OmegaConf.to_object(
        OmegaConf.merge(OmegaConf.structured(HardwareConfig), OmegaConf.load(path))
    )
    assert isinstance(described, HardwareConfig)
    return described.device_columns()


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
