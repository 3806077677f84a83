"""Changing what a record store holds: another name for a hardware or a dataset, records deleted.

Each change is one commit: the files that it touches are read and written anew, so that readers see all of it or
nothing, and a version before it can still be opened until the store is vacuumed. Where another writer commits
meanwhile the change is made again on what that one left.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from tencost.errors import RecordError
from tencost.store.delta import TableLocation, commit_version, require_table, retry, writable_table
from tencost.store.ids import canonical_target, record_id, text_id
from tencost.store.layout import PARTITION, DataFile, Folder, data_files
from tencost.store.reading import StoreView
from tencost.store.schema import SCHEMA


@dataclass(frozen=True)
class StoreChange:
    """Counts of a change that was made, or that a dry run would make.

    Attributes:
        records: renamed or deleted.
        duplicates: records of the old name that the new name has already; they are stored once.
    """

    records: int
    duplicates: int = 0


def require_writable(uri: str) -> None:
    """Check that a local store can be written, before long work whose result it is to take; make its folder.

    Raises:
        RecordError: it cannot.
    """
    folder = Folder(uri).local
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RecordError(
            f"expected a place for a record store at {uri} that can be written: {error}. Name another: --store URI"
        ) from error


def rename_hardware(uri: str, old: str, new: str, *, dry_run: bool = False) -> StoreChange:
    """Give the records of a hardware another name, and the ids that they have under it.

    A record whose id says more than program, target and hardware (RFC 4304, somebody's table) keeps it.

    Args:
        uri: the store.
        old: the name that its records have.
        new: the name that they get; there may be records of it already.
        dry_run: count only.

    Raises:
        RecordError: no store, no records of `old`, or it is `new`.
    """
    if old == new:
        raise RecordError(f"expected another name than {old}, found the same")
    require_table(TableLocation(uri))
    return retry(uri, partial(_rename, TableLocation(uri), old, new, dry_run))


def delete_records(
    uri: str, hardware: str, source: str | None = None, *, dry_run: bool = False
) -> StoreChange:
    """Delete the records of a hardware.

    Args:
        uri: the store.
        hardware: its name.
        source: of those read from this file only, as the records name it, or the end of its path; None: all.
        dry_run: count only.

    Raises:
        RecordError: no store, no records of the hardware, or none from the file.
    """
    require_table(TableLocation(uri))
    return retry(uri, partial(_delete, TableLocation(uri), hardware, source, dry_run))


def rename_dataset(uri: str, old: str, new: str, *, dry_run: bool = False) -> StoreChange:
    """Give what records were read from another dataset's name; their ids, which do not tell it, stay.

    Args:
        uri: the store.
        old: the name that `source.dataset` of records, or of single measurements, has.
        new: the name that they get.
        dry_run: count only.

    Raises:
        RecordError: no store, no records of `old`, or it is `new`.
    """
    if old == new:
        raise RecordError(f"expected another name than {old}, found the same")
    require_table(TableLocation(uri))
    return retry(uri, partial(_rename_dataset, TableLocation(uri), old, new, dry_run))


def delete_listed(uri: str, listed: pl.DataFrame, *, dry_run: bool = False) -> StoreChange:
    """Delete the records of a list that are still there.

    Args:
        uri: the store.
        listed: columns hardware and record_id.
        dry_run: count only.

    Raises:
        RecordError: no store.
    """
    require_table(TableLocation(uri))
    return retry(uri, partial(_delete_listed, TableLocation(uri), listed, dry_run))


def _rename(place: TableLocation, old: str, new: str, dry_run: bool) -> StoreChange:
    table = (require_table if dry_run else writable_table)(place)
    folder, mine = _files_of(place, table, old)
    there = [file for file in data_files(table) if file.hardware == new]
    added: list[AddAction] = []
    moved = duplicates = 0
    for file in mine:
        rows = folder.scan([file]).collect()
        rows = rows.with_columns(record_id=_ids(rows, old, new), **{PARTITION: pl.lit(new)})
        existing = (
            folder.scan(there)
            .filter(pl.col("workload_id").is_in(rows["workload_id"].unique().implode()))
            .select("record_id")
            .collect()
        )
        remaining = rows.filter(~pl.col("record_id").is_in(existing["record_id"].implode()))
        moved, duplicates = moved + remaining.height, duplicates + rows.height - remaining.height
        if remaining.height and not dry_run:
            added += folder.write(remaining.to_arrow().cast(SCHEMA))
    if not dry_run:
        commit_version(table, [*_removals(mine), *added])
    return StoreChange(moved, duplicates)


def _rename_dataset(place: TableLocation, old: str, new: str, dry_run: bool) -> StoreChange:
    table = (require_table if dry_run else writable_table)(place)
    folder, files = Folder(place.uri, place.storage_options), data_files(table)
    from_dataset = pl.col("source").struct.field("dataset") == old
    measured_in = pl.element().struct.field("dataset") == old
    from_dataset = (
        from_dataset | pl.col("measurements").list.eval(measured_in).list.any()
    ).fill_null(False)
    touched: list[DataFile] = []
    added: list[AddAction] = []
    renamed = 0
    for file in files:
        count = folder.scan([file]).select(from_dataset.sum()).collect().item()
        if not count:
            continue
        renamed += int(count)
        touched.append(file)
        if not dry_run:
            rows = folder.scan([file]).collect().to_arrow().cast(SCHEMA).to_pylist()
            for row in rows:
                for place_of in (row["source"], *(row["measurements"] or ())):
                    if place_of and place_of["dataset"] == old:
                        place_of["dataset"] = new
            added += folder.write(pa.Table.from_pylist(rows, schema=SCHEMA))
    if not renamed:
        raise RecordError(
            f"expected records of the dataset {old} in {place.uri}, found none. What there is: tencost "
            'records query sql "SELECT source.dataset, count(*) FROM all_records GROUP BY ALL"'
        )
    if not dry_run:
        commit_version(table, [*_removals(touched), *added])
    return StoreChange(renamed)


def _delete_listed(place: TableLocation, listed: pl.DataFrame, dry_run: bool) -> StoreChange:
    table = (require_table if dry_run else writable_table)(place)
    folder, files = Folder(place.uri, place.storage_options), data_files(table)
    touched: list[DataFile] = []
    added: list[AddAction] = []
    deleted = 0
    for file in files:
        ids = listed.filter(pl.col(PARTITION) == file.hardware)["record_id"]
        chosen = pl.col("record_id").is_in(ids.implode())
        count = int(folder.scan([file]).select(chosen.sum()).collect().item())
        if not count:
            continue
        touched.append(file)
        deleted += count
        remaining = folder.scan([file]).filter(~chosen).collect()
        if remaining.height and not dry_run:
            added += folder.write(remaining.to_arrow().cast(SCHEMA))
    if touched and not dry_run:
        commit_version(table, [*_removals(touched), *added])
    return StoreChange(deleted)


def _ids(rows: pl.DataFrame, old: str, new: str) -> pl.Series:
    """Return the ids on the hardware `new`, made as MetaSchedule's are or as other logs' are; others stay the same."""
    ids = []
    columns = ("record_id", "program_id", "target", "generator")
    for identity, program, text, generator in rows.select(columns).iter_rows():
        target = json.loads(text)
        if identity == record_id(program, target, old, generator):
            ids.append(record_id(program, target, new, generator))
        elif identity == text_id(program, canonical_target(target), old):
            ids.append(text_id(program, canonical_target(target), new))
        else:
            ids.append(identity)
    return pl.Series("record_id", ids, dtype=pl.String)


def _delete(place: TableLocation, hardware: str, source: str | None, dry_run: bool) -> StoreChange:
    table = (require_table if dry_run else writable_table)(place)
    folder, mine = _files_of(place, table, hardware)
    touched: list[DataFile] = []
    added: list[AddAction] = []
    deleted = 0
    for file in mine:
        rows = folder.scan([file]).collect()
        remaining = rows.clear() if source is None else rows.filter(~_is_from(source))
        if remaining.height == rows.height:
            continue
        touched.append(file)
        deleted += rows.height - remaining.height
        if remaining.height and not dry_run:
            added += folder.write(remaining.to_arrow().cast(SCHEMA))
    if not deleted:
        raise RecordError(
            f"expected records of {hardware} from the file {source} in {place.uri}, found none. What there is: tencost "
            'records query sql "SELECT source.file, count(*) FROM records GROUP BY ALL"'
        )
    if not dry_run:
        commit_version(table, [*_removals(touched), *added])
    return StoreChange(deleted)


def _is_from(source: str) -> pl.Expr:
    file = pl.col("source").struct.field("file")
    return ((file == source) | file.str.ends_with(f"/{source}")).fill_null(False)


def _files_of(
    place: TableLocation, table: DeltaTable, hardware: str
) -> tuple[Folder, list[DataFile]]:
    """Return the store's folder and the files of a hardware.

    Raises:
        RecordError: there are none.
    """
    folder = Folder(place.uri, place.storage_options)
    files = data_files(table)
    StoreView(place.uri, int(table.version()), folder, tuple(files)).need([hardware])
    return folder, [file for file in files if file.hardware == hardware]


def _removals(files: Sequence[DataFile]) -> list[RemoveAction]:
    """Return what takes files with their rows out of the log."""
    now = int(time.time() * 1000)
    return [
        RemoveAction(unquote(file.path), True, now, partition_values={PARTITION: file.hardware})
        for file in files
    ]
