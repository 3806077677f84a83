"""A program stays only where it is faster than by rule in the network itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tencost.config import HardwareConfig, NetworkConfig
from tencost.config.composition import compose
from tencost.networks.network import Network, load_network
from tencost.tune.deploy import compile_network, count_tuned, faster_in_network
from tencost.tune.hosts import Deployed
from tencost.tune.verify import TaskProgram
from tencost.workers.evaluator import MAX_FLUSHED, local_timer

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


def attention_network(folder: Path) -> Network:
    """Return a network of an ONNX file: softmax(q k) v."""
    shapes = {"q": [1, 2, 64, 32], "k": [1, 2, 32, 96], "v": [1, 2, 96, 32], "y": [1, 2, 64, 32]}
    tensors = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    }
    output = tensors.pop("y")
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "net", list(tensors.values()), [output])
    opsets = [helper.make_opsetid("", 17)]
    path = folder / "attention.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return load_network(NetworkConfig(name="attention", source="onnx", path=str(path)), folder)


def test_the_default_schedule_of_a_part_of_attention_does_not_stay(
    target: dict[str, Any], cpu_intrinsics: None, tmp_path: Path
) -> None:
    """By rule attention is one function: there is none of the part's name to compare it with."""
    hardware = HardwareConfig(name="here", target=target)
    network = attention_network(tmp_path)
    by_rule = Deployed(compile_network(network, target, None, by_rule=True), network)
    assert "attention" in by_rule.seconds_by_function()
    tasks = network.tasks(target)
    scores = max(tasks, key=lambda one: one.flop)
    schedule = Schedule(scores.mod)
    schedule.annotate(schedule.get_sblock("root"), "meta_schedule.unroll_explicit", 0)
    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(scores.mod)
    database.commit_tuning_record(
        ms.database.TuningRecord(schedule.trace, workload, [1e-9], tvm.target.Target(target))
    )
    apart = Deployed(compile_network(network, target, database), network)
    assert "attention" not in apart.seconds_by_function()
    kept = faster_in_network(network, hardware, tasks, database)
    assert count_tuned(database, tasks, target) == 1
    assert count_tuned(kept, tasks, target) == 0


def test_tasks_are_timed_with_the_caches_as_while_they_were_tuned(
    network: Network, target: dict[str, Any], monkeypatch: pytest.MonkeyPatch, cpu_intrinsics: None
) -> None:
    """Warm times of the best programs beside cold ones of the untuned would be a gain that nobody sees."""
    asked = []

    def timer_of(*arguments: Any, flush: bool) -> Any:
        timer = local_timer(*arguments, flush=flush)

        def noted(number: int, repeat: int, least_ms: float) -> list[float]:
            asked.append((flush, number))
            return timer(number, repeat, least_ms)

        return noted

    monkeypatch.setattr("tencost.tune.verify.local_timer", timer_of)
    task = max(network.tasks(target), key=lambda one: one.flop)
    for flush in (False, True):
        program = TaskProgram(task, ms.database.MemoryDatabase(), target, flush=flush)
        assert 0 < program.seconds(1000) < 1
    assert asked == [(False, 1000), (True, MAX_FLUSHED)]


def test_nothing_is_run_where_there_is_nothing_to_choose(network: Network) -> None:
    gpu = HardwareConfig(name="there", target={"kind": "cuda"})
    empty = ms.database.MemoryDatabase()
    assert faster_in_network(network, gpu, [], empty) is empty
    cpu = replace(gpu, target={"kind": "llvm"})
    assert faster_in_network(network, cpu, [], empty) is empty
