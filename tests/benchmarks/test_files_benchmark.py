"""benchmarks/files.py: what its table says of peers that fail, files that are missed and outputs that differ."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delitem(sys.modules, "files", raising=False)
    import files  # type: ignore[import-not-found]

    module: ModuleType = files
    return module


def arm(milliseconds: float, error: float = 1e-6) -> dict[str, Any]:
    return {"times_s": [milliseconds / 1e3] * 5, "max_rel_error": error, "seconds": 12.0}


def result(name: str, **arms: dict[str, Any]) -> dict[str, Any]:
    return {
        "file": name, "batch": 8, "cores": 2, "busy": "", "arms": arms,
        "host": {"cpu": "A CPU"}, "versions": {"onnxruntime": "1.31.1"},
    }  # fmt: skip


def row(table: str, name: str) -> list[str]:
    return [cell.strip() for cell in line(table, name).split("|")]


def line(table: str, name: str) -> str:
    return next(text for text in table.splitlines() if text.startswith(f"| {name}"))


def test_the_better_peer_is_the_measure(files: ModuleType) -> None:
    table = files.report([result("a", onnxruntime=arm(4), openvino=arm(2), rules=arm(3))])
    assert "A CPU, 2 cores, batch 8 (onnxruntime 1.31.1)" in table
    assert row(table, "a")[6] == "1.50 [1.50, 1.50]"
    assert "worst 1.50, 1 above 1.10, 0 missed" in table


@pytest.mark.parametrize("lost", [{"error": "no such operator"}, arm(1, error=0.5)])
def test_a_peer_that_fails_or_is_wrong_is_no_measure(
    files: ModuleType, lost: dict[str, Any]
) -> None:
    table = files.report([result("a", onnxruntime=arm(4), openvino=lost, rules=arm(3))])
    assert row(table, "a")[6] == "0.75 [0.75, 0.75]"
    assert "openvino: " in line(table, "a")


def test_litert_stands_beside_the_measure(files: ModuleType) -> None:
    """It is of other files, which its converter makes of the module."""
    table = files.report([result("a", onnxruntime=arm(4), litert=arm(1), rules=arm(2))])
    assert row(table, "a")[4] == "1 [1, 1]"
    assert row(table, "a")[6:8] == ["0.50 [0.50, 0.50]", "2.00"]
    assert "| 0.50 | 2.00 |" in line(table, "geometric mean")


def test_what_was_tuned_stands_beside_the_default(files: ModuleType) -> None:
    table = files.report([result("a", onnxruntime=arm(4), rules=arm(2), tuned=arm(1))])
    assert "tuned 1, ratio 0.25, over default [0.50, 0.50]" in line(table, "a")
    assert row(table, "a")[6] == "0.50 [0.50, 0.50]"
    assert "0 missed; tuned, mean of 1: 0.25" in line(table, "geometric mean")
    table = files.report([result("a", onnxruntime=arm(4), rules={"error": "no"}, tuned=arm(1))])
    assert "tuned" not in table


@pytest.mark.parametrize("lost", [{"error": "refused: LSTM"}, arm(1, error=0.5)])
def test_a_file_that_is_refused_or_wrong_is_missed(files: ModuleType, lost: dict[str, Any]) -> None:
    slow = result("b", onnxruntime=arm(4), rules=arm(2))
    table = files.report([result("a", onnxruntime=arm(4), rules=lost), slow])
    assert row(table, "a")[6] == ""
    assert "| geometric mean of 1 of 2 | | | | | 0.50 |" in table
    assert "1 missed" in table


def test_tables_of_two_cpus_are_not_mixed(files: ModuleType) -> None:
    other = result("a", onnxruntime=arm(4), rules=arm(2)) | {"host": {"cpu": "Another"}}
    table = files.report([result("a", onnxruntime=arm(4), rules=arm(4)), other])
    assert table.count("geometric mean of 1 of 1") == 2


def test_the_list_has_thirty_files(files: ModuleType) -> None:
    pytest.importorskip("transformers")
    from file_networks import FILES  # type: ignore[import-not-found]

    assert len(FILES) >= 30
