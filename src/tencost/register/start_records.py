"""Starting points out of record stores: of a model's training side for its bundle, of a live store for a tuner."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import orjson
import polars as pl

from tencost.config import Config
from tencost.models.manifest import write_manifest
from tencost.models.programs.bundle import read_info
from tencost.programs.starting_points import FILE, PER_WORKLOAD, StartBook
from tencost.store.ids import canonical_target
from tencost.store.layout import latency
from tencost.store.reading import of_preferred_generator
from tencost.store.record_store import RecordStore
from tencost.store.tables import load_records
from tencost.train.data import Data

COLUMNS = (
    "record_id",
    "workload_id",
    "hardware",
    "target",
    "generator",
    "program_format",
    "program",
    "run_secs",
    "status",
)


def ship(bundle: Path, book: StartBook, folder: Path) -> Path:
    """Copy a bundle into a new folder, with the book in it; returns that folder.

    Raises:
        BundleError: the bundle cannot be read.
    """
    info = read_info(bundle)
    shutil.copytree(bundle, folder)
    book.write(folder / FILE)
    digest = hashlib.sha256((folder / FILE).read_bytes()).hexdigest()
    shipped = replace(info, files={**info.files, FILE: digest}).to_dict()
    write_manifest(folder, shipped)
    return folder


def training_starts(data: Data, *, refit: bool = False) -> StartBook:
    """Return the starting points that a model of cfg.hardware ships: of what it was trained on.

    Args:
        data: its dataset.
        refit: whether it was fitted on all parts of the split; else no program of the test side is among them.

    A model of several hardware ships what is fast on any of them. Their seconds cannot be compared, so each program
    has those that it would take if every hardware's fastest one of the workload took the same: their geometric mean.

    Raises:
        RecordError: there are no records of that hardware.
        SplitError: the split is not built.
    """
    cfg = data.cfg
    parts = ["train", "valid", "test"] if refit else ["train", "valid"]
    allowed = data.split.filter(pl.col("part").is_in(parts))
    books = []
    for name in data.hardware():
        records = load_records(data.records_folder, [name], COLUMNS)
        described = replace(cfg, hardware=data.described(name))
        books.append(_book(records.join(allowed, on="record_id", how="semi"), described))
    return books[0] if len(books) == 1 else _shared(books, cfg)


def _shared(books: Sequence[StartBook], cfg: Config) -> StartBook:
    """Return the programs of several hardware in one book."""
    seconds: dict[str, dict[str, float]] = {}
    for book in books:
        for start in book.starts:
            of_workload = seconds.setdefault(start.workload, {})
            of_workload.setdefault(book.hardware, start.latency_s * start.share)
    shared = {workload: geometric_mean(of.values()) for workload, of in seconds.items()}
    best: dict[tuple[str, bytes], tuple[str, float, Any]] = {}
    for start in (start for book in books for start in book.starts):
        key = (start.workload, orjson.dumps(start.trace))
        program = (start.workload, shared[start.workload] / start.share, start.trace)
        best[key] = min(best.get(key, program), program, key=lambda program: program[1])
    return StartBook.of(cfg.hardware.name, cfg.hardware.target, best.values())


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
    same = {canonical_target(target), canonical_target(as_recorded(target))}
    targets = [
        text
        for text in records["target"].unique().to_list()
        if canonical_target(orjson.loads(text)) in same
    ]
    return (
        of_preferred_generator(records.filter(pl.col("target").is_in(targets)))
        .filter(
            pl.col("status") == "ok",
            pl.col("program_format") == "metaschedule_trace",
        )
        .with_columns(latency_s=latency())
        .sort("latency_s", "record_id")
        .group_by("workload_id", maintain_order=True)
        .head(per_workload)
    )


def as_recorded(target: dict[str, Any]) -> dict[str, Any]:
    """Return a target as TVM writes it into a database: with the keys that a description may leave out.

    A target without a kind, of logs that name none, stays as it is: TVM refuses it.
    """
    if "kind" not in target:
        return target
    from tvm.target import Target

    return dict(orjson.loads(str(Target(target))))


def _book(records: pl.DataFrame, cfg: Config) -> StartBook:
    best = fastest(records, cfg.hardware.target, PER_WORKLOAD)
    programs: list[tuple[str, float, Any]] = [
        (workload, seconds, orjson.loads(program))
        for workload, seconds, program in best.select(
            "workload_id", "latency_s", "program"
        ).iter_rows()
    ]
    return StartBook.of(cfg.hardware.name, cfg.hardware.target, programs)
