"""Asking for records, wherever they lie: all of a hardware, one workload's, the fastest of a workload.

What is asked is a :class:`View`, the files of one version of a store, or the one file of a build
product. Polars reads the columns and the row groups that an answer needs, and no others.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from tencost.errors import RecordError
from tencost.store.generator import preferred
from tencost.store.ids import canonical_target
from tencost.store.layout import (
    COLUMNS,
    PARTITION,
    DataFile,
    Folder,
    known_generator,
    latency,
)

_LATENCY = "_latency"
_CHOOSING = ("workload_id", "hardware", "target", "generator", "status", "record_id")
"""Columns that tell which records of a workload answer."""


class View(ABC):
    """Records as they are at one moment; `version` is the table's, None for a file."""

    uri: str
    version: int | None

    @abstractmethod
    def hardware(self) -> list[str]:
        """Return the hardware that there are records of, sorted."""

    @abstractmethod
    def scan(self, hardware: Sequence[str], workload_id: str | None = None) -> pl.LazyFrame:
        """Return the records of some hardware (of one workload) with all columns of the schema."""

    def need(self, hardware: Sequence[str]) -> None:
        """Check that there are records of these hardware.

        Raises:
            RecordError: a hardware has none.
        """
        available = self.hardware()
        missing = sorted(set(hardware) - set(available))
        if missing:
            raise RecordError(
                f"expected records of {', '.join(missing)} in {self.uri}, found only "
                f"{', '.join(available) or 'an empty store'}"
            )


@dataclass(frozen=True)
class StoreView(View):
    """The files of one version of a store."""

    uri: str
    version: int | None
    folder: Folder
    files: tuple[DataFile, ...]

    def hardware(self) -> list[str]:
        return sorted({file.hardware for file in self.files})

    def scan(self, hardware: Sequence[str], workload_id: str | None = None) -> pl.LazyFrame:
        files = [file for file in self.files if file.hardware in hardware]
        if workload_id is None:
            return self.folder.scan(files)
        files = [file for file in files if file.may_have([workload_id])]
        return self.folder.scan(files).filter(pl.col("workload_id") == workload_id)

    def without(self, other: StoreView) -> StoreView:
        """Return only the files that another version has not."""
        there = {file.path for file in other.files}
        return replace(self, files=tuple(file for file in self.files if file.path not in there))


@dataclass(frozen=True)
class FileView(View):
    """One Parquet file with all columns of the schema, sorted by hardware and workload."""

    uri: str
    version: None = None

    def hardware(self) -> list[str]:
        names = pl.scan_parquet(self.uri).select(pl.col(PARTITION).unique()).collect()
        return sorted(names[PARTITION])

    def scan(self, hardware: Sequence[str], workload_id: str | None = None) -> pl.LazyFrame:
        rows = pl.scan_parquet(self.uri, schema=COLUMNS, missing_columns="insert")
        rows = rows.filter(pl.col(PARTITION).is_in(list(hardware)))
        rows = rows.with_columns(generator=known_generator())
        return rows if workload_id is None else rows.filter(pl.col("workload_id") == workload_id)


class StoredRecords(ABC):
    """Records at `uri` that can be read and looked up."""

    uri: str

    @abstractmethod
    def view(self) -> View:
        """Return the records as they are now.

        Raises:
            RecordError: there are none.
        """

    @abstractmethod
    def exists(self) -> bool:
        """Say whether something was ever written."""

    @property
    def version(self) -> int | None:
        """The version that is read: the one asked for, or the latest now; None: there are none."""
        return self.view().version if self.exists() else None

    def hardware(self) -> list[str]:
        """Return the hardware that there are records of, sorted."""
        return self.view().hardware() if self.exists() else []

    def read(
        self,
        hardware: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        *,
        quarantined: bool = False,
    ) -> pl.DataFrame:
        """Return the records of the hardware named (None: of all), sorted by hardware and source.

        Records in quarantine are left out unless `quarantined`.

        Raises:
            RecordError: nothing is there, or no records of that hardware, or no such column.
        """
        selected = known_columns(columns)
        names = [hardware] if isinstance(hardware, str) else hardware
        source = pl.col("source").struct

        def all_of_them(view: View) -> pl.DataFrame:
            if names is not None:
                view.need(names)
            rows = view.scan(view.hardware() if names is None else names)
            if not quarantined:
                rows = rows.filter(pl.col("quarantine").is_null())
            order = [PARTITION, source.field("file"), source.field("line"), "record_id"]
            return rows.sort(order).select(selected).collect()

        return self._answer(all_of_them)

    def lookup(
        self,
        workload_id: str,
        *,
        hardware: str,
        target: Mapping[str, Any] | str,
        columns: Sequence[str] | None = None,
        quarantined: bool = False,
        generator: str | None = None,
    ) -> pl.DataFrame:
        """Return a workload's records on a hardware for a target, fastest first.

        There is no look-up that ignores hardware, target or code generator. Records without times come last, equal
        latencies are in the order of record_id.

        Args:
            workload_id: see ids.py.
            hardware: name of the hardware.
            target: mapping or JSON text; compared in canonical form (ids.canonical_target).
            columns: columns to return; None: all of the schema.
            quarantined: whether records in quarantine are among them.
            generator: of this code generator only; None: the preferred one of the workload, see generator.py.

        Raises:
            RecordError: nothing is there, or no records of that hardware, or no such column.
        """
        selected = known_columns(columns)
        text = _canonical(target)

        def fastest_first(view: View) -> pl.DataFrame:
            rows = _of_workload(view, workload_id, hardware, quarantined)
            frame = _answering(rows, text, generator, selected)
            return frame.sort(_LATENCY, "record_id", nulls_last=True).select(selected)

        return self._answer(fastest_first)

    def best(
        self,
        workload_id: str,
        *,
        hardware: str,
        target: Mapping[str, Any] | str,
        n: int = 1,
        columns: Sequence[str] | None = None,
        quarantined: bool = False,
        generator: str | None = None,
    ) -> pl.DataFrame:
        """Return the `n` records of lowest latency (median of run_secs) of a workload, fastest first.

        As :meth:`lookup`, without records that have no times, and fast: of what it does not return
        it reads the few short columns that the choice needs.
        """
        selected = known_columns(columns)
        text = _canonical(target)

        def fastest(view: View) -> pl.DataFrame:
            rows = _of_workload(view, workload_id, hardware, quarantined)
            keys = _answering(rows, text, generator).drop_nulls(_LATENCY)
            order = [_LATENCY, "record_id"]
            chosen = keys.bottom_k(n, by=order).sort(order).select("record_id")
            whole = (
                rows.filter(of_records(chosen["record_id"]))
                .select([*dict.fromkeys(["record_id", *selected])])
                .collect()
            )
            joined = chosen.join(whole, on="record_id", how="left", maintain_order="left")
            return joined.select(selected)

        return self._answer(fastest)

    def _answer(self, question: Callable[[View], pl.DataFrame]) -> pl.DataFrame:
        return question(self.view())


