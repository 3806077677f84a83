"""Containers of the best records of one workload on one target, as Lorien has them.

A container is ordered best first: least mean cost, then the latest time stamp (none counts as the earliest), then
the one pushed first. Records themselves are never compared. A program is in it once, with its best measurement.
`peak` is the best record and `pop` takes the worst one, of all layouts, in every dialect. A failed record has no cost
and is not taken.
"""

from __future__ import annotations

import json
import math
import tempfile
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tencost.compat.lorien.keys import alter_key
from tencost.compat.lorien.keys import target_key as canonical_target_key
from tencost.compat.lorien.layouts import Layout
from tencost.errors import RecordError
from tencost.records.formats.metaschedule import LoggedWorkload
from tencost.records.reading.protocol import About, LogFormat
from tencost.store.ids import canonical_target, text_id
from tencost.store.schema import SCHEMA
from tencost.store.status import Status

UNNAMED = "unnamed"
"""Hardware of records whose log names no device and whose reader was given none; the store refuses it."""
_COLUMNS = ("record_id", "workload_id", "hardware", "target", "timestamp", "program")


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
        mean_s = math.fsum(times) / len(times) if times else None
        columns = {name: row[name] for name in _COLUMNS}
        return cls(**columns, mean_s=mean_s, status=Status(row["status"]), row=row, module=module)

    @cached_property
    def foreign(self) -> dict[str, Any]:
        """The fields of the record's log beyond the columns."""
        fields = json.loads(self.row["foreign"] or "{}")
        return fields if isinstance(fields, dict) else {}

    def table(self) -> pa.Table:
        """Return the row as a table of schema.SCHEMA."""
        return pa.Table.from_pylist([dict(self.row)], schema=SCHEMA)


@dataclass(frozen=True, eq=False)
class _Member:
    """A record in a container: its place in the order, and the places that it alone may have."""

    order: tuple[float, float, int]
    layout: Layout | None
    record: RecordView

    @property
    def slots(self) -> list[Hashable]:
        """The program, and the layout where there is one: a container has one record of each."""
        layout = (self.record.workload_id, self.layout)
        return [self.record.record_id] if self.layout is None else [self.record.record_id, layout]


