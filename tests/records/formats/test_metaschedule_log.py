"""MetaSchedule pairs as a log format: of this TVM and of older ones, compressed, written back."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tencost import cli
from tencost.errors import RecordError
from tencost.records.formats.metaschedule import LoggedWorkload, write_database
from tencost.records.formats.metaschedule.log import (
    MetascheduleFormat,
    is_workload_file,
    programs_of,
    workload_file,
)
from tencost.records.reading.opening import read_head
from tencost.records.reading.protocol import About, Batch
from tencost.store.record_store import RecordStore

GOLDEN = Path(__file__).parents[1] / "golden"
READER = MetascheduleFormat()
OLD_MODULE = json.dumps(
    {"root": 1, "nodes": [{"type_key": ""}, {"type_key": "Map", "keys": ["main"]}]}
)
TRACE: list[Any] = [[["GetBlock", [], ["root", "main"], ["b0"]]], []]
TARGET = {"kind": "metal", "max_num_threads": 256, "tag": ""}


def read(path: Path, hardware: str | None = "board", batch_rows: int = 1000) -> list[Batch]:
    return list(READER.read(path, About("set", path.name, hardware), batch_rows))


def old_graph(*blocks: object, version: str = "0.13.dev0") -> str:
    """A module as TVM up to 0.21 wrote it, with blocks of these names."""
    nodes: list[dict[str, Any]] = [{"type_key": ""}, {"type_key": "Map", "keys": ["main"]}]
    for name in blocks:
        place = str(len(nodes) + 1)
        nodes.append({"type_key": "tir.Block", "attrs": {"name_hint": place, "body": "0"}})
        nodes.append({"type_key": "runtime.String", "repr_str": name})
    return json.dumps({"root": 1, "nodes": nodes, "attrs": {"tvm_version": version}})


def old_pair(folder: Path, records: list[Any], old_module: str = OLD_MODULE) -> Path:
    data = old_module.encode()
    module = base64.b64encode(len(data).to_bytes(8, "little") + data).decode()
    (folder / "x_workload.json").write_text(json.dumps(["1975445329753602945", module]) + "\n")
    text = "".join(json.dumps([0, record]) + "\n" for record in records)
    with gzip.open(folder / "x_tuning_record.json.gz", "wt") as file:
        file.write(text)
    return folder / "x_tuning_record.json.gz"


def test_a_pair_of_this_tvm_is_read_and_written_back(tmp_path: Path) -> None:
    path = GOLDEN / "database_tuning_record.json"
    assert READER.recognizes(path, read_head(path))
    assert not READER.recognizes(path, read_head(GOLDEN / "database_workload.json"))
    (batch,) = read(path)
    assert not batch.rejects
    modules = {
        identity: LoggedWorkload(shash, text, identity)
        for identity, text, _, shash in READER.modules(path)
    }
    write_database(tmp_path, list(modules.values()), programs_of(batch.records, modules))
    before = [json.loads(line) for line in path.read_text().splitlines()]
    after = [json.loads(line) for line in (tmp_path / path.name).read_text().splitlines()]
    assert after == before


def test_records_of_a_module_that_cannot_be_read_are_kept_with_the_reason(tmp_path: Path) -> None:
    args = [["TENSOR", "float32", [4]]]
    path = old_pair(
        tmp_path,
        [
            [TRACE, [1e-5, 2e-5], TARGET, args],
            [TRACE, [1e10], TARGET, args],
            [TRACE, None, TARGET, args],
        ],
    )
    (batch,) = read(path)
    rows = batch.records.to_pylist()
    assert [row["status"] for row in rows] == ["ok", "unknown", "unknown"]
    assert "tvm-ffi" in json.loads(rows[0]["additional_info"])["workload_unreadable"]
    assert rows[0]["task_name"].startswith("ms_"), "a module without blocks"
    assert rows[0]["execution_elapsed_ms_mean"] == pytest.approx(0.015)
    assert json.loads(rows[1]["foreign"])["run_secs"] == [1e10]
    assert json.loads(rows[2]["foreign"])["run_secs"] is None
    assert len({row["workload_id"] for row in rows}) == 1


@pytest.mark.parametrize(
    ("blocks", "name"),
    [
        (["root", "NT_matmul", "T_add", "T_add"], "NT_matmul_T_add_"),
        (["root", "a b/c", "x"], "a_b_c_x_"),
        (["root"], "ms_"),
        (["root", "long" * 50], "long" * 15 + "_"),
    ],
)
def test_a_task_of_an_older_tvm_is_named_after_its_blocks(
    tmp_path: Path, blocks: list[str], name: str
) -> None:
    path = old_pair(tmp_path, [[TRACE, [1e-5], TARGET, []]], old_graph(*blocks))
    (row,) = read(path)[0].records.to_pylist()
    assert row["task_name"] == name + row["workload_id"][:8]
    assert READER.modules(path)[0].task_name == row["task_name"]
    reason = json.loads(row["additional_info"])["workload_unreadable"]
    assert "the graph of TVM 0.13.dev0, which TVM 0.22 and later cannot read" in reason
    assert "again with this TVM" in reason


def test_a_task_of_this_tvm_is_named_after_its_blocks() -> None:
    rows = read(GOLDEN / "database_tuning_record.json")[0].records.to_pylist()
    traced = {
        attributes[0]
        for row in rows
        for kind, _, attributes, _ in json.loads(row["program"])[0]
        if kind == "GetSBlock"
    }
    assert traced - {"root"}
    for row in rows:
        assert any(block in row["task_name"] for block in traced - {"root"}), row["task_name"]
        assert row["additional_info"] is None


def test_an_import_says_which_workloads_have_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[TRACE, [time], TARGET, []] for time in (1e-5, 2e-5)]
    path = old_pair(tmp_path, rows, old_graph("root", "NT_matmul"))
    monkeypatch.chdir(tmp_path)
    store = RecordStore(str(tmp_path / "store"))
    cli.main(["records", "import", str(path), "--hardware", "m1", "--store", store.uri])
    text = " ".join(capsys.readouterr().err.split())
    assert re.search(r"modules not read │ 2 records of 1 workloads", text)
    assert "warning: 2 records of 1 workloads in x_tuning_record" in text
    assert "found the graph of TVM 0.13.dev0" in text
    assert "Save it again" not in text
    assert store.read("m1")["task_name"].str.starts_with("NT_matmul_").all()


def test_bad_lines_are_named_and_the_others_kept(tmp_path: Path) -> None:
    path = old_pair(
        tmp_path,
        [[TRACE, [1e-5], TARGET, []], [TRACE, ["fast"], TARGET, []], [[], [1e-5], TARGET, []]],
    )
    (batch,) = read(path)
    assert batch.records.num_rows == 1
    assert [item.line for item in batch.rejects] == [2, 3]


# orjson reads 2**64 as a float; beside NaN, which it refuses, Python's parser reads the line.
LONE = "\ud800"  # half of a UTF-16 pair: JSON can write it, UTF-8 and the store cannot
UNSTORABLE: dict[str, list[Any]] = {
    "a lone surrogate in the trace": [
        [[["GetBlock", [], [LONE, "main"], ["b0"]]], []], [1e-5], TARGET, []
    ],
    "a number beyond 64 bits in the trace": [
        [[["GetBlock", [], [2**64, "main"], ["b0"]]], []], [float("nan")], TARGET, []
    ],
    "a number beyond 64 bits in the trace of a plain line": [
        [[["GetBlock", [], [2**64, "main"], ["b0"]]], []], [1e-5], TARGET, []
    ],
    "a lone surrogate in the arguments": [TRACE, [1e-5], TARGET, [["TENSOR", LONE, [4]]]],
    "a number beyond 64 bits in the arguments": [
        TRACE, [float("nan")], TARGET, [["TENSOR", "int8", [2**64]]]
    ],
    "a lone surrogate in the target's device": [TRACE, [1e-5], {**TARGET, "model": LONE}, []],
    "a time that no float holds": [TRACE, [10**400], TARGET, []],
}  # fmt: skip


@pytest.mark.parametrize("what", UNSTORABLE)
def test_a_line_that_cannot_be_stored_is_one_reject(tmp_path: Path, what: str) -> None:
    good = [TRACE, [1e-5], {**TARGET, "model": "m1"}, []]
    path = old_pair(tmp_path, [good, UNSTORABLE[what], good])
    (batch,) = read(path, None if "device" in what else "board")
    assert batch.records.num_rows == 2
    (reject,) = batch.rejects
    assert (reject.file, reject.line) == (path.name, 2)
    reject.reason.encode()
    assert reject.reason


def test_batches_are_bounded(tmp_path: Path) -> None:
    path = old_pair(tmp_path, [[TRACE, [1e-5 + n], TARGET, []] for n in range(25)])
    assert [batch.records.num_rows for batch in read(path, batch_rows=10)] == [10, 10, 5]


def test_the_device_is_the_target_s_model_or_asked_for(tmp_path: Path) -> None:
    named = old_pair(tmp_path, [[TRACE, [1e-5], {**TARGET, "model": "m1"}, []]])
    assert read(named, None)[0].records.column("hardware").to_pylist() == ["m1"]
    nameless = old_pair(tmp_path, [[TRACE, [1e-5], TARGET, []]])
    with pytest.raises(RecordError, match="hardware=<name>"):
        read(nameless, None)


def test_the_workloads_stand_beside_the_records(tmp_path: Path) -> None:
    path = old_pair(tmp_path, [[TRACE, [1e-5], TARGET, []]])
    assert workload_file(path).name == "x_workload.json"
    assert is_workload_file(read_head(workload_file(path)))
    (tmp_path / "x_workload.json").rename(tmp_path / "renamed")
    assert workload_file(path).name == "renamed"
    (tmp_path / "renamed").unlink()
    with pytest.raises(RecordError, match="workload file"):
        read(path)
