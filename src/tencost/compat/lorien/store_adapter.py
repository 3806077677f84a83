"""Containers in the record store: `commit` writes the best records, `query` reads a workload's best back.

The store keeps every record that was ever committed; the best are chosen on reading. Target and hardware are matched
exactly: a look-up never takes another's schedules, and no key is a prefix of another.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from tencost.compat.lorien.containers import UNNAMED, Records, RecordView, limit, rank
from tencost.compat.lorien.dialects import AutoSchedulerRecords, AutoTVMRecords, MetaScheduleRecords
from tencost.compat.lorien.keys import target_key, target_of
from tencost.errors import RecordError
from tencost.store import reading
from tencost.store.ids import ID_LENGTH, canonical_target
from tencost.store.record_store import RecordStore
from tencost.store.schema import SCHEMA
from tencost.store.status import Status
from tencost.store.tables import open_records

DIALECTS: dict[str, type[Records]] = {
    kind.program_format: kind
    for kind in (AutoTVMRecords, AutoSchedulerRecords, MetaScheduleRecords)
}
_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")
_KEY_COLUMNS = (
    "record_id", "workload_id", "hardware", "target", "timestamp", "program_format", "run_secs", "status", "workload",
    "workload_args", "foreign",
)  # fmt: skip
_LOG = logging.getLogger(__name__)


def commit(
    records: Records | Iterable[Records],
    store_uri: str,
    nbest: int = -1,
    *,
    hardware: str | None = None,
) -> int:
    """Write the best `nbest` (-1: all) records of each container; return how many the store did not have.

    Empty containers are left out and logged. All that is written is one commit.

    Args:
        records: a container or some.
        store_uri: the record store; made if it is not there.
        nbest: most records of a container.
        hardware: the device, for records whose log was read without naming it and whose target names no model.

    Raises:
        RecordError: no container holds a record, a record's device is not known, or it is another than `hardware`.
    """
    limit(nbest)
    containers = [records] if isinstance(records, Records) else list(records)
    rows = []
    for container in containers:
        if not len(container):
            _LOG.warning("%r: nothing to commit, no program ran without error", container)
        rows += [_row_on(type(container), record, hardware) for record in container.to_list(nbest)]
    if not rows:
        raise RecordError(
            f"expected a valid record to commit to {store_uri}, found none in {len(containers)} containers: every "
            "program failed, or the log is empty"
        )
    return RecordStore(store_uri).write_table(pa.Table.from_pylist(rows, schema=SCHEMA))


def query(
    store_uri: str,
    workload: str,
    *,
    target: str | Mapping[str, Any],
    hardware: str,
    nbest: int = -1,
) -> list[RecordView]:
    """Return a workload's best `nbest` (-1: all) records for a target on a hardware, best first; failed ones never.

    Args:
        store_uri: the record store.
        workload: its workload_id, or its key as the dialect's container has it; a key is matched whole.
        target: text or mapping; the same target, written in any way. A target_key, which leaves out -libs, stands for
            the target of the workload's records that has it.
        hardware: the device.
        nbest: most records returned.

    Raises:
        RecordError: no store, no records of the hardware in it, two workloads have this key (give the workload_id), or
            two targets of the workload's records have the target_key (give the target).
    """
    most = limit(nbest)
    store = open_records(store_uri)
    identity = workload if _ID.fullmatch(workload) else _workload_of_key(store, workload, hardware)
    if identity is None:
        return []
    text = _stored_target(store, identity, target, hardware)
    rows = store.lookup(identity, hardware=hardware, target=text)
    usable = rows.filter((pl.col("status") == Status.ok.value) & pl.col("quarantine").is_null())
    return sorted(map(RecordView.of_row, usable.to_dicts()), key=rank)[:most]


def _stored_target(
    store: reading.StoredRecords, identity: str, target: str | Mapping[str, Any], hardware: str
) -> str:
    """Return the canonical target that a query means: the target itself, or the one with this target_key."""
    text = canonical_target(target_of(target))
    if target != target_key(target):
        return text
    rows = store.view().scan([hardware], identity).select("target").unique().collect()
    stored = {canonical_target(json.loads(other)) for other in rows["target"]}
    matches = sorted(other for other in stored if target_key(other) == target)
    if text in stored or not matches:
        return text
    if len(matches) > 1:
        raise RecordError(
            f"expected a target, found the target_key {target!r}, which {len(matches)} targets of these records have: "
            f"{'; '.join(matches)}. Query by one of them"
        )
    return matches[0]


def _row_on(kind: type[Records], record: RecordView, hardware: str | None) -> dict[str, Any]:
    """Return the row of a record with its device, and the id that goes with it."""
    unnamed = record.hardware == UNNAMED
    logged = json.loads(record.target).get("model") if unnamed else record.hardware
    if not unnamed and hardware not in (None, logged):
        raise RecordError(
            f"expected records measured on {hardware}, found one read as {logged}; leave hardware= out, or read the "
            "log again with the right one"
        )
    device = hardware or logged
    if not isinstance(device, str) or device in ("", "unknown", UNNAMED):
        raise RecordError(
            f"expected the device of a record of {record.target}, found none in its log; name it: hardware=<name>"
        )
    return {**record.row, "hardware": device, "record_id": kind.id_on(record, device)}


def _workload_of_key(store: reading.StoredRecords, key: str, hardware: str) -> str | None:
    """Return the workload_id of a dialect's workload key among the records of a hardware."""
    frame = store.read(hardware, _KEY_COLUMNS).unique("workload_id", keep="any")
    matching = sorted(
        row["workload_id"]
        for row in frame.iter_rows(named=True)
        if (kind := DIALECTS.get(row["program_format"])) is not None
        and kind.key_of(RecordView.of_row({**row, "program": ""})) == key
    )
    if len(matching) > 1:
        raise RecordError(
            f"expected one workload with the key {key!r}, found {len(matching)}: {', '.join(matching)}. Query by "
            "workload_id"
        )
    return matching[0] if matching else None
