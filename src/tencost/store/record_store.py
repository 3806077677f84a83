"""The record store: a Delta Lake table, partitioned by hardware, on a local path or an object store.

Writing is idempotent: a record that the store has is not written again. Writers do not lock: each
writes its files, which nobody sees, and commits them as the version after the one that it checked
for the same records. Where another was faster it checks what that one added and tries again. So a
process may be killed at any time: what it committed is there once, what it did not is not there. A
reader sees whole commits. layout.py says how rows lie in the files, docs/reference/store.md how to live
with a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from tencost.errors import RecordError
from tencost.store import compaction, remote
from tencost.store.compaction import files_to_rewrite, merge_files, small
from tencost.store.delta import (
    TableLocation,
    commit_version,
    explain_damage,
    open_table,
    require_table,
    retry,
    writable_table,
)
from tencost.store.layout import PARTITION, DataFile, Folder, data_files
from tencost.store.measured import (
    KEY,
    TOLD,
    among,
    frame_of,
    key_in,
    measurement_count,
    one_of_each,
    released,
    rows_of,
)
from tencost.store.reading import StoredRecords, StoreView, View
from tencost.store.rewriting import Rewriting, change_records, rewrite_rows
from tencost.store.schema import SCHEMA, SCHEMA_VERSION, Record, to_arrow


@dataclass(frozen=True)
class Added:
    """What a write brought into a store.

    Attributes:
        records: new ones, one for each program, hardware and target.
        again: further measurements of records, new or old.
        quarantined: of the new records, those in quarantine.
    """

    records: int
    again: int
    quarantined: int


class RecordStore(StoredRecords):
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
        self._place = TableLocation(
            self.uri, version, dict(storage_options) if storage_options else None
        )
        self._folder = Folder(self.uri, self._place.storage_options)
        self._last = open_table(self._place) if version is None else require_table(self._place)
        """As it was last seen: bringing it up to date costs less than opening the table."""

    def view(self, version: int | None = None) -> StoreView:
        """Return the version that is read, or an earlier one.

        Raises:
            RecordError: there is no store, or no such version.
        """
        table = self._table() if version is None else require_table(self._place.at(version))
        return StoreView(self.uri, int(table.version()), self._folder, tuple(data_files(table)))

    def exists(self) -> bool:
        """Say whether something was ever written."""
        return open_table(self._place) is not None

    def write(self, records: Iterable[Record]) -> int:
        """Add the measurements that the store does not have; return how many those were."""
        return self.write_table(to_arrow(records))

    def write_table(self, table: pa.Table) -> int:
        """As :meth:`add`; return how many measurements were new."""
        added = self.add(table)
        return added.records + added.again

    def add(self, table: pa.Table) -> Added:
        """Add the rows of a table of :data:`SCHEMA` that are not in the store; return what those were.

        A row of a record that the store has is another measurement of it (see measured.py), unless
        the store has that, too. When it returns, the rows are in the store and stay there, whatever
        happens to the process.

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
        if table.num_rows == 0:
            return Added(0, 0, 0)
        table = one_of_each(table)
        append = _Append(self._place, self._folder, table)
        added = retry(self.uri, append.commit)
        self._tidy(append.beside)
        return added

    def compact(self, *, full: bool = False) -> Rewriting:
        """Rewrite small and overlapping files into sorted ones (`full`: all files), for fast look-ups.

        Safe beside writers and readers: rows do not change, each hardware is one commit. Versions
        before it stay readable until :meth:`vacuum`.

        Raises:
            RecordError: there is no store, or another process rewrote the same files meanwhile.
        """
        self._refuse_pinned()
        require_table(self._place)
        files = data_files(retry(self.uri, partial(writable_table, self._place)))
        done = Rewriting()
        for name in sorted({file.hardware for file in files}):
            mine = files_to_rewrite([file for file in files if file.hardware == name], full)
            if mine:
                merging = merge_files(self._place, mine)
                done.replaced += mine
                done.added += merging.added
                done.after += merging.after
        with remote.explain_store_errors(self.uri, self._place.storage_options):
            require_table(self._place).create_checkpoint()
        return done

    def release(self, record_ids: Iterable[str]) -> int:
        """Take records out of quarantine; return how many were in it."""
        self._refuse_pinned()
        measured = pl.col("measurements").list.eval(
            pl.element().struct.field("quarantine").is_not_null()
        )
        chosen = pl.col("record_id").is_in(sorted(set(record_ids))) & (
            pl.col("quarantine").is_not_null() | measured.list.any()
        )
        return change_records(
            self._place, chosen, lambda _, rows: frame_of(map(released, rows_of(rows)))
        ).before

    def vacuum(self, hours: int = 168, *, dry_run: bool = False) -> int:
        """Delete files that no version of the last `hours` has; return how many (`dry_run`: there would be).

        Versions older than that can no longer be read. Files of writers that were killed go, too;
        `hours` must be longer than any writer or reader takes that is still running.
        """
        self._refuse_pinned()
        table = require_table(self._place)
        with remote.explain_store_errors(self.uri, self._place.storage_options):
            deleted = table.vacuum(
                retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=True
            )
        return len(deleted)

    def _answer(self, question: Callable[[View], pl.DataFrame]) -> pl.DataFrame:
        with explain_damage(self.uri):
            try:
                return question(self.view())
            except FileNotFoundError:  # The store was deleted and made anew, or cleaned up since.
                self._last = None
                return question(self.view())

    def _table(self) -> DeltaTable:
        if self._last is not None and self._place.version is None:
            try:
                self._last.update_incremental()
            except (DeltaError, OSError):
                self._last = None
        if self._last is None:
            self._last = require_table(self._place)
        return self._last

    def _tidy(self, files: Sequence[DataFile]) -> None:
        """Merge the small files of a hardware where there are many: each costs every look-up and write."""
        for name in {file.hardware for file in files}:
            mine = small([file for file in files if file.hardware == name])
            if len(mine) >= compaction.SMALL_FILES:
                # Where another writer did the same meanwhile, it is done.
                with suppress(RecordError):
                    merge_files(self._place, mine)

    def _refuse_pinned(self) -> None:
        if self._place.version is not None:
            raise RecordError(
                f"expected the latest version of {self.uri} for a change, found it opened at "
                f"version {self._place.version}. Open it without a version."
            )


