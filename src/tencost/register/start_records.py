"""Starting points out of record stores: of a model's training side for its bundle, of a live store for a tuner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import polars as pl

from tencost.config import Config
from tencost.register.starts import PER_WORKLOAD, StartBook
from tencost.splits.table import load_split
from tencost.store.ids import canonical_target
from tencost.store.layout import latency
from tencost.store.record_store import RecordStore
from tencost.store.tables import load_records

COLUMNS = ("record_id", "workload_id", "target", "program_format", "program", "run_secs", "status")


def training_starts(cfg: Config, root: Path) -> StartBook:
    """Return the starting points that a model of cfg.hardware ships: no program of the split's test side.

    Raises:
        RecordError: there are no records of that hardware.
        SplitError: the split is not built.
    """
    split = load_split(root / cfg.paths.splits / cfg.dataset.name / cfg.split_name)
    allowed = split.filter(pl.col("part").is_in(["train", "valid"]))
    folder = root / cfg.paths.records / cfg.dataset.name
    records = load_records(folder, [cfg.hardware.name], COLUMNS)
    return _book(records.join(allowed, on="record_id", how="semi"), cfg)


def live_starts(cfg: Config, uri: str) -> StartBook:
    """Return the fastest programs that a live store has for cfg.hardware; an empty book where it has none."""
    store = RecordStore(uri)
    if not store.exists() or cfg.hardware.name not in store.hardware():
        return StartBook(cfg.hardware.name, cfg.hardware.target, ())
    return _book(store.read(cfg.hardware.name, COLUMNS), cfg)


def fastest(records: pl.DataFrame, target: dict[str, Any], per_workload: int) -> pl.DataFrame:
    """Return the fastest MetaSchedule programs of each workload for a target, with `latency_s`, the fastest first.

    Args:
        records: with the columns COLUMNS.
        target: TVM target that they must be for.
        per_workload: programs of a workload to keep.
    """
    wanted = canonical_target(target)
    targets = [
        text
        for text in records["target"].unique().to_list()
        if canonical_target(orjson.loads(text)) == wanted
    ]
    return (
        records.filter(
            pl.col("status") == "ok",
            pl.col("program_format") == "metaschedule_trace",
            pl.col("target").is_in(targets),
        )
        .with_columns(latency_s=latency())
        .sort("latency_s", "record_id")
        .group_by("workload_id", maintain_order=True)
        .head(per_workload)
    )


def _book(records: pl.DataFrame, cfg: Config) -> StartBook:
    kept = fastest(records, cfg.hardware.target, PER_WORKLOAD)
    programs: list[tuple[str, float, Any]] = [
        (workload, seconds, orjson.loads(program))
        for workload, seconds, program in kept.select(
            "workload_id", "latency_s", "program"
        ).iter_rows()
    ]
    return StartBook.of(cfg.hardware.name, cfg.hardware.target, programs)
