"""Tuning logs read into containers, one for each workload and target, as Lorien's TuneResult does it.

A class a dialect; all read a log once, in batches, and hold no more than a batch and the records kept. Malformed lines
are reported and the others read. A workload whose programs all failed gives an empty container.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from tencost.compat.lorien.containers import Records
from tencost.compat.lorien.dialects import (
    AutoSchedulerRecords,
    AutoTVMRecords,
    MetaScheduleRecords,
    modules_of,
)
from tencost.compat.lorien.keys import target_key
from tencost.compat.lorien.rows import UNNAMED, RecordView, limit
from tencost.errors import RecordError
from tencost.records.formats.metaschedule import RECORD_FILE, LoggedWorkload
from tencost.records.reading.opening import read_head
from tencost.records.reading.protocol import About, Reject

CHUNK_ROWS = 64
"""Rows of a batch that are made into Python objects at first, the fastest; then twice as many each time."""
_LOG = logging.getLogger(__name__)


class HasWorkloadKey(Protocol):
    """A workload that knows its key, as Lorien's workload classes do."""

    def get_workload_key(self) -> str: ...


class TuneResult:
    """Reads tuning logs; a subclass reads its dialect's, this class the one that the log is of."""

    records: ClassVar[type[Records]] = Records
    """The dialect's container."""
    group_by_layout: ClassVar[bool] = False
    """Whether the containers keep the best record of each layout only, unless the caller says otherwise."""

    @classmethod
    def create_records_by_workloads(
        cls,
        log_file_path: str | Path,
        nbest: int,
        workload: str | HasWorkloadKey | None = None,
        *,
        hardware: str | None = None,
        group_by_layout: bool | None = None,
        on_reject: Callable[[Reject], None] | None = None,
    ) -> list[Records]:
        """Return a container for each (workload, target) of a log, in the order of their first lines.

        Args:
            log_file_path: the log; of MetaSchedule the database's folder or its record file.
            nbest: how many of the best records a container keeps, over all layouts; -1: all.
            workload: the one workload to read: its key, its workload_id, or an object that has a key.
            hardware: the device, where the log does not say it. Containers do without, the store does not.
            group_by_layout: see Records; None: as Lorien does, for AutoTVM only.
            on_reject: called with each line that cannot be read; None: the first one and their number are logged.

        Raises:
            RecordError: the log cannot be opened, is of no dialect, or `nbest` is less than -1.
        """
        limit(nbest)
        path = _record_file(Path(log_file_path))
        if cls is TuneResult:
            return _dialect_of(path).create_records_by_workloads(
                path,
                nbest,
                workload,
                hardware=hardware,
                group_by_layout=group_by_layout,
                on_reject=on_reject,
            )
        reader = cls.records.log_format()
        grouped = cls.group_by_layout if group_by_layout is None else group_by_layout
        wanted = workload if workload is None or isinstance(workload, str) else _key(workload)
        groups = _Groups(cls.records, nbest, wanted, grouped, modules_of(path, reader))
        rejects: list[Reject] = []
        for batch in reader.read(path, About(path.stem, path.name, hardware or UNNAMED)):
            for reject in batch.rejects:
                rejects.append(reject) if on_reject is None else on_reject(reject)
            groups.add(batch.records)
        if rejects:
            first = rejects[0]
            _LOG.warning(
                "%d lines of %s could not be read; the first is line %d: %s",
                len(rejects),
                path,
                first.line,
                first.reason,
            )
        return groups.containers()


class AutoTVMTuneResult(TuneResult):
    """AutoTVM logs; containers keep the best record of each layout."""

    records = AutoTVMRecords
    group_by_layout = True


class AutoSchedulerTuneResult(TuneResult):
    """auto_scheduler (Ansor) logs."""

    records = AutoSchedulerRecords


class MetaScheduleTuneResult(TuneResult):
    """MetaSchedule databases; the records know their modules."""

    records = MetaScheduleRecords


