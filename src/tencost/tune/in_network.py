"""Which of a database's programs are faster where they run: in the network, among its other functions.

A program is timed alone while it is tuned, again and again on the same numbers, which stay in the caches, and the best
of many is partly luck. In the network its inputs come from another function. So the network is run with the programs
and without, by rule, in turn, each function timed, and a program is kept if it is the faster one there.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import tvm

from tencost.config import HardwareConfig, RunnerKind
from tencost.networks.network import Network, NetworkTask
from tencost.tune.deploy import Deployed, compile_network, on_cores, only

TURNS = 7
"""Calls of the network with programs and by rule, in turn."""
_REORDERED = "_prepacked"
"""What TVM appends to the name of a function whose weights are reordered before."""


def faster_in_network(
    network: Network, hardware: HardwareConfig, tasks: Sequence[NetworkTask], database: Any
) -> Any:
    """Return a database of those programs of a database that are faster in the network than by rule.

    Args:
        network: what is compiled.
        hardware: for which; this host has to be such. Devices behind a tracker do not tell what a function takes: there
            all programs are kept.
        tasks: of the network.
        database: MetaSchedule's, its best programs are meant.
    """
    target = tvm.target.Target(hardware.target)
    known = [
        task for task in tasks if database.query_tuning_record(task.mod, target, "main") is not None
    ]
    is_here = hardware.target.get("kind") == "llvm" and hardware.runner is RunnerKind.local
    if not is_here or not known:
        return database
    both = [
        Deployed(compile_network(network, hardware.target, one, by_rule=True), network)
        for one in (database, None)
    ]
    tuned, by_rule = on_cores(hardware, lambda: _in_turn(both))
    kept = [task for task in known if not _is_slower(task.name, tuned, by_rule)]
    return only(database, kept, hardware.target)


def _in_turn(networks: Sequence[Deployed]) -> list[dict[str, float]]:
    """Return each network's median seconds of each function."""
    turns = [[one.seconds_by_function() for one in networks] for _ in range(TURNS)]
    return [
        {
            name.removesuffix(_REORDERED): statistics.median(turn[place][name] for turn in turns)
            for name in turns[0][place]
        }
        for place in range(len(networks))
    ]


def _is_slower(name: str, tuned: Mapping[str, float], by_rule: Mapping[str, float]) -> bool:
    return name in tuned and name in by_rule and tuned[name] > by_rule[name]
