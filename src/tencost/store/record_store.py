"""The record store: a Delta Lake table partitioned by hardware, on a local path or an object store.

Writing is idempotent: a record that the store has is not written again. Writers do not lock: each
writes its files, which nobody sees, and commits them as the version after the one that it checked
for the same records. Where another was faster it checks what that one added and tries again. So a
process may be killed at any time: what it committed is there once, what it did not is not there. A
reader sees whole commits. layout.py says how rows lie in the files, docs/reference/store.md how to live
with a store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from tencost.errors import RecordError
from tencost.store.appending import Append, first_of_each_id
from tencost.store.compaction import Compaction, choose, rewrite, still_there
from tencost.store.delta import (
    Place,
    commit,
    open_table,
    removals,
    require_table,
    retry,
    writable_table,
)
from tencost.store.ids import canonical_target
from tencost.store.layout import PARTITION, DataFile, Folder, data_files, latency
from tencost.store.lookups import best_rows, workload_rows
from tencost.store.schema import SCHEMA, SCHEMA_VERSION, Record, to_arrow

__all__ = ["PARTITION", "RecordStore", "first_of_each_id", "latency"]

SMALL_FILES = 32
"""Small files of a hardware before a writer merges them."""
SMALL_ROWS = 4096
"""A file with fewer rows is small."""


class RecordStore:
    """A table of records at `uri`; it need not exist yet.

    Args:
        uri: a path, or what else Delta Lake takes (``s3://bucket/store``, ``az://``, ``gs://``).
        version: of the table, to read it as it was then; None reads the latest each time.
        storage_options: Delta Lake's settings of an object store, over those of the environment
            (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ...).

    Raises:
        RecordError: the table at `uri` is not a record store, is of a schema version that this
            program does not know, or has no such version.
    """

    def __init__(
        self,
        uri: str,
        version: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.uri = str(uri)
        self._place = Place(self.uri, version, dict(storage_options) if storage_options else None)
        self._folder = Folder(self.uri, self._place.storage_options)
        self._last = self._open()
        """As it was last seen: bringing it up to date costs less than opening the table."""
        if self._last is None and version is not None:
            self._require()

    @property
    def version(self) -> int | None:
        """The version that is read: the one asked for, or the latest now; None: nothing written."""
        table = self._open()
        return None if table is None else int(table.version())

    def exists(self) -> bool:
        """Say whether something was ever written."""
        return self._open() is not None

    def write(self, records: Iterable[Record]) -> int:
        """Add the records that the store does not have; return how many those were."""
        return self.write_table(to_arrow(records))

    def write_table(self, table: pa.Table) -> int:
        """Add the rows of a table of :data:`SCHEMA` that are not in the store; return their number.

        When it returns, the rows are in the store and stay there, whatever happens to the process.

        Raises:
            RecordError: other columns, a store opened at a version, or other writers were faster
                too often.
        """
        self._refuse_pinned()
        if not table.schema.equals(SCHEMA):
            raise RecordError(
                f"expected the columns of the record schema {SCHEMA_VERSION}, found "
                f"{', '.join(table.schema.names)}. Build the table with records.schema.to_arrow."
            )
        table = first_of_each_id(table)
        if table.num_rows == 0:
            return 0
        append = Append(self._place, self._folder, table)
        added = retry(self.uri, append.commit)
        self._tidy(append.beside)
        return added

    def read(
        self,
        hardware: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        *,
        quarantined: bool = False,
    ) -> pl.DataFrame:
        """Return the records of the hardware named (None: of all), sorted by hardware and source.

        Records in quarantine are left out unless `quarantined`.

        Raises:
            RecordError: there is no store, or it has no records of that hardware, or no such
                column.
        """
        wanted = _known_columns(columns)
        files = data_files(self._require())
        named = [hardware] if isinstance(hardware, str) else hardware
        if named is not None:
            self._need_hardware(named, files)
            files = [file for file in files if file.hardware in named]
        needed = list(dict.fromkeys([*wanted, PARTITION, "source", "record_id", "quarantine"]))
        parts = [pa.schema([SCHEMA.field(name) for name in needed]).empty_table()]
        for file in files:
            with self._folder.open(file.path) as opened:
                rows = opened.read(file.hardware, needed)
            if not quarantined and rows.column("quarantine").null_count < rows.num_rows:
                rows = rows.filter(rows.column("quarantine").is_null())
            parts.append(rows)
        frame = pl.from_arrow(pa.concat_tables(parts))
        assert isinstance(frame, pl.DataFrame)
        source = pl.col("source").struct
        order = [PARTITION, source.field("file"), source.field("line"), "record_id"]
        return frame.sort(order).select(wanted)

    def lookup(
        self,
        workload_id: str,
        *,
        hardware: str,
        target: Mapping[str, Any] | str,
        columns: Sequence[str] | None = None,
        quarantined: bool = False,
    ) -> pl.DataFrame:
        """Return a workload's records on a hardware for a target, fastest first.

        There is no look-up that ignores hardware or target. Records without times come last.

        Args:
            workload_id: see ids.py.
            hardware: name of the hardware.
            target: mapping or JSON text; compared in canonical form (ids.canonical_target).
            columns: columns to return; None: all of the schema.
            quarantined: whether records in quarantine are among them.

        Raises:
            RecordError: there is no store, or it has no records of that hardware, or no such
                column.
        """
        wanted = _known_columns(columns)
        text = _canonical(target)
        return self._up_to_date(
            hardware,
            lambda files: workload_rows(
                self._folder, files, workload_id, text, wanted, quarantined
            ),
        )

    def best(
        self,
        workload_id: str,
        *,
        hardware: str,
        target: Mapping[str, Any] | str,
        n: int = 1,
        columns: Sequence[str] | None = None,
        quarantined: bool = False,
    ) -> pl.DataFrame:
        """Return the `n` records of lowest latency (median of run_secs) of a workload, fastest first.

        As :meth:`lookup`, without records that have no times, and fast: it reads a few row groups
        however large the store is. Equal latencies are in the order of record_id.
        """
        wanted = _known_columns(columns)
        text = _canonical(target)
        return self._up_to_date(
            hardware,
            lambda files: best_rows(self._folder, files, workload_id, text, n, wanted, quarantined),
        )

    def hardware(self) -> list[str]:
        """Return the hardware that the store has records of, sorted."""
        table = self._open()
        return [] if table is None else sorted({file.hardware for file in data_files(table)})

    def compact(self, *, full: bool = False) -> Compaction:
        """Rewrite small and unsorted files into sorted ones (`full`: all files), for fast look-ups.

        Safe beside writers and readers: rows do not change, each hardware is one commit. Versions
        before it stay readable until :meth:`vacuum`.

        Raises:
            RecordError: there is no store, or another process rewrote the same files meanwhile.
        """
        self._refuse_pinned()
        self._require()
        files = data_files(retry(self.uri, partial(writable_table, self._place)))
        done = []
        for name in sorted({file.hardware for file in files}):
            mine = choose(self._folder, [file for file in files if file.hardware == name], full)
            if mine:
                done.append(self._rewrite(mine))
        self._require().create_checkpoint()
        return Compaction(
            sum(item.replaced for item in done),
            sum(item.written for item in done),
            sum(item.rows for item in done),
        )

    def release(self, record_ids: Iterable[str]) -> int:
        """Take records out of quarantine; return how many were in it."""
        self._refuse_pinned()
        wanted = pa.array(sorted(set(record_ids)), pa.string())
        return retry(self.uri, partial(self._release, wanted))

    def vacuum(self, hours: int = 168) -> int:
        """Delete files that no version of the last `hours` has; return how many.

        Versions older than that can no longer be read. Files of writers that were killed go, too;
        `hours` must be longer than any writer or reader takes that is still running.
        """
        self._refuse_pinned()
        deleted = self._require().vacuum(
            retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True
        )
        return len(deleted)

    def _up_to_date(
        self, hardware: str, find: Callable[[Sequence[DataFile]], pl.DataFrame]
    ) -> pl.DataFrame:
        """Call `find` with the latest files of a hardware, opening the table only where it must be."""
        if self._last is not None:
            try:
                if self._place.version is None:
                    self._last.update_incremental()
                files = data_files(self._last, hardware)
                if files:
                    return find(files)
            except (DeltaError, FileNotFoundError):
                pass  # The store was deleted and made anew, or cleaned up since.
        self._last = self._require()
        files = data_files(self._last)
        self._need_hardware([hardware], files)
        return find([file for file in files if file.hardware == hardware])

    def _need_hardware(self, named: Sequence[str], files: Sequence[DataFile]) -> None:
        held = sorted({file.hardware for file in files})
        missing = sorted(set(named) - set(held))
        if missing:
            raise RecordError(
                f"expected records of {', '.join(missing)} in {self.uri}, found only "
                f"{', '.join(held) or 'an empty store'}"
            )

    def _release(self, wanted: pa.Array) -> int:
        table = writable_table(self._place)
        old, new, released = [], [], 0
        for file in data_files(table):
            with self._folder.open(file.path) as opened:
                keys = opened.read(file.hardware, ["record_id", "quarantine"])
                chosen = pa.compute.and_(
                    pa.compute.is_in(keys.column("record_id"), value_set=wanted),
                    keys.column("quarantine").is_valid(),
                )
                count = pa.compute.sum(chosen).as_py() or 0
                if count:
                    rows = opened.read(file.hardware, SCHEMA.names)
                    column = SCHEMA.get_field_index("quarantine")
                    cleared = pa.compute.if_else(chosen, None, rows.column(column))
                    rows = rows.set_column(column, SCHEMA.field(column), cleared)
                    old.append(file)
                    new.extend(self._folder.write(rows))
                    released += int(count)
        if released:
            commit(table, [*removals(old, data_change=True), *new])
        return released

    def _tidy(self, files: Sequence[DataFile]) -> None:
        """Merge the small files of a hardware where there are many: each costs every look-up and write."""
        for name in {file.hardware for file in files}:
            small = [
                file for file in files if file.hardware == name and (file.rows or 0) < SMALL_ROWS
            ]
            if len(small) >= SMALL_FILES:
                # Where another writer did the same meanwhile, it is done.
                with suppress(RecordError):
                    self._rewrite(small)

    def _rewrite(self, files: Sequence[DataFile]) -> Compaction:
        added = rewrite(self._folder, files)
        retry(self.uri, partial(self._replace, files, added))
        return Compaction(len(files), len(added), sum(_rows_added(action) for action in added))

    def _replace(self, old: Sequence[DataFile], new: Sequence[AddAction]) -> None:
        table = self._require()
        if not still_there(table, old):
            raise RecordError(
                f"expected the files that were compacted still in {self.uri}; another process "
                "rewrote them. Nothing is lost; compact again if the store has many small files."
            )
        commit(table, [*removals(old, data_change=False), *new])

    def _open(self) -> DeltaTable | None:
        return open_table(self._place)

    def _require(self) -> DeltaTable:
        return require_table(self._place)

    def _refuse_pinned(self) -> None:
        if self._place.version is not None:
            raise RecordError(
                f"expected the latest version of {self.uri} for a change, found it opened at "
                f"version {self._place.version}. Open it without a version."
            )


def _rows_added(action: AddAction) -> int:
    return int(json.loads(action.stats)["numRecords"])


def _known_columns(columns: Sequence[str] | None) -> list[str]:
    wanted = list(columns) if columns is not None else list(SCHEMA.names)
    unknown = [name for name in wanted if name not in SCHEMA.names]
    if unknown:
        raise RecordError(
            f"expected columns of the record schema, found {', '.join(unknown)}. "
            f"Valid: {', '.join(SCHEMA.names)}"
        )
    return wanted


def _canonical(target: Mapping[str, Any] | str) -> str:
    value = json.loads(target) if isinstance(target, str) else dict(target)
    if not isinstance(value, dict):
        raise RecordError(f"expected a target as a JSON object, found {target!r}")
    return canonical_target(value)
