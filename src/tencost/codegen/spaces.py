"""The design space of a workload: TVM's own, and register tiles.

TVM's rules give what MetaSchedule searches; :mod:`tencost.codegen.registers` adds a space for products.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import meta_schedule as ms

from tencost.codegen.products import vectors_of
from tencost.codegen.registers import designs


def search_space(target: Any) -> Any:
    """Return a space generator for `space=` of ms.tune_tir, tune_tasks and tune_relax.

    Args:
        target: TVM target or its dictionary. For one that is no CPU the generator is TVM's own.
    """
    if vectors_of(target) is None:
        return ms.space_generator.PostOrderApply()

    def tiles(schedule: Any) -> list[Any]:
        return [one.schedule for one in designs(schedule.mod, target)]

    generators = [ms.space_generator.PostOrderApply(), ms.space_generator.ScheduleFn(tiles)]
    return ms.space_generator.SpaceGeneratorUnion(generators)
