"""What a network's tasks take before anything is tuned: with TVM's default schedules, and by the project's rules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tvm import IRModule

from tencost.networks.network import NetworkTask
from tencost.programs.codegen.rules import leave, scheduled
from tencost.store.status import Status, Timing
from tencost.tune.workfolder import WorkFolder


def time_untuned(
    tasks: Sequence[tuple[str, NetworkTask]],
    target: dict[str, Any],
    limit_s: float,
    folder: WorkFolder,
    timed: Callable[..., Timing],
    on_task: Callable[[int], None],
) -> None:
    """Time every task with the default schedule and by rule, where the folder does not say yet what they take.

    A task whose default schedule cannot be timed, or takes longer than the limit, counts with that; one that cannot be
    timed by rule with infinity. Each time is written when it is known.

    Args:
        tasks: workload id and task.
        target: the hardware's.
        limit_s: longest time that a program is run for, seconds.
        folder: keeps the times.
        timed: times a module: (module, limit_s=, target=) -> Timing.
        on_task: told how many tasks are done.
    """
    for done, (identity, task) in enumerate(tasks):
        on_task(done)
        if identity not in folder.rule_s and target.get("kind") == "llvm":
            mod = IRModule({"main": scheduled(task.mod["main"], target)})
            timing = timed(mod, limit_s=limit_s, target=leave(mod, target))
            ok = timing.status is Status.ok
            folder.rule_s[identity] = statistics.median(timing.run_secs) if ok else math.inf
            folder.save_session()
        if identity not in folder.baseline_s:
            timing = timed(task.mod, limit_s=limit_s)
            ok = timing.status is Status.ok
            folder.baseline_s[identity] = statistics.median(timing.run_secs) if ok else limit_s
            folder.save_session()
