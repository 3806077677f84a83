"""Stage records: data/raw/<dataset> to the records, tables, rejects and summary."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from tencost.config import Config
from tencost.errors import DatasetError
from tencost.records.contradictions import COLUMNS, contradiction_notes, contradictions
from tencost.records.databases import Import, import_dataset, import_parts
from tencost.records.devices import Devices
from tencost.records.gate import judged
from tencost.records.log_dataset import read_log_dataset
from tencost.records.logs import is_measured
from tencost.records.reading.report import SHOWN, in_words, progress_bar, show_rejects
from tencost.store.generator import UNKNOWN, age
from tencost.store.measured import measurement_count, one_of_each
from tencost.store.tables import RULE_TIMES, TASKS, WORKLOADS, load_records, write_records
from tencost.writing import whole_folder

_WORKLOAD_COLUMNS = {
    **dict.fromkeys(("workload_id", "mod_json", "task_name", "shash"), pl.String),
    "measured": pl.Boolean,
}
_TASK_COLUMNS = {
    **dict.fromkeys(("network", "task_name", "workload_id"), pl.String),
    **{"weight": pl.Int64, "flop": pl.Float64, "measured": pl.Boolean},
}


def run(cfg: Config, root: Path) -> Path:
    """Read a raw dataset into data/records/<name>/, whole or not at all; return that folder.

    Raises:
        DatasetError: the raw dataset is missing or not in its layout, or holds no readable record.
    """
    raw = root / cfg.paths.raw / cfg.dataset.name
    folder = root / cfg.paths.records / cfg.dataset.name
    if not raw.is_dir():
        raise DatasetError(
            f"expected the raw dataset in {raw}, found nothing. "
            f"Fetch it: tencost fetch dataset={cfg.dataset.name}"
        )
    console = Console(stderr=True)
    with progress_bar("records", console) as move:
        imported = _read(raw, cfg, lambda completed, total: move(completed, total, ""))
    if not len(imported.records):
        reasons = "; ".join(map(in_words, imported.rejects[:SHOWN]))
        raise DatasetError(f"expected readable records in {raw}, found none. {reasons}")
    with whole_folder(folder) as content:
        summary = _write(content, imported)
    _report(summary, console)
    for text in contradiction_notes(contradictions(load_records(folder, columns=COLUMNS))):
        console.print(f"warning: {text}", highlight=False, markup=False)
    show_rejects(imported.rejects, console)
    return folder


def _read(raw: Path, cfg: Config, on_file: Callable[[int, int], None]) -> Import:
    """Read a dataset in our layout, several that make one (dataset.parts), or a folder of logs in any other layout."""
    if cfg.dataset.parts:
        return import_parts([raw / part for part in cfg.dataset.parts], on_database=on_file)
    if is_measured(raw):
        return import_dataset(raw, cfg.dataset.name, on_database=on_file)
    devices = Devices(cfg.dataset.hardware, cfg.dataset.devices)
    return read_log_dataset(raw, cfg.dataset.name, devices, on_file)


def _write(folder: Path, imported: Import) -> dict[str, Any]:
    read = imported.table
    table = one_of_each(judged(read, {task.workload_id: task.flop for task in imported.tasks}))
    measured = measurement_count(table)
    write_records(folder, table)
    for items, schema, name in (
        (imported.workloads, _WORKLOAD_COLUMNS, WORKLOADS),
        (imported.tasks, _TASK_COLUMNS, TASKS),
    ):
        pl.DataFrame([asdict(row) for row in items], schema=schema).write_parquet(folder / name)
    if imported.rule_times:
        rule_times = pl.DataFrame([asdict(time) for time in imported.rule_times])
        rule_times.sort("hardware", "workload_id").write_parquet(folder / RULE_TIMES)
    lines = [json.dumps(asdict(reject)) + "\n" for reject in imported.rejects]
    (folder / "rejects.jsonl").write_text("".join(lines), encoding="utf-8")
    counts: dict[str, Counter[str]] = {}
    columns = (table.column(name).to_pylist() for name in ("hardware", "status"))
    for hardware, status in zip(*columns, strict=True):
        counts.setdefault(hardware, Counter())[status] += 1
    generators = table.column("generator").to_pylist()
    summary = {
        "records": table.num_rows,
        "measured_again": measured - table.num_rows,
        "duplicates": measurement_count(read) - measured,
        "quarantined": table.num_rows - table.column("quarantine").null_count,
        "programs": len(table.column("program_id").unique()),
        "workloads": len(table.column("workload_id").unique()),
        "tasks": len(imported.tasks),
        "networks": sorted({task.network for task in imported.tasks}),
        "generators": dict(
            sorted(
                Counter(text or UNKNOWN for text in generators).items(),
                key=lambda pair: age(pair[0]),
            )
        ),
        "status": {name: dict(sorted(count.items())) for name, count in sorted(counts.items())},
        "rejects": len(imported.rejects),
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _report(summary: dict[str, Any], console: Console) -> None:
    table = Table(title="records by hardware and status")
    statuses = sorted({status for counts in summary["status"].values() for status in counts})
    table.add_column("hardware")
    for status in statuses:
        table.add_column(status, justify="right")
    for hardware, counts in summary["status"].items():
        table.add_row(hardware, *(str(counts.get(status, 0)) for status in statuses))
    console.print(table)
    console.print(
        f"{summary['records']} records of {summary['programs']} programs, "
        f"{summary['workloads']} workloads, {len(summary['networks'])} networks; "
        f"{summary['measured_again']} measured again, {summary['duplicates']} duplicates, "
        f"{summary['quarantined']} quarantined, "
        f"{summary['rejects']} rejected lines (rejects.jsonl)"
    )
    for text, number in summary["generators"].items():
        console.print(f"{number} records of the code generator {text}", highlight=False)
