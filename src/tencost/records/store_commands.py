"""`tencost records quarantine`, `compact`, `rename` and `delete`: changes of the live store."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tencost.config import PathsConfig
from tencost.config.checking import plain_name
from tencost.errors import RecordError, printable
from tencost.store import editing
from tencost.store.record_store import RecordStore
from tencost.store.tables import open_records


def quarantine(root: Path, *, store_uri: str | None = None, release: str | None = None) -> None:
    """List the quarantined records, or release one or all of them.

    Args:
        root: the project's.
        store_uri: the record store; None: the live one.
        release: a record's id, or "all".

    Raises:
        RecordError: no store, or no such record.
    """
    store = open_records(_place(store_uri, root))
    columns = ["record_id", "hardware", "task_name", "quarantine", "measurements", "source"]
    # Of a program that was measured again, one measurement may be in quarantine alone.
    inner = pl.element().struct.field("quarantine").drop_nulls()
    reason = pl.coalesce("quarantine", pl.col("measurements").list.eval(inner).list.first())
    kept = store.read(columns=columns, quarantined=True).with_columns(quarantine=reason)
    kept = kept.filter(pl.col("quarantine").is_not_null())
    if release is None:
        _show(kept)
        return
    ids = kept["record_id"].to_list()
    chosen = ids if release == "all" else [item for item in ids if item == release]
    if release != "all" and not chosen:
        raise RecordError(
            f"expected a quarantined record's id, found {release!r}. List them: tencost records quarantine"
        )
    if not isinstance(store, RecordStore):
        raise RecordError(
            f"expected a store to release records in, found {store.uri}, which a build made. Correct the dataset "
            "and build again"
        )
    store.release(chosen)
    sys.stdout.write(f"released {len(chosen)} records\n")


def compact(root: Path, *, store_uri: str | None = None) -> None:
    """Rewrite small files into sorted ones, so that look-ups stay fast after many small imports.

    Raises:
        RecordError: no store.
    """
    sys.stdout.write(f"{RecordStore(_place(store_uri, root)).compact()}\n")


def rename(
    old: str, new: str, root: Path, *, store_uri: str | None = None, dry_run: bool = False
) -> None:
    """Give the records of a hardware another name, and say how many.

    Args:
        old: the name that they have.
        new: the name that they get.
        root: the project's.
        store_uri: the record store; None: the live one.
        dry_run: say it only.

    Raises:
        ConfigError: `new` is no name of a folder.
        RecordError: no store, no such hardware.
    """
    plain_name("hardware", new)
    done = editing.rename_hardware(_place(store_uri, root), old, new, dry_run=dry_run)
    known = f"; {done.known} more were there already" if done.known else ""
    verb = "would be renamed" if dry_run else "renamed"
    sys.stdout.write(f"{verb}: {done.records} records of {old} to {new}{known}\n")


def delete(
    hardware: str,
    root: Path,
    *,
    source: str | None = None,
    store_uri: str | None = None,
    dry_run: bool = False,
) -> None:
    """Delete the records of a hardware, and say how many.

    Args:
        hardware: its name.
        root: the project's.
        source: of those read from this file only.
        store_uri: the record store; None: the live one.
        dry_run: say it only.

    Raises:
        RecordError: no store, no such hardware, or no records of the file.
    """
    place = _place(store_uri, root)
    done = editing.delete_records(place, hardware, source, dry_run=dry_run)
    verb = "would be deleted" if dry_run else "deleted"
    of = f" from {source}" if source else ""
    sys.stdout.write(f"{verb}: {done.records} records of {hardware}{of}\n")


def _place(uri: str | None, root: Path) -> str:
    return uri or PathsConfig().live_store(root)


def _show(kept: pl.DataFrame) -> None:
    table = Table(title=f"{kept.height} quarantined records")
    for name in ("record", "hardware", "task", "read from", "reason"):
        table.add_column(name, overflow="fold")
    for row in kept.iter_rows(named=True):
        source = row["source"]
        place = f"{source['dataset']}: {source['file']}:{source['line']}"
        cells = row["record_id"], row["hardware"], row["task_name"], place, row["quarantine"]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    Console().print(table)
