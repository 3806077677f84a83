"""The stage `splits`: records -> which of them may be learnt from."""

from __future__ import annotations

from pathlib import Path

import orjson
import polars as pl
from rich.console import Console
from rich.table import Table

from tencost.config import Config, SplitPolicy
from tencost.splits.leakage import check_leakage
from tencost.splits.policies import (
    PARTS,
    assign,
    check_measured,
    held_out_networks,
    not_judged,
)
from tencost.splits.table import save_split
from tencost.store.tables import load_records, load_tasks


def run(cfg: Config, root: Path) -> Path:
    """Write data/splits/<dataset>/<split>/: split.parquet and report.json; return the folder.

    Raises:
        SplitError: the split leaks, has a part without a record that has a time, or names what the dataset does not
            have. Nothing is written.
    """
    source = root / cfg.paths.records / cfg.dataset.name
    columns = [
        "record_id",
        "program_id",
        "workload_id",
        "task_name",
        "hardware",
        "timestamp",
        "status",
        "workload_args",
    ]
    records, tasks = load_records(source, columns=columns), load_tasks(source)
    split = assign(records, tasks, cfg.split)
    check_leakage(split, tasks, cfg.split)
    check_measured(split, records, tasks, cfg.split)
    folder = root / cfg.paths.splits / cfg.dataset.name / cfg.split_name
    save_split(folder, split)
    counts = _counts(split, records)
    report = {
        "policy": cfg.split.policy.value,
        "test": list(cfg.split.test),
        "absent": _absent(cfg, tasks),
        "seed": cfg.split.seed,
        "leak_free": cfg.split.policy.value != "within_task",
        "counts": counts.to_dicts(),
    }
    (folder / "report.json").write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    _show(cfg, counts)
    _say_unjudged(cfg, split, tasks)
    return folder


def _absent(cfg: Config, tasks: pl.DataFrame) -> list[str]:
    """Return the networks that are held out by default and are not in this dataset, said aloud: a name may be wrong."""
    if cfg.split.policy is not SplitPolicy.by_network:
        return []
    _, absent = held_out_networks(tasks, cfg.split.test)
    if absent:
        Console(stderr=True).print(
            f"Not in {cfg.dataset.name}, so nothing of them is held out: {', '.join(absent)}",
            style="yellow",
        )
    return absent


def _say_unjudged(cfg: Config, split: pl.DataFrame, tasks: pl.DataFrame) -> None:
    if cfg.split.policy is not SplitPolicy.by_network:
        return
    if task_counts := not_judged(split, tasks, cfg.split.test):
        listing = ", ".join(f"{network} ({count} tasks)" for network, count in task_counts.items())
        Console(stderr=True).print(
            f"Held out, but judged only where split.test names them: {listing}", style="yellow"
        )


def _counts(split: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Count records, ok records and workloads by part and hardware, in the order of PARTS."""
    order = {part: index for index, part in enumerate(PARTS)}
    return (
        split.join(records.select("record_id", "status"), on="record_id")
        .group_by("part", "hardware")
        .agg(
            records=pl.len(),
            ok=(pl.col("status") == "ok").sum(),
            workloads=pl.col("workload_id").n_unique(),
        )
        .sort(pl.col("part").replace_strict(order, return_dtype=pl.Int64), "hardware")
    )


def _show(cfg: Config, counts: pl.DataFrame) -> None:
    held_out = f", test: {', '.join(cfg.split.test)}" if cfg.split.test else ""
    table = Table(
        title=f"split {cfg.split_name} of {cfg.dataset.name} ({cfg.split.policy.value}{held_out})"
    )
    for name in ("part", "hardware", "records", "ok", "workloads"):
        table.add_column(name, justify="left" if name in ("part", "hardware") else "right")
    for row in counts.iter_rows():
        table.add_row(*(str(value) for value in row))
    Console(stderr=True).print(table)
