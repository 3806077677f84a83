"""``tencost records export ansor|autotvm|tenset|rfc4304|table PLACE``: records of a store, written as logs again.

Records go out in the order of the logs that they were read from, each as its line was (formats/ say what that
promises). Quarantined records stay in the store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import polars as pl

from tencost.errors import RecordError
from tencost.records.words import Words, read_words
from tencost.store.tables import open_records
from tencost.writing import whole_file

USAGE = (
    "tencost records export ansor|autotvm|tenset|rfc4304|table PLACE [hardware=<name>] [dataset=<name>] "
    "[version=columns|json] [store=data/store]; the best schedules: tencost records export metaschedule FOLDER"
)
_PROGRAMS = {"ansor": "ansor_steps", "tenset": "ansor_steps", "autotvm": "autotvm_config"}
"""What a format can hold; the others take every record."""


def run(arguments: list[str], root: Path) -> None:
    """Write records of a store.

    Raises:
        RecordError: wrong words, nothing to write, a place that is taken, or a name that a format does not take.
    """
    words = read_words(arguments, USAGE, keys=("hardware", "dataset", "version", "store"))
    if len(words.plain) != 2 or words.plain[0] not in _WRITERS:
        raise RecordError(f"expected `{USAGE}`, found {' '.join(arguments) or 'nothing'!r}")
    kind, place = words.plain[0], Path(words.plain[1]).expanduser()
    if place.is_file():
        raise RecordError(
            f"expected a place that is free, found the file {place}. Name another, or remove it"
        )
    records = _chosen(words, root, kind)
    place.parent.mkdir(parents=True, exist_ok=True)
    _WRITERS[kind](records, place, words)
    sys.stdout.write(f"{place}: {records.height} records\n")


def _chosen(words: Words, root: Path, kind: str) -> pl.DataFrame:
    store = open_records(words.keys.get("store") or str(root / "data" / "store"))
    records = store.read(words.keys.get("hardware"))
    dataset = words.keys.get("dataset")
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
        of = ", ".join(f"{key}={value}" for key, value in words.keys.items()) or "any hardware"
        raise RecordError(
            f"expected {what} of {of} in {store.uri}, found none. What there is: "
            "tencost records query stats by=hardware,format"
        )
    return records


def _write_ansor(records: pl.DataFrame, place: Path, _words: Words) -> None:
    from tencost.records.formats.ansor import write_lines

    _write_lines(write_lines(records), place)


def _write_autotvm(records: pl.DataFrame, place: Path, _words: Words) -> None:
    from tencost.records.formats.autotvm import write_lines

    _write_lines(write_lines(records), place)


def _write_tenset(records: pl.DataFrame, place: Path, _words: Words) -> None:
    from tencost.records.formats.tensetwriter import write_layout

    write_layout(place, records)


def _write_rfc4304(records: pl.DataFrame, place: Path, words: Words) -> None:
    from tencost.records.formats.rfc4304 import write_file

    version = words.keys.get("version", "json")
    if version not in ("columns", "json"):
        raise RecordError(f"expected version=columns or version=json, found version={version}")
    write_file(records, place, cast(Literal["columns", "json"], version))


def _write_table(records: pl.DataFrame, place: Path, _words: Words) -> None:
    from tencost.records.formats.table import write_file

    write_file(records, place)


def _write_lines(lines: Iterator[str], place: Path) -> None:
    """Write lines beside their place and move them there, so that a killed run leaves no half of it."""
    with whole_file(place) as scratch, scratch.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


_WRITERS: dict[str, Callable[[pl.DataFrame, Path, Words], Any]] = {
    "ansor": _write_ansor,
    "autotvm": _write_autotvm,
    "tenset": _write_tenset,
    "rfc4304": _write_rfc4304,
    "table": _write_table,
}