class RecordFile(StoredRecords):
    """The records of a build product: one Parquet file, which nobody appends to."""

    def __init__(self, path: Path) -> None:
        self.uri = str(path)

    def view(self) -> FileView:
        return FileView(self.uri)

    def exists(self) -> bool:
        return Path(self.uri).is_file()


def of_preferred_generator(
    records: pl.DataFrame, group: Sequence[str] = ("workload_id", "hardware")
) -> pl.DataFrame:
    """Return the records of one code generator a group: the preferred one, see generator.py.

    Args:
        records: the columns of `group`, generator and status; without a column generator all are returned.
        group: what a generator is preferred for.
    """
    if "generator" not in records.columns or records["generator"].n_unique() < 2:
        return records
    counts = records.group_by(*group, "generator").agg((pl.col("status") == "ok").sum().alias("ok"))
    pairs = preferred_generators(counts, group)
    return records.join(pairs, on=[*group, "generator"], how="semi", maintain_order="left")


def preferred_generators(counts: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
    """Return the preferred code generator of each group, columns of `group` and generator.

    Args:
        counts: the columns of `group`, generator and ok: programs with times of a group and generator.
        group: what a generator is preferred for.
    """
    of_groups: dict[tuple[str, ...], dict[str, int]] = {}
    for *key, text, ok in counts.select(*group, "generator", "ok").iter_rows():
        of_groups.setdefault(tuple(key), {})[text] = ok
    rows = [(*key, preferred(of_each)) for key, of_each in of_groups.items()]
    return pl.DataFrame(rows, schema=[*group, "generator"], orient="row")


def of_records(record_ids: pl.Series) -> pl.Expr:
    """Return a condition for records by id, as a scan of files asks it.

    The rows of a workload are sorted by record_id, so that bounds let Polars pass over row groups; for `is_in` alone it
    decodes all of them.
    """
    first, last = (pl.lit(bound, pl.String) for bound in (record_ids.min(), record_ids.max()))
    column = pl.col("record_id")
    return (column >= first) & (column <= last) & column.is_in(record_ids.implode())


def known_columns(columns: Sequence[str] | None) -> list[str]:
    """Return the columns asked for, all of the schema for None.

    Raises:
        RecordError: one is not of the schema.
    """
    selected = list(COLUMNS if columns is None else columns)
    unknown = [name for name in selected if name not in COLUMNS]
    if unknown:
        raise RecordError(
            f"expected columns of the record schema, found {', '.join(unknown)}. "
            f"Valid: {', '.join(COLUMNS)}"
        )
    return selected


def _of_workload(view: View, workload_id: str, hardware: str, quarantined: bool) -> pl.LazyFrame:
    view.need([hardware])
    rows = view.scan([hardware], workload_id)
    return rows if quarantined else rows.filter(pl.col("quarantine").is_null())


def _answering(
    rows: pl.LazyFrame, target: str, generator: str | None, columns: Sequence[str] = ()
) -> pl.DataFrame:
    """Return the rows for a target's canonical text and of a code generator (None: the preferred one).

    They have `columns`, those of _CHOOSING and _LATENCY.
    """
    needed = dict.fromkeys([*columns, *_CHOOSING])
    frame = rows.select(*needed, latency().alias(_LATENCY)).collect()
    texts = frame["target"].unique().to_list()
    same = [text for text in texts if canonical_target(json.loads(text)) == target]
    if len(same) < len(texts):
        frame = frame.filter(pl.col("target").is_in(same))
    if generator is not None:
        frame = frame.filter(pl.col("generator") == generator)
    return of_preferred_generator(frame)


def _canonical(target: Mapping[str, Any] | str) -> str:
    value = json.loads(target) if isinstance(target, str) else dict(target)
    if not isinstance(value, dict):
        raise RecordError(f"expected a target as a JSON object, found {target!r}")
    return canonical_target(value)
