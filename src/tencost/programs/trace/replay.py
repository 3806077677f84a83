"""A record's program as a schedule: the trace text of a database replayed on the workload's module. Needs TVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from tencost.programs.trace.allowed import check_trace, load_checked


@dataclass(frozen=True)
class Replayed:
    """A schedule, or the reason why there is none."""

    schedule: Any | None
    """tvm.s_tir.Schedule after the whole trace, post-processing included; None when it does not replay."""
    error: str = ""
    """First line of TVM's message."""


def load_module(mod_json: str) -> Any:
    """Return the IRModule of a workload from TVM's JSON node graph.

    Raises:
        UntrustedError: it names what could run code of others, see :mod:`tencost.programs.trace.allowed`.
    """
    return load_checked(mod_json, "the workload's module")


def replay(module: Any, program: str) -> Replayed:
    """Apply a trace, JSON text ``[instructions, decisions]``, to a fresh schedule of the module.

    A trace that does not apply (another TVM version, another workload), or that holds what could run code of others, is
    data about the record, not a failure of the run: its message is kept.
    """
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    schedule = Schedule(module, debug_mask=0)
    try:
        trace = orjson.loads(program)
        check_trace(trace)
        Trace.apply_json_to_schedule(trace, schedule)
    except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side says, under many types
        return Replayed(None, error_line(error))
    return Replayed(schedule)


def error_line(error: BaseException) -> str:
    """Return the last telling line of a TVM error: its tracebacks come first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "error" in line]
    return ((errors or lines or [type(error).__name__])[-1])[:300]
