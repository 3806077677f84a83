"""Tuning logs read into containers, one for each workload and target, as Lorien's TuneResult does it.

A class a dialect; all read a log once, in batches, and hold no more than a batch and the containers' records. Malformed
lines are reported and the others read. A workload whose programs all failed gives an empty container.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import polars as pl

from tencost.compat.lorien import knobs
from tencost.compat.lorien.containers import UNNAMED, Records, RecordView, limit, modules_of
from tencost.compat.lorien.dialects import AutoSchedulerRecords, AutoTVMRecords, MetaScheduleRecords
from tencost.compat.lorien.keys import target_key
from tencost.errors import FeatureError, RecordError
from tencost.records.formats.autotvm.lines import Line
from tencost.records.formats.metaschedule import RECORD_FILE, LoggedWorkload
from tencost.records.reading.opening import read_head
from tencost.records.reading.protocol import About, Reject

_LOG = logging.getLogger(__name__)


class HasWorkloadKey(Protocol):
    """A workload that knows its key, as Lorien's workload classes do."""

    def get_workload_key(self) -> str: ...


class TuneResult:
    """Reads tuning logs; a subclass reads its dialect's, this class the one that the log is of."""

    records: ClassVar[type[Records]] = Records
    """The dialect's container."""
    group_by_layout: ClassVar[bool] = False
    """Whether the containers have the best record of each layout only, unless the caller says otherwise."""

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
            nbest: how many of the best records a container has, over all layouts; -1: all.
            workload: the one workload to read: its key, its workload_id, or an object that has a key.
            hardware: the device, where the log does not say it. Containers do without, the store does not.
            group_by_layout: see Records; None: as Lorien does, for AutoTVM only.
            on_reject: called with each line that cannot be read; None: the first one and their number are logged.

        Raises:
            RecordError: the log cannot be opened, is of no dialect, or `nbest` is less than -1.
        """
        limit(nbest)
        path = _record_file(Path(log_file_path))
        dialect = _dialect_of(path) if cls is TuneResult else cls
        reader = dialect.records.log_format
        grouped = dialect.group_by_layout if group_by_layout is None else group_by_layout
        requested = workload if isinstance(workload, str | None) else workload.get_workload_key()
        modules = modules_of(path, reader)
        rejects: list[Reject] = []
        containers: dict[tuple[str, str], Records | None] = {}
        for batch in reader.read(path, About(path.stem, path.name, hardware or UNNAMED)):
            for reject in batch.rejects:
                rejects.append(reject) if on_reject is None else on_reject(reject)
            frame = pl.DataFrame(batch.records)
            for _, rows in frame.group_by("workload_id", "target", maintain_order=True):
                record = RecordView.of_row(rows.row(0, named=True))
                group = (record.workload_id, target_key(record.target))
                if group not in containers:
                    key = dialect.records.key_of(record)
                    fits = requested in (None, key, record.workload_id)
                    containers[group] = (
                        dialect.records(record.target, key, grouped) if fits else None
                    )
                container = containers[group]
                if container is not None:
                    _push_best(container, rows, nbest, modules.get(record.workload_id))
        if rejects:
            first = rejects[0]
            _LOG.warning(
                "%d lines of %s could not be read; the first is line %d: %s",
                len(rejects), path, first.line, first.reason,
            )  # fmt: skip
        return [container for container in containers.values() if container is not None]

    @classmethod
    def extract_feature(cls, inp: RecordView | Line | bytes | str) -> dict[str, Any]:
        """Return the features of a record, names to values, see tencost.compat.lorien.knobs; AutoTVM's only.

        Args:
            inp: a record of a container or of a query, or a line of a log.

        Raises:
            FeatureError: the dialect has no features.
            ValueError: no AutoTVM line.
        """
        cls._require_features()
        line = AutoTVMRecords.encode(inp) if isinstance(inp, RecordView) else inp
        return knobs.extract_feature(line)

    @classmethod
    def extract_feature_from_file(
        cls, log_file_path: str | Path, feature_path: str | Path, name: str | None = None
    ) -> knobs.Extracted:
        """Write a log's features as JSON lines, see :func:`.knobs.extract_feature_from_file`; AutoTVM's only.

        Raises:
            FeatureError: the dialect has no features.
            RecordError: the log cannot be opened.
        """
        cls._require_features()
        return knobs.extract_feature_from_file(log_file_path, feature_path, name)

    @classmethod
    def gen_features(
        cls,
        log_file_path: str | Path,
        feature_path: str | Path,
        statistics_rows: Iterable[tuple[str, int]] | None = None,
    ) -> knobs.Generated:
        """Write the features of a log, or of a folder's logs, as tables, see :func:`.knobs.gen_features`.

        Raises:
            FeatureError: the dialect has no features, or there is no AutoTVM log.
            RecordError: a log cannot be opened.
        """
        cls._require_features()
        return knobs.gen_features(log_file_path, feature_path, statistics_rows)

    @classmethod
    def _require_features(cls) -> None:
        if not issubclass(cls, AutoTVMTuneResult):
            raise FeatureError(
                f"expected AutoTVMTuneResult, found {cls.__name__}: Lorien's features are of AutoTVM's knobs. Of other "
                "logs, take another feature set: see conf/features/"
            )


class AutoTVMTuneResult(TuneResult):
    """AutoTVM logs; containers have the best record of each layout, and the logs have features."""

    records = AutoTVMRecords
    group_by_layout = True


class AutoSchedulerTuneResult(TuneResult):
    """auto_scheduler (Ansor) logs."""

    records = AutoSchedulerRecords


class MetaScheduleTuneResult(TuneResult):
    """MetaSchedule databases; the records know their modules."""

    records = MetaScheduleRecords


def _push_best(
    container: Records, rows: pl.DataFrame, nbest: int, module: LoggedWorkload | None
) -> None:
    """Push rows of one workload, fastest first, until none of the others can be among the best."""
    mean = pl.col("run_secs").list.mean()
    timed = rows.filter(mean.is_finite()).sort(mean, maintain_order=True)
    for mean_s, row in zip(
        timed.select(mean)["run_secs"], timed.iter_rows(named=True), strict=True
    ):
        if 0 <= nbest <= len(container):
            worst = container.bottom().mean_s if nbest else 0.0
            # The means are computed in two ways; their last digits may differ.
            if worst is not None and mean_s > worst * (1 + 1e-9):
                return
        container.push(RecordView.of_row(row, module))
        container.trim(nbest)


def _dialect_of(path: Path) -> type[TuneResult]:
    """Return the class of a log's dialect, known from its first lines."""
    head = read_head(path)
    for dialect in (MetaScheduleTuneResult, AutoSchedulerTuneResult, AutoTVMTuneResult):
        if dialect.records.log_format.recognizes(path, head):
            return dialect
    raise RecordError(
        f"expected a log of AutoTVM, auto_scheduler or MetaSchedule, found none of them in {path}; import other "
        "formats with `tencost records import`"
    )


def _record_file(path: Path) -> Path:
    """Return the file to read: of a folder, its MetaSchedule record file."""
    names = (RECORD_FILE, f"{RECORD_FILE}.gz", f"{RECORD_FILE}.zst")
    files = [path / name for name in names if (path / name).is_file()] if path.is_dir() else [path]
    if not files:
        raise RecordError(
            f"expected a log file, or a folder with a {RECORD_FILE}, found the folder {path} without one; name the file"
        )
    return files[0]
