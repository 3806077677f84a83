"""Tuning records of one target: TVM looks a workload's best record up in a database whatever it was measured on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from tvm.target import Target

from tencost.workers.runner import target_mapping


def records_for_target(records: Sequence[Any], target: Any) -> list[Any]:
    """Return the records whose programs are for a target, in their order.

    A workload that was tuned for this very target keeps these records only; any other one those of the target's kind,
    as of another CPU. Records without a target stay.

    Args:
        records: tuning records of a MetaSchedule database.
        target: TVM target, or its dictionary.
    """
    target = Target(target)

    @cache
    def is_exact(text: str) -> bool:
        return target_mapping(text) == target_mapping(target)

    fitting = [
        record
        for record in records
        if record.target is None or record.target.kind.name == target.kind.name
    ]
    exact = [record for record in fitting if record.target and is_exact(str(record.target))]
    tuned = {record.workload for record in exact}
    kept = {id(record) for record in exact}
    return [record for record in fitting if record.workload not in tuned or id(record) in kept]
