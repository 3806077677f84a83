"""From a raw folder to records, and the stage around it."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tencost.config import Config, DatasetConfig
from tencost.errors import DatasetError, RecordError
from tencost.records import stage
from tencost.records.databases import import_dataset, import_parts
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    LoggedWorkload,
    read_workloads,
)
from tencost.records.raw_layout import folder_name, read_tasks
from tencost.store.record_store import RecordStore
from tencost.store.status import Status
from tencost.store.tables import load_records, load_tasks, load_workloads

GOLDEN = Path(__file__).parent / "golden"
FOUND = read_workloads(GOLDEN / WORKLOAD_FILE)[0][0]
assert FOUND is not None
MODULE: LoggedWorkload = FOUND
IDENTITY = MODULE.workload_id


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def make_raw(folder: Path, hardware: tuple[str, ...] = ("one", "two")) -> Path:
    """Write a raw dataset: a workload in two networks, three programs on every hardware."""
    for name in hardware:
        task = folder / "measure_records" / name / folder_name("matmul", IDENTITY)
        task.mkdir(parents=True)
        for file in (WORKLOAD_FILE, RECORD_FILE):
            shutil.copy(GOLDEN / file, task / file)
    write_json(
        folder / "measure_records" / hardware[0] / "provenance.json",
        {"engine_version": "0.27.0", "timestamp": 1.5, "rack": 7},
    )
    entry = {"task_name": "matmul", "weight": 2, "flop": 8192.0, "workload_id": IDENTITY}
    tasks = [{"network": network, **entry, "measured": False} for network in ("bert", "vit")]
    write_json(folder / "tasks.json", tasks)
    write_json(folder / "network_info" / "bert.json", [{**entry, "mod": MODULE.mod_json}])
    return folder


def config() -> Config:
    return Config(dataset=DatasetConfig(name="set", source="nowhere"))


def test_import(tmp_path: Path) -> None:
    found = import_dataset(make_raw(tmp_path), "set")
    assert found.rejects == []
    assert [record.hardware for record in found.records] == ["one"] * 3 + ["two"] * 3
    assert [record.status for record in found.records[:3]] == [
        Status.ok,
        Status.unknown,
        Status.unknown,
    ]
    first, failed, missing = found.records[:3]
    assert first.run_secs == (2e-6, 3e-6, 2.5e-6)
    assert "1e+10" in failed.error
    assert failed.extra == {"raw_run_secs": "[10000000000]"}
    assert "not measured" in missing.error
    assert [(item.network, item.weight) for item in first.networks] == [("bert", 2), ("vit", 2)]
    assert first.provenance.additional_info == {"rack": 7}
    assert found.records[3].provenance.additional_info is None
    assert first.program_id == found.records[3].program_id
    assert first.record_id != found.records[3].record_id
    assert (first.source.dataset, first.source.line) == ("set", 1)
    assert first.source.file.startswith("measure_records/one/matmul-")
    assert [(task.network, task.measured) for task in found.tasks] == [
        ("bert", True),
        ("vit", True),
    ]
    assert [(w.workload_id, w.shash, w.measured) for w in found.workloads] == [
        (IDENTITY, MODULE.shash, True)
    ]


def test_without_any_index(tmp_path: Path) -> None:
    """A folder of databases alone: the dataset's name stands for the network."""
    make_raw(tmp_path)
    (tmp_path / "tasks.json").unlink()
    shutil.rmtree(tmp_path / "network_info")
    found = import_dataset(tmp_path, "set")
    assert [(task.network, task.task_name, task.weight) for task in found.tasks] == [
        ("set", "matmul", 1)
    ]
    assert {record.task_name for record in found.records} == {"matmul"}


def test_tasks_from_network_info(tmp_path: Path) -> None:
    make_raw(tmp_path)
    (tmp_path / "tasks.json").unlink()
    write_json(
        tmp_path / "network_info" / "vit.json",
        [{"task_name": "m", "weight": 1, "flop": 1, "mod": MODULE.mod_json}],
    )
    assert [(task.network, task.workload_id) for task in read_tasks(tmp_path)] == [
        ("bert", IDENTITY),
        ("vit", IDENTITY),
    ]


