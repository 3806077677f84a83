"""What is kept of each batch: figures of before the model learnt from it, a line each, wherever a run was killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tencost.errors import TuneError
from tencost.tune.batches import (
    BatchLine,
    append_batch_line,
    correlation,
    judge_scores,
    overlap,
    read_batch_lines,
    top_k_size,
)
from tencost.tune.guard import Arm
from tencost.tune.residual import Residual, aggregate


def a_line(trials: int, task: str = "matmul", **changes: Any) -> BatchLine:
    values: dict[str, Any] = {
        "trials": trials, "task": task, "programs": 16, "failed": 0, "k": 8, "model": "models:/m/1", "learns": True,
        "arm": "residual", "p_rmse": 0.2, "top_k": 0.5, "spearman": 0.1, "kendall": 0.1,
        "arms": {"registered": {"p_rmse": 0.3, "top_k": 0.6, "spearman": None}}, "task_latency_s": 1e-4,
        "total_latency_s": 1e-3,
    }  # fmt: skip
    return BatchLine(**{**values, **changes})


@pytest.mark.parametrize(
    ("programs", "k"), [(128, 32), (64, 32), (63, 31), (16, 8), (3, 1), (1, 1)]
)
def test_the_k_of_a_batch(programs: int, k: int) -> None:
    assert top_k_size(programs) == k


def test_top_k_looks_at_the_fast_end() -> None:
    label = np.array([1.0, 0.9, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
    assert overlap(label, label, 4) == 1.0
    assert overlap(-label, label, 4) == 0.0
    assert overlap(np.array([9.0, 0, 8, 0, 0, 7, 0, 6]), label, 4) == 0.5


def test_equal_scores_are_worth_what_guessing_is() -> None:
    label = np.linspace(1.0, 0.1, 16)
    assert overlap(np.full(16, 0.5), label, 8) == 0.5
    assert overlap(label, np.full(16, 0.5), 4) == 0.25
    # Two sure ones, and two places for the six that are tied.
    assert overlap(np.array([2.0, 2, 1, 1, 1, 1, 1, 1]), np.arange(8.0)[::-1], 4) == pytest.approx(
        (1 + 1 + 2 / 6 + 2 / 6) / 4
    )


def test_figures_by_hand() -> None:
    latency = np.array([1e-3, 2e-3, 4e-3, np.nan])  # labels 1, 1/2, 1/4, 0
    found = judge_scores(np.array([0.9, 0.6, 0.25, 0.2]), latency)
    assert found.p_rmse == pytest.approx(((0.01 + 0.01 + 0.0 + 0.04) / 4) ** 0.5)
    assert found.top_k == 1.0
    assert found.spearman == pytest.approx(1.0)


def test_where_nothing_ran_nothing_is_said() -> None:
    nothing = judge_scores(np.array([0.5, 0.4]), np.array([np.nan, np.nan]))
    assert (nothing.p_rmse, nothing.top_k, nothing.spearman) == (None, None, None)
    assert correlation("spearmanr", np.full(4, 0.5), np.arange(4.0)) is None


class Cheating(Residual):
    """Says of a program that it was shown exactly what it was worth, of others nothing."""

    seen: dict[bytes, float]

    def add(self, group: str, features: Any, base: Any, latency_s: Any) -> None:
        super().add(group, features, base, latency_s)
        labels = np.nanmin(latency_s) / latency_s
        self.seen = {row.tobytes(): value for row, value in zip(features, labels, strict=True)}

    @property
    def trained(self) -> bool:
        return hasattr(self, "seen")

    def apply(self, features: Any, base: Any) -> Any:
        rows = zip(features, base, strict=True)
        return np.array([self.seen.get(row.tobytes(), before) for row, before in rows])


@pytest.mark.tvm
def test_figures_are_of_before_the_batch_was_seen(
    make_bundle: Callable[[str], Path], context: Any, candidates: list[Any]
) -> None:
    from tvm.s_tir.meta_schedule.runner import RunnerResult

    from tencost.tune.cost_model import load_cost_model

    model = load_cost_model(make_bundle("xgb"))
    model._inst._residual = Cheating()
    features, base = model._inst._scored(context, candidates)
    rows = {row.tobytes() for row in aggregate(features)}
    assert len(rows) == len(candidates)
    latency = np.random.default_rng(0).uniform(1e-4, 1e-3, len(candidates))
    results = [RunnerResult([float(seconds)], None) for seconds in latency]
    model.update(context, candidates, results)
    model.update(context, candidates, results)
    first, second = (one.scores[Arm.residual] for one in model.history)
    assert first == judge_scores(base, latency)
    assert first.p_rmse > 0.05
    assert (second.p_rmse, second.top_k) == (pytest.approx(0.0), 1.0)
    # The registered model learns nothing, so it is worth the same both times.
    assert [one.scores[Arm.registered] for one in model.history] == [first, first]
    assert Arm.scratch not in model.history[0].scores
    assert set(model.history[1].scores) == {"registered", "residual", "scratch"}


def test_lines_are_added_and_read(tmp_path: Path) -> None:
    file = tmp_path / "batches.jsonl"
    assert read_batch_lines(file) == []
    lines = [a_line(16), a_line(32, "other", p_rmse=None), a_line(48)]
    for line in lines:
        append_batch_line(file, line)
    assert read_batch_lines(file) == lines
    assert json.loads(file.read_text().splitlines()[1])["p_rmse"] is None


def test_a_killed_runs_half_line_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "batches.jsonl"
    append_batch_line(file, a_line(16))
    append_batch_line(file, a_line(32))
    whole = file.read_bytes()
    for cut in (1, 20, len(whole) // 2 - 1):
        file.write_bytes(whole[:-cut])
        assert [line.trials for line in read_batch_lines(file)] == [16]
        append_batch_line(file, a_line(32))
        assert file.read_bytes() == whole


def test_a_damaged_line_between_whole_ones_is_told_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "batches.jsonl"
    append_batch_line(file, a_line(16))
    file.write_text("{\n" + file.read_text())
    append_batch_line(file, a_line(32))
    assert file.read_text().startswith("{\n")
    with pytest.raises(TuneError, match=r"batches\.jsonl, line 1: expected a batch"):
        read_batch_lines(file)


def test_programs_that_are_measured_again_are_told_once(tmp_path: Path) -> None:
    file = tmp_path / "batches.jsonl"
    for trials in (16, 32, 48):
        append_batch_line(file, a_line(trials))
    append_batch_line(
        file, a_line(30, "other")
    )  # the database lost what came after the first batch
    assert [(line.trials, line.task) for line in read_batch_lines(file)] == [
        (16, "matmul"),
        (30, "other"),
    ]


@pytest.mark.parametrize("text", ['{"trials": 16}\n', '{"trials": 1, "arms": 3}\n'])
def test_another_line_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "batches.jsonl"
    file.write_text(text)
    with pytest.raises(TuneError, match=r"line 1: expected a batch"):
        read_batch_lines(file)
