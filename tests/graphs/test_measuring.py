"""Networks are timed one a process, written down as they are done, and a second run goes on where the first ended."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tencost.cli.main import main
from tencost.errors import ConfigError, GraphError, MeasureError
from tencost.measure.networks.measuring import (
    TimingSettings,
    measure_networks,
    median_and_spread,
    round_ratios,
)
from tencost.networks.variants.variants import Variant
from tencost.records.network_graphs.formats.measured import FORMAT, MEASURED_FILE, read
from tencost.records.network_graphs.reading import gate, read_folder

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SETTINGS = TimingSettings(hardware="here", warm_up=1, min_runs=3, max_runs=3)


def network(name: str, family: str = "vgg", **changed: Any) -> Variant:
    definition = {"builder": family, "channels": [8], "blocks": [1], "kernel": 3, "size": 16}
    return Variant(name, family, {**definition, **changed})


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / MEASURED_FILE).read_bytes().splitlines()]


def timing_processes(parent: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in parent.children(recursive=True):
        try:
            if "tencost.measure.networks.timing" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two good networks and one that cannot be built."""
    folder = tmp_path_factory.mktemp("measured")
    variants = [network("a"), network("broken", size=-1), network("b", "densenet")]
    told: list[tuple[str, int, int]] = []
    found = measure_networks(
        variants, folder, SETTINGS, lambda name, line, done, count: told.append((name, done, count))
    )
    assert (found.before, found.ok, list(found.failed)) == (0, 2, ["broken"])
    assert told == [("a", 1, 3), ("broken", 2, 3), ("b", 3, 3)]
    assert not timing_processes(psutil.Process())
    return folder


def test_every_network_has_a_line_with_its_runs_and_its_graph(measured: Path) -> None:
    good, broken, other = lines_of(measured)
    assert broken["status"] == "failed"
    assert "latency_ms" not in broken
    for line in (good, other):
        assert line["latency_ms"] == pytest.approx(np.median(line["runs_ms"]))
        assert len(line["runs_ms"]) == len(line["cpu_ms"]) == 3
        assert line["operators"][0] == "Placeholder"
        assert len(line["columns"]) == len(line["operators"])
    about = json.loads((measured / "hardware.json").read_bytes())
    assert (about["hardware"], about["engine"], about["clock"]) == ("here", "onnxruntime", "wall")


def test_the_folder_is_a_format_of_graphs(measured: Path) -> None:
    assert FORMAT.recognizes(measured, b"")
    found = read_folder(measured)
    assert gate(read(measured)).rejects == found.rejects
    assert found.labelled.hardware == ("here",)
    assert found.labelled.graphs.name.tolist() == ["b", "a"]  # sorted by family
    assert found.labelled.graphs.position.tolist() == [0, 0]
    assert found.nodes.line.tolist() == [3, 1]
    (reject,) = found.rejects
    assert (reject.line, reject.graph) == (2, 1)
    assert reject.reason.startswith("broken failed: ")


def test_a_gzipped_folder_reads_the_same(measured: Path, tmp_path: Path) -> None:
    (tmp_path / "hardware.json").write_bytes((measured / "hardware.json").read_bytes())
    packed = tmp_path / f"{MEASURED_FILE}.gz"
    packed.write_bytes(gzip.compress((measured / MEASURED_FILE).read_bytes()))
    assert FORMAT.recognizes(tmp_path, b"")
    plain, other = gate(read(measured)).labelled, gate(read(tmp_path)).labelled
    assert plain.graphs.graph_id.tolist() == other.graphs.graph_id.tolist()
    assert plain.latency_ms.tolist() == other.latency_ms.tolist()
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(GraphError, match="whole gzip file"):
        read(tmp_path)


