"""Whole networks' times as records: ids, what is kept, writers at once and killed, RFC 4304 and back."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from network_times import timing

from tencost import cli
from tencost.config import NetworkConfig
from tencost.errors import RecordError
from tencost.records.formats.rfc4304 import FORMAT, write_file
from tencost.records.formats.rfc4304.names import Version
from tencost.records.network_times.runs import Chosen, read_runs
from tencost.records.network_times.timing import (
    Granularity,
    NetworkTiming,
    engine_version_here,
    host_name,
    networks_uri,
    write_timings,
)
from tencost.records.reading.protocol import About
from tencost.store.record_store import Added, RecordStore

CONF = Path(__file__).resolve().parents[2] / "conf"
WRITERS = 3
WRITES = 10


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def test_what_was_measured_comes_back(uri: str) -> None:
    made = timing(
        0,
        seconds=(2e-3, 1e-3, 4e-3),
        batch=4,
        variant="NHWC",
        cores=2,
        engine_config={"model": "models:/m/1"},
        hw_model="AMD EPYC",
        target={"kind": "llvm"},
        validation_accuracy=0.7,
        code_size=123,
        compile_seconds=4.5,
        tuning_seconds=60.0,
        tuning_programs=320,
        max_rel_error=1e-6,
        info={"commit": "0a1b2c"},
        execution={"number": 3, "repeat": 3},
        source="tuned/bert_tiny",
    )
    assert write_timings(uri, [made]) == Added(records=1, again=0, quarantined=0)
    (run,) = read_runs(uri)
    assert run.network == "bert_tiny-b4-s128-NHWC"
    assert (run.name, run.engine, run.version, run.host) == ("bert_tiny", "tencost", "0.2.0", "ci")
    assert (run.hardware, run.cores, run.day) == ("epyc", 2, "2026-11-10")
    assert list(run.seconds) == [2e-3, 1e-3, 4e-3]
    assert run.info["validation_accuracy"] == 0.7
    assert (run.info["code_size"], run.info["compile_time"]) == (123, 4.5)
    assert (run.info["tuning_seconds"], run.info["tuning_programs"]) == (60.0, 320)
    assert (run.info["max_rel_error"], run.info["commit"]) == (1e-6, "0a1b2c")
    (row,) = RecordStore(networks_uri(uri)).read().to_dicts()
    assert (row["workload"], row["program_format"]) == ("network.bert_tiny", "none")
    assert row["execution_elapsed_ms_mean"] == pytest.approx(7 / 3)
    assert json.loads(row["runtime_config"]) == {"num_cpu_threads": 2}


def test_the_same_timing_is_there_once_and_another_is_its_history(uri: str) -> None:
    first, second = timing(0), timing(1)
    assert write_timings(uri, [first, first]).records == 1
    assert write_timings(uri, [first]) == Added(0, 0, 0)
    assert write_timings(uri, [first, second]).records == 1
    rows = RecordStore(networks_uri(uri)).read()
    assert rows.height == 2
    assert rows["record_id"].n_unique() == 2
    assert rows["program_id"].n_unique() == 1
    assert [run.timestamp for run in read_runs(uri)] == [first.timestamp, second.timestamp]


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({}, ""),
        ({"info": {"x": 1}, "code_size": 5, "source": "elsewhere"}, ""),
        ({"engine_version": "0.3.0"}, "record"),
        ({"timestamp": 1.0}, "record"),
        ({"host": "other"}, "record"),
        ({"cores": 2}, "record"),
        ({"engine_config": {"model": "x"}}, "record"),
        ({"target": {"kind": "llvm"}}, "record"),
        ({"engine": "tvm"}, "record program"),
        ({"batch": 2}, "record program workload"),
        ({"size": 64}, "record program workload"),
        ({"variant": "fp16"}, "record program workload"),
        ({"network": "other"}, "record program workload"),
        ({"granularity": Granularity.layer, "part": "x"}, "record program workload"),
        ({"granularity": Granularity.task, "part": "x"}, "record program workload"),
    ],
)
def test_what_counts_for_an_id(changes: dict[str, Any], ids: str) -> None:
    one = timing(0)
    rows = one.row(), replace(one, **changes).row()
    changed = {
        name
        for name in ("record", "program", "workload")
        if rows[0][f"{name}_id"] != rows[1][f"{name}_id"]
    }
    assert changed == set(ids.split())


def test_programs_and_networks_do_not_meet(uri: str) -> None:
    write_timings(uri, [timing(0)])
    assert not RecordStore(uri).exists()
    assert networks_uri(networks_uri(uri)) == networks_uri(f"{uri}/") == f"{uri}-networks"
    assert len(read_runs(f"{uri}-networks")) == 1


def test_times_that_contradict_themselves_are_kept_out(uri: str) -> None:
    doubtful = timing(0, seconds=(1e-3, 1e-3, 50e-3))
    assert write_timings(uri, [doubtful, timing(1)]).quarantined == 1
    assert [run.day for run in read_runs(uri)] == ["2026-11-11"]
    table = RecordStore(networks_uri(uri))
    assert table.release(table.read(quarantined=True)["record_id"]) == 1
    assert len(read_runs(uri)) == 2


def test_a_failure_is_kept_with_its_reason(uri: str) -> None:
    write_timings(uri, [timing(0, error="no such operator: erf")])
    (run,) = read_runs(uri)
    assert run.failed
    assert run.error == "no such operator: erf"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"seconds": (1e-3, 0.0)}, "expected seconds of bert_tiny with tencost above 0, found 0.0"),
        ({"seconds": (float("nan"),)}, "found nan"),
        ({"seconds": ()}, "expected either seconds or an error .* found neither"),
        ({"error": "broken", "seconds": (1.0,)}, "found both"),
        ({"network": " "}, "expected a network of a network's timing, found none"),
        ({"part": "conv1"}, "name of a part for a layer or task and for nothing else"),
        ({"granularity": Granularity.layer}, "found '' for granularity layer"),
        ({"cores": 0}, "cores of at least 1"),
        ({"timestamp": 1.6e12}, "as seconds since 1970, found 1600000000000.0"),
        ({"timestamp": float("nan")}, "found nan"),
    ],
)
def test_what_is_no_timing_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(RecordError, match=told):
        timing(0, **changes)


def test_a_configured_network_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    config = NetworkConfig(name="bert_tiny", batch=4, size=64, default_size=128)
    made = NetworkTiming.of(config, engine="pytorch", hardware="epyc", seconds=(1.0,))
    assert (made.network, made.batch, made.size) == ("bert_tiny", 4, 64)
    plain = NetworkConfig(name="bert_tiny", default_size=128)
    assert NetworkTiming.of(plain, engine="x", hardware="y", seconds=(1.0,)).size == 128
    monkeypatch.setenv("TENCOST_HOST", "bench-1")
    assert host_name() == "bench-1"
    assert NetworkTiming.of(config, engine="x", hardware="y", seconds=(1.0,)).host == "bench-1"
    assert engine_version_here("tencost")
    assert engine_version_here("unheard-of") is None


def test_numbers_that_json_cannot_write_are_no_numbers(uri: str) -> None:
    write_timings(uri, [timing(0, max_rel_error=float("nan"), info={"odd": float("inf")})])
    (run,) = read_runs(uri)
    assert run.info["max_rel_error"] is None
    assert run.info["odd"] is None


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "store-networks").write_text("a file")
    with pytest.raises(RecordError, match="store-networks"):
        write_timings(str(tmp_path / "store"), [timing(0)])


def test_a_store_without_networks_says_who_writes_them(uri: str) -> None:
    with pytest.raises(
        RecordError, match=r"found none\. `tencost tune` and `tencost compile` write"
    ):
        read_runs(uri)


def test_parts_are_asked_for_by_themselves(uri: str) -> None:
    layer = timing(0, granularity=Granularity.layer, part="conv1")
    write_timings(uri, [layer])
    with pytest.raises(RecordError, match=r"networks timed end to end in .*, found layer"):
        read_runs(uri)
    write_timings(uri, [timing(0)])
    assert [run.network for run in read_runs(uri)] == ["bert_tiny-s128"]
    (run,) = read_runs(uri, Chosen(granularity=Granularity.layer))
    assert run.network == "bert_tiny-s128/conv1"


@pytest.mark.parametrize(
    ("chosen", "known"),
    [
        (Chosen(network="vgg"), "bert_tiny-s128, resnet_18-s128"),
        (Chosen(hardware="v100"), "epyc"),
        (Chosen(engine="tvm"), "pytorch, tencost"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(uri: str, chosen: Chosen, known: str) -> None:
    write_timings(uri, [timing(0), timing(0, network="resnet_18", engine="pytorch")])
    with pytest.raises(RecordError, match=f"found only those with {known}$"):
        read_runs(uri, chosen)
    assert len(read_runs(uri, Chosen(network="resnet_18"))) == 1
    assert len(read_runs(uri, Chosen(network="resnet_18-s128"))) == 1


@pytest.mark.parametrize("layout", ["json", "columns"])
@pytest.mark.parametrize("kind", ["rfc4304", "table"])
def test_networks_go_out_as_logs_and_come_back(
    tmp_path: Path, uri: str, kind: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_project(tmp_path, monkeypatch)
    made = [timing(day, cores=2, compile_seconds=2.5) for day in range(2)]
    write_timings(uri, [*made, timing(2, error="no such operator")])
    log = tmp_path / ("all.jsonl" if kind == "rfc4304" else "all.csv")
    words = ["--layout", layout] if kind == "rfc4304" else []
    cli.main(["records", "export", kind, str(log), *words, "--store", networks_uri(uri)])
    if kind == "rfc4304":
        first = json.loads(log.read_text().splitlines()[0])
        mean = first["runtime_ms_mean" if layout == "json" else "execution_elapsed_ms_mean"]
        assert 0.9 < mean < 1.1
        told = first["metrics"] if layout == "json" else first["additional_info"]
        assert told["compile_time"] == 2.5
    for again in (networks_uri(uri), str(tmp_path / "new")):
        cli.main(["records", "import", str(log), "--store", again])
    assert not RecordStore(str(tmp_path / "new")).exists()  # no program among them
    assert len(RecordStore(networks_uri(uri)).read()) == 3
    ids = [set(RecordStore(networks_uri(one)).read()["record_id"]) for one in (uri, str(tmp_path / "new"))]  # fmt: skip
    assert ids[0] == ids[1]
    for one, other in zip(read_runs(uri), read_runs(str(tmp_path / "new")), strict=True):
        assert {**vars(one), "seconds": list(one.seconds)} == {
            **vars(other),
            "seconds": list(other.seconds),
        }


def in_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder a project, which an import writes its rejects into, and go there."""
    shutil.copytree(CONF, folder / "conf")
    monkeypatch.chdir(folder)


