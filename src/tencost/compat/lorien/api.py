"""Lorien's API: containers of the best records of a workload, made from logs, kept in the record store.

    for records in AutoTVMTuneResult.create_records_by_workloads("tune.log", nbest=20):
        print(records.workload_key, records.peak().mean_s)
    commit(records, "data/store", nbest=20, hardware="v100")
    best = query("data/store", workload_key, target="cuda -model=v100", hardware="v100", nbest=1)
    print(AutoTVMRecords.encode(best[0]))

A container is filled and asked as in Lorien, see :mod:`tencost.compat.lorien.containers`; where it behaves otherwise,
``docs/reference/lorien.md`` says how and why. No TVM is needed, and nothing that a log holds is executed.
"""

from __future__ import annotations

from tencost.compat.lorien.containers import UNNAMED, Records, RecordView
from tencost.compat.lorien.dialects import AutoSchedulerRecords, AutoTVMRecords, MetaScheduleRecords
from tencost.compat.lorien.keys import alter_key, autotvm_workload_key, target_key
from tencost.compat.lorien.layouts import Layout, infer_layout
from tencost.compat.lorien.logs import (
    AutoSchedulerTuneResult,
    AutoTVMTuneResult,
    MetaScheduleTuneResult,
    TuneResult,
)
from tencost.compat.lorien.store_adapter import commit, query

__all__ = [
    "UNNAMED",
    "AutoSchedulerRecords",
    "AutoSchedulerTuneResult",
    "AutoTVMRecords",
    "AutoTVMTuneResult",
    "Layout",
    "MetaScheduleRecords",
    "MetaScheduleTuneResult",
    "RecordView",
    "Records",
    "TuneResult",
    "alter_key",
    "autotvm_workload_key",
    "commit",
    "infer_layout",
    "query",
    "target_key",
]
