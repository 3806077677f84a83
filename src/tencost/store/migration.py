"""Bringing a store of before schema version 4 up to date, once: its records get their code generator.

Until version 4 a record's id did not say who made its machine code, so one record could hold measurements of two
generators, and its latency was the median of both. :func:`migrate_store` gives each record the generator that its own
columns tell of (generator.py) and the id that belongs to it, keeps the old id as `alias`, and divides a record whose
measurements are of several generators into one a generator. A measurement carries no versions of its own: it has the
generator of the record of the same log that was measured next to it in time.

All of it is one commit, so that a reader sees the store before or after; versions before it can be opened until the
store is vacuumed. What is migrated already stays as it is, so that a second call changes nothing.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import polars as pl

from tencost.store.delta import (
    TableLocation,
    commit_version,
    may_need_migration,
    require_table,
    retry,
    upgrade,
)
from tencost.store.generator import UNKNOWN, inferred
from tencost.store.ids import record_id
from tencost.store.layout import Folder, data_files
from tencost.store.measured import Row, central, frame_of, measurements, rows_of
from tencost.store.rewriting import rewrite_rows

ABOUT = (
    "engine_version",
    "engine_config",
    "build_config",
    "env_name",
    "hw_model",
    "runtime_config",
    "execution_config",
)
"""Columns that tell how a record was measured, and not what came of it."""


@dataclass(frozen=True)
class Migration:
    """What a migration did, or would do.

    Attributes:
        records: got a generator.
        divided: of them, those that held measurements of several generators.
        generators: generator -> records that have it afterwards, of those that the migration touched.
    """

    records: int
    divided: int
    generators: dict[str, int]


def migrate_store(uri: str, *, dry_run: bool = False) -> Migration:
    """Give the records of a store their code generator, and the ids that they have with it.

    Args:
        uri: the store.
        dry_run: count only.

    Raises:
        RecordError: there is no store, or other writers were faster too often.
    """
    require_table(TableLocation(uri))
    return retry(uri, partial(_migrate, TableLocation(uri), dry_run))


@dataclass
class LogGenerators:
    """The generators that the records of a log have, in order of time."""

    _times: dict[tuple[str, ...], list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _rows: list[Row] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, rows: Iterable[Row]) -> None:
        """Take in rows of single measurements."""
        for row in rows:
            if row["measurements"] or row["timestamp"] is None or _generator(row) == UNKNOWN:
                continue
            about = {name: row[name] for name in ABOUT}
            key = json.dumps([*about.values(), _generator(row)])
            if key not in self._numbers:
                self._numbers[key] = len(self._rows)
                self._rows.append(about | {"generator": _generator(row)})
            self._times[_log(row["hardware"], row["source"])].append(
                (row["timestamp"], self._numbers[key])
            )

    def sort(self) -> None:
        """Call it once after the last :meth:`add`."""
        for times in self._times.values():
            times.sort()

    def about(self, hardware: str, measurement: Row) -> Row | None:
        """Return ABOUT and the generator of the record of the same log measured next to a measurement."""
        times = self._times.get(_log(hardware, measurement), [])
        when = measurement["timestamp"]
        if not times or when is None:
            return None
        place = bisect_left(times, (when, -1))
        near = times[max(0, place - 1) : place + 1]
        return self._rows[min(near, key=lambda item: abs(item[0] - when))[1]]


def _log(hardware: str, source: Row | None) -> tuple[str, ...]:
    place = source or {}
    return (hardware, str(place.get("dataset")))


def _generator(row: Row, timestamp: float | None = None) -> str:
    return inferred(
        json.loads(row["target"]).get("kind"),
        row["engine_version"],
        row["engine_config"],
        row["additional_info"],
        row["timestamp"] if timestamp is None else timestamp,
    )


def _is_to_migrate(row: Row) -> bool:
    """Say whether a row's id is that of a MetaSchedule program whose code generator was unknown."""
    if row["generator"] not in (None, UNKNOWN):
        return False
    target = json.loads(row["target"])
    return bool(row["record_id"] == record_id(row["program_id"], target, row["hardware"]))


def _divided(row: Row, logs: LogGenerators) -> list[Row]:
    if not _is_to_migrate(row):
        return [row]
    by_generator: dict[str, tuple[Row, list[Row]]] = {}
    for measurement in measurements(row):
        about = logs.about(row["hardware"], measurement) if row["measurements"] else None
        generator = about["generator"] if about else _generator(row, measurement["timestamp"])
        session = {name: about[name] for name in ABOUT} if about else {}
        if any(session[name] != row[name] for name in session):
            session["additional_info"] = None  # it describes the session of another measurement
        by_generator.setdefault(generator, (session, []))[1].append(measurement)
    target = json.loads(row["target"])
    rows = []
    for generator, (about, history) in by_generator.items():
        whole = row if len(by_generator) == 1 else central([row | about], history)
        if generator == UNKNOWN:
            rows.append(whole)
            continue
        identity = record_id(row["program_id"], target, row["hardware"], generator)
        alias = row["record_id"]
        rows.append(whole | {"generator": generator, "record_id": identity, "alias": alias})
    return rows


def _migrate(place: TableLocation, dry_run: bool) -> Migration:
    table = require_table(place)
    folder = Folder(place.uri, place.storage_options)
    files = [file for file in data_files(table) if may_need_migration(folder, [file])]
    logs = LogGenerators()
    for file in files:
        logs.add(rows_of(folder.scan([file]).collect()))
    logs.sort()
    records = divided = 0
    generators: Counter[str] = Counter()

    def migrated_rows(stored: pl.DataFrame) -> pl.DataFrame:
        nonlocal records, divided
        new = [(row, _divided(row, logs)) for row in rows_of(stored)]
        changed = [rows for row, rows in new if rows != [row]]
        records += len(changed)
        divided += sum(len(rows) > 1 for rows in changed)
        generators.update(row["generator"] or UNKNOWN for rows in changed for row in rows)
        return frame_of(row for _, rows in new for row in rows)

    done = rewrite_rows(folder, files, pl.lit(True), migrated_rows, dry_run=dry_run)
    if not dry_run:
        if done.replaced:
            commit_version(table, done.added, done.replaced)
        upgrade(place)
    return Migration(records, divided, dict(generators))
