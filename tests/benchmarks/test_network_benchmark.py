"""benchmarks/networks.py: two cheap arms of a small network, stopped and gone on with; the tables; the records."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from tencost import cli
from tencost.records.network_times.runs import read_runs
from tencost.records.network_times.timing import host_name, networks_uri
from tencost.store.record_store import Added, RecordStore

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results" / "networks"
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


@pytest.mark.tvm
def test_what_the_host_cannot_run_is_refused_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program with instructions that the CPU lacks ends its process with SIGILL, and nothing is said."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    networks = import_module("networks")
    monkeypatch.setattr(sys, "argv", ["networks.py"])
    assert networks.arguments().hardware == "local"
    words = ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    for hardware, setting, lacking in (
        ("epyc-avx2-1c", "hardware.requires=[avx2,avx1024]", "lacks: avx1024"),
        ("v100", "hardware.cores=1", "expected a cuda device"),
    ):
        arguments = [*words, "--hardware", hardware, "--set", setting]
        monkeypatch.setattr(sys, "argv", ["networks.py", *arguments])
        assert networks.main() == 2
        assert lacking in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


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

    store = ("--store", str(tmp_path / "store"))
    second = started(tmp_path, *store)
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
    assert "2 of 2 arms are new" in said
    # Those that a busy host made contradict each other, too, which are in quarantine.
    kept = RecordStore(networks_uri(store[1])).read(quarantined=True)
    assert len(kept) == 2
    for row in kept.iter_rows(named=True):
        arm = {"pytorch": "eager", "onnxruntime": "onnxruntime"}[row["engine"]]
        assert row["run_secs"] == result["arms"][arm]["times_s"]
        assert (row["env_name"], row["task_name"]) == (host_name(), "bert_tiny")

    third = started(tmp_path, *store)
    said, _ = third.communicate(timeout=500)
    assert "0 of 2 arms are new" in said
    assert "timing" not in said  # nothing was left to do
    assert "| bert_tiny |" in said


@pytest.mark.slow
def test_more_cores_than_there_are(tmp_path: Path) -> None:
    process = started(tmp_path, "--cores", str(len(os.sched_getaffinity(0)) + 1))
    process.communicate(timeout=300)
    assert process.returncode == 2
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_what_it_compiles_stays_out_of_the_live_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its seconds are over and its database is empty, so that it only compiles."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    networks = import_module("networks")
    database = tmp_path / "tencost" / "tuned" / "bert"
    database.mkdir(parents=True)
    (database / "report.json").write_text('{"model": "none"}')
    for name in ("database_tuning_record.json", "database_workload.json"):
        (database / name).touch()
    about = {"network": "bert_tiny", "via": "", "cores": 1, "hardware": "local"}
    case = networks.Case(**about, settings=SMALL, folder=str(tmp_path))
    given = argparse.Namespace(seconds=0.0, seed=0, model=None, trials=1)
    clock = networks.Clock(tmp_path / "spent.json")
    assert networks.prepare_tencost(given, case, clock)["tasks_tuned"] == 0
    timed = RecordStore(networks_uri(str(tmp_path / "tencost" / "store"))).read(quarantined=True)
    assert timed["engine"].to_list() == ["tencost"]


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


def report(store: Path, results: Path) -> subprocess.CompletedProcess[str]:
    words = ("--report", "--results", str(results), "--store", str(store))
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "networks.py"), *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_results_that_are_there_become_records(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(RESULTS / "bert_tiny-1c.json", results)
    done = report(tmp_path / "store", results)
    assert done.returncode == 0
    count = len(json.loads((results / "bert_tiny-1c.json").read_text())["arms"])
    assert f"{count} of {count} arms are new in {tmp_path / 'store'}-networks" in done.stdout
    assert "| bert_tiny |" in done.stdout
    (tmp_path / "file").touch()
    refused = report(tmp_path / "file" / "store", results)
    assert refused.returncode == 2
    assert "file/store-networks" in refused.stderr
    assert "Results are kept" in refused.stderr


def compared(store: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the rows of `tencost records compare`."""
    cli.main(["records", "compare", "--store", str(store), *words, "--json"])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_records_set_the_engines_side_by_side(
    table: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, results = tmp_path / "store", table.read_results(RESULTS)
    arms = sum(len(one["arms"]) for one in results)
    assert table.store(results, str(store)) == Added(arms, 0, 0)
    assert table.store(results, str(store)) == Added(0, 0, 0)
    (bert,) = [one for one in results if one["network"] == "bert_tiny"]
    words = ("--network", "bert_tiny", "--baseline", "onnxruntime")
    rows = compared(store, *words, capsys=capsys)
    assert len(rows) == len(bert["arms"])
    by_engine = {row["engine"]: row for row in rows}
    peer = table.quartiles_ms(bert["arms"]["onnxruntime"])[1]
    for arm, values in bert["arms"].items():
        row, median = by_engine[table.ENGINES[arm]], table.quartiles_ms(values)[1]
        assert 1e3 * row["median_s"] == pytest.approx(median)
        assert row["ratio"] == pytest.approx(median / peer, abs=1e-4)  # four digits
        own = "tencost" if arm == "rules" else row["engine"]
        assert row["version"] == bert["versions"][own]
        assert (row["hardware"], row["cores"]) == (bert["hardware"], bert["cores"])


def test_records_are_of_where_and_with_what_a_result_was_taken(
    table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be stored on another machine, with other versions, twice."""
    found = result(
        tencost={"times_s": [0.002] * 3, "seconds": 7.0, "programs": 5, "model": "a/1"},
        eager={"times_s": [0.002] * 3, "seconds": 0.1},
    )
    found["versions"]["tvm"] = "2"
    for host in ("here", "there"):
        monkeypatch.setenv("TENCOST_HOST", host)
        table.store([found], str(tmp_path))
    found["host"]["name"] = "named"
    table.store([found], str(tmp_path))
    runs = read_runs(str(tmp_path))
    assert len(runs) == 4
    assert {run.host for run in runs} == {"unknown", "named"}
    versions = {run.engine: dict(run.versions) for run in runs}
    assert versions == {"tencost": {"tencost": "1", "tvm": "2"}, "pytorch": {"tencost": "1"}}
    info = {run.engine: run.info for run in runs}
    assert (info["tencost"]["tuning_seconds"], info["tencost"]["tuning_programs"]) == (7.0, 5)
    assert "compile_time" not in info["pytorch"]  # eager compiles nothing


def test_arms_of_one_engine_are_not_mixed(
    table: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {
        "stock": "metaschedule", "stock-warm": "metaschedule-warm", "stock-x10": "metaschedule-x10",
        "compile": "torch.compile", "compile-frozen": "torch.compile-frozen",
    }  # fmt: skip
    arms = {arm: {"times_s": [at * 1e-3] * 3} for at, arm in enumerate(names, 1)}
    found = result(**arms, tencost={"error": "does not compile"})
    found["versions"] |= {"torch.compile": "4"}
    table.store([found], str(tmp_path))
    rows = {row["engine"]: row for row in compared(tmp_path, capsys=capsys)}
    medians = {engine: row["median_s"] for engine, row in rows.items()}
    expected = {name: at * 1e-3 for at, name in enumerate(names.values(), 1)}
    assert medians == pytest.approx(expected | {"tencost": None})
    assert rows["tencost"]["failed"] == 1
    assert rows["metaschedule-x10"]["version"] == "2"