class Records:
    """The best records of a workload on a target; a subclass for each dialect.

    Args:
        target_key: the target, in any way that TVM writes it.
        workload_key: the workload; None: records of any workload of the target are taken.
        group_by_layout: the container has the best record of each data layout only. Records whose layout cannot be
            inferred all stay.

    Raises:
        RecordError: `target_key` is no target.
    """

    program_format: ClassVar[str] = "none"
    """The schema's name for the programs that the container takes."""
    log_format: ClassVar[LogFormat]
    """The reader of the dialect's logs."""

    def __init__(
        self, target_key: str, workload_key: str | None = None, group_by_layout: bool = False
    ) -> None:
        self.target_key = canonical_target_key(target_key)
        """The canonical text, without -libs."""
        self.alter_key = alter_key(target_key)
        self.workload_key = workload_key
        self.group_by_layout = group_by_layout
        self._members: list[_Member] = []
        self._slots: dict[Hashable, _Member] = {}
        self._checked: set[str] = set()
        self._pushes = 0

    @staticmethod
    def key_of(record: RecordView) -> str:
        """Return the workload key of a record."""
        raise NotImplementedError

    @staticmethod
    def id_on(record: RecordView, hardware: str) -> str:
        """Return the record_id that a record has when it was measured on `hardware`."""
        target = canonical_target(json.loads(record.target))
        return text_id(str(record.row["program_id"]), target, hardware)

    @staticmethod
    def encode(record: RecordView) -> str:
        """Return a record as a line of the dialect's log, without the line's end."""
        raise NotImplementedError

    @classmethod
    def decode(cls, record_str: str, hardware: str = UNNAMED) -> RecordView:
        """Return the record of a log line of any version that the dialect's reader knows; failed ones, too.

        Raises:
            RecordError: it is no such line; the message says why.
        """
        return cls.decode_files({"record": record_str}, hardware)

    @classmethod
    def decode_files(cls, texts: Mapping[str, str], hardware: str) -> RecordView:
        """Return the one record of a log, the first of some files by name.

        Raises:
            RecordError: it holds none, more, or a line that cannot be read.
        """
        with tempfile.TemporaryDirectory() as folder:
            for name, text in texts.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            path = Path(folder) / next(iter(texts))
            batches = list(cls.log_format.read(path, About("decoded", path.name, hardware)))
            modules = modules_of(path, cls.log_format)
        rejects = [reject for batch in batches for reject in batch.rejects]
        rows = [row for batch in batches for row in batch.records.to_pylist()]
        if rejects or len(rows) != 1:
            reason = rejects[0].reason if rejects else f"found {len(rows)} of them"
            raise RecordError(f"expected one record of {path.name}: {reason}")
        return RecordView.of_row(rows[0], modules.get(rows[0]["workload_id"]))

    def gen_task_item(self) -> dict[str, Any]:
        """Return what the dialect says about the task of the records, plain JSON values.

        Raises:
            RecordError: the container is empty and the dialect reads it from a record.
        """
        raise NotImplementedError

    @staticmethod
    def gen_record_item(record: RecordView) -> dict[str, Any]:
        """Return ``{"latency": mean cost in seconds}``, None for a failed record."""
        return {"latency": record.mean_s}

    @staticmethod
    def layout_of(_record: RecordView) -> Layout | None:
        """Return the layout that a record's program works on; None where the dialect or the program has none."""
        return None

    def push(self, record: RecordView) -> bool:
        """Take a record; return whether it is in the container now.

        It is not if it failed, if a better measurement of the same program is there, or if a better record of its
        layout is there and the container groups by layout.

        Raises:
            RecordError: a record of another dialect, target or workload.
        """
        self._check(record)
        if record.mean_s is None:
            return False
        layout = self.layout_of(record) if self.group_by_layout else None
        member = _Member((*rank(record), self._pushes), layout, record)
        self._pushes += 1
        rivals = {self._slots[slot] for slot in member.slots if slot in self._slots}
        if any(rival.order < member.order for rival in rivals):
            return False
        for rival in rivals:
            self._remove(rival)
        insort(self._members, member, key=attrgetter("order"))
        self._slots |= dict.fromkeys(member.slots, member)
        return True

    def peak(self) -> RecordView:
        """Return the best record, of all layouts: the first of `to_list`.

        Raises:
            RecordError: the container is empty.
        """
        return self._at(0).record

    def bottom(self) -> RecordView:
        """Return the worst record, of all layouts: the one that `pop` takes.

        Raises:
            RecordError: the container is empty.
        """
        return self._at(-1).record

    def pop(self) -> RecordView:
        """Take the worst record, of all layouts, out of the container and return it.

        Raises:
            RecordError: the container is empty.
        """
        worst = self._at(-1)
        self._remove(worst)
        return worst.record

    def to_list(self, nbest: int = -1) -> list[RecordView]:
        """Return the best `nbest` records (-1: all), of all layouts, best first.

        Raises:
            RecordError: `nbest` is less than -1.
        """
        return [member.record for member in self._members[: limit(nbest)]]

    def trim(self, nbest: int) -> None:
        """Pop until no more than `nbest` records (-1: all) remain."""
        most = limit(nbest)
        for member in [] if most is None else self._members[most:]:
            self._remove(member)

    def layouts(self) -> dict[Layout | None, list[RecordView]]:
        """Return the records by layout, best first; None holds those that have none or are not grouped."""
        groups: dict[Layout | None, list[RecordView]] = {}
        for member in self._members:
            groups.setdefault(member.layout, []).append(member.record)
        return groups

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[RecordView]:
        return iter(self.to_list())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target_key!r}, {self.workload_key!r}): {len(self)} records"

    def _at(self, position: int) -> _Member:
        if not self._members:
            raise RecordError(
                f"expected a record in {self!r}, found none: no program of this workload was measured without error"
            )
        return self._members[position]

    def _remove(self, member: _Member) -> None:
        del self._members[bisect_left(self._members, member.order, key=attrgetter("order"))]
        for slot in member.slots:
            del self._slots[slot]

    def _check(self, record: RecordView) -> None:
        dialect, target = record.row["program_format"], canonical_target_key(record.target)
        if dialect != self.program_format:
            raise RecordError(
                f"expected a record whose program_format is {self.program_format}, found {dialect}; "
                f"{type(self).__name__} takes its own dialect's records only"
            )
        if target != self.target_key:
            raise RecordError(
                f"expected a record of the target {self.target_key}, found one of {target}; push it to a container of "
                "its own target"
            )
        if self.workload_key is None or record.workload_id in self._checked:
            return
        key = self.key_of(record)
        if key != self.workload_key:
            raise RecordError(
                f"expected a record of the workload {self.workload_key}, found one of {key}; push it to a container "
                "of its own workload"
            )
        self._checked.add(record.workload_id)


def rank(record: RecordView) -> tuple[float, float]:
    """Return the sort key of records, best first: mean cost, then the latest time stamp."""
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


def modules_of(path: Path, reader: LogFormat) -> dict[str, LoggedWorkload]:
    """Return the workloads of a MetaSchedule record file by workload_id; of other formats, none."""
    return {
        identity: LoggedWorkload(shash, mod_json, identity)
        for identity, mod_json, _, shash in reader.modules(path)
    }
