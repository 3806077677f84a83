"""A record store as a build product: the same records give the same bytes, file names included.

A Delta Lake table names its files at random and notes times and paths in its log, so DVC would take
every rebuild for a change and run all stages that follow. A snapshot is an ordinary record store of
one commit, with these replaced: files are named by their content, times are 0, the table's id is a
constant, JSON keys are sorted. Later writes to it are ordinary commits.
"""

from __future__ import annotations

import hashlib
import json
import urllib.parse
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from tencost.store.appending import first_of_each_id
from tencost.store.delta import TABLE_DESCRIPTION, TABLE_NAME
from tencost.store.layout import PARTITION
from tencost.store.schema import Record, to_arrow

TABLE_ID = str(uuid.uuid5(uuid.NAMESPACE_URL, "tencost-records"))


def write_snapshot(folder: Path, records: Iterable[Record] | pa.Table) -> int:
    """Write records, or a table of schema.SCHEMA, as a new store at `folder`, which must not exist.

    Returns:
        How many distinct ones.
    """
    table = first_of_each_id(records if isinstance(records, pa.Table) else to_arrow(records))
    write_deltalake(
        str(folder),
        table,
        partition_by=[PARTITION],
        mode="error",
        name=TABLE_NAME,
        description=TABLE_DESCRIPTION,
    )
    (log,) = (folder / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    fixed = sorted(_dump(_fix(action, folder)) for action in actions)
    log.write_text("".join(f"{line}\n" for line in fixed), encoding="utf-8")
    return int(table.num_rows)


def _fix(action: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a log entry without what differs between two writes; renames the file it adds."""
    ((kind, body),) = action.items()
    if kind == "commitInfo":
        body = {"timestamp": 0, "operation": body["operation"]}
    elif kind == "metaData":
        body = {**body, "id": TABLE_ID, "createdTime": 0}
    elif kind == "add":
        path = folder / urllib.parse.unquote(body["path"])
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        named = path.with_name(f"part-{content[:32]}.snappy.parquet")
        path.rename(named)
        partition = body["path"].rsplit("/", 1)[0]
        body = {
            **body,
            "path": f"{partition}/{named.name}",
            "modificationTime": 0,
            "stats": _dump(json.loads(body["stats"])),
        }
    return {kind: body}


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
