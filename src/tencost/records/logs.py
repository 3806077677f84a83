"""Logs of any format into a record store: which files are logs, reading them on all cores, writing what is new.

Files are read by processes that leave their batches in a scratch folder, so that memory is bounded by some batches, and
written in the order of the files, so that the same folder gives the same store. Writing is idempotent: what a run that
was stopped has written is there already when the command is run again.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow as pa

from tencost.config.parts import LOG_FORMATS
from tencost.errors import RecordError
from tencost.records.contradictions import COLUMNS, contradictions
from tencost.records.devices import Agreement, Devices
from tencost.records.door import Gate, RefusedRows, in_store
from tencost.records.gate import judged
from tencost.records.network_times.timing import are_networks, networks_uri
from tencost.records.raw_layout import read_tasks
from tencost.records.reading import walk
from tencost.records.reading.archives import Unpacked
from tencost.records.reading.protocol import BATCH_ROWS, About, Module, Reject
from tencost.records.reading.targets import NoDeviceError
from tencost.records.reading.walk import Source
from tencost.records.tenset.layout import is_tenset, read_layout, workload_networks
from tencost.store.measured import measurement_count
from tencost.store.record_store import RecordStore
from tencost.store.schema import SCHEMA

COMMIT_ROWS = 120_000
"""Rows of a commit, six full batches: they bound memory, and each commit adds files to the table."""
_UNMEASURED = "programs to measure, no records"
ALONE_BYTES = 4_000_000
"""Less than this in all files is read in this process: starting others would take longer."""


@dataclass(frozen=True)
class LogFile:
    """A file that is a log, and what is known about it; `format` is the name of a part of LOG_FORMATS."""

    path: Path
    format: str
    about: About


@dataclass(frozen=True)
class Logs:
    """The logs at the paths that a person named."""

    files: tuple[LogFile, ...]
    measured: tuple[Path, ...]
    """Folders in the layout of tencost.records.raw_layout, which say more than their databases."""
    skipped: tuple[tuple[str, str], ...]
    """(file, why it is no log)."""
    networks: Mapping[str, list[dict[str, object]]] = field(default_factory=dict)
    """Networks and weights by workload id, where a TenSet folder names them."""
    rejects: tuple[Reject, ...] = ()
    """Files that could not be opened or read, and members of archives that were not unpacked."""
    unpacked: tuple[Unpacked, ...] = ()
    """Archives, whose members are there as long as this object."""


@dataclass
class Progress:
    """Counts of an import so far.

    Attributes:
        records: records read, by status; what the store had already included.
        written: records that are new in the store, one for each program.
        again: further measurements of records, of new ones too.
        repeats: measurements that the store had or that were read twice.
        quarantined: of the new records, those that are kept out of look-ups.
        refused: records that were not let in.
        rejects: lines that could not be read.
        formats: records by format.
        agreement: whether records name the device that their log was given.
        workloads: ids of the workloads read, by hardware.
        contradictions: a sentence for each group that contradicts its neighbours in the store.
        unreadable: (file, why) of workloads whose modules this TVM cannot read -> records by workload id.
    """

    files: int = 0
    total: int = 0
    records: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    hardware: Counter[str] = field(default_factory=Counter)
    written: int = 0
    again: int = 0
    repeats: int = 0
    quarantined: int = 0
    refused: RefusedRows = field(default_factory=RefusedRows)
    rejects: list[Reject] = field(default_factory=list)
    agreement: Agreement = field(default_factory=Agreement)
    workloads: dict[str, set[str]] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    unreadable: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)


_Parsed = tuple[list[Path], list[Reject]]
"""Arrow files of a log's batches, and its rejects."""


