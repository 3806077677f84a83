"""The workloads of a record store as modules: a Delta Lake table beside it, so that its best programs can be compiled.

A record names its workload by an id; this table holds the module behind the id as TVM's JSON text. Only MetaSchedule
logs have modules.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tencost.errors import RecordError
from tencost.store import remote
from tencost.store.conditions import require_put_if_absent
from tencost.store.delta import delta_error_line, retry

SUFFIX = "-modules"
SCHEMA = pa.schema(
    [
        pa.field("workload_id", pa.string(), nullable=False),
        pa.field("mod_json", pa.string(), nullable=False),
        pa.field("task_name", pa.string(), nullable=False),
        pa.field("shash", pa.string()),
    ]
)


def modules_uri(store_uri: str) -> str:
    """Return where the modules of a store's workloads are."""
    return store_uri.rstrip("/") + SUFFIX


def write_modules(store_uri: str, modules: Iterable[tuple[str, str, str, str]]) -> int:
    """Add modules, (workload_id, module as JSON text, task name, TVM's hash) each; return how many are new."""
    distinct = {item[0]: item for item in modules}
    if not distinct:
        return 0
    names = [field.name for field in SCHEMA]
    rows = [dict(zip(names, item, strict=True)) for item in distinct.values()]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    uri = modules_uri(store_uri)

    def commit() -> int:
        require_put_if_absent(store_uri)
        delta = DeltaTable.create(
            uri, schema=SCHEMA, mode="ignore", storage_options=remote.settings(uri, None)
        )
        metrics = (
            delta.merge(
                table,
                predicate="have.workload_id = new.workload_id",
                source_alias="new",
                target_alias="have",
            )
            .when_not_matched_insert_all()
            .execute()
        )
        return int(metrics["num_target_rows_inserted"])

    return retry(uri, commit)


def stored_modules(store_uri: str) -> pl.DataFrame:
    """Return all modules: workload_id, mod_json, task_name, shash; no rows where there are none.

    Raises:
        RecordError: the table is damaged, or its object store does not answer.
    """
    names = [field.name for field in SCHEMA]
    uri = modules_uri(store_uri)
    remote.reach_store(uri)
    try:
        with remote.explain_store_errors(uri):
            delta = DeltaTable(uri, storage_options=remote.settings(uri, None))
            table = delta.to_pyarrow_table(columns=names)
        return pl.DataFrame(table.cast(SCHEMA))
    except TableNotFoundError:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
    except (DeltaError, OSError, pa.ArrowException, LookupError, ValueError) as error:
        raise RecordError(
            f"expected the modules of a record store at {uri}, found a damaged table: "
            f"{delta_error_line(error)}. Delete that folder and import the logs again: tencost records import"
        ) from error
