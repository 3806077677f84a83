"""The MetaSchedule reader: golden files, every position of a line broken, round trips."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tencost.errors import RecordError
from tencost.records.formats.metaschedule import (
    RECORD_FILE,
    WORKLOAD_FILE,
    LoggedProgram,
    LoggedWorkload,
    Reject,
    decode_module,
    encode_module,
    read_programs,
    read_workloads,
    write_database,
)

GOLDEN = Path(__file__).parents[1] / "golden"


def golden() -> tuple[list[LoggedWorkload], list[LoggedProgram]]:
    workloads, rejects = read_workloads(GOLDEN / WORKLOAD_FILE)
    programs = list(read_programs(GOLDEN / RECORD_FILE, workloads))
    assert not rejects
    assert all(isinstance(item, LoggedProgram) for item in programs)
    return workloads, programs  # type: ignore[return-value]


WORKLOADS, PROGRAMS = golden()
TARGET = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 1, "keys": ["cpu"], "tag": ""}
GOOD: list[Any] = [
    0,
    [
        [[["GetSBlock", [], ["C", "main"], ["b0"]], ["V", ["b0"], [], ["v1"]]], [[1, 3]]],
        [1e-6],
        {"kind": "llvm"},
        [["TENSOR", "float32", [16, 16]]],
    ],
]


def test_golden_files() -> None:
    (workload,) = WORKLOADS
    assert workload.shash == "16456960384856554100"
    assert json.loads(workload.mod_json)["metadata"] == {"tvm_version": "0.27.0.post1"}
    assert [item.run_secs for item in PROGRAMS] == [[2e-6, 3e-6, 2.5e-6], [1e10], None]
    assert [item.line for item in PROGRAMS] == [1, 2, 3]
    assert all(item.target == TARGET and item.workload is workload for item in PROGRAMS)
    assert all(item.args_info == [["TENSOR", "float32", [16, 16]]] * 3 for item in PROGRAMS)
    assert PROGRAMS[0].trace[0][0] == ["GetSBlock", [], ["C", "main"], ["b0"]]
    assert PROGRAMS[0].trace[1] == [[4, [1, 1, 2, 8]], [6, [4, 2, 2, 1]], [8, [2, 8]], [15, 2]]


def read_line(tmp_path: Path, line: str) -> LoggedProgram | Reject:
    """Read a record line that stands between two good ones; those must survive."""
    path = tmp_path / RECORD_FILE
    good = json.dumps(GOOD)
    path.write_text(f"{good}\n{line}\n{good}\n")
    first, middle, last = read_programs(path, WORKLOADS)
    assert isinstance(first, LoggedProgram)
    assert isinstance(last, LoggedProgram)
    assert last.line == 3
    return middle


def replaced(value: Any, path: tuple[int, ...], new: Any) -> Any:
    if not path:
        return new
    copied = list(value)
    copied[path[0]] = replaced(copied[path[0]], path[1:], new)
    return copied


@pytest.mark.parametrize(
    ("path", "new", "reason"),
    [
        ((), {}, r"expected \[workload_index, record\]"),
        ((), [0], r"expected \[workload_index, record\]"),
        ((0,), 1, "expected a workload index below 1, found 1"),
        ((0,), -1, "expected a workload index"),
        ((0,), "0", "expected a workload index"),
        ((0,), True, "expected a workload index"),
        ((0,), 0.0, "expected a workload index"),
        ((1,), [], r"expected \[trace, run_secs, target, args_info\]"),
        ((1,), None, r"expected \[trace, run_secs, target, args_info\]"),
        ((1, 0), None, "expected a trace"),
        ((1, 0), [[]], "expected a trace"),
        ((1, 0, 0), {}, "expected a trace"),
        ((1, 0, 0, 0), 3, "expected instruction 0"),
        ((1, 0, 0, 0), ["GetSBlock", [], []], "expected instruction 0"),
        ((1, 0, 0, 1, 0), 7, "expected instruction 1"),
        ((1, 0, 0, 1, 1), "b0", "expected instruction 1"),
        ((1, 0, 0, 1, 2), None, "expected instruction 1"),
        ((1, 0, 0, 1, 3), {}, "expected instruction 1"),
        ((1, 0, 1), 3, "expected a trace"),
        ((1, 0, 1, 0), [2, 3], "expected decision 0 .* below 2"),
        ((1, 0, 1, 0), ["1", 3], "expected decision 0"),
        ((1, 0, 1, 0), [1], "expected decision 0"),
        ((1, 1), "fast", "expected run_secs"),
        ((1, 1), 1.0, "expected run_secs"),
        ((1, 1), ["fast"], "expected run_secs"),
        ((1, 1), [True], "expected run_secs"),
        ((1, 2), None, "expected a target"),
        ((1, 2), "llvm", "expected a target"),
        ((1, 2), {"mcpu": "x"}, "expected a target"),
        ((1, 3), None, "expected args_info"),
        ((1, 3), {}, "expected args_info"),
    ],
)
def test_every_position_of_a_record(
    tmp_path: Path, path: tuple[int, ...], new: Any, reason: str
) -> None:
    found = read_line(tmp_path, json.dumps(replaced(GOOD, path, new)))
    assert isinstance(found, Reject)
    assert found.line == 2
    assert found.file == str(tmp_path / RECORD_FILE)
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found.reason)


@given(st.integers(1, len(json.dumps(GOOD)) - 1))
def test_a_line_cut_anywhere_is_a_reject(tmp_path_factory: Any, length: int) -> None:
    tmp_path = tmp_path_factory.mktemp("cut")
    assert isinstance(read_line(tmp_path, json.dumps(GOOD)[:length]), Reject)


@pytest.mark.parametrize("line", ["", "   ", "[" * 100_000, "\x00", "{'a': 1}"])
def test_lines_that_are_no_json(tmp_path: Path, line: str) -> None:
    found = read_line(tmp_path, line)
    assert isinstance(found, Reject)
    assert ("blank" in found.reason) == (not line.strip())


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / RECORD_FILE
    path.write_bytes(b"\xff\xfe\n" + json.dumps(GOOD).encode())
    bad, good = read_programs(path, WORKLOADS)
    assert isinstance(bad, Reject)
    assert isinstance(good, LoggedProgram)


@pytest.mark.parametrize(
    "times", ["null", "[10000000000]", "[0.0]", "[NaN]", "[Infinity]", "[1e9]", "[]"]
)
def test_sentinels_are_read_and_left_to_the_status(tmp_path: Path, times: str) -> None:
    line = json.dumps(GOOD).replace("[1e-06]", times)
    assert times in line
    assert isinstance(read_line(tmp_path, line), LoggedProgram)


def test_blank_lines_at_the_end_are_nothing(tmp_path: Path) -> None:
    path = tmp_path / RECORD_FILE
    path.write_text(json.dumps(GOOD) + "\n\n  \n")
    assert len(list(read_programs(path, WORKLOADS))) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "blank line"),
        ("[", "not a line of JSON"),
        ("{}", r"expected \[shash, module\]"),
        ('["1"]', r"expected \[shash, module\]"),
        ('[1, "eA=="]', "expected a hash of decimal digits"),
        ('["x", "eA=="]', "expected a hash of decimal digits"),
        ('["1", 3]', "expected a base64 module"),
        ('["1", "&&"]', "expected a base64 module"),
        ('["1", "eA=="]', "truncated"),
        (json.dumps(["1", encode_module("{}")]), "expected a module as tvm-ffi's JSON graph"),
        (json.dumps(["1", WORKLOADS[0].shash]), "expected a"),
    ],
)
def test_every_position_of_a_workload(tmp_path: Path, line: str, reason: str) -> None:
    good = (GOLDEN / WORKLOAD_FILE).read_text()
    (tmp_path / WORKLOAD_FILE).write_text(f"{line}\n{good}")
    workloads, rejects = read_workloads(tmp_path / WORKLOAD_FILE)
    assert workloads == [None, WORKLOADS[0]]
    assert [item.line for item in rejects] == [1]
    with pytest.raises(ValueError, match=reason):
        raise ValueError(rejects[0].reason)
    path = tmp_path / RECORD_FILE
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps([1, GOOD[1]]) + "\n")
    lost, kept = read_programs(path, workloads)
    assert isinstance(lost, Reject)
    assert "cannot be read" in lost.reason
    assert isinstance(kept, LoggedProgram)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="expected a MetaSchedule database file"):
        read_workloads(tmp_path / "none")
    with pytest.raises(RecordError, match="expected a MetaSchedule database file"):
        list(read_programs(tmp_path / "none", []))


@given(st.text())
def test_module_round_trip(text: str) -> None:
    assert decode_module(encode_module(text)) == text


def test_a_truncated_module_is_refused() -> None:
    whole = encode_module("x" * 90)
    with pytest.raises(ValueError, match="truncated"):
        decode_module(whole[:-16])
    with pytest.raises(ValueError, match="truncated"):
        decode_module(base64.b64encode(b"abc").decode())


def test_round_trip_keeps_everything(tmp_path: Path) -> None:
    write_database(tmp_path, WORKLOADS, PROGRAMS)
    assert (tmp_path / WORKLOAD_FILE).read_text() == (GOLDEN / WORKLOAD_FILE).read_text()
    workloads, rejects = read_workloads(tmp_path / WORKLOAD_FILE)
    assert workloads == WORKLOADS
    assert not rejects
    assert list(read_programs(tmp_path / RECORD_FILE, workloads)) == PROGRAMS


def test_a_program_needs_its_workload(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="expected every program's workload"):
        write_database(tmp_path, [], PROGRAMS)


@pytest.mark.tvm
def test_stock_tvm_loads_what_we_write(tmp_path: Path) -> None:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    write_database(tmp_path, WORKLOADS, PROGRAMS)
    database = ms.database.JSONDatabase(
        str(tmp_path / WORKLOAD_FILE), str(tmp_path / RECORD_FILE), allow_missing=False
    )
    module = tvm.ir.load_json(WORKLOADS[0].mod_json)
    assert database.has_workload(module)
    best = database.query_tuning_record(module, tvm.target.Target(TARGET), "main")
    assert [float(value) for value in best.run_secs] == PROGRAMS[0].run_secs
    assert len(database) == len(PROGRAMS)
