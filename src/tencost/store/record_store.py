"""The record store: a Delta Lake table, partitioned by hardware, on a local path or an object store.

Writing is idempotent: a record that the store has is not written again. Writers do not lock: each
writes its files, which nobody sees, and commits them as the version after the one that it checked
for the same records. Where another was faster it checks what that one added and tries again. So a
process may be killed at any time: what it committed is there once, what it did not is not there. A
reader sees whole commits. layout.py says how rows lie in the files, docs/reference/store.md how to live
with a store.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from tencost.errors import RecordError
from tencost.store.compaction import SMALL_FILES, Compaction, choose, rewrite, small
from tencost.store.delta import (
    NEXT_VERSION_OR_NONE,
    Place,
    commit,
    open_table,
    removals,
    require_table,
    retry,
    writable_table,
)
from tencost.store.layout import PARTITION, DataFile, Folder, data_files
from tencost.store.reading import Records, StoreView, View
from tencost.store.schema import SCHEMA, SCHEMA_VERSION, Record, to_arrow


class RecordStore(Records):
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
        append = _Append(self._place, self._folder, table)
        added = retry(self.uri, append.commit)
        self._tidy(append.beside)
        return added

    def compact(self, *, full: bool = False) -> Compaction:
        """Rewrite small and overlapping files into sorted ones (`full`: all files), for fast look-ups.

        Safe beside writers and readers: rows do not change, each hardware is one commit. Versions
        before it stay readable until :meth:`vacuum`.

        Raises:
            RecordError: there is no store, or another process rewrote the same files meanwhile.
        """
        self._refuse_pinned()
        require_table(self._place)
        files = data_files(retry(self.uri, partial(writable_table, self._place)))
        done = []
        for name in sorted({file.hardware for file in files}):
            mine = choose([file for file in files if file.hardware == name], full)
            if mine:
                done.append(self._rewrite(mine))
        require_table(self._place).create_checkpoint()
        return Compaction(
            sum(item.replaced for item in done),
            sum(item.written for item in done),
            sum(item.rows for item in done),
        )

    def release(self, record_ids: Iterable[str]) -> int:
        """Take records out of quarantine; return how many were in it."""
        self._refuse_pinned()
        wanted = ", ".join("'" + item.replace("'", "''") + "'" for item in set(record_ids))
        if not wanted:
            return 0
        chosen = f"quarantine IS NOT NULL AND record_id IN ({wanted})"

        def attempt() -> int:
            done = writable_table(self._place).update(
                {"quarantine": "NULL"}, predicate=chosen, commit_properties=NEXT_VERSION_OR_NONE
            )
            return int(done["num_updated_rows"])

        return retry(self.uri, attempt)

    def vacuum(self, hours: int = 168) -> int:
        """Delete files that no version of the last `hours` has; return how many.

        Versions older than that can no longer be read. Files of writers that were killed go, too;
        `hours` must be longer than any writer or reader takes that is still running.
        """
        self._refuse_pinned()
        deleted = require_table(self._place).vacuum(
            retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True
        )
        return len(deleted)

    def _answer(self, question: Callable[[View], pl.DataFrame]) -> pl.DataFrame:
        try:
            return question(self.view())
        except FileNotFoundError:  # The store was deleted and made anew, or cleaned up since.
            self._last = None
            return question(self.view())

    def _table(self) -> DeltaTable:
        if self._last is not None and self._place.version is None:
            try:
                self._last.update_incremental()
            except DeltaError:
                self._last = None
        if self._last is None:
            self._last = require_table(self._place)
        return self._last

    def _tidy(self, files: Sequence[DataFile]) -> None:
        """Merge the small files of a hardware where there are many: each costs every look-up and write."""
        for name in {file.hardware for file in files}:
            mine = small([file for file in files if file.hardware == name])
            if len(mine) >= SMALL_FILES:
                # Where another writer did the same meanwhile, it is done.
                with suppress(RecordError):
                    self._rewrite(mine)

    def _rewrite(self, files: Sequence[DataFile]) -> Compaction:
        added = rewrite(self._folder, files)
        retry(self.uri, partial(self._replace, files, added))
        rows = sum(json.loads(action.stats)["numRecords"] for action in added)
        return Compaction(len(files), len(added), rows)

    def _replace(self, old: Sequence[DataFile], new: Sequence[AddAction]) -> None:
        table = require_table(self._place)
        if not {file.path for file in old} <= {file.path for file in data_files(table)}:
            raise RecordError(
                f"expected the files that were compacted still in {self.uri}; another process "
                "rewrote them. Nothing is lost; compact again if the store has many small files."
            )
        commit(table, [*removals(old), *new])

    def _refuse_pinned(self) -> None:
        if self._place.version is not None:
            raise RecordError(
                f"expected the latest version of {self.uri} for a change, found it opened at "
                f"version {self._place.version}. Open it without a version."
            )


class _Append:
    """Rows on their way into a store: checked against each of its files once, written once.

    Delta Lake's merge would find out which rows are new as well, but reads the store and writes the
    rows again for each try.
    """

    def __init__(self, place: Place, folder: Folder, rows: pa.Table) -> None:
        self._place = place
        self._folder = folder
        self._rows = rows
        self.beside: list[DataFile] = []
        """The store's files that the rows were checked against last."""
        self._checked: set[str] = set()
        self._written: list[AddAction] = []

    def commit(self) -> int:
        """Commit the rows that the store's latest version does not have; return their number.

        Raises:
            CommitFailedError: another writer was faster; call again.
        """
        table = writable_table(self._place)
        files = data_files(table)
        # A commit whose answer was lost on the way may have succeeded.
        if self._written and {action.path for action in self._written} <= {f.path for f in files}:
            return int(self._rows.num_rows)
        self._drop_known([file for file in files if file.path not in self._checked])
        self.beside = files
        self._checked.update(file.path for file in files)
        if self._rows.num_rows == 0:
            return 0
        if not self._written:
            self._written = self._folder.write(self._rows)
        commit(table, self._written)
        return int(self._rows.num_rows)

    def _drop_known(self, files: Sequence[DataFile]) -> None:
        """Leave out the rows that the files have; what was written with them is not used then."""
        keys = pl.from_arrow(self._rows.select([PARTITION, "workload_id", "record_id"]))
        assert isinstance(keys, pl.DataFrame)
        known = []
        for (name,), mine in keys.group_by(PARTITION):
            # A record's id names its workload: files and row groups without those are not read.
            workloads = sorted(mine["workload_id"].unique())
            near = [file for file in files if file.hardware == name and _any_in(file, workloads)]
            if near:
                rows = self._folder.scan(near).filter(pl.col("workload_id").is_in(workloads))
                same = pl.col("record_id").is_in(mine["record_id"].implode())
                known.append(rows.filter(same).select(PARTITION, "record_id").collect())
        if any(map(len, known)):
            numbered = keys.with_row_index()
            new = numbered.join(pl.concat(known), on=[PARTITION, "record_id"], how="anti")
            self._rows = self._rows.take(new["index"].sort().to_arrow())
            self._written = []


def first_of_each_id(table: pa.Table) -> pa.Table:
    """Return the rows of a table whose record_id does not occur before them."""
    ids = pl.from_arrow(table.column("record_id"))
    assert isinstance(ids, pl.Series)
    first = ids.is_first_distinct()
    return table if first.all() else table.filter(first.to_arrow())


def _any_in(file: DataFile, workloads: Sequence[str]) -> bool:
    """Say whether one of the workloads (sorted) lies between the file's bounds."""
    first = 0 if file.lowest is None else bisect_left(workloads, file.lowest)
    return first < len(workloads) and (file.highest is None or workloads[first] <= file.highest)
