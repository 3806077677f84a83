"""`tencost records export ansor`, `autotvm`, `t4`, `tenset`, `rfc4304`, `table`: records of a store as logs again.

Records go out in the order of the logs that they were read from, each as its line was (formats/ say what that
promises). Quarantined records stay in the store.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import polars as pl

from tencost.config import PathsConfig
from tencost.errors import RecordError
from tencost.store.reading import Records
from tencost.store.tables import open_records
from tencost.writing import whole_file

Layout = Literal["columns", "json"]
"""The two versions of RFC 4304's records."""
_PROGRAMS = {
    "ansor": "ansor_steps",
    "tenset": "ansor_steps",
    "autotvm": "autotvm_config",
    "t4": "configuration",
}
"""What a format can hold; the others take every record."""


def run(
    kind: str,
    place: Path,
    root: Path,
    *,
    hardware: str | None = None,
    dataset: str | None = None,
    store_uri: str | None = None,
    layout: Layout = "json",
) -> None:
    """Write records of a store and say how many.

    Args:
        kind: one of FORMATS.
        place: the file; a folder for tenset.
        root: the project's.
        hardware: of this device only.
        dataset: of this dataset only.
        store_uri: the record store; None: the live one.
        layout: rfc4304: which of its two versions.

    Raises:
        RecordError: nothing to write, a place that is taken, or a name that a format does not take.
    """
    if place.is_file():
        raise RecordError(
            f"expected a place that is free, found the file {place}. Name another, or remove it"
        )
    store = open_records(store_uri or PathsConfig().live_store(root))
    records = _chosen(store, kind, hardware, dataset)
    place.parent.mkdir(parents=True, exist_ok=True)
    _WRITERS[kind](records, place, layout)
    sys.stdout.write(f"{place}: {records.height} records\n")


def _chosen(store: Records, kind: str, hardware: str | None, dataset: str | None) -> pl.DataFrame:
    records = store.read(hardware)
    if dataset is not None:
        records = records.filter(pl.col("source").struct.field("dataset") == dataset)
    if kind in _PROGRAMS:
        records = records.filter(pl.col("program_format") == _PROGRAMS[kind])
    if records.is_empty():
        what = (
            f"records with programs in the format {_PROGRAMS[kind]}"
            if kind in _PROGRAMS
            else "records"
        )
        of = ", ".join(name for name in (hardware, dataset) if name) or "any hardware"
        raise RecordError(
            f"expected {what} of {of} in {store.uri}, found none. What there is: "
            "tencost records query stats --by hardware,format"
        )
    return records


def _write_ansor(records: pl.DataFrame, place: Path, _layout: Layout) -> None:
    from tencost.records.formats.ansor import write_lines

    _write_lines(write_lines(records), place)


def _write_autotvm(records: pl.DataFrame, place: Path, _layout: Layout) -> None:
    from tencost.records.formats.autotvm import write_lines

    _write_lines(write_lines(records), place)


def _write_t4(records: pl.DataFrame, place: Path, _layout: Layout) -> None:
    from tencost.records.formats.t4.writing import document_of

    with whole_file(place) as scratch:
        scratch.write_text(json.dumps(document_of(records), indent=1), encoding="utf-8")


def _write_tenset(records: pl.DataFrame, place: Path, _layout: Layout) -> None:
    from tencost.records.tenset.writing import write_layout

    write_layout(place, records)


def _write_rfc4304(records: pl.DataFrame, place: Path, layout: Layout) -> None:
    from tencost.records.formats.rfc4304 import write_file

    write_file(records, place, layout)


def _write_table(records: pl.DataFrame, place: Path, _layout: Layout) -> None:
    from tencost.records.formats.table import write_file

    write_file(records, place)


def _write_lines(lines: Iterator[str], place: Path) -> None:
    """Write lines beside their place and move them there, so that a killed run leaves no half of it."""
    with whole_file(place) as scratch, scratch.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


_WRITERS: dict[str, Callable[[pl.DataFrame, Path, Layout], None]] = {
    "ansor": _write_ansor,
    "autotvm": _write_autotvm,
    "t4": _write_t4,
    "tenset": _write_tenset,
    "rfc4304": _write_rfc4304,
    "table": _write_table,
}
FORMATS = tuple(_WRITERS)
"""What records can be written as."""
