"""``tencost records quarantine`` and ``compact``: what is kept out of look-ups, and the table's files in order."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

from tencost.errors import RecordError
from tencost.records.words import Words, read_words
from tencost.store.record_store import RecordStore
from tencost.store.tables import open_records

QUARANTINE_USAGE = "tencost records quarantine [release=<record id>|all] [store=data/store]"
COMPACT_USAGE = "tencost records compact [store=data/store]"


def quarantine(arguments: list[str], root: Path) -> None:
    """List the quarantined records, or release one or all of them.

    Raises:
        RecordError: wrong words, no store, or no such record.
    """
    words = read_words(arguments, QUARANTINE_USAGE, keys=("release", "store"))
    store = open_records(_place(words, root))
    kept = store.read(
        columns=["record_id", "hardware", "task_name", "quarantine", "source"], quarantined=True
    )
    kept = kept.filter(pl.col("quarantine").is_not_null())
    release = words.keys.get("release")
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


def compact(arguments: list[str], root: Path) -> None:
    """Rewrite small files into sorted ones, so that look-ups stay fast after many small imports.

    Raises:
        RecordError: wrong words, or no store.
    """
    words = read_words(arguments, COMPACT_USAGE, keys=("store",))
    sys.stdout.write(f"{RecordStore(_place(words, root)).compact()}\n")


def _place(words: Words, root: Path) -> str:
    return words.keys.get("store") or str(root / "data" / "store")


def _show(kept: pl.DataFrame) -> None:
    table = Table(title=f"{kept.height} quarantined records")
    for name in ("record", "hardware", "task", "read from", "reason"):
        table.add_column(name, overflow="fold")
    for row in kept.iter_rows(named=True):
        source = row["source"]
        place = f"{source['dataset']}: {source['file']}:{source['line']}"
        table.add_row(row["record_id"], row["hardware"], row["task_name"], place, row["quarantine"])
    Console().print(table)
