"""`tencost records export ansor`, `autotvm`, `tenset`, `rfc4304` and `table`: records of a store as logs again.

Records go out in the order of the logs that they were read from, each as its line was (formats/ say what that
promises). Quarantined records stay in the store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import polars as pl

from tencost.errors import RecordError
from tencost.records.query_command import Place, open_store
from tencost.store.reading import Records
from tencost.writing import whole_file

Layout = Literal["columns", "json"]
"""The two versions of RFC 4304's records."""
_PROGRAMS = {"ansor": "ansor_steps", "tenset": "ansor_steps", "autotvm": "autotvm_config"}
"""What a format can hold; the others take every record."""


def run(
    kind: str,
    place: Path,
    store: Place,
    *,
    hardware: str | None = None,
    dataset: str | None = None,
    layout: Layout = "json",
    per_hardware: bool = False,
) -> None:
    """Write records of a store and say how many, and what is not in them as it was measured.

    Args:
        kind: one of FORMATS.
        place: the file; a folder for tenset.
        store: where the records are.
        hardware: of this device only.
        dataset: of records that were imported under this name only.
        layout: rfc4304: which of its two versions.
        per_hardware: ansor, autotvm: a file for each device.

    Raises:
        RecordError: nothing to write, a place that is taken, records of several devices in a format that does not tell
            them apart, or a name that a format does not take.
    """
    source = open_store(store)
    records = _chosen(source, kind, hardware, dataset)
    devices = records["hardware"].unique().sort().to_list()
    files = {place: records}
    if per_hardware:
        files = {
            place.with_name(f"{place.stem}-{name}{place.suffix}"): records.filter(hardware=name)
            for name in devices
        }
    elif kind in ("ansor", "autotvm") and len(devices) > 1:
        raise RecordError(
            f"expected records of one device, as lines of {kind} do not tell theirs and the fastest line would be any "
            f"device's, found {len(devices)} in {source.uri}: {', '.join(devices)}. Choose one with --hardware NAME, "
            "or write a file for each with --per-hardware"
        )
    for file in files:
        if file.is_file():
            raise RecordError(
                f"expected a place that is free, found the file {file}. Name another, or remove it"
            )
    for file, rows in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        _WRITERS[kind](rows, file, layout)
        sys.stdout.write(f"{file}: {rows.height} records\n")
    if kind in _PROGRAMS:
        _report_folded(records)


def _report_folded(records: pl.DataFrame) -> None:
    """Say how many measurements have no line of their own: these formats have no history of a program."""
    many = records.filter(pl.col("measurements").is_not_null())["measurements"]
    further = int(many.list.len().sum()) - len(many)
    if further:
        sys.stdout.write(
            f"{further} further measurements of {len(many)} programs have no line of their own: a program is one line, "
            "with the times of all its successful measurements. `tencost records export table` keeps each\n"
        )


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
    "tenset": _write_tenset,
    "rfc4304": _write_rfc4304,
    "table": _write_table,
}
FORMATS = tuple(_WRITERS)
"""What records can be written as."""