class _Append:
    """Rows on their way into a store: checked against each of its files once, written once.

    Delta Lake's merge would find out which rows are new as well, but reads the hardware's rows and
    writes the new ones again for each try, and any other commit makes it fail: 1,000 rows into
    600,000 took 4 times as long and 10 times the memory. A file that holds a program which was
    measured again is written anew.
    """

    def __init__(self, place: TableLocation, folder: Folder, rows: pa.Table) -> None:
        self._place = place
        self._folder = folder
        self._rows = rows
        self.beside: list[DataFile] = []
        """The store's files that the rows were checked against last."""
        self._checked: set[str] = set()
        self._written: list[AddAction] = []
        self._done = Added(0, 0, 0)

    def commit(self) -> Added:
        """Commit the measurements that the store's latest version does not have; return their number.

        Raises:
            CommitFailedError: another writer was faster; call again.
        """
        table = writable_table(self._place)
        files = data_files(table)
        # A commit whose answer was lost on the way may have succeeded.
        if self._written and {action.path for action in self._written} <= {f.path for f in files}:
            return self._done
        again = self._split([file for file in files if file.path not in self._checked])
        self.beside = files
        if again is None:
            self._checked.update(file.path for file in files)
            replaced: list[DataFile] = []
            if not self._written and self._rows.num_rows:
                self._written = self._folder.write(self._rows)
                self._done = _added(self._rows, 0)
        else:
            replaced = self._write_again(files, again)
        if not self._written:
            return Added(0, 0, 0)
        commit_version(table, self._written, replaced)
        return self._done

    def _split(self, files: Sequence[DataFile]) -> pl.Series | None:
        """Drop rows whose measurements the files have; say which of the others are of records that the files have."""
        keys = pl.DataFrame(self._rows.select([*KEY, "workload_id", *TOLD]))
        stored = []
        for (name,), mine in keys.group_by(PARTITION):
            # Files and row groups without the workloads are not read.
            same = pl.col("workload_id").is_in(mine["workload_id"].unique().implode())
            same &= pl.col("record_id").is_in(mine["record_id"].implode())
            near = self._folder.scan(_near(files, str(name), mine))
            stored.append(near.filter(same).select(*KEY, *TOLD).collect())
        states = among(keys, pl.concat(stored))
        if states.is_null().all():
            return None
        self._written = []
        remaining = ~states.fill_null(value=False)
        self._rows = self._rows.filter(remaining.to_arrow())
        again = states.filter(remaining).is_not_null()
        return again if again.any() else None

    def _write_again(self, files: Sequence[DataFile], again: pl.Series) -> list[DataFile]:
        """Write the rows; merge the rows `again` into the files that have their records, and return these files."""
        measured = pl.DataFrame(self._rows.filter(again.to_arrow()))
        rows = self._rows.filter((~again).to_arrow())
        further = 0

        def merged(stored: pl.DataFrame) -> pl.DataFrame:
            nonlocal further
            new = measured.join(stored.select(KEY), on=KEY, how="semi", maintain_order="left")
            old, both = (
                frame.to_arrow().cast(SCHEMA) for frame in (stored, pl.concat([stored, new]))
            )
            whole = one_of_each(both)
            further += measurement_count(whole) - measurement_count(old)
            return pl.DataFrame(whole)

        near = [
            file
            for (name,), mine in measured.group_by(PARTITION)
            for file in _near(files, str(name), mine)
        ]
        rewriting = rewrite_rows(self._folder, near, key_in(measured), merged)
        self._written = [*self._folder.write(rows), *rewriting.added]
        self._done = _added(rows, further)
        return rewriting.replaced


def _near(files: Sequence[DataFile], hardware: str, keys: pl.DataFrame) -> list[DataFile]:
    """Return the files of a hardware that may have workloads of `keys`: a record's id names its workload."""
    workloads = sorted(keys["workload_id"].unique())
    return [file for file in files if file.hardware == hardware and file.may_have(workloads)]


def _added(rows: pa.Table, again: int) -> Added:
    """Count what is added by rows of new records, and by `again` measurements of stored records."""
    quarantined = rows.num_rows - rows.column("quarantine").null_count
    return Added(rows.num_rows, measurement_count(rows) - rows.num_rows + again, quarantined)
