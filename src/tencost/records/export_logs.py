"""`tencost records export ansor`, `autotvm`, `t4`, `tenset`, `rfc4304`, `table`: records of a store as logs again.

Records go out in the order of the logs that they were read from, each as its line was (formats/ say what that
promises). Quarantined records stay in the store.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Literal

import polars as pl

from tencost.errors import RecordError
from tencost.records.query_command import Place, open_store
from tencost.store.reading import StoredRecords
from tencost.writing import whole_file

_MODULES = {"tenset": "tencost.records.tenset.writing", "t4": "tencost.records.formats.t4.writing"}
"""Module of a format's writer, where it is not the module of its reader."""
Layout = Literal["columns", "json"]
"""The two versions of RFC 4304's records."""
_PROGRAMS = {
    "ansor": "ansor_steps",
    "tenset": "ansor_steps",
    "autotvm": "autotvm_config",
    "t4": "configuration",
}
"""Format -> the program format that it can hold; the other formats take every record."""
_NAMELESS = ("ansor", "autotvm", "t4")
"""Formats that do not tell their device."""


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
    """Write records of a store, and print their number and the measurements that the format cannot hold.

    Args:
        kind: ansor, autotvm, tenset, rfc4304 or table.
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
    elif kind in _NAMELESS and len(devices) > 1:
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
        _write(kind, rows, file, layout)
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


def _chosen(
    store: StoredRecords, kind: str, hardware: str | None, dataset: str | None
) -> pl.DataFrame:
    records = store.read(hardware)
    if dataset is not None:
        records = records.filter(pl.col("source").struct.field("dataset") == dataset)
    program = _PROGRAMS.get(kind)
    if program is not None:
        records = records.filter(program_format=program)
    if records.is_empty():
        what = f"records with programs in the format {program}" if program else "records"
        of = ", ".join(name for name in (hardware, dataset) if name) or "any hardware"
        raise RecordError(
            f"expected {what} of {of} in {store.uri}, found none. What there is: "
            "tencost records query stats --by hardware,format"
        )
    return records


def _write(kind: str, records: pl.DataFrame, place: Path, layout: Layout) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    writer = import_module(_MODULES.get(kind, f"tencost.records.formats.{kind}"))
    if kind == "tenset":
        writer.write_layout(place, records)
    elif kind in ("ansor", "autotvm"):
        # Beside their place and moved there, so that a killed run leaves no half of them.
        with whole_file(place) as scratch, scratch.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in writer.write_lines(records))
    else:
        writer.write_file(records, place, *([layout] if kind == "rfc4304" else []))