def find_logs(paths: Sequence[Path], dataset: str, hardware: Devices | str | None) -> Logs:
    """Look at files, and recursively at folders and into archives, for logs.

    Args:
        paths: files and folders.
        dataset: name of the dataset that the records are to be part of.
        hardware: the device of records that name none and lie in no folder below measure_records/, or of some folders;
            None: the logs say it, or those folders do.

    Raises:
        RecordError: a path does not exist, or no log is in a folder whose device was said.
    """
    devices = hardware if isinstance(hardware, Devices) else Devices(hardware)
    walker = walk.Walk(lambda folder: is_measured(folder) or is_tenset(folder))
    files: list[LogFile] = []
    measured: list[Path] = []
    skipped: list[tuple[str, str]] = []
    rejects: list[Reject] = []
    networks: dict[str, list[dict[str, object]]] = {}

    def add(source: Source, device: str | None) -> None:
        try:
            source.require()
            format_name, reason = recognize(source.path, source.name, source.head)
        except RecordError as error:
            rejects.append(Reject(source.name, 0, str(error)))
            return
        if reason:
            skipped.append((source.name, reason))
            return
        about = About(dataset, source.name, devices.of(source.base, source.name, device), True)
        files.append(LogFile(source.path, format_name, about))

    for source in walker.sources(paths, "logs"):
        if not source.path.is_dir():
            add(source, _device_folder(Path(source.inner)))
        elif is_measured(source.path):
            measured.append(source.path)
        else:  # the measured logs of a TenSet dataset, and the networks that its tasks are of
            layout = read_layout(source.path)
            for path, device in layout.record_files:
                name = source.name + path.relative_to(source.path).as_posix()
                add(Source(path, source.base, name), device)
            skipped += [
                (source.name + path.relative_to(source.path).as_posix(), _UNMEASURED)
                for path in layout.program_files
            ]
            rejects += layout.rejects
            for identity, weights in workload_networks(layout.tasks).items():
                networks[identity] = [
                    {"network": network, "weight": weight} for network, weight in weights
                ]
    devices.check_used()
    unpacked = tuple(walker.unpacked)
    return Logs(tuple(files), tuple(measured), tuple(skipped), networks, tuple(rejects), unpacked)


def log_modules(log: LogFile) -> list[Module]:
    """Return the modules that a log or a file beside it carries; none of one that is a reject."""
    try:
        return LOG_FORMATS.load(log.format).modules(log.path)
    except RecordError:
        return []


def import_logs(
    logs: Logs,
    store: RecordStore,
    *,
    jobs: int | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    gate: Gate = Gate.quarantine,
) -> Progress:
    """Read logs and write the records that the store does not have.

    Raises:
        RecordError: a log does not say its device, or the store cannot be written. What was written before stays.
    """
    progress = Progress(total=len(logs.files) + len(logs.measured), rejects=list(logs.rejects))
    flop = {task.workload_id: task.flop for top in logs.measured for task in read_tasks(top)}
    waiting: list[pa.Table] = []
    log_devices = [*(None for _ in logs.measured), *(log.about.hardware for log in logs.files)]
    for device, (tables, rejects) in zip(log_devices, read_logs(logs, jobs), strict=True):
        progress.files += 1
        progress.rejects += rejects
        for table in tables:
            _tally(table, progress)
            if device is not None:
                progress.agreement.add(table, device)
            waiting.append(table)
            if sum(batch.num_rows for batch in waiting) >= COMMIT_ROWS:
                _commit(waiting, store, flop, progress, gate)
                waiting = []
        on_progress(progress)
    _commit(waiting, store, flop, progress, gate)
    on_progress(progress)
    for hardware in sorted(
        set(progress.workloads) & set(store.hardware() if store.exists() else ())
    ):
        records = store.read(hardware, COLUMNS)
        progress.contradictions += contradictions(records, progress.workloads[hardware])
    return progress


def read_logs(
    logs: Logs, jobs: int | None = None
) -> Iterator[tuple[Iterator[pa.Table], list[Reject]]]:
    """Yield the batches of each log, tables of schema.SCHEMA, and its rejects; in the order of the logs.

    Args:
        logs: what to read.
        jobs: processes; None: as many as this one has CPUs.

    Raises:
        RecordError: a log does not say its device.
    """
    from tencost.records.databases import import_dataset

    for folder in logs.measured:
        imported = import_dataset(folder, folder.name)
        yield iter([imported.table]), imported.rejects
    with tempfile.TemporaryDirectory(prefix="tencost-import-") as scratch:
        for paths, rejects in _parse_all(logs.files, Path(scratch), jobs):
            tables = _load(paths)
            if logs.networks:
                tables = (_with_networks(table, logs.networks) for table in tables)
            yield tables, rejects