@pytest.mark.parametrize("layout", ["columns", "json"])
def test_the_image_of_a_container_goes_out_and_comes_back(
    layout: Version, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENCOST_DOCKER_TAG", "lab/tencost:1.4")
    monkeypatch.setenv("TENCOST_DOCKER_HASH", "sha256:0a68")
    image = {"docker_tag": "lab/tencost:1.4", "docker_hash": "sha256:0a68"}
    write_timings(uri, [timing(0)])
    written = RecordStore(networks_uri(uri)).read()
    write_file(written, tmp_path / "out.jsonl", layout)
    record = json.loads((tmp_path / "out.jsonl").read_text())
    assert record["metadata" if layout == "json" else "additional_info"].items() >= image.items()
    (batch,) = FORMAT.read(tmp_path / "out.jsonl", About("again", "out.jsonl", None))
    assert batch.rejects == ()
    assert json.loads(batch.records["additional_info"][0].as_py()).items() >= image.items()


def test_a_log_of_somebody_else_is_read_as_runs(
    tmp_path: Path,
    uri: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    in_project(tmp_path, monkeypatch)
    line = {
        "workload": "relay.resnet-18", "engine": "onnx-runtime", "hardware": "rasp3b", "engine_version": "1.0",
        "runtime_ms_mean": 12.5, "timestamp": "20191123003411", "runtime_config": {"num_cpu_threads": 3},
    }  # fmt: skip
    log = tmp_path / "theirs.jsonl"
    log.write_text(json.dumps(line) + "\n")
    cli.main(["records", "import", str(log), "--store", networks_uri(uri)])
    (run,) = read_runs(uri)
    assert (run.network, run.engine, run.version) == ("resnet-18", "onnx-runtime", "1.0")
    assert (run.hardware, run.cores, run.day) == ("rasp3b", 3, "2019-11-23")
    assert list(run.seconds) == [12.5e-3]
    log.write_text(json.dumps(line | {"timestamp": 1.6e12}) + "\n")  # milliseconds
    cli.main(["records", "import", str(log), "--store", networks_uri(uri)])
    assert next((one.timestamp, one.day) for one in read_runs(uri)) == (None, "-")
    cli.main(["records", "compare", "--by", "engine,day", "--store", uri])
    assert "2019-11-23" in capsys.readouterr().out


def write_all(uri: str, writer: int, acknowledged: Path) -> None:
    """Write timings of a writer's own and of all writers, one of each a write; note each that was answered."""
    for day in range(WRITES):
        write_timings(uri, [timing(day, host=f"host-{writer}"), timing(day, host="shared")])
        with acknowledged.open("a") as file:
            file.write(f"{day}\n")


def start(uri: str, writer: int, folder: Path) -> subprocess.Popen[bytes]:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); "
        "from test_network_records import write_all; write_all(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))"
    )
    words = [str(Path(__file__).parent), uri, str(writer), str(folder / f"{writer}")]
    return subprocess.Popen([sys.executable, "-c", code, *words])


