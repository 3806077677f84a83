"""benchmarks/networks.py: two cheap arms of a small network, stopped and gone on with; the tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = (
    *("network.size=16", "network.config.hidden_size=16", "network.config.num_hidden_layers=1"),
    *("network.config.intermediate_size=32", "network.inputs.input_ids.high=50"),
    "++network.config.vocab_size=50",
)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delitem(sys.modules, "network_table", raising=False)
    import network_table  # type: ignore[import-not-found]

    return network_table


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, str(BENCHMARKS / "networks.py"), "--networks", "bert_tiny"),
            *("--work", str(folder / "work"), "--results", str(folder / "results")),
            *("--set", *SMALL, "--arms", "eager", "onnxruntime", *words),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def of(folder: Path) -> list[psutil.Process]:
    """Return the processes that have a folder in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or []):
            found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="affinity and the death of a parent are Linux's"
)
def test_a_killed_benchmark_goes_on(tmp_path: Path) -> None:
    eager = tmp_path / "work" / "bert_tiny-1c" / "eager" / "arm.json"
    first = started(tmp_path)
    try:
        while not (eager.parents[1] / "onnxruntime" / "spent.json").exists():
            assert first.poll() is None, "it ended before it came to the second arm"
            time.sleep(0.02)
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    done = eager.stat().st_mtime_ns
    limit = time.monotonic() + 60
    while of(tmp_path) and time.monotonic() < limit:
        time.sleep(0.1)
    assert of(tmp_path) == []

    second = started(tmp_path)
    said, _ = second.communicate(timeout=500)
    assert second.returncode == 0
    assert "bert_tiny, 1 cores: eager" not in said
    assert eager.stat().st_mtime_ns == done
    result = json.loads((tmp_path / "results" / "bert_tiny-1c.json").read_text())
    assert set(result["arms"]) == {"eager", "onnxruntime"}
    for row in result["arms"].values():
        assert "error" not in row
        assert len(row["times_s"]) >= 3
        assert min(row["times_s"]) > 0
        assert row["max_rel_error"] < 1e-4
    assert result["arms"]["eager"]["max_rel_error"] == 0
    assert result["arms"]["onnxruntime"]["sittings"] == 2
    assert of(tmp_path) == []

    third = started(tmp_path)
    said, _ = third.communicate(timeout=500)
    assert "timing" not in said  # nothing was left to do
    assert "| bert_tiny |" in said


@pytest.mark.slow
def test_more_cores_than_there_are(tmp_path: Path) -> None:
    process = started(tmp_path, "--cores", str(len(os.sched_getaffinity(0)) + 1))
    process.communicate(timeout=300)
    assert process.returncode == 2
    assert not (tmp_path / "work").exists()


@pytest.mark.tvm
def test_seconds_without_work_are_not_charged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from network_processes import Clock  # type: ignore[import-not-found]

    work, file = tmp_path / "work", tmp_path / "spent.json"
    clock = Clock(file, work)
    clock.note()
    assert json.loads(file.read_text()) == {"seconds": 0.0, "sittings": 1}
    work.write_text("a program")
    clock.note()
    kept = json.loads(file.read_text())["seconds"]
    assert 0 < kept <= clock.spent
    clock.note()
    assert json.loads(file.read_text())["seconds"] == kept
    again = Clock(file, work)
    assert again.spent >= kept
    assert json.loads(file.read_text()) == {"seconds": kept, "sittings": 2}
    every = Clock(tmp_path / "all.json")
    every.note()
    assert json.loads((tmp_path / "all.json").read_text())["seconds"] > 0


def result(**arms: dict[str, Any]) -> dict[str, Any]:
    versions = {"tencost": "1", "metaschedule": "2", "onnxruntime": "3", "pytorch": "4"}
    about = {"network": "net-onnx", "plain_name": "net", "via": "onnx", "batch": 1, "size": 8}
    about |= {"hardware": "h", "cores": 1, "host": {"cpu": "c"}, "timestamp": 0, "busy": ""}
    return {**about, "settings": [], "versions": versions, "arms": arms}


def test_ratios_are_of_the_same_turn(table: ModuleType) -> None:
    """The host is twice as slow in two of four turns, which no ratio shows."""
    found = result(
        onnxruntime={"times_s": [0.001, 0.002, 0.002, 0.001]},
        tencost={"times_s": [0.0008, 0.0016, 0.0016, 0.0008], "max_rel_error": 1e-6},
        eager={"times_s": [0.003, 0.006, 0.006, 0.003]},
    )
    assert table.ratios(found) == pytest.approx({"onnxruntime": 1, "tencost": 0.8, "eager": 3})


def test_an_arm_that_failed_has_no_ratio(table: ModuleType, tmp_path: Path) -> None:
    good = result(
        onnxruntime={"times_s": [0.001] * 3, "max_rel_error": 0.0},
        tencost={"times_s": [0.002] * 3, "max_rel_error": 1e-6, "seconds": 7.0, "programs": 5},
    )
    bad = result(
        onnxruntime={"times_s": [0.001] * 3, "max_rel_error": 0.0},
        tencost={"times_s": [0.009] * 3, "error": "its process ended with -9", "seconds": 7.0},
        stock={"times_s": [0.002] * 3, "max_rel_error": float("nan"), "seconds": 9.0},
    )
    (tmp_path / "a.json").write_text(json.dumps(good))
    (tmp_path / "b.json").write_text(json.dumps(bad))
    said = table.report(tmp_path)
    assert "| median ratio (of so many) | 1.00 (2) | 2.00 (1) | 2.00 (1) |" in said
    assert "- net-onnx, tencost: failed: its process ended with -9" in said
    assert "- net-onnx, stock: its output differs by nan" in said
    assert (tmp_path / "networks-1c.png").stat().st_size > 0
    rows = {row["engine"]: row for row in table.record_rows(bad)}
    assert list(rows) == ["onnxruntime", "tencost", "metaschedule"]
    assert rows["metaschedule"]["seconds"] == (0.002, 0.002, 0.002)
    assert rows["tencost"]["seconds"] == ()
    assert rows["tencost"]["error"] == "its process ended with -9"
    assert rows["tencost"]["network"] == "net"
