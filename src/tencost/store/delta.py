"""A record store as a Delta Lake table: opening and checking it, its schema versions, commits.

The table's name says that it is a record store, its description which version of the schema it has.
A commit is the version after the one that was read, or fails; so what was true of the version read
is true of the version committed, but for the files added and removed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Schema
from deltalake.transaction import AddAction, CommitProperties, RemoveAction

from tencost.errors import RecordError, without_secrets
from tencost.store import remote
from tencost.store.conditions import require_put_if_absent
from tencost.store.generator import UNKNOWN
from tencost.store.layout import PARTITION, DataFile, Folder, data_files
from tencost.store.schema import ADDED, SCHEMA, SCHEMA_VERSION

ATTEMPTS = 200
"""Commits tried before a writer gives up because others keep being faster; each try is short."""
TABLE_NAME = "tencost-records"
_DESCRIPTION = "schema_version="
"""Stands before the version in the table's description: Delta refuses properties of our own."""
TABLE_DESCRIPTION = f"{_DESCRIPTION}{SCHEMA_VERSION}"
READABLE = ("1", *ADDED)
"""Schema versions that are read, oldest first; writing makes a store one of the last."""
NEXT_VERSION_OR_NONE = CommitProperties(max_commit_retries=0)
"""Of every commit: Delta Lake's own retry lets two that rewrite the same files both succeed."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class TableLocation:
    """Where a table is: Delta Lake's URI and its settings of an object store.

    `version` is the one to read, None for the latest.
    """

    uri: str
    version: int | None = None
    storage_options: dict[str, str] | None = field(default=None, repr=False)

    @property
    def settings(self) -> dict[str, str] | None:
        """Delta Lake's settings of an object store, None for a folder."""
        return remote.settings(self.uri, self.storage_options)

    def at(self, version: int) -> TableLocation:
        """Return the place at a version."""
        return replace(self, version=version)


def open_table(place: TableLocation) -> DeltaTable | None:
    """Return the table, None where nothing was written.

    Raises:
        RecordError: no record store, or of a schema version that this program does not know, or it
            has no such version.
    """
    remote.reach_store(place.uri, place.storage_options)
    try:
        with remote.explain_store_errors(place.uri, place.storage_options):
            table = DeltaTable(place.uri, version=place.version, storage_options=place.settings)
    except TableNotFoundError as error:
        if "Unknown scheme" not in str(error):
            return None
        raise RecordError(
            f"expected a folder or an address that Delta Lake knows (s3://, gs://, az://), found {place.uri}"
        ) from None
    except (DeltaError, OSError) as error:
        at = "" if place.version is None else f", version {place.version}"
        raise RecordError(
            f"expected a record store (a Delta Lake table) at {place.uri}{at}, found none that can "
            f"be opened: {delta_error_line(error)}. Rebuild it: tencost records"
        ) from error
    version, name = _schema_version(table), table.metadata().name
    if name == TABLE_NAME and version.isdecimal() and int(version) > int(SCHEMA_VERSION):
        raise RecordError(
            f"expected a record store of schema version {SCHEMA_VERSION} or earlier at {place.uri}, "
            f"found {version}: a newer tencost wrote it. Update tencost, or read the store with the "
            "one that wrote it."
        )
    if name != TABLE_NAME or version not in READABLE:
        raise RecordError(
            f"expected a record store of schema version {' or '.join(READABLE)} at {place.uri}, "
            f"found {version or 'none'} in the table {name!r}. Name another folder, or delete this "
            "one and run `tencost records`"
        )
    return table


def require_table(place: TableLocation) -> DeltaTable:
    """Return the table.

    Raises:
        RecordError: as :func:`open_table`, and where nothing was written.
    """
    table = open_table(place)
    if table is None:
        raise RecordError(
            f"expected a record store at {place.uri}, found none. Import logs into it: tencost records import LOGS"
        )
    return table


def writable_table(place: TableLocation) -> DeltaTable:
    """Return the latest version for writing: created, or given the columns that it lacks.

    Raises:
        CommitFailedError: another writer was faster; call again.
        RecordError: as :func:`open_table`, or its server would let two writers make the same version.
    """
    table = open_table(place)
    require_put_if_absent(place.uri, place.storage_options)
    if table is None:
        table = DeltaTable.create(
            place.uri,
            schema=SCHEMA,
            partition_by=[PARTITION],
            mode="ignore",
            name=TABLE_NAME,
            description=TABLE_DESCRIPTION,
            storage_options=place.settings,
        )
    if _schema_version(table) == SCHEMA_VERSION:
        return table
    if may_need_migration(Folder(place.uri, place.storage_options), data_files(table)):
        raise RecordError(
            f"expected a record store of schema version {SCHEMA_VERSION} at {without_secrets(place.uri)}, found "
            f"{_schema_version(table)}, whose records do not tell code generators apart. Bring it up to date once "
            f"(nothing is lost): tencost records migrate --store {without_secrets(place.uri)}"
        )
    return upgrade(place)


