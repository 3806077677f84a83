"""benchmarks/ceiling.py: what a second run of the same programs says of the first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "ceiling.py"
FIRST = [1.0, 2.0, 3.0, 4.0]


def records(folder: Path, second: list[float], *, status: str = "ok") -> Path:
    """Write records.parquet: four programs of one group, each measured on two days."""
    runs = [
        [
            {"status": "ok", "run_secs": [one], "timestamp": 1, "quarantine": None},
            {"status": status, "run_secs": [other], "timestamp": 2, "quarantine": None},
        ]
        for one, other in zip(FIRST, second, strict=True)
    ]
    table = pl.DataFrame(
        {
            "hardware": ["cpu"] * 4,
            "generator": ["rules-1"] * 4,
            "workload_id": ["matmul"] * 4,
            "record_id": ["a", "b", "c", "d"],
            "measurements": runs,
        }
    )
    table.write_parquet(folder / "records.parquet")
    return folder / "records.parquet"


def ceiling(file: Path, *words: str) -> str:
    """Return the table's last line."""
    command = [sys.executable, str(SCRIPT), str(file), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[
        -1
    ]


@pytest.mark.parametrize(
    ("second", "pairwise", "top_1"),
    [
        ([2.0, 4.0, 6.0, 8.0], "1.000", "1.000"),  # the same order
        (
            [4.0, 2.0, 6.0, 8.0],
            "0.833",
            "0.500",
        ),  # one of six pairs the other way, the first pick half as fast
    ],
)
def test_the_first_run_is_scored_by_the_second(
    tmp_path: Path, second: list[float], pairwise: str, top_1: str
) -> None:
    cells = [cell.strip() for cell in ceiling(records(tmp_path, second), "--least", "4").split("|")]
    assert cells[1:4] == ["cpu", "1", "4"]
    assert cells[4].startswith(pairwise)
    assert cells[5].startswith(top_1)
    assert cells[6].startswith("1.000")  # the best of four is among five


def test_small_groups_have_no_ceiling(tmp_path: Path) -> None:
    assert "4 in smaller groups" in ceiling(records(tmp_path, FIRST), "--least", "5")


def test_a_failed_second_run_is_no_repeat(tmp_path: Path) -> None:
    line = ceiling(records(tmp_path, FIRST, status="run_error"), "--least", "1")
    assert line.startswith("|---")


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "records.parquet")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "tencost records" in ended.stderr
    assert "Traceback" not in ended.stderr
