"""`tencost records import`: logs of any format into the record store, with progress and a summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from deltalake.exceptions import DeltaError
from rich.console import Console

from tencost.config import PathsConfig
from tencost.config.checking import plain_name
from tencost.config.parts import LOG_FORMATS
from tencost.errors import RecordError
from tencost.records.contradictions import contradiction_notes
from tencost.records.devices import parse_devices
from tencost.records.door import gate_of
from tencost.records.formats.metaschedule import FORMAT, RECORD_FILE, WORKLOAD_FILE
from tencost.records.logs import Logs, Progress, find_logs, import_logs, log_modules
from tencost.records.reading.report import SHOWN, progress_bar, report, write_rejects
from tencost.records.reading.walk import READ_WITH_RECORDS
from tencost.store.delta import delta_error_line
from tencost.store.editing import require_writable
from tencost.store.modules import write_modules
from tencost.store.record_store import RecordStore


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
    """Import logs and print a summary.

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
    places = ", ".join(map(str, paths))
    logs = find_logs(paths, dataset, devices)
    if not logs.files and not logs.measured:
        reasons = [f"{reject.file}: {reject.reason}" for reject in logs.rejects]
        reasons += [f"{file}: {reason}" for file, reason in logs.skipped]
        raise RecordError(
            f"expected logs ({', '.join(LOG_FORMATS.names())}) in {places}, found none: "
            f"{'; '.join(reasons[:SHOWN]) or 'empty folders'}"
        )
    require_writable(store.uri)
    started = time.monotonic()
    with progress_bar("logs", console) as move:

        def on_progress(progress: Progress) -> None:
            state = f"{progress.records.total():,} records, {len(progress.rejects):,} rejects"
            move(progress.files, progress.total, state)

        try:
            progress = import_logs(
                logs, store, jobs=jobs, on_progress=on_progress, gate=gate_of(store.uri, gate)
            )
            _keep_modules(logs, store)
        except (DeltaError, OSError) as error:
            raise RecordError(
                f"expected to write records into {store.uri}: {delta_error_line(error)}. What was written before "
                "stays; run the command again when it can be written"
            ) from error
    folder = root / "data" / "rejects"
    rejects = write_rejects(progress.rejects, folder / f"{dataset}.jsonl")
    refused_path = progress.refused.write(folder, dataset)
    rows = {
        **_rows(progress, store.uri, refused_path),
        "files": _files(progress.files, logs),
        "time": f"{time.monotonic() - started:.1f} s",
    }
    texts = [*progress.agreement.warnings(), *_unreadable(progress)]
    texts += contradiction_notes(progress.contradictions)
    warnings = [f"warning: {text}" for text in texts]
    report(rows, [*warnings, *_notes_of_others(logs)], rejects, console)
    if not progress.records:
        why = (
            f"none that can be read; the reasons are in {rejects.path}"
            if progress.rejects
            else "files without a record"
        )
        raise RecordError(f"expected records in {places}, found {why}")


def _no_logs(logs: Logs) -> dict[str, list[str]]:
    """Return the files that are no logs by the reason why; without those that are read with a log's records."""
    files: dict[str, list[str]] = {}
    for file, reason in logs.skipped:
        if not reason.endswith(READ_WITH_RECORDS):
            files.setdefault(reason, []).append(file)
    return files


def _files(read: int, logs: Logs) -> str:
    no_logs = sum(map(len, _no_logs(logs).values()))
    beside = len(logs.skipped) - no_logs
    words = [f"{read:,} read"]
    words += [f"{beside:,} beside them"] if beside else []
    words += [f"{no_logs:,} no logs"] if no_logs else []
    return ", ".join(words)


def _notes_of_others(logs: Logs) -> list[str]:
    """Return a note a reason why files are no logs."""
    return [
        f"{files[0]}: no log: {reason}"
        if len(files) == 1
        else f"{len(files):,} files are no logs: {reason}; the first is {files[0]}"
        for reason, files in _no_logs(logs).items()
    ]


def _modules_not_read(progress: Progress) -> str:
    records = sum(progress.unreadable.values(), Counter[str]())
    return f"{records.total():,} records of {len(records):,} workloads" if records else ""


def _unreadable(progress: Progress) -> list[str]:
    """Return a sentence for each reason why modules cannot be read, with the files and how many records those have."""
    by_reason: dict[str, list[str]] = {}
    for (file, why), records in sorted(progress.unreadable.items()):
        counts = f"{records.total():,} records of {len(records):,} workloads in {file}"
        by_reason.setdefault(why, []).append(counts)
    return [
        f"{'; '.join(files[:SHOWN])}{f'; and {len(files) - SHOWN} more files' if len(files) > SHOWN else ''}: {why}. "
        "These records are in the store: they are queried, compared and exported like others, but nothing that needs "
        "their module (compile, features of the module) can be done with them"
        for why, files in by_reason.items()
    ]


def _keep_modules(logs: Logs, store: RecordStore) -> None:
    of_logs = (module for log in logs.files for module in log_modules(log))
    measured = (
        module
        for folder in logs.measured
        for path in sorted((folder / "measure_records").glob(f"*/**/{RECORD_FILE}"))
        if path.with_name(WORKLOAD_FILE).is_file()
        for module in FORMAT.modules(path)
    )
    write_modules(store.uri, chain(of_logs, measured))


def _rows(progress: Progress, uri: str, refused_path: Path | None) -> dict[str, object]:
    """Return what was imported in words, title -> cell; empty cells where there is nothing to say."""

    def words(counts: Counter[str]) -> str:
        return ", ".join(f"{name} {number:,}" for name, number in sorted(counts.items()))

    refused = progress.refused.kinds
    several = progress.files > 1
    failures = Counter({name: n for name, n in progress.records.items() if name != "ok"})
    return {
        "records": f"{progress.records.total():,} ({progress.records['ok']:,} ok)",
        "failures": words(failures),
        "formats": words(progress.formats),
        "hardware": words(progress.hardware),
        "new in the store": f"{progress.written:,} ({uri})",
        "measured again": progress.again
        and f"{progress.again:,} further measurements of these or of records of the store: tencost records query "
        "history --program"
        + (
            ". If these are of several devices, say which is whose: --hardware FILE=NAME"
            if several
            else ""
        ),
        "repeats": progress.repeats
        and f"{progress.repeats:,} measurements that the store has or that were read twice",
        "modules not read": _modules_not_read(progress),
        "kept apart": refused_path
        and f"{refused.total():,}: {words(refused)} ({refused_path}, .jsonl: why)",
        "quarantined": progress.quarantined
        and f"{progress.quarantined:,}: tencost records quarantine",
    }
