"""What a tuning run says at its end: no difference that cannot be, what is not ranked, a host that was busy."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tencost.networks.network import NetworkTask
from tencost.tune.batches import Score
from tencost.tune.cost_model import Round
from tencost.tune.guard import Arm
from tencost.tune.summary import Conditions, print_summary, weak_tasks
from tencost.tune.verify import break_down
from tencost.workers.noise import is_busy

pytestmark = pytest.mark.tvm


def make_round(task: str, base: float | None, programs: int) -> Round:
    return Round(
        task=task,
        arm=Arm.residual,
        next_arm=Arm.residual,
        residual_weight=0.5,
        num_measured=programs,
        scores={Arm.registered: Score(None, None, base)},
    )


HISTORY = [
    make_round("matmul", -0.5, 16),
    make_round("matmul", 0.1, 8),
    make_round("good", 0.8, 32),
    make_round("short", -0.9, 8),
    make_round("scratch", None, 32),
]


def told(**values: Any) -> str:
    report = {
        "network": "net", "hardware": "local", "model": "m", "interrupted": False, "trials": 8, "tasks": 1,
        "seconds": 1.0, "tasks_untuned_latency_s": 0.02, "tasks_total_latency_s": 0.01, "outputs_compared": 0,
        "host_told": "", "not_ranked": [], **values,
    }  # fmt: skip
    out = io.StringIO()
    print_summary(report, Path("folder"), Console(file=out, width=400))
    return out.getvalue()


def network_rows(**beyond: float) -> dict[str, float]:
    keys = ("network_latency", "network_default_latency")
    rows = {f"{key}{end}_s": 0.008 for key in keys for end in ("", "_q1", "_q3")}
    rows |= {"network_over_default": 1.0, "max_abs_error": 0.0, "max_rel_error": 0.0}
    rows |= {f"tasks_total_latency_{end}_s": 0.01 for end in ("q1", "q3")}
    return rows | {f"network_unexplained{end}_s": value for end, value in beyond.items()}


@pytest.mark.parametrize(
    ("beyond", "said"),
    [
        ((1e-3, 0.9e-3, 1.1e-3), "1.000 ms [0.900, 1.100] (untuned operators"),
        ((-1e-4, -3e-4, 2e-4), "nothing that can be told from noise"),
        ((-10.6e-3, -11e-3, -9e-3), "its tasks one by one take longer than the network"),
    ],
)
def test_a_difference_that_cannot_be_is_told_in_words(
    beyond: tuple[float, float, float], said: str
) -> None:
    text = told(**network_rows(**dict(zip(("", "_q1", "_q3"), beyond, strict=True))))
    (row,) = [line for line in text.splitlines() if "beyond its tasks" in line]
    assert said in row
    assert "-" not in row


def test_tuned_is_compared_with_what_a_user_would_run_otherwise() -> None:
    rows = network_rows(**{"": 0.0, "_q1": 0.0, "_q3": 0.0})
    assert "8.000 ms [8.000, 8.000], 1.00 of unscheduled" in told(**rows)
    rows = {key: value for key, value in rows.items() if "default" not in key}
    for key, value in (("rules", 0.010), ("onnxruntime", 0.016)):
        rows |= {f"network_{key}_latency{end}_s": value for end in ("", "_q1", "_q3")}
        rows |= {f"network_over_{key}": 0.008 / value}
    lines = told(**rows).splitlines()
    (tuned,) = [line for line in lines if "network, tuned" in line]
    assert "8.000 ms [8.000, 8.000], 0.80 of by rule, 0.50 of ONNX Runtime" in tuned
    assert "unscheduled" not in tuned
    order = [line.split("│")[1].strip() for line in lines if "network, " in line]
    assert order[:3] == ["network, by rule", "network, ONNX Runtime", "network, tuned"]


def test_a_network_is_compared_with_its_tasks_turn_by_turn() -> None:
    tasks = {
        name: NetworkTask(name, None, weight, 1.0, None) for name, weight in (("a", 2), ("b", 1))
    }
    network = [10.0, 20.0, 40.0]  # a host that became four times slower
    times = {"a": [3.0, 6.0, 12.0], "tuned": network}
    assert break_down(network, tasks, times, {"a": 99.0, "b": 1.0}) == {
        "tasks_total_latency_s": 13.0,
        "tasks_total_latency_q1_s": 10.0,
        "tasks_total_latency_q3_s": 19.0,
        "network_unexplained_s": 20.0 - 13.0,
        "network_unexplained_q1_s": 5.0,
        "network_unexplained_q3_s": 11.0,
    }


def test_tasks_that_the_model_does_not_rank_are_named() -> None:
    (weak,) = weak_tasks(HISTORY)
    assert weak == {"task": "matmul", "spearman": -0.3, "programs": 24}
    text = told(not_ranked=weak_tasks(HISTORY))
    assert "the model does not rank this task's programs: matmul (-0.30 over 24 programs)." in text
    assert "does not rank" not in told(not_ranked=weak_tasks(HISTORY[2:]))


def test_a_busy_host_is_said() -> None:
    load = {"cpus": [3], "cpus_online": 4, "load_1m": 0.1, "busy_share": 0.4, "steal_share": 0.0}
    busy = is_busy(load)
    assert busy is not None
    assert "other processes use 40% of CPU 3" in busy
    assert is_busy({**load, "busy_share": 0.01}) is None
    assert "busy at the start: other processes" in Conditions(busy).message
    slower = Conditions("", (1e-4, 1.4e-4))
    assert slower.message == "the reference kernel took 1.40 times its best at the end"
    assert "at the start" in Conditions("", (1.4e-4, 1e-4)).message
    assert Conditions("", (1e-4, 1.05e-4)).message == Conditions("", (1e-4,)).message == ""
    assert "1.12 times its best" in Conditions("", (1e-4, 1.12e-4)).message
    assert "1.40 times its best at the end: times scatter" in told(host_told=slower.message)


def test_the_host_is_looked_at_where_programs_run() -> None:
    from tencost.workers.evaluator import MeasureOptions
    from tencost.workers.pool import WorkerPool

    pool = WorkerPool(MeasureOptions(), workers=1)
    try:
        seen = Conditions.at_start(pool).probed(pool)
    finally:
        pool.close()
    assert len(seen.probe_s) == 2
    assert seen.noise is not None
    assert seen.noise >= 1
    assert set(seen.report()) == {"host_busy", "host_noise", "host_told"}


def test_the_tasks_that_lose_most_time_are_named() -> None:
    lines = [
        "matmul: 12.5 % of the compute roof, 80.0 µs above it",
        "add: 50 % of the memory roof, 1.0 µs above it",
    ]
    assert all(line in told(above_the_roof=lines) for line in lines)
    assert "roof" not in told(above_the_roof=[])
