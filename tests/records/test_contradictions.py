"""Groups of records that contradict their neighbours: reported with files and lines, by no false alarm."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tencost import cli
from tencost.config import HardwareConfig
from tencost.records.contradictions import (
    FACTOR,
    NEIGHBOURS,
    contradiction_notes,
    contradictions,
)
from tencost.records.gate import CROWD, Limits, quarantine
from tencost.records.logs import find_logs, import_logs
from tencost.store.record_store import RecordStore


def group(
    workload: str, times: list[float], shapes: list[list[int]], **cells: str
) -> list[dict[str, Any]]:
    """Records of a workload; its arguments are float32 tensors."""
    row = {
        "workload_id": workload, "target": "{}", "hardware": "a", "generator": None, "task_name": "conv2d",
        "workload_args": json.dumps([["TENSOR", "float32", shape] for shape in shapes]), "status": "ok",
    } | cells  # fmt: skip
    return [
        row
        | {"run_secs": [time], "source": {"dataset": "d", "file": f"{workload}.log", "line": line}}
        for line, time in enumerate(times, 1)
    ]


def sized(number: int, scale: float = 1.0, **cells: str) -> list[dict[str, Any]]:
    """A workload that takes 1e-9 s an element, in its fastest of five programs."""
    size = 1000 * (number + 1)
    times = [scale * size * 1e-9 * slower for slower in (1.0, 1.2, 1.5, 2.0, 4.0)]
    return group(f"w{number}", times, [[size], [size]], **cells)


def frame(*groups: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(
        [row for rows in groups for row in rows], schema_overrides={"generator": pl.String}
    )


CROWDED = [1e-3 * (1 + 0.01 * number) for number in range(20)]


def test_a_record_that_is_too_fast_is_reported_with_its_file_and_line() -> None:
    """9.5 times too fast, and so within the margin of the quarantine."""
    times = [*CROWDED[:12], CROWDED[0] / 9.5, *CROWDED[12:]]
    rows = frame(group("w", times, [[64]]))
    assert quarantine(rows).null_count() == len(rows)
    (sentence,) = contradictions(rows)
    assert "9.5 times less than the next of 20 others: w.log, line 13" in sentence


def test_records_that_vouch_for_each_other_are_reported_together() -> None:
    (sentence,) = contradictions(frame(group("w", [*CROWDED, 1e-5, 1.1e-5], [[64]])))
    assert sentence.startswith("2 programs of conv2d on a")
    assert sentence.endswith("w.log, lines 21, 22")


def test_a_whole_workload_that_is_too_fast_is_reported_as_one_group() -> None:
    groups = [sized(number, scale=0.01 if number == 3 else 1.0) for number in range(NEIGHBOURS + 1)]
    unsized = group("unsized", [1.0], [], workload_args="[]")
    (sentence,) = contradictions(frame(*groups, unsized))
    assert (
        f"100.0 times less than the next of {NEIGHBOURS} other workloads of its operator"
        in sentence
    )
    assert "5 programs of conv2d on a" in sentence
    assert sentence.endswith("w3.log, lines 1, 2, 3 to 5")
    assert contradictions(frame(*groups), {"w0"}) == [], "a neighbour that was there before"
    assert len(contradictions(frame(*groups), {"w3"})) == 1


def test_a_workload_whose_operator_is_rare_is_compared_with_all() -> None:
    groups = [
        sized(number, task_name=f"fused_op_{chr(97 + number)}") for number in range(NEIGHBOURS)
    ]
    alone = sized(9, scale=0.01, task_name="softmax")
    (sentence,) = contradictions(frame(*groups, alone))
    assert "on this hardware" in sentence


@pytest.mark.parametrize(
    "other", [{"hardware": "b"}, {"target": '{"kind": "llvm"}'}, {"generator": "math-9"}]
)
def test_times_of_other_devices_targets_and_generators_are_no_neighbours(
    other: dict[str, str],
) -> None:
    groups = [sized(number) for number in range(NEIGHBOURS + 1)]
    assert contradictions(frame(*groups, sized(9, scale=0.01, **other))) == []


def test_few_neighbours_say_nothing() -> None:
    assert (
        contradictions(frame(*[sized(number, 10.0**-number) for number in range(NEIGHBOURS)])) == []
    )
    assert contradictions(frame(group("w", [1e-6, *CROWDED[: CROWD - 1]], [[64]]))) == []


def test_what_reads_much_or_little_of_its_arguments_is_no_contradiction() -> None:
    """A gather from a large table takes no time for the table's elements; a reduction is slow for its output."""
    groups = [sized(number) for number in range(NEIGHBOURS + 1)]
    gather = group("gather", [3e-6] * 3, [[10**9], [3000]])
    reduction = group("sum", [1e-3] * 3, [[10**6], [1]])
    assert contradictions(frame(*groups, gather, reduction)) == []