@pytest.mark.parametrize(
    ("file", "text", "match"),
    [
        ("tasks.json", "{", "expected JSON in .*tasks.json"),
        ("tasks.json", "{}", "expected a JSON list in .*tasks.json, found dict"),
        ("tasks.json", "[{}]", "expected a task with network.*KeyError"),
        ("tasks.json", "[3]", "expected a task with network"),
        ("network_info/bert.json", "[{}]", "expected tasks with a module"),
        ("measure_records/one/provenance.json", "[]", "expected a JSON object"),
    ],
)
def test_broken_indices(tmp_path: Path, file: str, text: str, match: str) -> None:
    (make_raw(tmp_path) / file).write_text(text)
    with pytest.raises(DatasetError, match=match):
        import_dataset(tmp_path, "set")


def test_folder_names_are_safe() -> None:
    assert folder_name("a/../b c", "0123456789abcdef") == "a_.._b_c-0123456789ab"
    assert folder_name("..", "0" * 32) == f"task-{'0' * 12}"
    assert len(folder_name("x" * 300, "0" * 32)) == 93


def test_stage(tmp_path: Path) -> None:
    raw = make_raw(tmp_path / "data" / "raw" / "set")
    records = next(raw.glob(f"measure_records/one/*/{RECORD_FILE}"))
    records.write_text("bad\n" + records.read_text())
    folder = stage.run(config(), tmp_path)
    assert folder == tmp_path / "data" / "records" / "set"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["set"]
    assert json.loads((folder / "summary.json").read_text()) == {
        "records": 6,
        "measured_again": 0,
        "duplicates": 0,
        "quarantined": 0,
        "programs": 3,
        "workloads": 1,
        "tasks": 2,
        "networks": ["bert", "vit"],
        "generators": {"unknown": 6},
        "status": {"one": {"ok": 1, "unknown": 2}, "two": {"ok": 1, "unknown": 2}},
        "rejects": 1,
    }
    reject = json.loads((folder / "rejects.jsonl").read_text())
    assert reject["file"] == records.relative_to(raw).as_posix()
    assert (reject["line"], "not a line of JSON" in reject["reason"]) == (1, True)
    frame = load_records(folder, ["two"], ["program_id", "status"])
    assert frame.columns == ["program_id", "status", "latency_s"]
    assert frame["latency_s"].to_list() == [2.5e-6, None, None]
    assert len(load_records(folder)) == 6
    assert load_workloads(folder)["workload_id"].to_list() == [IDENTITY]
    assert load_tasks(folder).to_dicts()[0] == {
        "network": "bert",
        "task_name": "matmul",
        "workload_id": IDENTITY,
        "weight": 2,
        "flop": 8192.0,
        "measured": True,
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_stage_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """So that DVC sees that nothing changed and runs nothing that follows."""
    make_raw(tmp_path / "data" / "raw" / "set")
    first = contents(stage.run(config(), tmp_path))
    second = contents(stage.run(config(), tmp_path))
    assert list(first) == list(second)
    assert first == second
    records = import_dataset(tmp_path / "data" / "raw" / "set", "set").records
    store = RecordStore(str(tmp_path / "live"))
    assert store.write([*records, *records]) == 6
    assert store.read().equals(
        load_records(tmp_path / "data" / "records" / "set").drop("latency_s")
    )


def test_a_changed_log_replaces_the_records(tmp_path: Path) -> None:
    raw = make_raw(tmp_path / "data" / "raw" / "set")
    stage.run(config(), tmp_path)
    shutil.rmtree(raw / "measure_records" / "two")
    assert load_records(stage.run(config(), tmp_path))["hardware"].unique().to_list() == ["one"]


def test_several_raw_datasets_are_one(tmp_path: Path) -> None:
    """Another part knows the workload in one network more, by another name, on one hardware more."""
    raw = tmp_path / "data" / "raw" / "set"
    make_raw(raw / "first")
    second = make_raw(raw / "second", hardware=("three",))
    entry = {"task_name": "dense", "flop": 8192.0, "workload_id": IDENTITY, "measured": True}
    tasks = [{"network": network, **entry, "weight": 5} for network in ("vit", "gpt")]
    write_json(second / "tasks.json", tasks)
    (second / "measure_records" / "three" / "bad").mkdir()
    (second / "measure_records" / "three" / "bad" / RECORD_FILE).write_text("bad\n")
    found = import_parts([raw / "first", raw / "second"])
    alone = import_dataset(raw / "first", "first")
    assert [one.record_id for one in found.records[:6]] == [one.record_id for one in alone.records]
    assert Counter(one.source.dataset for one in found.records) == {"first": 6, "second": 3}
    assert {one.task_name for one in found.records} == {"matmul"}
    networks = {
        tuple((item.network, item.weight) for item in one.networks) for one in found.records
    }
    assert networks == {(("bert", 2), ("vit", 2), ("gpt", 5))}
    assert [(task.network, task.weight) for task in found.tasks] == [
        ("bert", 2),
        ("vit", 2),
        ("gpt", 5),
    ]
    assert len(found.workloads) == 1
    assert [item.file.split("/")[0] for item in found.rejects] == ["second"]

    parts = {"first": "0" * 64, "second": "1" * 64}
    dataset = DatasetConfig(name="set", source="datasets", parts=parts)
    records = load_records(stage.run(Config(dataset=dataset), tmp_path))
    assert records["hardware"].value_counts(sort=True).height == 3
    assert len(records) == 9


def test_stage_errors(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"found nothing\. Fetch it: tencost fetch dataset=set"):
        stage.run(config(), tmp_path)
    raw = make_raw(tmp_path / "data" / "raw" / "set")
    for path in raw.glob(f"measure_records/*/*/{RECORD_FILE}"):
        path.write_text("bad\n")
    with pytest.raises(
        DatasetError, match=r"expected readable records in .*:1: not a line of JSON"
    ):
        stage.run(config(), tmp_path)
    shutil.rmtree(raw / "measure_records")
    with pytest.raises(DatasetError, match="expected measure_records"):
        stage.run(config(), tmp_path)
    assert not (tmp_path / "data" / "records" / "set").exists()
    for load in (load_records, load_workloads, load_tasks):
        with pytest.raises(RecordError, match="Build it: tencost records"):
            load(tmp_path)


@pytest.mark.tvm
def test_a_stored_workload_and_program_become_a_schedule(tmp_path: Path) -> None:
    """What the features room does with the tables: module from text, trace replayed on it."""
    import tvm
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    make_raw(tmp_path / "data" / "raw" / "set")
    folder = stage.run(config(), tmp_path)
    module = tvm.ir.load_json(load_workloads(folder)["mod_json"][0])
    program = load_records(folder).filter(pl.col("status") == "ok")["program"][0]
    schedule = Schedule(module)
    Trace.apply_json_to_schedule(json.loads(program), schedule)
    assert len(schedule.trace.insts) > 10


def test_a_devices_name_of_any_length_and_kind_costs_nobody_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log may name what it likes: the other rows come in, and the terminal obeys nothing."""
    from tencost import cli
    from tencost.store.record_store import RecordStore

    names = ["board", "x" * 5000, "\x1b]0;title\x07[bold]red"]
    row = '{"workload": "conv", "engine": "tvm", "hardware": %s, "runtime_ms_mean": 1.5, '
    row += '"timestamp": "20191123003411"}\n'
    log = tmp_path / "rfc.jsonl"
    log.write_text("".join(row % json.dumps(name) for name in names) + '{"a\x1b[31m": 1}\n')
    store = tmp_path / "store"
    cli.main(["records", "import", str(log), "--hardware", "else", "--store", str(store)])
    told = capsys.readouterr()
    assert not set(told.out + told.err) & {"\x1b", "\x07"}
    assert sorted(RecordStore(str(store)).hardware()) == sorted(names)
    for words in (["query", "stats"], ["quarantine"]):
        cli.main(["records", *words, "--store", str(store)])
        assert not set(capsys.readouterr().out) & {"\x1b", "\x07"}


def test_a_compressed_table_cut_in_its_header_is_a_reject(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tencost import cli
    from tencost.config.parts import LOG_FORMATS

    packed = gzip.compress(LOG_FORMATS.load("table").example["table.csv"].encode())
    for left in range(20, len(packed), 40):
        (tmp_path / "table.csv.gz").write_bytes(packed[:left])
        with contextlib.suppress(SystemExit):
            cli.main(["records", "import", str(tmp_path), "--store", str(tmp_path / f"s{left}")])
        assert "Traceback" not in capsys.readouterr().err


def test_files_that_are_no_logs_are_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tencost import cli

    logs = tmp_path / "logs"
    logs.mkdir()
    row = '{"workload": "conv", "engine": "tvm", "runtime_ms_mean": 1.5, "timestamp": "2019"}\n'
    (logs / "rfc.jsonl").write_text(row)
    (logs / "notes.txt").write_text("hello\n")
    cli.main(["records", "import", str(logs), "--hardware", "v100", "--store", str(tmp_path / "s")])
    told = capsys.readouterr().err
    assert "1 read, 1 no logs" in told
    assert "notes.txt: no log: no format that is known" in told