def test_writers_at_once_one_of_them_killed(uri: str, tmp_path: Path) -> None:
    writers = [start(uri, number, tmp_path) for number in range(WRITERS)]
    noted = tmp_path / "0"
    try:
        until = time.monotonic() + 120
        while not noted.exists() or len(noted.read_text().splitlines()) < 3:
            assert time.monotonic() < until
            assert writers[0].poll() is None
            time.sleep(0.01)
        writers[0].send_signal(signal.SIGKILL)
        assert writers[0].wait(10) == -signal.SIGKILL
        assert [writer.wait(120) for writer in writers[1:]] == [0] * (WRITERS - 1)
    finally:
        for writer in writers:
            if writer.poll() is None:
                writer.kill()
                writer.wait(10)
    found = Counter((run.host, run.day) for run in read_runs(uri))
    assert set(found.values()) == {1}
    days = [timing(day).timestamp for day in range(WRITES)]
    of = {host: sum(one == host for one, _ in found) for host, _ in found}
    assert of["shared"] == of["host-1"] == of["host-2"] == len(days)
    acknowledged = len(noted.read_text().splitlines())
    assert acknowledged <= of["host-0"] <= min(acknowledged + 1, WRITES)
    write_all(uri, 0, noted)  # started again: what it had written is not there twice
    assert Counter((run.host, run.day) for run in read_runs(uri)).total() == 4 * WRITES