def test_damaged_lines_are_rejects(measured: Path, tmp_path: Path) -> None:
    good = lines_of(measured)[0]
    bad = [
        b"no json",
        b"[]",
        json.dumps({**good, "operators": ["Nothing"]}).encode(),
        json.dumps({**good, "columns": good["columns"][1:]}).encode(),
        json.dumps({**good, "edges": [[0], [1], [2]]}).encode(),
        json.dumps({key: value for key, value in good.items() if key != "latency_ms"}).encode(),
        json.dumps({**good, "columns": [[2**40] * 16] * len(good["operators"])}).encode(),
    ]
    (tmp_path / "hardware.json").write_bytes((measured / "hardware.json").read_bytes())
    lines = [*bad, json.dumps(good).encode()]
    (tmp_path / MEASURED_FILE).write_bytes(b"\n".join(lines) + b"\n")
    found = gate(read(tmp_path))
    assert found.labelled.graphs.name.tolist() == ["a"]
    assert [reject.line for reject in found.rejects] == [1, 2, 3, 4, 5, 6, 7]
    (tmp_path / MEASURED_FILE).write_bytes(b"\n".join(bad) + b"\n")
    with pytest.raises(GraphError, match="found none of 7 lines"):
        read(tmp_path)
    (tmp_path / "hardware.json").write_text("{}")
    with pytest.raises(GraphError, match=r"hardware\.json"):
        read(tmp_path)


def test_a_second_run_measures_what_is_missing(measured: Path, tmp_path: Path) -> None:
    for name in ("hardware.json", MEASURED_FILE):
        (tmp_path / name).write_bytes((measured / name).read_bytes())
    with (tmp_path / MEASURED_FILE).open("ab") as file:
        file.write(b'{"name": "cut o')  # a command that was killed while it wrote
    before = lines_of(measured)
    variants = [network("a"), network("broken", size=-1), network("b", "densenet"), network("c")]
    found = measure_networks(variants, tmp_path, SETTINGS)
    assert (found.before, found.ok, found.failed) == (3, 1, {})
    assert lines_of(tmp_path)[:3] == before
    assert lines_of(tmp_path)[3]["name"] == "c"


def test_rounds_go_over_all_networks_and_the_quietest_counts(tmp_path: Path) -> None:
    variants = [network("a"), network("broken", size=-1), network("b")]
    twice = replace(SETTINGS, rounds=2)
    measure_networks(variants, tmp_path, SETTINGS)
    found = measure_networks(variants, tmp_path, twice)
    assert (found.before, found.ok, found.failed) == (4, 2, {})
    lines = lines_of(tmp_path)
    assert [line["name"] for line in lines] == ["a", "broken", "b", "a", "b"]
    assert "operators" in lines[0]
    assert "operators" not in lines[3]
    graphs = gate(read(tmp_path)).labelled
    assert graphs.graphs.name.tolist() == ["a", "b"]
    expected = [min(lines[0]["latency_ms"], lines[3]["latency_ms"])]
    expected.append(min(lines[2]["latency_ms"], lines[4]["latency_ms"]))
    assert graphs.latency_ms[:, 0].tolist() == expected
    assert measure_networks(variants, tmp_path, twice).ok == 0


def test_how_well_rounds_agree(tmp_path: Path) -> None:
    rounds = (("a", 2.0), ("b", 4.0), ("a", 3.0), ("c", 1.0), ("a", 2.5), ("b", 4.0))
    lines = [{"name": name, "status": "ok", "latency_ms": ms} for name, ms in rounds]
    lines.append({"name": "c", "status": "failed"})
    (tmp_path / MEASURED_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert round_ratios(tmp_path).tolist() == [1.5, 1.0]


@pytest.mark.slow
def test_the_command_times_in_rounds_and_says_how_well_they_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    words = ["graphs", "measure", "network=bert_tiny", "--variants", "1", "--to", str(tmp_path)]
    main(words)
    assert "1 networks measured, 0 before, 0 failed" in capsys.readouterr().err
    main([*words, "--rounds", "3"])
    told = capsys.readouterr().err
    assert "2 networks and rounds measured, 1 before, 0 failed" in told
    assert "share of networks whose rounds agree within 5%: " in told
    assert [line["name"] for line in lines_of(tmp_path)] == ["bert_tiny-000"] * 3
    with pytest.raises(SystemExit) as ended:
        main([*words, "--rounds", "0"])
    assert ended.value.code == 2


def test_a_file_damaged_in_its_middle_is_left_alone(measured: Path, tmp_path: Path) -> None:
    (tmp_path / "hardware.json").write_bytes((measured / "hardware.json").read_bytes())
    content = b"damaged\n" + (measured / MEASURED_FILE).read_bytes()
    (tmp_path / MEASURED_FILE).write_bytes(content)
    with pytest.raises(MeasureError, match="in line 1, found something else"):
        measure_networks([network("a")], tmp_path, SETTINGS)
    assert (tmp_path / MEASURED_FILE).read_bytes() == content


def test_a_folder_of_other_hardware_is_refused(measured: Path) -> None:
    with pytest.raises(MeasureError, match=r"hardware here \(now there\)"):
        measure_networks([network("c")], measured, replace(SETTINGS, hardware="there"))
    with pytest.raises(MeasureError, match="clock wall"):
        measure_networks([network("c")], measured, replace(SETTINGS, clock="cpu"))
    assert len(lines_of(measured)) == 3


def test_two_networks_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="found 'a' twice"):
        measure_networks([network("a"), network("a", size=32)], tmp_path, SETTINGS)


