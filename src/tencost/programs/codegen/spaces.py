"""The design space of a workload: TVM's own, and register tiles.

TVM's rules give what MetaSchedule searches; :mod:`tencost.programs.codegen.registers` adds a space for products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def search_space(target: Any) -> Any:
    """Return a space generator for `space=` of ms.tune_tir, tune_tasks and tune_relax.

    Args:
        target: TVM target or its dictionary. For one that is no CPU, and for None, the generator is TVM's
            own.
    """
    from tvm.s_tir import meta_schedule as ms

    from tencost.programs.codegen.build import prepare_compilation
    from tencost.programs.codegen.products import vectors_of
    from tencost.programs.codegen.registers import designs

    if vectors_of(target) is None:
        return ms.space_generator.PostOrderApply()
    prepare_compilation("llvm")

    def tiles(schedule: Any) -> list[Any]:
        return [design.schedule for design in designs(schedule.mod, target)]

    generators = [ms.space_generator.PostOrderApply(), ms.space_generator.ScheduleFn(tiles)]
    return ms.space_generator.SpaceGeneratorUnion(generators)


def is_register_tile(instructions: Sequence[Sequence[Any]]) -> bool:
    """Say whether a trace is of the space of register tiles, which alone unrolls by itself and not by a mark.

    Args:
        instructions: of a trace, plain JSON values.
    """
    for kind, *_ in instructions:
        if kind == "EnterPostproc":
            break
        if kind == "Unroll":
            return True
    return False
