"""The dialects of Lorien's containers: their keys, lines, tasks and layouts."""

from __future__ import annotations

import json
from typing import Any

from tencost.compat.lorien.containers import UNNAMED, Records, RecordView
from tencost.compat.lorien.keys import REQUIRED_LIBS, autotvm_workload_key
from tencost.compat.lorien.layouts import Layout, infer_layout
from tencost.errors import RecordError
from tencost.records.formats import ansor, autotvm, metaschedule
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    encode_module,
    programs_of,
)
from tencost.store.ids import record_id


class AutoTVMRecords(Records):
    """Records of an AutoTVM task; the only dialect with layouts."""

    program_format = "autotvm_config"
    log_format = autotvm.FORMAT

    @staticmethod
    def key_of(record: RecordView) -> str:
        """Return the task name and arguments as :func:`keys.autotvm_workload_key` writes them."""
        return autotvm_workload_key(*_task(record))

    @staticmethod
    def encode(record: RecordView) -> str:
        return "".join(autotvm.write_lines(record.table())).rstrip("\n")

    @staticmethod
    def layout_of(record: RecordView) -> Layout | None:
        entities = json.loads(record.program)["entity"]
        return infer_layout(*_task(record), entities, json.loads(record.target))

    def gen_task_item(self) -> dict[str, Any]:
        """Return OpName, TaskName, Args and, for a template that calls a library, RequiredLib."""
        record = self.peak()
        name, args = _task(record)
        logged = record.foreign.get("input") or []
        workload = logged[4] if len(logged) > 4 else None  # version 0.1 logs the workload, too
        operator = workload[0] if isinstance(workload, list) and workload else name
        library = {"RequiredLib": REQUIRED_LIBS[name]} if name in REQUIRED_LIBS else {}
        return {"OpName": operator, "TaskName": name, "Args": args, **library}


class AutoSchedulerRecords(Records):
    """Records of an auto_scheduler (Ansor) task."""

    program_format = "ansor_steps"
    log_format = ansor.FORMAT

    @staticmethod
    def key_of(record: RecordView) -> str:
        """Return the log's own workload key."""
        task = record.foreign.get("task") or []
        return str(task[0]) if task else record.workload_id

    @staticmethod
    def encode(record: RecordView) -> str:
        return "".join(ansor.write_lines(record.table())).rstrip("\n")

    def gen_task_item(self) -> dict[str, Any]:
        """Return nothing: the workload key says it all."""
        return {}


class MetaScheduleRecords(Records):
    """Records of a MetaSchedule workload; its key is the workload_id.

    A record is encoded as ``[[shash, module], [trace, run_secs, target, args_info]]``: a line of each file of a
    database, the module in the index's place.
    """

    program_format = "metaschedule_trace"
    log_format = metaschedule.FORMAT

    @staticmethod
    def key_of(record: RecordView) -> str:
        """Return the workload_id."""
        return record.workload_id

    @staticmethod
    def id_on(record: RecordView, hardware: str) -> str:
        return record_id(str(record.row["program_id"]), json.loads(record.target), hardware)

    @staticmethod
    def encode(record: RecordView) -> str:
        """Return the record with its module as one line.

        Raises:
            RecordError: the module is not known: a record from the store has none.
        """
        module = record.module
        if module is None:
            raise RecordError(
                f"expected a record with its module, found none for the workload {record.workload_id}; take the record "
                "from MetaScheduleTuneResult.create_records_by_workloads"
            )
        (program,) = programs_of(record.table(), {record.workload_id: module})
        body = [program.trace, program.run_secs, program.target, program.args_info]
        return json.dumps([[module.shash, encode_module(module.mod_json)], body])

    @classmethod
    def decode(cls, record_str: str, hardware: str = UNNAMED) -> RecordView:
        try:
            workload, body = json.loads(record_str)
        except (ValueError, TypeError) as error:
            raise RecordError(
                "expected [[shash, module], [trace, run_secs, target, args_info]] as MetaScheduleRecords.encode writes "
                f"it, found {record_str[:60]!r}: {error}"
            ) from error
        files = {RECORD_FILE: json.dumps([0, body]), WORKLOAD_FILE: json.dumps(workload)}
        return cls.decode_files(files, hardware)

    def gen_task_item(self) -> dict[str, Any]:
        """Return TaskName and Args (``["TENSOR", dtype, shape]`` each)."""
        row = self.peak().row
        return {"TaskName": row["task_name"], "Args": json.loads(row["workload_args"] or "[]")}


def _task(record: RecordView) -> tuple[str, list[Any]]:
    """Return an AutoTVM record's task name and arguments."""
    logged = record.foreign.get("input")
    if isinstance(logged, list) and len(logged) > 2:
        return str(logged[1]), list(logged[2])
    name = str(record.row["workload"]).removeprefix("autotvm.")
    return name, json.loads(record.row["workload_args"] or "[]")
