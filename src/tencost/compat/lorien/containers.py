"""Containers of the best records of one workload on one target, as Lorien has them.

A container is ordered best first: least mean cost, then the latest time stamp (none counts as the earliest), then
the one pushed first. Records themselves are never compared. A program is kept once, with its best measurement.
`peak` is the best record and `pop` takes the worst one, of all layouts, in every dialect. A failed record has no cost
and is not kept.
"""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tencost.compat.lorien.keys import alter_key
from tencost.compat.lorien.keys import target_key as canonical_target_key
from tencost.compat.lorien.layouts import Layout
from tencost.compat.lorien.rows import UNNAMED, RecordView, limit, rank
from tencost.errors import RecordError
from tencost.records.reading.protocol import About, LogFormat
from tencost.store.ids import canonical_target, text_id


@dataclass(frozen=True)
class _Entry:
    """A record in a container; `arrival` makes `order` differ between any two."""

    cost: float
    age: float
    arrival: int
    layout: Layout | None
    record: RecordView

    @property
    def order(self) -> tuple[float, float, int]:
        return self.cost, self.age, self.arrival


class Records:
    """The best records of a workload on a target; a subclass for each dialect.

    Args:
        target_key: the target, in any way that TVM writes it.
        workload_key: the workload; None: records of any workload of the target are taken.
        group_by_layout: keep the best record of each data layout only. Records whose layout cannot be inferred are
            all kept.

    Raises:
        RecordError: `target_key` is no target.
    """

    program_format: ClassVar[str] = "none"
    """The schema's name for the programs that the container takes."""

    def __init__(
        self, target_key: str, workload_key: str | None = None, group_by_layout: bool = False
    ) -> None:
        self.target_key = canonical_target_key(target_key)
        """The canonical text, without -libs."""
        self.alter_key = alter_key(target_key)
        self.workload_key = workload_key
        self.group_by_layout = group_by_layout
        self._entries: list[_Entry] = []
        self._of_id: dict[str, _Entry] = {}
        self._of_layout: dict[tuple[str, Layout], _Entry] = {}
        self._workloads: dict[str, str] = {}
        self._arrivals = 0

    @classmethod
    def log_format(cls) -> LogFormat:
        """Return the reader of the dialect's logs."""
        raise NotImplementedError

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
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record"
            path.write_text(record_str, encoding="utf-8")
            return only_record(cls.log_format(), path, hardware)

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
        """Take a record; return whether it is kept.

        It is not if it failed, if a better measurement of the same program is there, or if a better record of its
        layout is there and the container groups by layout.

        Raises:
            RecordError: a record of another dialect, target or workload.
        """
        self._check(record)
        if record.mean_s is None:
            return False
        layout = self.layout_of(record) if self.group_by_layout else None
        entry = _Entry(*rank(record), self._arrivals, layout, record)
        self._arrivals += 1
        rivals = [self._of_id.get(record.record_id)]
        if layout is not None:
            rivals.append(self._of_layout.get((record.workload_id, layout)))
        if any(rival is not None and rival.order < entry.order for rival in rivals):
            return False
        for rival in rivals:
            if rival is not None and rival.record.record_id in self._of_id:
                self._remove(rival)
        insort(self._entries, entry, key=lambda item: item.order)
        self._of_id[record.record_id] = entry
        if layout is not None:
            self._of_layout[record.workload_id, layout] = entry
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
        return [entry.record for entry in self._entries[: limit(nbest)]]

    def trim(self, nbest: int) -> None:
        """Pop until no more than `nbest` records (-1: all) are left."""
        most = limit(nbest)
        while most is not None and len(self) > most:
            self.pop()

    def layouts(self) -> dict[Layout | None, list[RecordView]]:
        """Return the records by layout, best first; None holds those that have none or are not grouped."""
        found: dict[Layout | None, list[RecordView]] = {}
        for entry in self._entries:
            found.setdefault(entry.layout, []).append(entry.record)
        return found

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[RecordView]:
        return iter(self.to_list())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target_key!r}, {self.workload_key!r}): {len(self)} records"

    def _at(self, position: int) -> _Entry:
        if not self._entries:
            raise RecordError(
                f"expected a record in {self!r}, found none: no program of this workload was measured without error"
            )
        return self._entries[position]

    def _remove(self, entry: _Entry) -> None:
        at = bisect_left(self._entries, entry.order, key=lambda item: item.order)
        assert self._entries[at] is entry
        del self._entries[at]
        del self._of_id[entry.record.record_id]
        if entry.layout is not None:
            del self._of_layout[entry.record.workload_id, entry.layout]

    def _check(self, record: RecordView) -> None:
        found = record.row["program_format"]
        if found != self.program_format:
            raise RecordError(
                f"expected a record whose program_format is {self.program_format}, found {found}; "
                f"{type(self).__name__} takes its own dialect's records only"
            )
        if canonical_target_key(record.target) != self.target_key:
            raise RecordError(
                f"expected a record of the target {self.target_key}, found one of "
                f"{canonical_target_key(record.target)}; "
                "push it to a container of its own target"
            )
        if self.workload_key is None or record.workload_id in self._workloads:
            return
        key = self.key_of(record)
        if key != self.workload_key:
            raise RecordError(
                f"expected a record of the workload {self.workload_key}, found one of {key}; push it to a container "
                "of its own workload"
            )
        self._workloads[record.workload_id] = key


def only_record(reader: LogFormat, path: Path, hardware: str) -> RecordView:
    """Return the record of a log that holds one.

    Raises:
        RecordError: it holds none, more, or a line that cannot be read.
    """
    batches = list(reader.read(path, About("decoded", path.name, hardware)))
    rejects = [reject for batch in batches for reject in batch.rejects]
    rows = [row for batch in batches for row in batch.records.to_pylist()]
    if rejects or len(rows) != 1:
        reason = rejects[0].reason if rejects else f"found {len(rows)} of them"
        raise RecordError(f"expected one record of {path.name}: {reason}")
    return RecordView.of_row(rows[0])
