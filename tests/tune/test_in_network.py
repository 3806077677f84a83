"""A program stays only where it is faster than by rule in the network itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tencost.config import HardwareConfig
from tencost.config.composition import compose
from tencost.networks.network import Network, load_network
from tencost.tune.deploy import compile_network, count_tuned, faster_in_network
from tencost.tune.hosts import Deployed

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def network() -> Network:
    small = ["network=bert_tiny", "network.size=32", "network.config.num_hidden_layers=1"]
    return load_network(compose(small)[0].network)


def slow_and_fast(network: Network, target: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return a database: of the costliest task the default schedule, said to be fast; of the next what the rule is."""
    from tencost.programs.codegen import registers

    database = ms.database.MemoryDatabase()
    tasks = sorted(network.tasks(target), key=lambda one: -one.flop)
    slow = tasks[0]
    schedule = Schedule(slow.mod)
    schedule.annotate(schedule.get_sblock("root"), "meta_schedule.unroll_explicit", 0)
    fast = next(one for one in tasks[1:] if registers.designs(one.mod, target))
    made = registers.designs(fast.mod, target)[0].schedule
    for rule in (ms.postproc.RewriteReductionBlock(), ms.postproc.RewriteLayout()):
        assert rule.apply(made)
    for task, one in ((slow, schedule), (fast, made)):
        workload = database.commit_workload(task.mod)
        database.commit_tuning_record(
            ms.database.TuningRecord(one.trace, workload, [1e-9], tvm.target.Target(target))
        )
    return database, [slow.name, fast.name]


def test_the_default_schedule_of_a_product_does_not_stay(
    network: Network, target: dict[str, Any], cpu_intrinsics: None
) -> None:
    hardware = HardwareConfig(name="here", target=target)
    tasks = network.tasks(target)
    database, (slow, _) = slow_and_fast(network, target)
    assert count_tuned(database, tasks, target) == 2
    kept = faster_in_network(network, hardware, tasks, database)
    known = [
        task.name
        for task in tasks
        if kept.query_tuning_record(task.mod, tvm.target.Target(target), "main") is not None
    ]
    assert slow not in known
    built = compile_network(network, target, kept, by_rule=True)
    outputs = Deployed(built, network).outputs()
    for name, place in network.compared.items():
        assert np.allclose(outputs[place], network.expected[place], atol=1e-3), name


def test_nothing_is_run_where_there_is_nothing_to_choose(network: Network) -> None:
    gpu = HardwareConfig(name="there", target={"kind": "cuda"})
    empty = ms.database.MemoryDatabase()
    assert faster_in_network(network, gpu, [], empty) is empty
    cpu = replace(gpu, target={"kind": "llvm"})
    assert faster_in_network(network, cpu, [], empty) is empty