@pytest.mark.parametrize("seed", range(20))
def test_workloads_of_one_speed_within_the_factor_never_alarm(seed: int) -> None:
    draw = random.Random(seed)
    spread = [draw.uniform(1, FACTOR) for _ in range(30)]
    groups = [sized(number, scale) for number, scale in enumerate(spread)]
    assert contradictions(frame(*groups)) == []


def test_failures_and_missing_facts_are_passed_over() -> None:
    rows = group("w", [1.0], [[64]], status="run_error")
    rows += group("v", [1.0], [[64]], workload_args="null")
    rows += [row | {"source": None} for row in group("u", [1e-5, *CROWDED], [[64]])]
    assert len(contradictions(frame(rows))) == 1


def test_a_group_that_is_mostly_impossible_is_quarantined_whole() -> None:
    """43 programs 100 times too fast: 29 are beyond the device, the others the same error."""
    args = [[64, 64]] * 3
    flop, limits = (
        2.0 * 64**3,
        Limits({"w": 2.0 * 64**3}, {"a": HardwareConfig(name="a", peak_gflops=100.0)}),
    )
    least = flop / 2e11
    times = [least * 0.5] * 29 + [least * 2.0] * 14
    reasons = quarantine(frame(group("w", times, args)), limits=limits)
    assert reasons.null_count() == 0
    assert "29 of the 43 records of its workload" in str(reasons[42])
    few = quarantine(frame(group("w", [least * 0.5] * 5 + [least * 2.0] * 14, args)), limits=limits)
    assert few.null_count() == 14


def test_no_more_than_some_groups_are_listed_and_the_last_says_what_to_do() -> None:
    notes = contradiction_notes([f"group {number}" for number in range(50)])
    assert len(notes) < 20
    assert "tencost records delete" in notes[-1]
    assert contradiction_notes([]) == []


def ansor_line(number: int, workload: int, cost: float) -> str:
    key = f'["matmul_layer", {workload}, 64, 64]'
    task = [key, "cuda -keys=cuda,gpu", [80, 16, 64, 49152, 2147483647, 1024, 8, 32], "", 0, []]
    state = [[], [["SP", 2, 0, 64, [number + 1], 1], ["AN", 2, 0, 5]]]
    return json.dumps({"i": [task, state], "r": [[cost], 0, 1.5, 1637575039], "v": "v0.6"})


def write_log(path: Path, workload: int, scale: float = 1.0) -> Path:
    times = [workload * 1e-6 * scale * (1 + 0.1 * number) for number in range(10)]
    lines = [ansor_line(number, workload, time) for number, time in enumerate(times)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_an_import_reports_a_poisoned_log_against_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RecordStore(str(tmp_path / "store"))
    good = tmp_path / "good"
    good.mkdir()
    for number in range(1, NEIGHBOURS + 2):
        write_log(good / f"{number}.json", 64 * number)
    assert import_logs(find_logs([good], "good", "board"), store).contradictions == []
    poisoned = write_log(tmp_path / "poisoned.json", 4096, scale=0.01)
    monkeypatch.chdir(tmp_path)
    cli.main(["records", "import", str(poisoned), "--hardware", "board", "--store", store.uri])
    text = " ".join(capsys.readouterr().err.split())
    assert "warning: 10 programs of matmul_layer on board" in text
    assert "poisoned.json, lines 1, 2, 3 to 10" in text
    assert len(store.read("board")) == 10 * (NEIGHBOURS + 2), (
        "good rows and reported ones are in the store"
    )