def _dialect_of(path: Path) -> type[TuneResult]:
    """Return the class of a log's dialect, known from its first lines."""
    head = read_head(path)
    for kind in (MetaScheduleTuneResult, AutoSchedulerTuneResult, AutoTVMTuneResult):
        if kind.records.log_format().recognizes(path, head):
            return kind
    raise RecordError(
        f"expected a log of AutoTVM, auto_scheduler or MetaSchedule, found none of them in {path}; import other "
        "formats with `tencost records import`"
    )


class _Groups:
    """Containers by workload and target, filled a batch at a time."""

    def __init__(
        self,
        kind: type[Records],
        nbest: int,
        wanted: str | None,
        grouped: bool,
        modules: dict[str, LoggedWorkload],
    ) -> None:
        self._kind = kind
        self._nbest = nbest
        self._wanted = wanted
        self._grouped = grouped
        self._modules = modules
        self._found: dict[tuple[str, str], Records | None] = {}
        self._of_text: dict[tuple[str, str], Records | None] = {}

    def containers(self) -> list[Records]:
        return [container for container in self._found.values() if container is not None]

    def add(self, table: pa.Table) -> None:
        """Push the rows of a table, fastest first: most of the others need not be looked at."""
        texts = list(
            zip(table["workload_id"].to_pylist(), table["target"].to_pylist(), strict=True)
        )
        for row, text in enumerate(texts):
            if text not in self._of_text:
                self._of_text[text] = self._container(self._view(table, row))
        mean = _means(table)
        (timed,) = np.nonzero(np.isfinite(mean))
        ranked = timed[np.argsort(mean[timed], kind="stable")]
        size, start = CHUNK_ROWS, 0
        while start < len(ranked):
            chunk = [
                int(row)
                for row in ranked[start : start + size]
                if self._has_room(self._of_text[texts[row]], float(mean[row]))
            ]
            for row, values in zip(chunk, _rows(table, chunk), strict=True):
                container = self._of_text[texts[row]]
                assert container is not None
                container.push(RecordView.of_row(values, self._modules.get(texts[row][0])))
                container.trim(self._nbest)
            start += size
            size *= 2

    def _container(self, record: RecordView) -> Records | None:
        """Return the container of a record's workload and target, a new one for the first; None: not wanted."""
        key = self._kind.key_of(record)
        group = (record.workload_id, target_key(record.target))
        if group not in self._found:
            wanted = self._wanted in (None, key, record.workload_id)
            made = self._kind(record.target, key, self._grouped) if wanted else None
            self._found[group] = made
        return self._found[group]

    def _has_room(self, container: Records | None, mean_s: float) -> bool:
        if container is None or self._nbest == 0:
            return False
        if self._nbest == -1 or len(container) < self._nbest:
            return True
        worst = container.bottom().mean_s
        # The means are computed in two ways; their last digits may differ.
        return worst is not None and mean_s <= worst * (1 + 1e-9)

    def _view(self, table: pa.Table, row: int) -> RecordView:
        (values,) = _rows(table, [row])
        return RecordView.of_row(values)


def _means(table: pa.Table) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the mean of each row's times, seconds; nan without times."""
    times = table["run_secs"].combine_chunks()
    lengths = times.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    values = times.flatten().to_numpy(zero_copy_only=False)
    total = np.bincount(owner, values, len(lengths))
    return np.where(lengths > 0, total / np.maximum(lengths, 1), np.nan)


def _rows(table: pa.Table, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
    yield from table.take(pa.array(rows, pa.int64())).to_pylist()


def _key(workload: HasWorkloadKey) -> str:
    return workload.get_workload_key()


def _record_file(path: Path) -> Path:
    """Return the file to read: of a folder, its MetaSchedule record file."""
    if not path.is_dir():
        return path
    for name in (RECORD_FILE, f"{RECORD_FILE}.gz", f"{RECORD_FILE}.zst"):
        if (path / name).is_file():
            return path / name
    raise RecordError(
        f"expected a log file, or a folder with a {RECORD_FILE}, found the folder {path} without one; name the file"
    )
