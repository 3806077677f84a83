"""Records of a workload's programs as a store has them."""

from __future__ import annotations

import json
from typing import Any

from tencost.programs.codegen.refit import apply_decisions, decisions, sketch
from tencost.programs.trace.instructions import trace_values
from tencost.store.ids import program_id, workload_id
from tencost.store.schema import Record, Source
from tencost.store.status import Status


def key_of(mod: Any) -> str:
    from tvm.ir import save_json

    return workload_id(str(save_json(mod)))


def records_of(mod: Any, target: dict[str, Any], hardware: str) -> list[Record]:
    """One program of each design space, the first the fastest."""
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    context = ms.TuneContext(
        mod=mod,
        target=Target(target),
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        task_name="matmul",
        rand_state=1,
        num_threads=1,
    )
    found = []
    for number, space in enumerate(context.generate_design_space(), start=1):
        trace = space.trace.simplified(True)
        made = sketch(trace_values(trace))
        schedule = apply_decisions(
            context, trace, made.places, decisions(trace_values(trace), made), 0
        )
        assert schedule is not None
        program = trace_values(schedule.trace)
        identity = program_id(key_of(mod), "llvm", program)
        found.append(
            Record(
                record_id=f"{hardware}-{identity}",
                program_id=identity,
                workload_id=key_of(mod),
                task_name="matmul",
                networks=(),
                hardware=hardware,
                target=target,
                program_format="metaschedule_trace",
                program=json.dumps(program),
                run_secs=(number * 1e-9, number * 1e-9),
                status=Status.ok,
                error="",
                source=Source("tune", "elsewhere.json", number),
            )
        )
    return found
