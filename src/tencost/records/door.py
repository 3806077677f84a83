"""The door of a record store: what comes in is checked before it is committed.

Two manners, `gate` of an import:

    quarantine  what is suspicious (gate.py) is in the store and left out of look-ups; the manner of one's own store
    apart       what has a fault is not committed at all, the manner of an object store, which several people write to.
                The rows lie in data/rejects/<dataset>-apart.parquet, which is read like any log (`tencost records
                import`) once what was wrong is mended, and beside it a line {"record_id", "hardware", "reason"} of each
                in data/rejects/<dataset>-apart.jsonl

Faults, besides what gate.py suspects: a column that must have a value and has none; a status that is none, ok
without times, times that are no times; a hardware that the project does not describe (conf/hardware; `local` is
described and is every host's); one record_id of several programs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tencost.config.composition import choice_names
from tencost.records.gate import GROUP, GroupKey, StoredTimes, judged
from tencost.store.layout import latency
from tencost.store.record_store import Added, RecordStore
from tencost.store.remote import is_remote
from tencost.store.schema import SCHEMA
from tencost.store.status import Status
from tencost.writing import whole_file


class Gate(Enum):
    """Treatment of rows with a fault."""

    quarantine = "quarantine"
    apart = "apart"


def gate_of(uri: str, requested: str | None = None) -> Gate:
    """Return the requested gate, or the default: apart for an object store, else quarantine."""
    return Gate(requested) if requested else Gate.apart if is_remote(uri) else Gate.quarantine


@dataclass
class RefusedRows:
    """Rows that a store refused, as they were read, with the reason of each and the count of each kind of fault."""

    tables: list[pa.Table] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def let_in(self, table: pa.Table, checked: pa.Table) -> pa.Table:
        """Keep the rows of a table that have a fault; return the others of `checked`, the same as gate.py judged it."""
        reasons, kinds = faults(checked)
        bad = reasons.is_not_null()
        if not bad.any():
            return checked
        self.tables.append(table.filter(bad.to_arrow()))
        self.reasons += reasons.drop_nulls().to_list()
        self.kinds.update(kind for kind in kinds if kind is not None)
        return checked.filter((~bad).to_arrow())

    def write(self, folder: Path, dataset: str) -> Path | None:
        """Write rows and reasons into a folder, or delete those of an earlier import; return the file of the rows."""
        path = folder / f"{dataset}-apart.parquet"
        reasons_path = path.with_suffix(".jsonl")
        if not self.tables:
            path.unlink(missing_ok=True)
            reasons_path.unlink(missing_ok=True)
            return None
        folder.mkdir(parents=True, exist_ok=True)
        rows = pa.concat_tables(self.tables)
        with whole_file(path) as partial:
            pq.write_table(rows, partial, compression="zstd")
        names = rows.select(["record_id", "hardware"]).to_pylist()
        lines = zip(names, self.reasons, strict=True)
        with whole_file(reasons_path) as partial:
            text = "".join(json.dumps({**name, "reason": why}) + "\n" for name, why in lines)
            partial.write_text(text, encoding="utf-8")
        return path


def in_store(store: RecordStore, table: pa.Table) -> dict[GroupKey, StoredTimes]:
    """Return the latencies in a store of the groups that a table of schema.SCHEMA has records of."""
    frame = pl.DataFrame(table.select(["hardware", "workload_id"]))
    names = sorted(set(frame["hardware"].unique()) & set(store.hardware()))
    if not names:
        return {}
    stored = (
        store.read(names, [*GROUP, "run_secs", "status"])
        .filter(
            pl.col("status") == "ok",
            pl.col("workload_id").is_in(frame["workload_id"].unique().implode()),
        )
        .group_by(GROUP)
        .agg(latency().min().alias("fastest_s"), pl.len().alias("count"))
    )
    rows = stored.select(*GROUP, "fastest_s", "count").iter_rows()
    return {
        (workload, target, hardware, generator): StoredTimes(fastest_s, number)
        for workload, target, hardware, generator, fastest_s, number in rows
    }


def admit(
    store: RecordStore, table: pa.Table, folder: Path, dataset: str
) -> tuple[Added, Path | None]:
    """Add a table's rows behind the store's default gate; return the counts of new rows, and the file of refused ones.

    Into a store of one's own measurements go as they are: who measured them stands beside them.

    Args:
        store: that is written to.
        table: of schema.SCHEMA.
        folder: data/rejects of the project.
        dataset: what the rows are called after.
    """
    if gate_of(store.uri) is Gate.quarantine:
        return store.add(table), None
    refused = RefusedRows()
    added = store.add(refused.let_in(table, judged(table, {}, in_store(store, table))))
    return added, refused.write(folder, dataset)


def faults(table: pa.Table) -> tuple[pl.Series, list[str | None]]:
    """Return the fault of each row of a judged table, null where it has none, and the kind of fault."""
    columns = [
        "record_id",
        "program_id",
        "workload_id",
        "target",
        "hardware",
        "status",
        "run_secs",
        "quarantine",
    ]
    frame = pl.DataFrame(table.select(columns))
    reasons: list[str | None] = [None] * len(frame)
    kinds: list[str | None] = [None] * len(frame)

    def note(kind: str, rows: pl.Series, texts: pl.Series) -> None:
        for row, text in zip(rows.to_list(), texts.to_list(), strict=True):
            if reasons[row] is None:
                reasons[row], kinds[row] = f"{kind}: {text}", kind

    rows = frame.with_row_index("row")
    for name in (column.name for column in SCHEMA if not column.nullable):
        null = pa.compute.indices_nonzero(table.column(name).is_null()).to_pylist()
        empty = pl.Series("row", null, dtype=pl.UInt32)
        note("schema", empty, pl.Series([f"expected {name}, found none"] * len(empty)))
    statuses = [status.value for status in Status]
    other = rows.filter(~pl.col("status").is_in(statuses))
    note("schema", other["row"], "expected a status, found " + other["status"].cast(pl.String))
    ok = pl.col("status") == Status.ok.value
    times = pl.col("run_secs")
    real = times.list.eval(pl.element().is_finite() & (pl.element() > 0)).list.all()
    some = (times.list.len() > 0).fill_null(False)
    wrong = rows.filter((ok & ~(some & real.fill_null(False))) | (~ok & some))
    note("schema", wrong["row"], "expected times with status ok alone, found " + wrong["status"])
    names = rows["hardware"].unique().to_list()
    described = [name for name in names if _is_described(name)]
    strange = rows.filter(~pl.col("hardware").is_in(described))
    note(
        "hardware",
        strange["row"],
        strange["hardware"] + " is not described, or every host: conf/hardware/<name>.yaml",
    )
    identity = (
        pl.struct("program_id", "workload_id", "target").n_unique().over("hardware", "record_id")
    )
    clash = rows.filter(identity > 1)
    note("ids", clash["row"], clash["record_id"] + " is the id of several programs")
    suspicious = rows.filter(pl.col("quarantine").is_not_null())
    note("times", suspicious["row"], suspicious["quarantine"])
    return pl.Series("quarantine", reasons, dtype=pl.String), kinds


def _is_described(hardware: str) -> bool:
    """Say whether conf/hardware describes a name, with any number of cores; `local` is another machine on each host."""
    described = set(choice_names("hardware")) - {"local"}
    stem = re.sub(r"-\d+c$", "", hardware)
    return not described.isdisjoint({hardware, stem, f"{stem}-1c"})
