"""`tencost records import`: logs of any format into the record store, with progress and a summary."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from deltalake.exceptions import DeltaError
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from tencost.config import PathsConfig
from tencost.config.checking import plain_name
from tencost.config.parts import LOG_FORMATS
from tencost.errors import RecordError, printable
from tencost.records.devices import parse_devices
from tencost.records.door import gate_of
from tencost.records.formats.metaschedule import FORMAT, RECORD_FILE, WORKLOAD_FILE
from tencost.records.logs import Logs, Progress, find_logs, import_logs, log_modules
from tencost.store.delta import first_line
from tencost.store.editing import require_writable
from tencost.store.modules import write_modules
from tencost.store.record_store import RecordStore

SHOWN = 5
"""Rejected lines that are printed; all are in the file that is named."""


def run(
    paths: Sequence[Path],
    root: Path,
    *,
    hardware: Sequence[str] = (),
    dataset: str | None = None,
    store_uri: str | None = None,
    jobs: int | None = None,
    gate: str | None = None,
) -> None:
    """Import logs and say what came in.

    Args:
        paths: files and folders of logs, archives too.
        root: the project's; rejected lines are written below its data/rejects.
        hardware: NAME, the device of records that name none, and FOLDER=NAME, that of those in a folder or file.
        dataset: what the records are called after; None: the first path's name.
        store_uri: the record store; None: the live one.
        jobs: worker processes; None: one a core.
        gate: what becomes of records with a fault, see door.py; None: apart for an object store, else quarantine.

    Raises:
        ConfigError: a name that is no name of a folder.
        RecordError: no log at the paths, or no record in any of them.
    """
    dataset = dataset or paths[0].resolve().name.split(".")[0]
    plain_name("dataset", dataset)
    devices = parse_devices(hardware)
    store = RecordStore(store_uri or PathsConfig().live_store(root))
    console = Console(stderr=True)
    told_paths = ", ".join(map(str, paths))
    logs = find_logs(paths, dataset, devices)
    if not logs.files and not logs.measured:
        reasons = [(item.file, item.reason) for item in logs.rejects] + list(logs.skipped)
        told = "; ".join(f"{file}: {why}" for file, why in reasons[:SHOWN]) or "empty folders"
        raise RecordError(
            f"expected logs ({', '.join(LOG_FORMATS.names())}) in {told_paths}, found none: {told}"
        )
    require_writable(store.uri)
    started = time.monotonic()
    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
        console=console,
        transient=True,
    ) as bar:
        shown = bar.add_task("logs", total=len(logs.files) + len(logs.measured), state="")

        def on_progress(progress: Progress) -> None:
            state = f"{progress.records.total()} records, {len(progress.rejects)} rejects"
            bar.update(shown, completed=progress.files, state=state)

        try:
            progress = import_logs(
                logs, store, jobs=jobs, on_progress=on_progress, gate=gate_of(store.uri, gate)
            )
            _keep_modules(logs, store)
        except (DeltaError, OSError) as error:
            raise RecordError(
                f"expected to write records into {store.uri}: {first_line(error)}. What was written before "
                "stays; run the command again when it can be written"
            ) from error
    rejects = _write_rejects(progress, dataset, root)
    apart = progress.apart.write(root / "data" / "rejects", dataset)
    _report(progress, logs, (rejects, apart), time.monotonic() - started, store, console)
    if not progress.records:
        raise RecordError(
            f"expected records in {told_paths}, found none that can be read; the reasons are in {rejects}"
        )


def _keep_modules(logs: Logs, store: RecordStore) -> None:
    of_logs = (module for item in logs.files for module in log_modules(item))
    measured = (
        module
        for folder in logs.measured
        for path in sorted((folder / "measure_records").glob(f"*/**/{RECORD_FILE}"))
        if path.with_name(WORKLOAD_FILE).is_file()
        for module in FORMAT.modules(path)
    )
    write_modules(store.uri, chain(of_logs, measured))


def _write_rejects(progress: Progress, dataset: str, root: Path) -> Path | None:
    path = root / "data" / "rejects" / f"{dataset}.jsonl"
    if not progress.rejects:
        path.unlink(missing_ok=True)  # of an earlier import
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(
        json.dumps({"file": item.file, "line": item.line, "reason": item.reason}) + "\n"
        for item in progress.rejects
    )
    path.write_text(text, encoding="utf-8")
    return path


def _report(
    progress: Progress,
    logs: Logs,
    files: tuple[Path | None, Path | None],
    seconds: float,
    store: RecordStore,
    console: Console,
) -> None:
    rejects, apart = files
    table = Table(title="imported", show_header=False)
    total = progress.records.total()
    table.add_row("records", f"{total} ({progress.records['ok']} ok)")
    failed = [f"{count} {name}" for name, count in sorted(progress.records.items()) if name != "ok"]
    if failed:
        table.add_row("failures", ", ".join(failed))
    for title, counts in (("formats", progress.formats), ("hardware", progress.hardware)):
        told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        table.add_row(title, escape(printable(told)))
    table.add_row("new in the store", f"{progress.written} ({store.uri})")
    if progress.again:
        table.add_row(
            "measured again", f"{progress.again}: tencost records query history --program"
        )
    refused = progress.apart.kinds
    before = total - progress.written - progress.again - refused.total()
    table.add_row("measured before", str(before))
    if apart is not None:
        told = ", ".join(f"{name} {number}" for name, number in sorted(refused.items()))
        table.add_row(
            "kept apart", f"{refused.total()}: {told} ({escape(str(apart))}, .jsonl: why)"
        )
    if progress.quarantined:
        table.add_row("quarantined", f"{progress.quarantined}: tencost records quarantine")
    table.add_row("rejected lines", f"{len(progress.rejects)}{f' ({rejects})' if rejects else ''}")
    table.add_row("files", f"{progress.files} read, {len(logs.skipped)} no logs")
    table.add_row("time", f"{seconds:.1f} s")
    console.print(table)
    for told in progress.agreement.warnings():
        console.print(f"warning: {printable(told)}", style="yellow", markup=False, soft_wrap=True)
    for item in progress.rejects[:SHOWN]:
        told = printable(f"{item.file}:{item.line}: {item.reason}")
        console.print(told, style="yellow", markup=False)
