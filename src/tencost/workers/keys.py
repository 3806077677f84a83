"""The key of a scheduled program: the search, the workers and what is read from files mean the same one by it."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule
from tvm_ffi import structural_hash

_REORDERS = "meta_schedule.layout_rewrite_preproc"
"""Mark of a block that reorders weights."""


def program_key(mod: Any) -> int:
    """Return a hash of a scheduled module; the same in every process of a machine.

    Blocks that reorder weights are marked with True, of which a trace that was written as JSON makes 1: both are one
    program.
    """
    if "layout_free_buffers" not in dict(mod["main"].attrs or {}):
        return int(structural_hash(mod))
    copy = Schedule(mod)
    for block in copy.get_child_blocks(copy.get_sblock("root")):
        if _REORDERS in copy.get(block).annotations:
            copy.unannotate(block, _REORDERS)
            copy.annotate(block, _REORDERS, 1)
    return int(structural_hash(copy.mod))
