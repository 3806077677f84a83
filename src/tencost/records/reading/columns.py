"""Tables of the record schema from columns, for readers that make thousands of rows at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa

from tencost.records.reading.protocol import About, Batch, Rows
from tencost.records.reading.targets import device_of
from tencost.store.ids import ID_LENGTH, canonical_target
from tencost.store.schema import SCHEMA, SCHEMA_VERSION
from tencost.store.status import Status


def record_table(
    rows: int, columns: Mapping[str, Sequence[Any] | pa.Array], constants: Mapping[str, Any]
) -> pa.Table:
    """Return a table of SCHEMA.

    Args:
        rows: number of rows.
        columns: values of a column, one a row.
        constants: values of columns that are the same in all rows.

    The columns execution_elapsed_ms_mean and _std are computed from run_secs, schema_version is set, all others that
    are not given are null.
    """
    arrays: dict[str, pa.Array] = {}
    for name, cells in columns.items():
        field = SCHEMA.field(name)
        array = cells if isinstance(cells, pa.Array) else pa.array(cells, field.type)
        arrays[name] = array.cast(field.type)
    for name, constant in {"schema_version": SCHEMA_VERSION, **constants}.items():
        arrays[name] = pa.repeat(pa.scalar(constant, SCHEMA.field(name).type), rows)
    arrays |= elapsed(arrays["run_secs"])
    nulls = {field.name: pa.nulls(rows, field.type) for field in SCHEMA if field.name not in arrays}
    return pa.table({**nulls, **arrays}, schema=SCHEMA)


def sources(dataset: str, file: str, lines: Sequence[int]) -> pa.Array:
    """Return the `source` column of records that stand in one file."""
    names = [pa.repeat(pa.scalar(name), len(lines)) for name in (dataset, file)]
    fields = list(SCHEMA.field("source").type)
    return pa.StructArray.from_arrays([*names, pa.array(lines, pa.int64())], fields=fields)


def networks(dataset: str, rows: int) -> pa.Array:
    """Return the `networks` column of records of no known network: the dataset, weight 1."""
    members = [pa.repeat(pa.scalar(dataset), rows), pa.repeat(pa.scalar(1, pa.int64()), rows)]
    kind = SCHEMA.field("networks").type
    structs = pa.StructArray.from_arrays(members, fields=list(kind.value_type))
    # pa.repeat takes nested scalars, too, 40 times slower
    return pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), structs, type=kind)


def elapsed(run_secs: pa.Array) -> dict[str, pa.Array]:
    """Return the RFC's mean and sample deviation columns, milliseconds, of lists of seconds; null without times."""
    seconds = pl.Series(run_secs).list
    columns = {
        "execution_elapsed_ms_mean": seconds.mean(),
        "execution_elapsed_ms_std": seconds.std(),
    }
    return {name: (1e3 * column).cast(pl.Float32).to_arrow() for name, column in columns.items()}


@dataclass(frozen=True)
class TaskFacts:
    """Facts that all records of a tuning task share, named as in the schema.

    Attributes:
        task: as the log has it.
        head: text before the program in the hash of a program's id.
        tail: text after the program's id in the hash of a record's id.
    """

    task: Any
    workload_id: str
    task_name: str
    workload_args: str
    target: str
    hardware: str
    head: bytes
    tail: bytes


def task_facts(
    task: Any,
    workload_id: str,
    task_name: str,
    workload_args: str,
    target: dict[str, Any],
    about: About,
) -> TaskFacts:
    """Return the facts of a task for a target.

    Raises:
        ValueError: a number of the target is not finite.
        NoDeviceError: nobody names the device.
    """
    hardware = device_of(target, about)
    return TaskFacts(
        task=task,
        workload_id=workload_id,
        task_name=task_name,
        workload_args=workload_args,
        target=compact_json(target, sort_keys=True),
        hardware=hardware,
        head=f"{workload_id}\n{target['kind']}\n".encode(),
        tail=f"\n{canonical_target(target)}\n{hardware}".encode(),
    )


@dataclass(frozen=True)
class Outcome:
    """Columns that records of one task with the same outcome share."""

    facts: TaskFacts
    status: Status
    error: str
    foreign: str | bytes
    engine_version: str | None = None


class TunerRows(Rows):
    """Makes a batch of a tuner's log, a line at a time; what many lines share is stored once."""

    family: ClassVar[str]
    """Stands before a task's name in the column workload."""
    program_format: ClassVar[str]

    def __init__(self, about: About) -> None:
        super().__init__(about)
        self._outcome_at: dict[Hashable, int] = {}
        self._outcomes: list[Outcome] = []
        self._which: list[int] = []
        self._columns: dict[str, list[Any]] = {
            name: []
            for name in ("record_id", "program_id", "program", "run_secs", "wall_s", "timestamp")
        }

    def append(
        self,
        number: int,
        key: Hashable,
        make: Callable[[], Outcome],
        program: bytes,
        result: tuple[Sequence[float], float, float],
        identity: bytes | None = None,
    ) -> None:
        """Add a record.

        Args:
            number: of its line.
            key: of its outcome.
            make: returns the outcome; it is called for the first record of a key.
            program: JSON text.
            result: seconds of the runs, which count where the outcome is ok; `wall_s`; `timestamp`.
            identity: text of the program in its id; None: `program`.
        """
        at = self._outcome_at.get(key)
        if at is None:
            self._outcomes.append(make())
            at = self._outcome_at[key] = len(self._outcomes) - 1
        outcome, (costs, wall_s, timestamp) = self._outcomes[at], result
        facts = outcome.facts
        identity = program if identity is None else identity
        program_id = hashlib.sha256(facts.head + identity).hexdigest()[:ID_LENGTH]
        record_id = hashlib.sha256(program_id.encode() + facts.tail).hexdigest()[:ID_LENGTH]
        run_secs = costs if outcome.status is Status.ok else None
        cells = record_id, program_id, program, run_secs, wall_s, timestamp
        for column, cell in zip(self._columns.values(), cells, strict=True):
            column.append(cell)
        self._which.append(at)
        self.lines.append(number)

    def batch(self) -> Batch:
        """Return the records and rejects."""
        if not self.lines:
            return Batch(SCHEMA.empty_table(), tuple(self.rejects))
        which = pa.array(self._which, pa.int32())

        def column(cells: Iterable[str | bytes | None]) -> pa.Array:
            return pa.array(cells, pa.string()).take(which)

        shared = ("workload_id", "task_name", "workload_args", "target", "hardware")
        columns = {
            **self._columns,
            **{
                name: column(getattr(outcome.facts, name) for outcome in self._outcomes)
                for name in shared
            },
            "workload": column(f"{self.family}.{each.facts.task_name}" for each in self._outcomes),
            "engine_version": column(outcome.engine_version for outcome in self._outcomes),
            "status": column(outcome.status.value for outcome in self._outcomes),
            "error": column(outcome.error or None for outcome in self._outcomes),
            "foreign": column(outcome.foreign for outcome in self._outcomes),
            "networks": networks(self.about.dataset, len(which)),
            "source": sources(self.about.dataset, self.about.file, self.lines),
        }
        constants = {"engine": "tvm", "program_format": self.program_format}
        return Batch(record_table(len(which), columns, constants), tuple(self.rejects))


def compact_json(json_value: Any, *, sort_keys: bool = False) -> str:
    """Return JSON text without spaces.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(json_value, separators=(",", ":"), sort_keys=sort_keys, allow_nan=False)
