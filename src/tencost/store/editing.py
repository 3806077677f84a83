"""Changing what a record store holds: another name for a hardware or a dataset, records deleted.

Each change is one commit (rewriting.py): readers see all of it or nothing, and a version before it can still be opened
until the store is vacuumed.
"""

from __future__ import annotations

import json
import tempfile

import polars as pl

from tencost.errors import RecordError
from tencost.store.delta import TableLocation
from tencost.store.ids import canonical_target, record_id, text_id
from tencost.store.layout import PARTITION, Folder
from tencost.store.measured import key_in
from tencost.store.reading import StoreView
from tencost.store.rewriting import Rewriting, change_records


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


def rename_hardware(uri: str, old: str, new: str, *, dry_run: bool = False) -> Rewriting:
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
    _require_another(old, new)

    def renamed(view: StoreView, rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.with_columns(record_id=_ids(rows, old, new), **{PARTITION: pl.lit(new)})
        there = view.scan([new]).filter(
            pl.col("workload_id").is_in(rows["workload_id"].unique().implode())
        )
        return rows.join(there.select("record_id").collect(), on="record_id", how="anti")

    return change_records(TableLocation(uri), pl.lit(True), renamed, hardware=old, dry_run=dry_run)


def delete_records(
    uri: str, hardware: str, source: str | None = None, *, dry_run: bool = False
) -> Rewriting:
    """Delete the records of a hardware.

    Args:
        uri: the store.
        hardware: its name.
        source: of those read from this file only, as the records name it, or the end of its path; None: all.
        dry_run: count only.

    Raises:
        RecordError: no store, no records of the hardware, or none from the file.
    """
    file = pl.col("source").struct.field("file")
    chosen = pl.lit(True) if source is None else (file == source) | file.str.ends_with(f"/{source}")
    done = change_records(TableLocation(uri), chosen, _none, hardware=hardware, dry_run=dry_run)
    if not done.before:
        raise RecordError(
            f"expected records of {hardware} from the file {source} in {uri}, found none. What there is: tencost "
            'records query sql "SELECT source.file, count(*) FROM records GROUP BY ALL"'
        )
    return done


def rename_dataset(uri: str, old: str, new: str, *, dry_run: bool = False) -> Rewriting:
    """Give what records were read from another dataset's name; their ids, which do not tell it, stay.

    Args:
        uri: the store.
        old: the name that `source.dataset` of records, or of single measurements, has.
        new: the name that they get.
        dry_run: count only.

    Raises:
        RecordError: no store, no records of `old`, or it is `new`.
    """
    _require_another(old, new)

    def renamed(place: pl.Expr) -> pl.Expr:
        return place.struct.with_fields(pl.field("dataset").replace(old, new))

    measured_in = pl.element().struct.field("dataset") == old
    chosen = (pl.col("source").struct.field("dataset") == old).fill_null(False)
    chosen |= pl.col("measurements").list.eval(measured_in).list.any()
    places = renamed(pl.col("source")), pl.col("measurements").list.eval(renamed(pl.element()))
    done = change_records(
        TableLocation(uri), chosen, lambda _, rows: rows.with_columns(*places), dry_run=dry_run
    )
    if not done.before:
        raise RecordError(
            f"expected records of the dataset {old} in {uri}, found none. What there is: tencost "
            'records query sql "SELECT source.dataset, count(*) FROM all_records GROUP BY ALL"'
        )
    return done


def delete_listed(uri: str, listed: pl.DataFrame, *, dry_run: bool = False) -> Rewriting:
    """Delete the records of a list that are still there.

    Args:
        uri: the store.
        listed: columns hardware and record_id.
        dry_run: count only.

    Raises:
        RecordError: no store.
    """
    return change_records(TableLocation(uri), key_in(listed), _none, dry_run=dry_run)


def _require_another(old: str, new: str) -> None:
    if old == new:
        raise RecordError(f"expected another name than {old}, found the same")


def _none(_: StoreView, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.clear()


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
