"""A tuned network's time and that of its tasks' programs, timed in turn: what of it the tasks do not explain.

While tuning, programs were timed over minutes or hours; a host that was slower then makes their sum larger than the
network that holds them. So the programs that the network runs are timed again, in the same process, on the same cores,
one after the other with the network itself, and compared turn by turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms

from tencost.config import HardwareConfig
from tencost.networks.network import Network, NetworkTask
from tencost.programs.codegen.rules import leave, scheduled
from tencost.tune.deploy import Deployed, Spread, on_cores, spread_of
from tencost.workers.expected import draw, read_facts
from tencost.workers.runner import arg_json
from tencost.workers.worker import build


class TaskProgram:
    """A task's program as the network runs it: the database's best one, or the rules' where it has none.

    Raises:
        ValueError: arguments that cannot be drawn.
    """

    def __init__(self, task: NetworkTask, database: Any, target: dict[str, Any]) -> None:
        schedule = database.query_schedule(task.mod, tvm.target.Target(target), "main")
        if schedule is not None:
            mod = schedule.mod
        elif target.get("kind") == "llvm":
            mod = tvm.IRModule({"main": scheduled(task.mod["main"], target)})
        else:
            mod = task.mod
        self._function = build(mod, leave(mod, target)).jit()
        facts = read_facts(task.mod)
        drawn = draw(facts)
        fill = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
        self._tensors = []
        for place, arg in enumerate(ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True)):
            _, dtype, shape = arg_json(arg)
            tensor = tvm.runtime.empty(shape=tuple(shape), dtype=dtype)
            if place in facts.indices:  # random integers would be an index out of range
                tensor.copyfrom(drawn[place])
            else:
                fill(tensor)
            self._tensors.append(tensor)

    def seconds(self, number: int = 1) -> float:
        """Return the mean seconds of so many calls."""
        timer = self._function.time_evaluator("main", tvm.cpu(), number=number, repeat=1)
        return float(timer(*self._tensors).results[0])


def beyond_tasks(
    network: Network, untuned: Any, tasks: Sequence[NetworkTask], hardware: HardwareConfig
) -> float:
    """Return the seconds that a network takes beyond its tasks, measured in one call with default schedules."""
    found = on_cores(hardware, Deployed(untuned, network).seconds_by_function)
    names = {task.name for task in tasks}
    return sum(seconds for name, seconds in found.items() if name not in names)


def task_programs(
    tasks: Mapping[str, NetworkTask], database: Any, target: dict[str, Any]
) -> dict[str, TaskProgram]:
    """Return the tasks' programs in a network with a database, by workload id; without those that cannot run alone."""
    programs = {}
    for identity, task in tasks.items():
        try:
            programs[identity] = TaskProgram(task, database, target)
        except ValueError:  # its time while tuning stands
            continue
    return programs


@dataclass(frozen=True)
class Breakdown:
    """A network's time in parts.

    Attributes:
        tasks: the weighted sum of its tasks' programs.
        beyond: what the network takes beyond that: its quartiles are of the differences turn by turn.
    """

    tasks: Spread
    beyond: Spread

    def report(self) -> dict[str, float]:
        """Return rows of the report."""
        return {
            "tasks_total_latency_s": self.tasks.median_s,
            "tasks_total_latency_q1_s": self.tasks.lower_s,
            "tasks_total_latency_q3_s": self.tasks.upper_s,
            "network_unexplained_s": self.beyond.median_s,
            "network_unexplained_q1_s": self.beyond.lower_s,
            "network_unexplained_q3_s": self.beyond.upper_s,
        }


def break_down(
    network: Sequence[float],
    tasks: Mapping[str, NetworkTask],
    times: Mapping[str, Sequence[float]],
    known_s: Mapping[str, float],
) -> Breakdown:
    """Compare a network's times with the sums of its tasks' in the same turns.

    Args:
        network: seconds in each turn.
        tasks: by workload id.
        times: seconds of each task's program in each turn, by workload id.
        known_s: seconds of tasks that are not among `times`, as timed before.
    """
    sums = [
        sum(
            task.weight * (times[identity][turn] if identity in times else known_s[identity])
            for identity, task in tasks.items()
        )
        for turn in range(len(network))
    ]
    total = spread_of(sums)
    differences = spread_of([one - other for one, other in zip(network, sums, strict=True)])
    beyond = Spread(
        median_s=spread_of(network).median_s - total.median_s,
        lower_s=differences.lower_s,
        upper_s=differences.upper_s,
        repeats=differences.repeats,
    )
    return Breakdown(total, beyond)
