"""Changing rows of a store: the files that hold them are written anew, and one commit puts them in place of the old.

Delta Lake's `delete` and `merge` (deltalake 1.6.6) are as safe, but not used, for three reasons. After a `merge` the
rows of a file are no longer sorted by workload: look-ups in 200,000 rows of a hardware took 3.3 times as long (1.3
times after a `delete`). Both fail for a hardware whose name is longer than a folder's may be. And a dry run, which must
count the same rows, would need the condition a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import polars as pl
from deltalake.transaction import AddAction

from tencost.store.delta import (
    TableLocation,
    commit_version,
    require_table,
    retry,
    writable_table,
)
from tencost.store.layout import DataFile, Folder, data_files
from tencost.store.reading import StoreView
from tencost.store.schema import SCHEMA


@dataclass
class Rewriting:
    """Files written anew.

    Attributes:
        replaced: the files that go.
        added: those that come; none after a dry run.
        before: rows that were chosen.
        after: rows that are there in their place.
    """

    replaced: list[DataFile] = field(default_factory=list)
    added: list[AddAction] = field(default_factory=list)
    before: int = 0
    after: int = 0

    def __str__(self) -> str:
        return f"{self.after:,} rows in {len(self.replaced):,} files rewritten into {len(self.added):,}"


def rewrite_rows(
    folder: Folder,
    files: Sequence[DataFile],
    chosen: pl.Expr,
    change: Callable[[pl.DataFrame], pl.DataFrame],
    *,
    dry_run: bool = False,
) -> Rewriting:
    """Write the files that have chosen rows anew, with what `change` makes of these; no version has them yet.

    Args:
        folder: the store's.
        files: which may have such rows.
        chosen: a condition over the columns of the schema; null: not chosen.
        change: chosen rows of a file -> those in their place.
        dry_run: count only.
    """
    done = Rewriting()
    chosen = chosen.fill_null(False)
    for file in files:
        rows = folder.scan([file]).filter(chosen).collect()
        changed = change(rows) if rows.height else rows
        if changed.equals(rows):
            continue
        done.replaced.append(file)
        done.before += rows.height
        done.after += changed.height
        if not dry_run:
            others = folder.scan([file]).filter(~chosen).collect()
            done.added += folder.write(pl.concat([others, changed]).to_arrow().cast(SCHEMA))
    return done


def change_records(
    place: TableLocation,
    chosen: pl.Expr,
    change: Callable[[StoreView, pl.DataFrame], pl.DataFrame],
    *,
    hardware: str | None = None,
    dry_run: bool = False,
) -> Rewriting:
    """Change the chosen records of a store in one commit; where another writer was faster, again on what it left.

    Args:
        place: of the store.
        chosen: as in :func:`rewrite_rows`.
        change: the store's version, chosen records of one of its files -> those in their place.
        hardware: of this one only; None: of all.
        dry_run: count only.

    Raises:
        RecordError: there is no store, no record of the hardware, or other writers were faster too often.
    """
    require_table(place)

    def attempt() -> Rewriting:
        table = (require_table if dry_run else writable_table)(place)
        folder, files = Folder(place.uri, place.storage_options), data_files(table)
        view = StoreView(place.uri, int(table.version()), folder, tuple(files))
        if hardware is not None:
            view.need([hardware])
            files = [file for file in files if file.hardware == hardware]
        done = rewrite_rows(folder, files, chosen, lambda rows: change(view, rows), dry_run=dry_run)
        if done.replaced and not dry_run:
            commit_version(table, done.added, done.replaced)
        return done

    return retry(place.uri, attempt)
