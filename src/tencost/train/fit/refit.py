"""A chosen model fitted once more, on every record there is: what is registered, where a twin of it was judged.

The twin is the bundle that the leaderboard knows: trained without the test networks, and scored on them. Its settings
and its seed are taken; its calibration, too, which was fitted on programs that it had not seen, and raw scores are on
one scale (each part of a model is divided by its spread). Where the settings stop a training early, the validation part
stays aside to stop it by; else it is learnt from, and the epoch of a network that is best on it is kept as ever.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from tencost.config import ModelConfig, Pool
from tencost.features.device import attributes
from tencost.models.programs.bundle import Bundle, content_digest, model_settings, save_bundle
from tencost.models.programs.ranker import Composed, Samples, make_ranker
from tencost.train.data import Data
from tencost.train.data.samples import join_samples
from tencost.train.fit.members import fit_members
from tencost.train.fit.seeds import SeedJob

ALL = "train, valid, test"
WITHOUT_VALID = "train, test"


@dataclass(frozen=True)
class _Material:
    """What is learnt from, and what a training is watched on."""

    train: Samples
    valid: Samples
    networks: tuple[str, ...]


def fit_all_parts(data: Data, twin: Bundle, folder: Path) -> Path:
    """Fit the twin's settings on all parts of the split and write the bundle, with `refit` in its bundle.json.

    Args:
        data: what the twin was trained on.
        twin: the bundle that was judged.
        folder: the new bundle's folder.

    Returns:
        That folder.

    Raises:
        TrainError, FeatureError: the records or features are not there.
    """
    settings = model_settings(twin.folder, twin.info)
    early = stops_early(settings)
    material = _read(data, twin, settings, early)
    job = SeedJob(settings, twin.info.feature_spec, material.train, material.valid)
    ranker = make_ranker(job.config, job.spec)
    if isinstance(ranker, Composed):
        ranker = fit_members(
            job, twin.info.seed, data.cfg.jobs, f"{twin.info.family}, fitted on all"
        )
    else:
        ranker.fit(job.train, job.valid, seed=twin.info.seed, log=lambda *_: None)
    origin: dict[str, Any] = {
        "twin": content_digest(twin.info),
        "parts": WITHOUT_VALID if early else ALL,
        "records": len(material.train),
        "networks": list(material.networks),
    }
    save_bundle(folder, ranker, replace(twin.info, metrics={}, files={}, refit=origin))
    return folder


def stops_early(settings: ModelConfig) -> bool:
    """Whether a training with these settings, or one of its members', may end before its last round or epoch."""
    members = getattr(settings, "member_configs", None)
    if members is not None:
        return any(stops_early(member) for member in members())
    names = ("early_stopping_rounds", "patience")
    return any(getattr(settings, name, 0) > 0 for name in names)


def _read(data: Data, twin: Bundle, settings: ModelConfig, early: bool) -> _Material:
    spec, records = twin.info.feature_spec, data.records
    hardware = list(data.hardware())
    if settings.pool is Pool.all and not data.cfg.hardware.members:
        hardware = sorted(records["hardware"].unique().to_list())
    names = spec.device_columns
    devices = {name: attributes(data.described(name)) for name in hardware} if names else None
    learnt_from = WITHOUT_VALID if early else ALL
    is_learnt = pl.col("part").is_in(learnt_from.split(", "))
    split = data.split.filter(is_learnt).with_columns(part=pl.lit("train"))
    table = data.features(spec.name, spec.kind)
    train = join_samples(records, split, table, hardware, "train", devices, names)
    valid = join_samples(records, data.split, table, hardware, "valid", devices, names)
    learnt = records.filter(pl.col("record_id").is_in(train.record_id.tolist()))["workload_id"]
    of = data.tasks.filter(pl.col("workload_id").is_in(learnt.unique().to_list()))["network"]
    return _Material(train, valid, tuple(sorted(of.unique().to_list())))
