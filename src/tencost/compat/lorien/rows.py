"""A row of the record schema as Lorien's containers see it, and the order that they keep rows in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from tencost.errors import RecordError
from tencost.records.formats.metaschedule import LoggedWorkload
from tencost.store.schema import SCHEMA
from tencost.store.status import Status

UNNAMED = "unnamed"
"""Hardware of records whose log names no device and whose reader was told none; the store refuses it."""


@dataclass(frozen=True)
class RecordView:
    """A row of the record schema, as the containers see it.

    `target` is the row's JSON text, `mean_s` the mean of all times in seconds (less is better; None unless `status` is
    ok), `timestamp` seconds since 1970 or None. `module` is a MetaSchedule record's workload where it is known.
    """

    record_id: str
    workload_id: str
    hardware: str
    target: str
    mean_s: float | None
    timestamp: float | None
    status: Status
    program: str
    row: Mapping[str, Any] = field(repr=False, compare=False)
    module: LoggedWorkload | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        assert (self.mean_s is not None) == (self.status is Status.ok)

    @classmethod
    def of_row(cls, row: Mapping[str, Any], module: LoggedWorkload | None = None) -> RecordView:
        """Return the view of a row of schema.SCHEMA as Arrow or Polars gives it."""
        times = row["run_secs"]
        return cls(
            record_id=row["record_id"],
            workload_id=row["workload_id"],
            hardware=row["hardware"],
            target=row["target"],
            mean_s=math.fsum(times) / len(times) if times else None,
            timestamp=row["timestamp"],
            status=Status(row["status"]),
            program=row["program"],
            row=row,
            module=module,
        )

    @cached_property
    def foreign(self) -> dict[str, Any]:
        """What the record's log says beyond the columns."""
        found = json.loads(self.row["foreign"] or "{}")
        return found if isinstance(found, dict) else {}

    def table(self) -> pa.Table:
        """Return the row as a table of schema.SCHEMA."""
        return pa.Table.from_pylist([dict(self.row)], schema=SCHEMA)


def rank(record: RecordView) -> tuple[float, float]:
    """Return what records are ordered by, best first: mean cost, then the latest time stamp."""
    cost = math.inf if record.mean_s is None else record.mean_s
    return cost, math.inf if record.timestamp is None else -record.timestamp


def limit(nbest: int) -> int | None:
    """Return how many records `nbest` (-1: all) asks for; None: all.

    Raises:
        RecordError: less than -1.
    """
    if nbest < -1:
        raise RecordError(
            f"expected nbest as the number of best records, or -1 for all; found {nbest}"
        )
    return None if nbest == -1 else nbest
