"""Adding rows to a store: those that it does not have, each once, beside other writers."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa
from deltalake.transaction import AddAction

from tencost.store.delta import Place, commit, writable_table
from tencost.store.layout import DataFile, Folder, by_hardware, data_files
from tencost.store.lookups import known_ids


class Append:
    """Rows on their way into a store: checked against each of its files once, written once."""

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
        parts = []
        for name, rows in by_hardware(self._rows):
            ids = rows.column("record_id")
            workloads = rows.column("workload_id").unique().to_pylist()
            known = known_ids(self._folder, files, name, ids, workloads)
            if len(known):
                rows = rows.filter(pa.compute.invert(pa.compute.is_in(ids, value_set=known)))
                self._written = []
            parts.append(rows)
        self._rows = pa.concat_tables(parts)


def first_of_each_id(table: pa.Table) -> pa.Table:
    """Return the rows of a table whose record_id does not occur before them."""
    ids = pl.from_arrow(table.column("record_id"))
    assert isinstance(ids, pl.Series)
    first = ids.is_first_distinct()
    return table if first.all() else table.filter(first.to_arrow())
