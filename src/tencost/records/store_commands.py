"""`tencost records quarantine`, `compact`, `vacuum`, `migrate`, `rename` and `delete`: changes of a record store.

Of all of them `root` is the project's, `store_uri` the record store (None: the live one), and with `dry_run` they only
say what they would do.
"""

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
from tencost.records import query
from tencost.store import editing
from tencost.store.generator import age
from tencost.store.migration import migrate_store
from tencost.store.record_store import RecordStore
from tencost.store.tables import open_records


def quarantine(root: Path, *, store_uri: str | None = None, release: str | None = None) -> None:
    """List the quarantined records, or release one (`release`: its id) or all of them ("all").

    Raises:
        RecordError: no store, or no such record.
    """
    store = open_records(_place(store_uri, root))
    columns = ["record_id", "hardware", "task_name", "quarantine", "measurements", "source"]
    # Of a program that was measured again, one measurement may be in quarantine alone.
    inner = pl.element().struct.field("quarantine").drop_nulls()
    reason = pl.coalesce("quarantine", pl.col("measurements").list.eval(inner).list.first())
    quarantined = store.read(columns=columns, quarantined=True).with_columns(quarantine=reason)
    quarantined = quarantined.filter(pl.col("quarantine").is_not_null())
    if release is None:
        _show(quarantined)
        return
    ids = quarantined["record_id"].to_list()
    chosen = ids if release == "all" else [identity for identity in ids if identity == release]
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


def vacuum(root: Path, *, hours: int, store_uri: str | None = None, dry_run: bool = False) -> None:
    """Delete files that no version of the last `hours` has, and say how many.

    Raises:
        RecordError: no store.
    """
    place = _place(store_uri, root)
    number = RecordStore(place).vacuum(hours, dry_run=dry_run)
    sys.stdout.write(
        f"{'would be deleted' if dry_run else 'deleted'}: {number} files of {place} that no version of the last "
        f"{hours} hours has\n"
    )


def migrate(root: Path, *, store_uri: str | None = None, dry_run: bool = False) -> None:
    """Give the records of a store of an earlier version their code generator, and say how many have which.

    Raises:
        RecordError: no store.
    """
    place = _place(store_uri, root)
    migration = migrate_store(place, dry_run=dry_run)
    verb = "would get" if dry_run else "got"
    lines = [
        f"{migration.records} records of {place} {verb} their code generator; {migration.divided} of them held "
        "measurements of several and are one record a generator"
    ]
    lines += [
        f"  {number} of {text}"
        for text, number in sorted(migration.generators.items(), key=lambda pair: age(pair[0]))
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def rename(
    root: Path,
    *,
    hardware: tuple[str, str] | None = None,
    dataset: tuple[str, str] | None = None,
    store_uri: str | None = None,
    dry_run: bool = False,
) -> None:
    """Give the records of a hardware, or of a dataset, another name, and say how many.

    One of `hardware` and `dataset` holds the name that they have and the one that they get.

    Raises:
        ConfigError: the new name is no name of a folder.
        RecordError: no store, no such hardware or dataset, or not one of the two.
    """
    if (hardware is None) == (dataset is None):
        presence = "neither" if hardware is None else "both"
        raise RecordError(
            f"expected one of --hardware OLD NEW and --dataset OLD NEW, found {presence}"
        )
    kind, change = ("hardware", editing.rename_hardware)
    if dataset is not None:
        kind, change = "dataset", editing.rename_dataset
    old, new = hardware or dataset or ("", "")
    plain_name(kind, new)
    renamed = change(_place(store_uri, root), old, new, dry_run=dry_run)
    there = renamed.before - renamed.after
    duplicates = f"; {there} more were there already" if there else ""
    verb = "would be renamed" if dry_run else "renamed"
    of = "" if dataset is None else "the dataset "
    sys.stdout.write(f"{verb}: {renamed.after} records of {of}{old} to {new}{duplicates}\n")


def delete(
    root: Path,
    *,
    hardware: str | None = None,
    source: str | None = None,
    where: str | None = None,
    store_uri: str | None = None,
    dry_run: bool = False,
) -> None:
    """Delete the records of a hardware, or of those read from the file `source`, and say how many.

    Instead of both, `where` is a condition in DuckDB's SQL over the columns of `all_records`.

    Raises:
        RecordError: no store, no such hardware, no records of the file, or a condition that is none or names none.
    """
    place = _place(store_uri, root)
    if (hardware is None) == (where is None) or (where is not None and source is not None):
        raise RecordError(
            "expected --hardware (and --source), or --where, found "
            f"{'neither' if hardware is None and where is None else 'both'}"
        )
    if where is None:
        deleted = editing.delete_records(place, str(hardware), source, dry_run=dry_run)
        of = f"of {hardware}" + (f" from {source}" if source else "")
    else:
        # A line of its own: a comment at the condition's end hides nothing.
        statement = f"SELECT hardware, record_id FROM all_records WHERE (\n{where}\n)"
        listed = query.sql(RecordStore(place), statement)
        if listed.is_empty():
            raise RecordError(f"expected records where {where}, found none in {place}")
        deleted = editing.delete_listed(place, listed, dry_run=dry_run)
        counts = listed.group_by("hardware").len().sort("hardware")
        of = "of " + ", ".join(f"{name} ({number})" for name, number in counts.iter_rows())
    verb = "would be deleted" if dry_run else "deleted"
    sys.stdout.write(f"{verb}: {deleted.before} records {of}\n")


def _place(uri: str | None, root: Path) -> str:
    return uri or PathsConfig().live_store(root)


def _show(quarantined: pl.DataFrame) -> None:
    table = Table(title=f"{quarantined.height} quarantined records")
    for name in ("record", "hardware", "task", "read from", "reason"):
        table.add_column(name, overflow="fold")
    for row in quarantined.iter_rows(named=True):
        source = row["source"]
        place = f"{source['dataset']}: {source['file']}:{source['line']}"
        cells = row["record_id"], row["hardware"], row["task_name"], place, row["quarantine"]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    Console().print(table)