def _parse_all(files: Sequence[LogFile], scratch: Path, jobs: int | None) -> Iterator[_Parsed]:
    size = sum(log.path.stat().st_size for log in files)
    count = min(jobs or _cpus(), len(files))
    if count <= 1 or size < ALONE_BYTES:
        for number, log in enumerate(files):
            yield _parse(log, scratch / str(number))
        return
    # A forked process would inherit the locks of Polars' and Arrow's threads, and may wait for them for ever.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        flying: dict[int, Future[_Parsed]] = {}
        try:
            for number in range(len(files)):
                # Few logs are read ahead, so that the scratch folder stays small.
                while len(flying) < 8 * count and number + len(flying) < len(files):
                    place = number + len(flying)
                    flying[place] = pool.submit(_parse, files[place], scratch / str(place))
                yield flying.pop(number).result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _parse(log: LogFile, scratch: Path) -> _Parsed:
    """Read one log; its batches are left as Arrow files that the caller removes.

    A log that cannot be opened, or lacks the file beside it that it needs, is one reject.
    """
    tables: list[Path] = []
    rejects: list[Reject] = []
    try:
        for number, batch in enumerate(
            LOG_FORMATS.load(log.format).read(log.path, log.about, BATCH_ROWS)
        ):
            rejects += batch.rejects
            if batch.records.num_rows:
                path = scratch.with_name(f"{scratch.name}-{number}.arrow")
                with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
                    writer.write_table(batch.records)
                tables.append(path)
    except NoDeviceError:
        raise
    except RecordError as error:
        rejects.append(Reject(log.about.file, 0, str(error)))
    return tables, rejects


def _load(paths: Sequence[Path]) -> Iterator[pa.Table]:
    for path in paths:
        with pa.OSFile(str(path), "rb") as source:
            table = pa.ipc.open_file(source).read_all()
        path.unlink()
        yield table


def _tally(table: pa.Table, progress: Progress) -> None:
    for name, counter in (
        ("status", progress.records),
        ("program_format", progress.formats),
        ("hardware", progress.hardware),
    ):
        for count_row in table.column(name).value_counts().to_pylist():
            counter[count_row["values"]] += count_row["counts"]
    pairs = pl.DataFrame(table.select(["hardware", "workload_id"])).unique()
    for hardware, workload in pairs.iter_rows():
        progress.workloads.setdefault(hardware, set()).add(workload)
    info = pl.col("additional_info").str.json_path_match("$.workload_unreadable")
    unreadable = (
        pl.DataFrame(table.select(["workload_id", "additional_info", "source"]))
        .select("workload_id", pl.col("source").struct.field("file"), why=info)
        .drop_nulls("why")
        .group_by("file", "why", "workload_id")
        .len()
    )
    for file, why, workload, count in unreadable.iter_rows():
        progress.unreadable.setdefault((file, why), Counter())[workload] += count


def _commit(
    tables: Sequence[pa.Table],
    store: RecordStore,
    flop: Mapping[str, float],
    progress: Progress,
    gate: Gate,
) -> None:
    if not tables:
        return
    for place, table in _by_place(pa.concat_tables(tables), store):
        checked = judged(table, flop, in_store(place, table))
        if gate is Gate.apart:
            checked = progress.refused.let_in(table, checked)
        added = place.add(checked)
        progress.written += added.records
        progress.again += added.again
        progress.repeats += measurement_count(checked) - added.records - added.again
        progress.quarantined += added.quarantined


def _by_place(table: pa.Table, store: RecordStore) -> Iterator[tuple[RecordStore, pa.Table]]:
    """Yield programs with the store, and our records of whole networks with the table beside it."""
    beside = are_networks(table)
    programs = table.filter(pa.compute.invert(beside))
    if programs.num_rows:
        yield store, programs
    if programs.num_rows < table.num_rows:
        yield RecordStore(networks_uri(store.uri)), table.filter(beside)


def _with_networks(table: pa.Table, networks: Mapping[str, list[dict[str, object]]]) -> pa.Table:
    position = SCHEMA.get_field_index("networks")
    field = SCHEMA.field("networks")
    ids = table.column("workload_id").to_pylist()
    current_networks = table.column("networks").to_pylist()
    values = [
        networks.get(identity, current)
        for identity, current in zip(ids, current_networks, strict=True)
    ]
    return table.set_column(position, field, pa.array(values, field.type))


def is_measured(folder: Path) -> bool:
    """Say whether a folder is in the layout of tencost.records.raw_layout: databases below measure_records/."""
    return any((folder / "measure_records").glob("*/**/database_tuning_record.json"))


def _device_folder(relative: Path) -> str | None:
    parts = relative.parts
    below = parts.index("measure_records") + 1 if "measure_records" in parts else len(parts)
    return parts[below] if below < len(parts) - 1 else None


def recognize(path: Path, name: str, head: bytes | None = None) -> tuple[str, str]:
    """Return (the name of a file's format, ""), or ("", why it is no log); at most one format knows a file.

    Raises:
        RecordError: the file cannot be opened, or is to be unpacked first, or has no beginning.
    """
    if "to_measure_programs" in Path(name).parts:
        return "", _UNMEASURED
    if path.suffix == ".pkl":
        return "", "a pickle: tasks and networks, no records"
    return walk.recognize(LOG_FORMATS, path, head)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
