"""The line that is seen while a network is tuned: what it says, and that it is not too wide."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from matmuls import make_matmul
from tencost.config import HardwareConfig
from tencost.measure.stage import progress_bar
from tencost.networks.network import NetworkTask
from tencost.tune.batches import Score
from tencost.tune.cost_model import Round
from tencost.tune.guard import Arm
from tencost.tune.progress import WIDTH, Outlook, Pace, clock, fitting, progress_line
from tencost.tune.session import MeasuredBatch

pytestmark = pytest.mark.tvm

FLOP = 2.0 * 32**3
ROOFED = HardwareConfig(name="mine", target={"kind": "llvm"}, peak_gflops=1.0, bandwidth_gbs=1e3)


def batch(
    name: str, total_s: float, spearman: float | None = 0.52, **of_round: Any
) -> MeasuredBatch:
    values: dict[str, Any] = {
        "task": name, "num_measured": 8, "arm": Arm.residual, "next_arm": Arm.residual, "residual_weight": 0.5,
        "scores": {Arm.residual: Score(None, None, spearman)}, **of_round,
    }  # fmt: skip
    task = NetworkTask(name, None, 1, FLOP, None)
    return MeasuredBatch(task, 64, (), Round(**values), total_s, total_s, elapsed_s=30.0)


def outlook(hardware: HardwareConfig, latency_s: float) -> Outlook:
    task = NetworkTask("matmul", make_matmul(32), 2, FLOP, None)
    session: Any = SimpleNamespace(tasks=[task], ids=["id"], latency_s={"id": latency_s})
    return Outlook(session, hardware)


def test_network_gain_and_time_left() -> None:
    found = outlook(ROOFED, 1e-3)
    found.beyond_s = 0.5e-3
    assert found.above_s == pytest.approx(2 * (1e-3 - FLOP / 1e9))
    told = progress_line(batch("matmul", 2e-3), found, remaining_s=60.0)
    assert told == "network 2.500 ms, 1.869 to gain, 1:00 left, rank +0.52, matmul"


def test_what_is_not_known_is_not_said() -> None:
    found = outlook(HardwareConfig(name="mine", target={"kind": "llvm"}), 1e-3)
    assert found.above_s is None
    assert not found.placed()
    told = progress_line(batch("matmul", 2e-3, spearman=None), found, remaining_s=0.0)
    assert told == "tasks 2.000 ms, 0:00 left, matmul"


@pytest.mark.parametrize("columns", [WIDTH, 80])
def test_the_line_is_not_wider_than_it_may_be(columns: int) -> None:
    found = outlook(ROOFED, 0.6)
    found.beyond_s = 0.25
    name = "fused_conv2d_add_subtract_divide_multiply_add_relu"
    told = progress_line(
        batch(name, 1.2, num_failed=12, next_arm=Arm.scratch), found, 120_000, columns
    )
    expected = "network 1450.000 ms, 1199.869 to gain, 33:20:00 left"
    assert told.startswith(
        expected if columns == WIDTH else "network 1450.000 ms, 1199.869 to gain"
    )
    out = io.StringIO()
    console = Console(file=out, width=columns, force_terminal=True, color_system=None)
    with progress_bar(console) as bar:
        bar.add_task("tuning", total=4096, completed=4001, state=told)
    shown = out.getvalue().replace("\r", "\n").splitlines()
    assert any("4001/4096" in line and told in line for line in shown)
    assert "…" not in out.getvalue()


def test_a_batch_of_which_nothing_was_built_has_metrics() -> None:
    from tencost.tune.stage import _metrics

    metrics = _metrics(batch("matmul", 2e-3, num_measured=0, scores={}))
    assert metrics["tune/total_latency_ms"] == 2.0
    assert "tune/top_k_of_chance" not in metrics
    assert _metrics(batch("matmul", 2e-3))["tune/top_k_of_chance"] == 0.5


def test_parts_that_do_not_fit_are_skipped() -> None:
    assert fitting(["abc", "defghij", "kl"], 7) == "abc, kl"
    assert [clock(seconds) for seconds in (8.6, 754, 3723)] == ["0:09", "12:34", "1:02:03"]


def test_what_is_left_follows_the_slower_of_average_and_last_batch() -> None:
    pace = Pace()
    assert pace.remaining_s(4, 2.0, 20) == pytest.approx(10.0)
    assert pace.remaining_s(4, 12.0, 16) == pytest.approx(40.0)
    assert pace.remaining_s(4, 13.0, 12) == pytest.approx(13.0)
    assert pace.remaining_s(0, 14.0, 0) == 0.0