def upgrade(place: TableLocation) -> DeltaTable:
    """Return the table with the columns that it lacks, said to be of today's schema version.

    Raises:
        CommitFailedError: another writer was faster; call again.
    """
    # Two commits, each harmless on its own: a writer killed between them leaves the second to the next.
    table = require_table(place)
    present = {column.name for column in table.schema().fields}
    if absent := [column for column in SCHEMA if column.name not in present]:
        columns = Schema.from_arrow(pa.schema(absent)).fields
        table.alter.add_columns(columns, commit_properties=NEXT_VERSION_OR_NONE)
        table = require_table(place)
    if _schema_version(table) != SCHEMA_VERSION:
        table.alter.set_table_description(TABLE_DESCRIPTION, commit_properties=NEXT_VERSION_OR_NONE)
        table = require_table(place)
    return table


def may_need_migration(folder: Folder, files: Sequence[DataFile]) -> bool:
    """Say whether files hold programs without a code generator whose other columns may tell of one (migration.py)."""
    names_ffi = (
        pl.col("engine_config").str.contains('"apache-tvm-ffi"', literal=True).fill_null(False)
    )
    tuned = pl.col("additional_info").str.contains('"tencost"', literal=True).fill_null(False)
    rows = folder.scan(files).filter(
        pl.col("generator") == UNKNOWN,
        pl.col("program_format") == "metaschedule_trace",
        names_ffi | tuned,
    )
    return not rows.select("record_id").head(1).collect().is_empty()


def commit_version(
    table: DeltaTable, added: Sequence[AddAction], replaced: Sequence[DataFile] = ()
) -> None:
    """Commit as the version after the table's: files that come, and those whose rows are in them or gone.

    Constraints of the table would not hold here: Delta Lake checks them in its own writers alone.

    Raises:
        CommitFailedError: another writer made that version; nothing was committed.
    """
    # Unlike the log itself, deltalake wants the path without percent-encoding here. Removals are changes of data even
    # where the rows stay: beside others, Delta Lake's own operations do not see that a file is gone.
    now = int(time.time() * 1000)
    removed = [
        RemoveAction(unquote(file.path), True, now, partition_values={PARTITION: file.hardware})
        for file in replaced
    ]
    table.create_write_transaction(
        [*removed, *added],
        "append",
        table.schema(),
        [PARTITION],
        commit_properties=NEXT_VERSION_OR_NONE,
    )


@contextmanager
def explain_damage(uri: str) -> Iterator[None]:
    """Turn what reading a damaged file of a table raises into one message.

    Raises:
        RecordError: a file of the table at `uri` is damaged, or its object store does not answer.
    """
    try:
        with remote.explain_store_errors(uri):
            yield
    except _DAMAGES as error:
        raise RecordError(
            f"expected whole files in the record store {uri}, found a damaged one: {delta_error_line(error)}. Put the "
            "file back from a copy, or import the logs into a new store: tencost records import --store"
        ) from error


_DAMAGES = (
    pl.exceptions.ComputeError,
    pl.exceptions.InvalidOperationError,
    pl.exceptions.SchemaError,
    pl.exceptions.ColumnNotFoundError,
    pa.ArrowException,
    FileNotFoundError,
    IsADirectoryError,
)
"""What polars and Arrow raise for a Parquet file that is none, is another one, or is not there."""


def delta_error_line(error: BaseException) -> str:
    """Return the first line of an error's message: Delta Lake's go on with its own stack."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def retry(uri: str, attempt: Callable[[], Result]) -> Result:
    """Call `attempt`, which reads the table anew each time, until it commits; return its result.

    Raises:
        RecordError: others were faster every time, or a file is damaged.
    """
    for number in range(ATTEMPTS):
        try:
            with explain_damage(uri):
                return attempt()
        except CommitFailedError as error:
            last = error
            time.sleep(random.uniform(0.2, 1.0) * min(0.5, 0.01 * 2 ** min(number, 6)))
    raise RecordError(
        f"expected to commit to {without_secrets(uri)} within {ATTEMPTS} attempts; other writers were "
        f"faster each time ({last}). Run the command again."
    )


def _schema_version(table: DeltaTable) -> str:
    return (table.metadata().description or "").removeprefix(_DESCRIPTION)
