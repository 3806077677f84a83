"""What the live store knows about a network's own workloads, taken into the work folder: nothing is measured twice.

The records of the same hardware and target become records of the folder's MetaSchedule database, with their times; the
search begins from them, the model learns from them, and they do not count as trials of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tencost.config import HardwareConfig
from tencost.features.replay import replay
from tencost.networks.network import NetworkTask
from tencost.register.start_records import COLUMNS, fastest
from tencost.store.record_store import RecordStore
from tencost.tune.workfolder import WorkFolder

PER_WORKLOAD = 64
"""Records of a workload that are taken over, the fastest ones."""


def adopt(
    folder: WorkFolder,
    tasks: Sequence[NetworkTask],
    ids: Sequence[str],
    hardware: HardwareConfig,
    store: RecordStore,
) -> int:
    """Take the store's records of the tasks over, where the folder has none of a task; return how many.

    Args:
        folder: an open work folder.
        tasks: the network's tasks.
        ids: their workload ids.
        hardware: records of this one, for its target, are taken.
        store: need not exist.
    """
    if not store.exists() or hardware.name not in store.hardware():
        return 0
    database = folder.database()
    empty = {
        identity: task.mod
        for identity, task in zip(ids, tasks, strict=True)
        if not database.has_workload(task.mod)
        or not database.get_top_k(database.commit_workload(task.mod), 1)
    }
    target = Target(hardware.target)
    adopted = 0
    for workload, program, times in _fastest(store, hardware, list(empty)):
        found = replay(empty[workload], program)
        if found.schedule is None:
            continue
        database.commit_tuning_record(
            ms.database.TuningRecord(
                found.schedule.trace,
                database.commit_workload(empty[workload]),
                times,
                target,
                ms.arg_info.ArgInfo.from_entry_func(found.schedule.mod, remove_preproc=True),
            )
        )
        adopted += 1
    folder.new_programs()
    folder.adopted += adopted
    folder.save_session()
    return adopted


def _fastest(
    store: RecordStore, hardware: HardwareConfig, workloads: Sequence[str]
) -> list[tuple[str, str, Any]]:
    """Return (workload id, trace as JSON text, times in seconds), fastest first."""
    records = store.read(hardware.name, COLUMNS).filter(
        pl.col("workload_id").is_in(list(workloads))
    )
    kept = fastest(records, hardware.target, PER_WORKLOAD)
    return kept.select("workload_id", "program", "run_secs").rows()