def test_the_cpus_time_of_several_threads_is_no_latency() -> None:
    with pytest.raises(ConfigError, match="expected one thread"):
        TimingSettings(hardware="here", threads=2, clock="cpu")
    with pytest.raises(ConfigError, match="clock must be one of"):
        TimingSettings(hardware="here", clock="sundial")


def test_a_network_that_takes_too_long_costs_itself_alone(tmp_path: Path) -> None:
    found = measure_networks([network("slow")], tmp_path, replace(SETTINGS, timeout_s=0.01))
    assert list(found.failed) == ["slow"]
    assert lines_of(tmp_path)[0]["status"] == "timed_out"
    assert not timing_processes(psutil.Process())


def test_a_process_that_is_killed_costs_its_network_alone(tmp_path: Path) -> None:
    ended = threading.Event()

    def kill_the_first() -> None:
        while not ended.wait(0.02):
            for child in timing_processes(psutil.Process()):
                child.kill()
                return

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    try:
        found = measure_networks([network("first"), network("second")], tmp_path, SETTINGS)
    finally:
        ended.set()
        killer.join()
    assert found.failed == {"first": "crashed: its process was killed (out of memory?)"}
    assert [line["status"] for line in lines_of(tmp_path)] == ["crashed", "ok"]


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_is_ended_keeps_what_is_done_and_leaves_nothing_running(
    tmp_path: Path, blow: signal.Signals
) -> None:
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]);"
        "from test_measuring import SETTINGS, network;"
        "from tencost.measure.networks.measuring import measure_networks;"
        "measure_networks([network(str(i)) for i in range(1000)], Path(sys.argv[1]), SETTINGS)"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(Path(__file__).parent)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        journal = tmp_path / MEASURED_FILE
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (
            journal.exists() and journal.read_bytes().count(b"\n") >= 2
        ):
            time.sleep(0.05)
        children = timing_processes(psutil.Process(process.pid))
        os.kill(process.pid, blow)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert gone
    assert not alive
    done = journal.read_bytes().count(b"\n")
    assert done >= 2
    found = measure_networks([network(str(i)) for i in range(done + 1)], tmp_path, SETTINGS)
    assert found.before >= done - 1
    assert [line["name"] for line in lines_of(tmp_path)] == [str(i) for i in range(done + 1)]


def test_the_median_and_its_spread() -> None:
    assert median_and_spread([4.0, 1.0, 2.0, 3.0, 5.0]) == (3.0, round(2 / 3, 4))


@pytest.mark.parametrize("words", [("--cpus", "99999"), ("--cpus", "9" * 30), ("--to", "file")])
def test_cpus_and_folders_that_are_none_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    (tmp_path / "file").touch()
    option, value = words
    to = tmp_path / (value if option == "--to" else "to")
    more = [] if option == "--to" else [option, value]
    with pytest.raises(SystemExit) as end:
        main(["graphs", "measure", "--count", "1", "--to", str(to), *more])
    assert end.value.code == 2
    assert "tencost: expected" in capsys.readouterr().err
