"""The record store: a Delta Lake table partitioned by hardware, on a local path or an object store.

Writing is idempotent: a record_id that the store has, on any hardware it names, is not written
again. Writers do not lock: each commits against the version it read and starts over when another
was faster. A reader sees whole commits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from tencost.errors import RecordError
from tencost.records.schema import SCHEMA, SCHEMA_VERSION, Record, to_arrow

PARTITION = "hardware"
ATTEMPTS = 20
"""Commits tried before a writer gives up because others keep being faster."""
TABLE_NAME = "tencost-records"
_DESCRIPTION = "schema_version="
"""Stands before the version in the table's description: Delta refuses properties of our own."""
TABLE_DESCRIPTION = f"{_DESCRIPTION}{SCHEMA_VERSION}"
Result = TypeVar("Result")


def latency() -> pl.Expr:
    """Return the expression of a record's latency: median of run_secs, seconds; null without."""
    return pl.col("run_secs").list.median()


class RecordStore:
    """A table of records at `uri`; it need not exist yet.

    Raises:
        RecordError: the table at `uri` is not a record store, or of another schema version.
    """

    def __init__(self, uri: str) -> None:
        self.uri = str(uri)
        self._open()

    def exists(self) -> bool:
        """Say whether something was ever written."""
        return self._open() is not None

    def write(self, records: Iterable[Record]) -> int:
        """Add the records that the store does not have; return how many those were."""
        return self.write_table(to_arrow(records))

    def write_table(self, table: pa.Table) -> int:
        """Add the rows of a table of :data:`SCHEMA` that are not in the store; return their number.

        Raises:
            RecordError: other columns, or other writers were faster too often.
        """
        if not table.schema.equals(SCHEMA):
            raise RecordError(
                f"expected the columns of the record schema {SCHEMA_VERSION}, found "
                f"{', '.join(table.schema.names)}. Build the table with records.schema.to_arrow."
            )
        table = first_of_each_id(table)
        if table.num_rows == 0:
            return 0
        return self._retry(lambda: self._merge(table))

    def read(
        self, hardware: str | Sequence[str] | None = None, columns: Sequence[str] | None = None
    ) -> pl.DataFrame:
        """Return the records of the hardware named (None: of all), sorted by hardware and source.

        Raises:
            RecordError: there is no store, or it has no records of that hardware, or no such
            column.
        """
        table = self._require()
        named = [hardware] if isinstance(hardware, str) else hardware
        wanted = list(columns) if columns is not None else list(SCHEMA.names)
        unknown = [name for name in wanted if name not in SCHEMA.names]
        if unknown:
            raise RecordError(
                f"expected columns of the record schema, found {', '.join(unknown)}. "
                f"Valid: {', '.join(SCHEMA.names)}"
            )
        if named is not None:
            missing = sorted(set(named) - set(self.hardware()))
            if missing:
                raise RecordError(
                    f"expected records of {', '.join(missing)} in {self.uri}, found only "
                    f"{', '.join(self.hardware()) or 'an empty store'}"
                )
        sort_keys = [PARTITION, "source", "record_id"]
        filters = [(PARTITION, "in", list(named))] if named is not None else None
        loaded = table.to_pyarrow_table(
            filters=filters, columns=list(dict.fromkeys([*wanted, *sort_keys]))
        )
        frame = pl.from_arrow(loaded)
        assert isinstance(frame, pl.DataFrame)
        source = pl.col("source").struct
        order = [PARTITION, source.field("file"), source.field("line"), "record_id"]
        return frame.sort(order).select(wanted)

    def lookup(
        self, workload_id: str, *, hardware: str, target: str, columns: Sequence[str] | None = None
    ) -> pl.DataFrame:
        """Return a workload's records on a hardware for a target (canonical JSON), fastest first.

        There is no look-up that ignores hardware or target. Records without times come last.
        """
        from tencost.records.ids import canonical_target

        wanted = list(columns) if columns is not None else list(SCHEMA.names)
        needed = list(dict.fromkeys([*wanted, "workload_id", "target", "run_secs", "record_id"]))
        frame = self.read(hardware, needed).filter(pl.col("workload_id") == workload_id)
        same = [canonical_target(_object(text)) == target for text in frame["target"]]
        frame = frame.filter(pl.Series(same, dtype=pl.Boolean))
        ordered = frame.with_columns(_latency=latency()).sort("_latency", nulls_last=True)
        return ordered.select(wanted)

    def hardware(self) -> list[str]:
        """Return the hardware that the store has records of, sorted."""
        table = self._open()
        if table is None:
            return []
        return sorted({str(part[PARTITION]) for part in table.partitions()})

    def _merge(self, table: pa.Table) -> int:
        delta = self._open() or self._create()
        names = sorted(set(table.column(PARTITION).to_pylist()))
        quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
        done = (
            delta.merge(
                table,
                predicate=(
                    f"have.{PARTITION} IN ({quoted}) AND have.{PARTITION} = new.{PARTITION} "
                    "AND have.record_id = new.record_id"
                ),
                source_alias="new",
                target_alias="have",
            )
            .when_not_matched_insert_all()
            .execute()
        )
        return int(done["num_target_rows_inserted"])

    def _create(self) -> DeltaTable:
        return DeltaTable.create(
            self.uri,
            schema=SCHEMA,
            partition_by=[PARTITION],
            mode="ignore",
            name=TABLE_NAME,
            description=TABLE_DESCRIPTION,
        )

    def _open(self) -> DeltaTable | None:
        try:
            table = DeltaTable(self.uri)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise RecordError(
                f"expected a record store (a Delta Lake table) at {self.uri}, found none that "
                f"can be opened: {error}. Rebuild it: tencost records"
            ) from error
        about = table.metadata()
        found = (about.description or "").removeprefix(_DESCRIPTION)
        if about.name != TABLE_NAME or found != SCHEMA_VERSION:
            raise RecordError(
                f"expected a record store of schema version {SCHEMA_VERSION} at {self.uri}, found "
                f"{found or 'none'} in the table {about.name!r}. Rebuild it: delete the "
                "folder and run "
                "`tencost records`"
            )
        return table

    def _require(self) -> DeltaTable:
        table = self._open()
        if table is None:
            raise RecordError(
                f"expected a record store at {self.uri}, found none. Build it: tencost records"
            )
        return table

    def _retry(self, commit: Callable[[], Result]) -> Result:
        for attempt in range(ATTEMPTS):
            try:
                return commit()
            except CommitFailedError as error:
                last = error
                time.sleep(random.uniform(0.5, 1.0) * min(2.0, 0.02 * 2**attempt))
        raise RecordError(
            f"expected to commit to {self.uri} within {ATTEMPTS} attempts; other writers were "
            "faster "
            f"each time ({last}). Run the command again."
        )


def first_of_each_id(table: pa.Table) -> pa.Table:
    """Return the rows of a table whose record_id does not occur before them."""
    seen: set[str] = set()
    keep = []
    for position, value in enumerate(table.column("record_id").to_pylist()):
        if value not in seen:
            seen.add(value)
            keep.append(position)
    return table if len(keep) == table.num_rows else table.take(pa.array(keep))


def _object(text: str) -> dict[str, object]:
    import json

    value = json.loads(text)
    assert isinstance(value, dict)
    return value
