"""MetaSchedule's JSON database: database.py has the grammar and reads and writes pairs of files, log.py any TVM's."""

from tencost.records.formats.metaschedule.database import (
    RECORD_FILE,
    WORKLOAD_FILE,
    BadLineError,
    LoggedProgram,
    LoggedWorkload,
    Reject,
    decode_module,
    encode_module,
    read_programs,
    read_workloads,
    write_database,
)
from tencost.records.formats.metaschedule.log import MetascheduleFormat, programs_of

__all__ = [
    "FORMAT",
    "RECORD_FILE",
    "WORKLOAD_FILE",
    "BadLineError",
    "LoggedProgram",
    "LoggedWorkload",
    "MetascheduleFormat",
    "Reject",
    "decode_module",
    "encode_module",
    "programs_of",
    "read_programs",
    "read_workloads",
    "write_database",
]

FORMAT = MetascheduleFormat()
